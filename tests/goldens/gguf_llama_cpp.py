"""What llama.cpp makes of small GGUF files: the tokens of texts by tokenizers of SentencePiece, and greedy text of a random model
of each family. Fields are described in README.md.

    pip install gguf==0.19.0 sentencepiece==0.2.3 llama-cpp-python==0.3.36
    python gguf_llama_cpp.py
"""

import io
import json
import math
import random
import tempfile
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
from llama_cpp import Llama

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / "crates/briquette-models/tests/fixtures/gguf"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


# --- tokenizers ---


def vocabulary():
    """Tokens, scores and types: learned from prose, and those that files have beside them."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((HERE / "prose.txt").read_text().splitlines()), model_writer=model, model_type="bpe",
        vocab_size=360, byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2, user_defined_symbols=["<|turn|>"],
    )
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [(made.id_to_piece(i), float(made.get_score(i)), kind(made, i)) for i in range(made.vocab_size())]
    # Runs of one character, whose pairs make the same token in several ways.
    runs = ["▁▁", "▁▁▁▁", "▁▁▁", "aa", "aaa", "aaaa", "--", "---", "----"]
    tokens += [(run, -1000.0 - place, NORMAL) for place, run in enumerate(runs)]
    tokens += [("-", -2000.0, NORMAL), ("\n", -2001.0, NORMAL)]
    tokens += [("x  x", 0.0, USER_DEFINED), ("<unused0>", 0.0, UNUSED)]
    tokens += [("<|end|>", 0.0, CONTROL), ("<|endoftext|>", 0.0, CONTROL)]
    tokens += [(f"[PAD{i}]", -1e4, UNUSED) for i in range(len(tokens), 384)]
    return tokens


def kind(made, i):
    if made.is_unknown(i):
        return UNKNOWN
    if made.is_control(i):
        return CONTROL
    if made.is_byte(i):
        return BYTE
    return USER_DEFINED if made.id_to_piece(i) == "<|turn|>" else NORMAL


def add_tokenizer(writer, **keys):
    names, scores, kinds = zip(*vocabulary())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


TEXTS = [
    "", " ", "  ", "The gardener wrote 1234 words on 5 pages, didn't she?", "  two spaces,\n\na line\tand a tab;   three",
    "Größe, naïve café — 東京 и Москва 🙂!", "<s>one</s> two<|turn|>three <unk> four<|end|>\n", "x  xy    x", "<0x41><unused0>▁a▁",
    "fn main() {\n        println!(\"aaaaaaa ------- \");\n}\n", "١٢٣ ½ Ⅷ x² + y³", "\u0000\u007f\u0085\ufeff",
]


def texts():
    """Those, and texts of pieces in a random order."""
    pieces = list("abcdeth   \n\t--aaa") + [" the", " and", "<s>", "</s>", "<|turn|>", "é", "東", "🙂", "x  x", "<0x41>", "▁", "  "]
    draw = random.Random(65)
    return TEXTS + ["".join(draw.choices(pieces, k=draw.randint(5, 40))) for _ in range(60)]


# A file that says nothing but its tokens; one as Gemma's; one as Phi-3's, whose special tokens take the spaces behind them.
TOKENIZERS = {
    "sentencepiece": {},
    "sentencepiece-bare": dict(add_space_prefix=False, bos_token_id=1, eos_token_id=2, unk_token_id=0, add_bos_token=True),
    "sentencepiece-phi3": dict(name="A Phi-3", add_bos_token=False),
}


def tokenizers():
    found = {}
    for name, keys in TOKENIZERS.items():
        path = OUT / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        add_tokenizer(writer, **keys)
        finish(writer)
        model = Llama(str(path), vocab_only=True, verbose=False)
        found[name] = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts()]
    return dict(texts=texts(), tokens=found)


def byte_pairs():
    """The vocabulary that gguf_files.py wrote, cut as gpt-oss cuts texts."""
    rule = {"tokenizer.ggml.pre": "gpt-4o"}
    model = Llama(str(OUT / "vocabulary.gguf"), vocab_only=True, verbose=False, kv_overrides=rule)
    tokens = [model.tokenize(text.encode(), add_bos=True, special=True) for text in CASES]
    return dict(texts=CASES, tokens=tokens)


# Capitals, contractions, digits, paths and ends of lines.
CASES = [
    "", "HTTPServer getURL iPhone McDonald XMLHttpRequest2Stream", "She's they'RE I'd WE'LL don't O'Brien rock'n'roll",
    "1234567 12 3 4.5e-10 v2.0", "a/b//c /usr/bin/\n//\n\n next", "  spaces\t\ttabs\n\n  \nend  ", "fn main() { println!(\"{}\", 0x1F); }",
    "größe naïve café", "東京 и москва 🙂!", "<|begin_of_text|>one\r\ntwo<|end_of_text|>", "SHOUTING and Whispering, McGee's",
]


# --- models ---

CONTEXT = 256
GREEDY = 40
# Tried; the one whose answer hangs least on rounding is taken.
PROMPTS = [" ".join(sentence.split()[:8]) for sentence in (HERE / "prose.txt").read_text().split(". ")]


class Random:
    """Random weights of a model, by the names of a file."""

    def __init__(self, path, family, layers, hidden=32, heads=2, kv_heads=1, head_dim=16, inner=16, context=CONTEXT, half=False):
        self.writer = gguf.GGUFWriter(path, family)
        self.path, self.layers, self.hidden, self.inner, self.half = path, layers, hidden, inner, half
        self.queries, self.keys = heads * head_dim, kv_heads * head_dim
        self.draw = np.random.default_rng(65)
        self.writer.add_context_length(context)
        self.writer.add_embedding_length(hidden)
        self.writer.add_block_count(layers)
        self.writer.add_feed_forward_length(inner)
        self.writer.add_head_count(heads)
        self.writer.add_head_count_kv(kv_heads)
        self.writer.add_layer_norm_rms_eps(1e-5)
        add_tokenizer(self.writer)

    def matrix(self, name, *shape, size=1.0):
        """Rows of a unit's length; F32, or F16 of numbers that it has exactly."""
        numbers = self.draw.normal(0, size / math.sqrt(shape[-1]), shape).astype(np.float16)
        self.writer.add_tensor(f"{name}.weight", numbers if self.half else numbers.astype(np.float32))

    def norm(self, name, width, mean=1.0):
        self.writer.add_tensor(f"{name}.weight", self.draw.normal(mean, 0.2, width).astype(np.float32))

    def embeddings(self, head=True):
        # Answers are of words: tokens that are none have small logits.
        words = np.array([1 if kind in (NORMAL, USER_DEFINED) else 0.1 for _, _, kind in vocabulary()])
        rows = lambda: self.draw.normal(0, 1, (len(words), self.hidden)) * words[:, None]
        numbers = rows().astype(np.float16)
        self.writer.add_tensor("token_embd.weight", numbers if head else numbers.astype(np.float32) / 8)
        self.norm("output_norm", self.hidden)
        if head:
            self.writer.add_tensor("output.weight", rows().astype(np.float32))

    def attention(self, layer, after="ffn_norm"):
        at = f"blk.{layer}"
        self.norm(f"{at}.attn_norm", self.hidden)
        self.matrix(f"{at}.attn_q", self.queries, self.hidden, size=2)
        self.matrix(f"{at}.attn_k", self.keys, self.hidden, size=2)
        self.matrix(f"{at}.attn_v", self.keys, self.hidden, size=2)
        self.matrix(f"{at}.attn_output", self.hidden, self.queries, size=2)
        self.norm(f"{at}.{after}", self.hidden)

    def feed_forward(self, layer, experts=()):
        at, kind = f"blk.{layer}", "_exps" if experts else ""
        for part, shape in dict(gate=(self.inner, self.hidden), up=(self.inner, self.hidden), down=(self.hidden, self.inner)).items():
            self.matrix(f"{at}.ffn_{part}{kind}", *experts, *shape, size=2)
        if experts:
            self.matrix(f"{at}.ffn_gate_inp", *experts, self.hidden, size=4)


