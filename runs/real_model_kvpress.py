"""What kvpress answers to the prompts of a run on the real model, token for token the same, with the model read by transformers.

    cargo run --release --bin briquette -- run runs/real-model-kvpress.toml --prompts out/prompts.jsonl
    python runs/real_model_kvpress.py out/prompts.jsonl out/kvpress.jsonl

Python and packages as in tests/goldens/requirements.txt. A line of JSON for each press, budget, sample and place of the question; what is
there already is not measured again. The answer is scored as RULER does: the share of the right answers that it contains.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "goldens"))

import gguf  # noqa: E402
import torch  # noqa: E402
from gguf_files import tokenizer  # noqa: E402
from kvpress import (  # noqa: E402
    AdaKVPress,
    ChunkKVPress,
    CompactorPress,
    CURPress,
    ExpectedAttentionPress,
    FinchPress,
    KeyDiffPress,
    KnormPress,
    KVzipPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    ObservedAttentionPress,
    PyramidKVPress,
    RandomPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)
from kvpress.utils import get_prerope_query_states  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache  # noqa: E402
from transformers.models.llama.modeling_llama import rotate_half  # noqa: E402

MODEL = REPOSITORY / "models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"


def finch():
    """FINCH, told that the question is as long as this project's default."""
    press = FinchPress()
    press.window_size = 32
    return press


# Methods that this project has too, with the same windows and kernels.
PRESSES = {
    "streaming-llm": lambda: StreamingLLMPress(),
    "tova": lambda: TOVAPress(),
    "snapkv:kernel=15": lambda: SnapKVPress(window_size=32, kernel_size=15),
    "adakv:kernel=15": lambda: AdaKVPress(SnapKVPress(window_size=32, kernel_size=15)),
    "pyramidkv:kernel=15": lambda: PyramidKVPress(window_size=32, kernel_size=15),
    "keydiff": lambda: KeyDiffPress(),
    "random": lambda: RandomPress(seed=0),
    "knorm": lambda: KnormPress(),
    "lagkv": lambda: LagKVPress(),
    "curdkv": lambda: CURPress(),
    "leverage": lambda: LeverageScorePress(),
    "non-causal": lambda: NonCausalAttnPress(),
    "compactor": lambda: CompactorPress(),
    "chunkkv:kernel=15": lambda: ChunkKVPress(SnapKVPress(window_size=32, kernel_size=15)),
    "expected-attention": lambda: ExpectedAttentionPress(),
    "expected-attention-adakv": lambda: AdaKVPress(ExpectedAttentionPress(epsilon=1e-2)),
    "keydiff-adakv": lambda: AdaKVPress(KeyDiffPress()),
    "finch": finch,
    "kvzip": lambda: KVzipPress(),
    "kvzip-plus": lambda: KVzipPress(kvzip_plus_normalization=True),
    "observed-attention": lambda: ObservedAttentionPress(),
}


def press_of(name, kept):
    press = PRESSES[name]()
    inner = getattr(press, "press", press)
    inner.compression_ratio = 1 - kept
    return press


class Prompt:
    """What a prompt leaves in every layer, which presses look at: the forward pass is the same under all of them, so one does."""

    @torch.no_grad()
    def __init__(self, model, tokens):
        self.model, self.tokens, self.layers = model, tokens, []
        attention = [layer.self_attn for layer in model.model.layers]
        for module in attention:
            module.rotary_emb = model.model.rotary_emb
        hooks = [module.register_forward_hook(self.note, with_kwargs=True) for module in attention]
        self.cache = DynamicCache()
        self.logits = forward(model, tokens, self.cache, 0)
        for hook in hooks:
            hook.remove()

    def note(self, module, _inputs, kwargs, _output):
        self.layers.append((module, kwargs))

    @torch.no_grad()
    def repeated(self, press, text):
        """A cache as KVzip leaves it, which repeats the prompt behind a line break, as this project does."""
        press.post_init_from_model(self.model)
        for module, _ in self.layers:
            module.masked_key_indices = None
        press._cache = copy.deepcopy(self.cache)
        press._context_ids = torch.tensor([self.tokens], device=self.model.device)
        tokens = Tokens(text)
        press._suffix_ids = tokens.encode("\n")
        press._perform_kvzip_compression(self.model, tokens)
        return press._cache

    @torch.no_grad()
    def compressed(self, press, text):
        """A cache as the press leaves it."""
        if isinstance(press, KVzipPress):
            return self.repeated(press, text)
        press.post_init_from_model(self.model)
        cache = DynamicCache()
        for (module, kwargs), layer in zip(self.layers, self.cache.layers):
            # Where AdaKV notes what it leaves out.
            module.masked_key_indices = None
            keys, values = layer.keys.clone(), layer.values.clone()
            weights = self.weights(module, kwargs) if isinstance(press, ObservedAttentionPress) else None
            keys, values = press.compress(module, kwargs["hidden_states"], keys, values, weights, kwargs)
            cache.update(keys, values, module.layer_idx)
        return cache

    def weights(self, module, kwargs):
        """The attention weights of a layer, `[1, heads, tokens, tokens]`, as transformers' eager attention has them."""
        queries = apply_rotary(get_prerope_query_states(module, kwargs["hidden_states"]), *kwargs["position_embeddings"])
        keys = self.cache.layers[module.layer_idx].keys.repeat_interleave(module.num_key_value_groups, dim=1)
        scores = queries @ keys.mT * module.scaling
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill_(later, float("-inf")).softmax(-1)

    def full(self):
        for module, _ in self.layers:
            module.masked_key_indices = None
        return copy.deepcopy(self.cache)


