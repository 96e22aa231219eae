"""Write `kvpress_adakv.json`: the tokens that kvpress's AdaKVPress over SnapKVPress keeps of a prompt, head by head.

    python kvpress_adakv.py [--model DIR] [--out DIR]

kvpress keeps a rectangular cache and hides what it drops from attention. README.md beside this file describes the fields.
"""

import torch
from kvpress import AdaKVPress, SnapKVPress
from transformers import DynamicCache

from common import CANDIDATES, arguments, forward, load, needle_prompt, rounded, versions, write
from shares import adaptive

CASES = [  # about so many tokens, alpha_safeguard, SnapKVPress
    (203, 0.2, {"compression_ratio": 0.5, "window_size": 32, "kernel_size": 5}),
    (203, 0.8, {"compression_ratio": 0.5, "window_size": 16, "kernel_size": 7}),
    (603, 0.2, {"compression_ratio": 0.8, "window_size": 16, "kernel_size": 5}),
    (603, 0.9, {"compression_ratio": 0.8, "window_size": 32, "kernel_size": 7}),
]


def press_prompt(model, alpha, params, tokens):
    """Prefill under the press: the cache, the scores a layer [kv_heads, tokens], the positions hidden, the last logits."""
    snapkv, scores = SnapKVPress(**params), []
    press, score = AdaKVPress(snapkv, alpha_safeguard=alpha), snapkv.score

    def recording_score(*args, **kwargs):
        scores.append(score(*args, **kwargs))
        return scores[-1].clone()  # AdaKVPress writes into it

    snapkv.score = recording_score
    cache = DynamicCache()
    with press(model):
        logits = forward(model, tokens, 0, cache)[-1]
    hidden = [layer.self_attn.masked_key_indices for layer in model.model.layers]
    return cache, [layer[0] for layer in scores], hidden, logits


def kept_of(hidden, kv_heads, tokens):
    """What is not hidden, `[kv_head][ascending]`."""
    _, heads, positions = hidden
    kept = torch.ones(kv_heads, tokens, dtype=torch.bool)
    kept[heads, positions] = False
    return [head.nonzero().flatten().tolist() for head in kept]


def margin_of(scores, kept, floor):
    """How close a layer's choice came to another one, as a share of the score at the border.

    A head that holds no more than its floor competes with nobody: its border is its own.
    """
    gaps, pooled_kept, pooled_dropped = [], [], []
    for head, positions in zip(scores, kept):
        dropped = torch.ones(len(head), dtype=torch.bool)
        dropped[positions] = False
        lowest, highest = head[positions].min().item(), head[dropped].max().item()
        pooled_dropped.append(highest)
        if len(positions) == floor:
            gaps.append((lowest - highest) / lowest)
        else:
            pooled_kept.append(lowest)
    gaps.append((min(pooled_kept) - max(pooled_dropped)) / min(pooled_kept))
    return min(abs(gap) for gap in gaps)


def press_case(model, tokenizer, length, alpha, params):
    """One entry."""
    best, kv_heads = None, model.config.num_key_value_heads
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length, candidate)).ids
        if len(tokens) % 5 == 0:
            continue  # there, kvpress's int(tokens * (1 - 0.8)) falls one short of a fifth by rounding
        budget = int(len(tokens) * (1 - params["compression_ratio"]))
        floor = int(budget * alpha)
        cache, scores, hidden, logits = press_prompt(model, alpha, params, tokens)
        kept = [kept_of(layer, kv_heads, len(tokens)) for layer in hidden]
        body = [layer[:, : -params["window_size"]] for layer in scores]
        here = [adaptive(layer, budget, params["window_size"], alpha) for layer in body]
        assert [[len(head) for head in layer] for layer in kept] == here
        margin = min(margin_of(layer_scores, layer, floor) for layer_scores, layer in zip(scores, kept))
        if best is None or margin > best[0]:
            # The next token now: what is hidden is noted in the model, and the next prompt overwrites it.
            after = forward(model, [logits.argmax().item()], len(tokens), cache)[-1]
            best = (margin, tokens, budget, floor, kept, logits, after)
    margin, tokens, budget, floor, kept, logits, after = best
    lengths = [[len(head) for head in layer] for layer in kept]
    at_floor = sum(length == floor for layer in lengths for length in layer)
    print(f"adakv: {alpha} {params}, {len(tokens)} tokens, {lengths}, {at_floor} at {floor}, margin {margin:.2e}")
    return {
        "params": {**params, "alpha_safeguard": alpha},
        "budget": budget,
        "floor": floor,
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept": kept,
        "next_token": logits.argmax().item(),
        "last_logits_after": rounded(after),
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="sdpa")  # kvpress hides keys in any attention but eager
    cases = [press_case(model, tokenizer, *case) for case in CASES]
    write(args.out, "kvpress_adakv", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