def mixtral(path):
    """Llama with experts; neighbouring channels are rotated."""
    model = Random(path, "llama", 2)
    model.writer.add_expert_count(3)
    model.writer.add_expert_used_count(2)
    model.embeddings()
    for layer in range(2):
        model.attention(layer)
        model.feed_forward(layer, experts=(3,))
    return model


def qwen3moe(path):
    model = Random(path, "qwen3moe", 2, head_dim=8)
    model.writer.add_key_length(8)
    model.writer.add_value_length(8)
    model.writer.add_rope_freq_base(1e6)
    model.writer.add_expert_count(4)
    model.writer.add_expert_used_count(2)
    model.writer.add_expert_feed_forward_length(16)
    model.embeddings()
    for layer in range(2):
        model.attention(layer)
        model.norm(f"blk.{layer}.attn_q_norm", 8)
        model.norm(f"blk.{layer}.attn_k_norm", 8)
        model.feed_forward(layer, experts=(4,))
    return model


def phi3(path):
    """Fused projections, frequencies that depend on the context, and 12 of 16 channels rotated."""
    model = Random(path, "phi3", 2, context=4 * CONTEXT)
    model.writer.add_rope_scaling_orig_ctx_len(CONTEXT)
    model.writer.add_rope_dimension_count(12)
    model.writer.add_rope_freq_base(10_000.0)
    model.writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(4) / math.log(CONTEXT)))
    model.writer.add_sliding_window(0)
    model.writer.add_tensor("rope_factors_short.weight", np.linspace(1, 1.5, 6, dtype=np.float32))
    model.writer.add_tensor("rope_factors_long.weight", np.linspace(1.5, 6, 6, dtype=np.float32))
    model.embeddings()
    for layer in range(2):
        at = f"blk.{layer}"
        model.norm(f"{at}.attn_norm", 32)
        model.matrix(f"{at}.attn_qkv", model.queries + 2 * model.keys, 32, size=2)
        model.matrix(f"{at}.attn_output", 32, model.queries, size=2)
        model.norm(f"{at}.ffn_norm", 32)
        model.matrix(f"{at}.ffn_up", 32, 32, size=2)
        model.matrix(f"{at}.ffn_down", 32, 16, size=2)
    return model