class Tokens:
    """The tokenizer, called as KVzip calls that of transformers."""

    def __init__(self, text):
        self.text = text

    def encode(self, words, **_):
        return torch.tensor([self.text.encode(words, add_special_tokens=False).ids])


def apply_rotary(queries, cos, sin):
    return queries * cos.unsqueeze(1) + rotate_half(queries) * sin.unsqueeze(1)


def forward(model, tokens, cache, start):
    positions = torch.arange(start, start + len(tokens), device=model.device)[None]
    return model(torch.tensor([tokens], device=model.device), past_key_values=cache, position_ids=positions, logits_to_keep=1).logits


@torch.no_grad()
def answer(prompt, cache, seen, question, most, end):
    """The tokens of the answer, greedily. The question comes behind the prompt, unless it was part of it; the next position is `seen`."""
    logits, said = prompt.logits, []
    if question:
        logits = forward(prompt.model, question, cache, seen)
        seen += len(question)
    while len(said) < most:
        token = int(logits[0, -1].argmax())
        if token == end:
            break
        said.append(token)
        logits = forward(prompt.model, [token], cache, seen)
        seen += 1
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.1, 0.25, 0.5])
    parser.add_argument("--presses", nargs="*", default=list(PRESSES))
    parser.add_argument("--ask", nargs="*", default=["before", "after"])
    parser.add_argument("--samples", type=int, help="of each task; default all")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    lacking = [name for name in args.presses if name not in PRESSES]
    if lacking:
        parser.error(f"kvpress has no press for {', '.join(lacking)}; it has them for {', '.join(PRESSES)}")

    reader = gguf.GGUFReader(MODEL)
    text = tokenizer(reader)
    end = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    model = AutoModelForCausalLM.from_pretrained(MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32).to(args.device)
    model.set_attn_implementation("sdpa")
    known = set()
    if args.out.exists():
        known = {tuple(json.loads(line)[k] for k in ["task", "sample", "policy", "budget", "ask"])
                 for line in args.out.read_text().splitlines()}
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    taken = {}
    with args.out.open("a") as out:
        for prompt in prompts:
            taken[prompt["task"]] = taken.get(prompt["task"], 0) + 1
            if args.samples and taken[prompt["task"]] > args.samples:
                continue
            [turn] = prompt["turns"]
            for ask in args.ask:
                # FINCH looks at the end of the prompt, which is the question or nothing.
                presses = [name for name in args.presses if name != "finch" or ask == "before"]
                cells = [(name, kept) for name in presses for kept in args.budgets]
                # With everything kept both are one.
                cells += [("full", 1.0)] if ask == "before" else []
                keys = {cell: (prompt["task"], prompt["sample"], *cell, ask) for cell in cells}
                cells = [cell for cell in cells if keys[cell] not in known]
                if not cells:
                    continue
                first, question = prompt["context"], turn["question"]
                if ask == "before":
                    first, question = first + question, []
                read = Prompt(model, first)
                for name, kept in cells:
                    cache = read.full() if name == "full" else read.compressed(press_of(name, kept), text)
                    # FINCH counts positions anew.
                    seen = cache.get_seq_length() if name == "finch" else len(read.tokens)
                    said = text.decode(answer(read, cache, seen, question, turn["max_new_tokens"], end))
                    right = turn["references"]
                    score = sum(one.lower() in said.lower() for one in right) / len(right)
                    line = dict(zip(["task", "sample", "policy", "budget", "ask"], keys[name, kept]))
                    line |= dict(score=score, said=said, right=right)
                    print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    main()
