"""Write the fixtures that pin this project to other implementations.

    python generate.py [--model DIR] [--out DIR]

- `ember_logits.json`: logits of the embedded model as `transformers` computes them.
- `kvpress.json`: the tokens that kvpress's presses keep of a prompt, and the logits of the next token after that.

Everything runs in f32 on the CPU, one thread, one seed. README.md beside this file describes the fields.
"""

from dataclasses import dataclass

import torch
from kvpress import KeyRerotationPress, ObservedAttentionPress, SnapKVPress, StreamingLLMPress, TOVAPress
from transformers import DynamicCache

from common import (
    CANDIDATES,
    DECIMALS,
    arguments,
    forward,
    load,
    needle_prompt,
    prose_of,
    relative_gap,
    rounded,
    versions,
    write,
)

GREEDY_TOKENS = 16
RATIOS = [0.5, 0.8]  # the part of the prompt that kvpress removes
LENGTHS = [203, 603]  # prompts, in tokens, about


@dataclass(frozen=True)
class Method:
    """A press and the parameters that the fixture names."""

    name: str
    press: type
    params: tuple = ()
    key_rotation: bool = False

    def build(self, ratio):
        """The press, and the part of it that scores."""
        scorer = self.press(compression_ratio=ratio, **dict(self.params))
        return (KeyRerotationPress(scorer) if self.key_rotation else scorer), scorer


METHODS = [
    Method("snapkv", SnapKVPress, (("window_size", 32), ("kernel_size", 5))),
    Method("snapkv", SnapKVPress, (("window_size", 16), ("kernel_size", 7))),
    Method("streaming_llm", StreamingLLMPress, (("n_sink", 4),)),
    Method("streaming_llm", StreamingLLMPress, (("n_sink", 4),), key_rotation=True),
    Method("tova", TOVAPress),
    Method("observed_attention", ObservedAttentionPress),
]


# --- transformers ---


def logits_fixture(model, tokenizer):
    """Prompts, their last logits, and what greedy decoding says next; it does not stop at the end token."""
    texts = [
        "The river was high, and the old bridge could not be crossed.",
        needle_prompt(tokenizer, 300, 0),
        needle_prompt(tokenizer, 1000, 1),
        prose_of(tokenizer, 160, 12).strip(),
    ]
    prompts = []
    for text in texts:
        tokens = tokenizer.encode(text).ids
        cache = DynamicCache()
        logits = forward(model, tokens, 0, cache)[-1]
        entry = {"text": text, "tokens": tokens, "last_logits": rounded(logits), "argmax_next": []}
        gap = float("inf")
        for step in range(GREEDY_TOKENS):
            best, second = logits.topk(2).values.tolist()
            gap = min(gap, best - second)
            entry["argmax_next"].append(logits.argmax().item())
            logits = forward(model, entry["argmax_next"][-1:], len(tokens) + step, cache)[-1]
        entry["argmax_gap"] = round(gap, DECIMALS)
        prompts.append(entry)
        said = tokenizer.decode(entry["argmax_next"], skip_special_tokens=False)
        print(f"logits: {len(tokens)} tokens, smallest gap of an argmax {gap:.4f}, goes on with {said!r}")
    return {"model": "ember-7m", "versions": versions("torch", "transformers"), "prompts": prompts}


# --- kvpress ---


def press_prompt(model, method, ratio, tokens):
    """Prefill under a press: the cache it leaves, its scores a layer [kv_heads, tokens], the prompt's last logits."""
    press, scorer = method.build(ratio)
    score, scores = scorer.score, []

    def recording_score(*args, **kwargs):
        scores.append(score(*args, **kwargs))
        return scores[-1]

    scorer.score = recording_score
    cache = DynamicCache()
    with press(model):
        logits = forward(model, tokens, 0, cache)[-1]
    return cache, [layer[0] for layer in scores], logits


def margin_of(scores, kept):
    """The smallest relative gap between the last score kept and the first one dropped, over layers and heads."""
    gaps = []
    for layer in scores:
        ordered = layer.sort(-1, descending=True).values
        gaps.append(relative_gap(ordered[:, kept - 1], ordered[:, kept]))
    return min(gaps)


def kept_by(model, method, cache, scores, kept, tokens):
    """The positions kept, [layer][kv_head][ascending], proven to be what the cache holds."""
    full = DynamicCache()
    forward(model, tokens, 0, full)
    positions = []
    for layer, layer_scores in enumerate(scores):
        order = layer_scores.topk(kept, -1).indices  # as ScorerPress.compress does
        if method.key_rotation:
            order = order.sort(-1).values
        index = order[None, :, :, None].expand(-1, -1, -1, model.config.head_dim)
        held, whole = cache.layers[layer], full.layers[layer]
        assert torch.equal(held.values, whole.values.gather(2, index)), "the cache does not hold the tokens the scores name"
        assert method.key_rotation or torch.equal(held.keys, whole.keys.gather(2, index))
        positions.append(order.sort(-1).values.tolist())
    return positions


def press_case(model, tokenizer, method, ratio, length):
    """One entry of kvpress.json."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length, candidate)).ids
        if len(tokens) % 5 == 0:
            continue  # there, kvpress's int(tokens * (1 - 0.8)) falls one short of a fifth by rounding
        cache, scores, logits = press_prompt(model, method, ratio, tokens)
        kept = cache.layers[0].keys.shape[2]
        margin = margin_of(scores, kept)
        if best is None or margin > best[0]:
            best = (margin, tokens, cache, scores, kept, logits)
        if method.press is StreamingLLMPress:
            break  # its scores are 0 and 1: every prompt is as good
    margin, tokens, cache, scores, kept, logits = best
    positions = kept_by(model, method, cache, scores, kept, tokens)
    next_token = logits.argmax().item()
    next_position = kept if method.key_rotation else len(tokens)
    after = forward(model, [next_token], next_position, cache)[-1]
    params = {"compression_ratio": ratio, **dict(method.params)}
    if method.name == "streaming_llm":
        params["key_rotation"] = method.key_rotation
    print(f"kvpress: {method.name} {params}, {len(tokens)} tokens, {kept} kept, margin {margin:.2e}")
    return {
        "press": method.name,
        "params": params,
        "tokens": tokens,
        "n_kept": kept,
        "margin": float(f"{margin:.3g}"),
        "kept": positions,
        "next_token": next_token,
        "next_position": next_position,
        "last_logits_after": rounded(after),
    }


def kvpress_fixture(model, tokenizer):
    """Every method, ratio and length."""
    cases = [
        press_case(model, tokenizer, method, ratio, length)
        for method in METHODS
        for ratio in RATIOS
        for length in LENGTHS
    ]
    return {"versions": versions("torch", "transformers", "kvpress"), "cases": cases}


def main():
    """Generate both fixtures."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    write(args.out, "ember_logits", logits_fixture(model, tokenizer))
    write(args.out, "kvpress", kvpress_fixture(model, tokenizer))


if __name__ == "__main__":
    main()