def gemma(path, family, layers, **kwargs):
    model = Random(path, family, layers, **kwargs)
    model.writer.add_key_length(16)
    model.writer.add_value_length(16)
    model.writer.add_sliding_window(128)
    model.embeddings(head=False)
    for layer in range(layers):
        model.attention(layer)
        model.feed_forward(layer)
        model.norm(f"blk.{layer}.post_attention_norm", 32, mean=2)
        model.norm(f"blk.{layer}.post_ffw_norm", 32, mean=2)
    return model


def gemma2(path):
    """Caps and the pattern of the windows are left to their defaults."""
    return gemma(path, "gemma2", 3, heads=4)


def gemma3(path):
    """Of seven layers one sees the whole text."""
    model = gemma(path, "gemma3", 7, half=True)
    model.writer.add_rope_freq_base(1e6)
    model.writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    model.writer.add_rope_scaling_factor(2.0)
    for layer in range(7):
        model.norm(f"blk.{layer}.attn_q_norm", 16)
        model.norm(f"blk.{layer}.attn_k_norm", 16)
    return model


def gpt_oss(path, expanded=False):
    """Sinks, biases and experts in MXFP4, or the numbers of these."""
    model = Random(path, "gpt-oss", 3, heads=4, kv_heads=2, inner=32)
    writer, experts = model.writer, 4
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_freq_base(150_000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(CONTEXT // 4)
    writer.add_sliding_window(16)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(32)
    bias = lambda name, *shape: writer.add_tensor(f"{name}.bias", model.draw.normal(0, 0.2, shape).astype(np.float32))
    kind = gguf.GGMLQuantizationType.MXFP4
    model.embeddings()
    for layer in range(3):
        at = f"blk.{layer}"
        model.attention(layer, after="post_attention_norm")
        for part, width in dict(q=model.queries, k=model.keys, v=model.keys, output=model.hidden).items():
            bias(f"{at}.attn_{part}", width)
        writer.add_tensor(f"{at}.attn_sinks.weight", model.draw.normal(1, 1, 4).astype(np.float32))
        model.matrix(f"{at}.ffn_gate_inp", experts, model.hidden, size=4)
        bias(f"{at}.ffn_gate_inp", experts)
        for part in ["gate", "up", "down"]:
            numbers = model.draw.normal(0, 2 / math.sqrt(32), (experts, 32, 32)).astype(np.float32)
            blocks, name = gguf.quants.quantize(numbers, kind), f"{at}.ffn_{part}_exps.weight"
            if expanded:
                writer.add_tensor(name, gguf.quants.dequantize(blocks, kind).astype(np.float32))
            else:
                writer.add_tensor(name, blocks, raw_dtype=kind)
            bias(f"{at}.ffn_{part}_exps", experts, 32)
    return model


def greedy(path, context):
    """The answer whose smallest gap between the best and the second logit is the widest, of those that end nothing and are no loop."""
    return max(answers(path, context), key=lambda one: one["smallest_gap"])


def greedy_expanded(path, make):
    """That of the same weights in F32: with blocks llama.cpp multiplies rounded activations. The file answers with the same tokens."""
    with tempfile.TemporaryDirectory() as folder:
        expanded = Path(folder) / "expanded.gguf"
        finish(make(expanded, expanded=True).writer)
        pairs = zip(answers(expanded, CONTEXT), answers(path, CONTEXT))
    return max((one for one, other in pairs if one["greedy"] == other["greedy"]), key=lambda one: one["smallest_gap"])


def answers(path, context):
    model = Llama(str(path), n_ctx=context, logits_all=True, type_k=0, type_v=0, n_threads=1, n_threads_batch=1, verbose=False)
    return [answer(model, prompt) for prompt in PROMPTS]


def answer(model, prompt):
    tokens = model.tokenize(prompt.encode(), add_bos=True, special=True)
    model.reset()
    model.eval(tokens)
    logits, gap, added = model.scores[model.n_tokens - 1].copy(), math.inf, []
    for _ in range(GREEDY):
        row = model.scores[model.n_tokens - 1]
        second, best = np.sort(row)[-2:]
        gap = min(gap, float(best - second))
        added.append(int(row.argmax()))
        model.eval(added[-1:])
    # As the end of a text that begins with its token: the first space stays.
    text = model.detokenize(added).decode(errors="replace")
    ends = any(model._model.token_get_attr(token) & 8 for token in added)
    return dict(
        prompt=prompt, tokens=tokens, logits=[float(logit) for logit in logits[::16]], greedy=added, text=text,
        smallest_gap=-math.inf if ends or len(set(added)) < GREEDY // 4 else gap,
    )


FAMILIES = dict(mixtral=mixtral, qwen3moe=qwen3moe, phi3=phi3, gemma2=gemma2, gemma3=gemma3)


def families():
    found = {}
    for name, make in FAMILIES.items():
        path = OUT / f"tiny-{name}.gguf"
        finish(make(path).writer)
        found[name] = greedy(path, CONTEXT)
        print(name, path.stat().st_size, found[name]["smallest_gap"], ascii(found[name]["text"]))
    found["phi3-long"] = greedy(OUT / "tiny-phi3.gguf", 2 * CONTEXT)
    print("phi3-long", found["phi3-long"]["smallest_gap"])
    path = OUT / "tiny-gpt-oss.gguf"
    finish(gpt_oss(path).writer)
    found["gpt-oss"] = greedy_expanded(path, gpt_oss)
    print("gpt-oss", path.stat().st_size, found["gpt-oss"]["smallest_gap"], ascii(found["gpt-oss"]["text"]))
    return found


def main():
    made = {package: version(package) for package in ["gguf", "sentencepiece", "llama_cpp_python", "numpy"]}
    for name, expected in {"sentencepiece": tokenizers(), "byte-pairs": byte_pairs(), "families": families()}.items():
        (OUT / f"{name}.json").write_text(json.dumps(dict(versions=made, **expected), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
