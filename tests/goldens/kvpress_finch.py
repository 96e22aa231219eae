"""Write `kvpress_finch.json`: the tokens that kvpress's FinchPress keeps.

    python kvpress_finch.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import torch
from kvpress.presses.finch_press import FinchPress
from transformers import DynamicCache

from common import CANDIDATES, arguments, forward, full_cache, load, needle_prompt, relative_gap, rounded, versions, write

CASES = [(200, 0.5, 12), (400, 0.75, 32), (200, 0.5, 1)]  # tokens, part that is removed, tokens of the question


def play(model, tokens, ratio, question):
    """The cache and the logits, the kept positions [layer][kv_head][..], and how near another token was."""
    press = FinchPress(compression_ratio=ratio)
    # What the hook that looks for the delimiter finds; the delimiter is not in what it hands on.
    press.delimiter_token_id, press.window_size = -1, question
    score, kept, gaps = press.score, [], []
    count = int(len(tokens) * (1 - ratio))

    def recording(*args):
        scores = score(*args)
        ranked = scores[0].sort(-1, descending=True).values
        gaps.append(relative_gap(ranked[:, count - 1], ranked[:, count]))
        kept.append(scores[0].topk(count, -1).indices.sort(-1).values)
        return scores

    press.score = recording
    cache = DynamicCache()
    with press(model):
        logits = forward(model, tokens, 0, cache)
    for layer, whole, positions in zip(cache.layers, full_cache(model, tokens).layers, kept):
        index = positions[:, :, None].expand(-1, -1, whole.values.shape[-1])
        assert torch.equal(layer.values[0], whole.values[0].gather(1, index)), "other tokens were kept"
    return cache, logits, [layer.tolist() for layer in kept], min(gaps)


def finch_case(model, tokenizer, length, ratio, question):
    """One entry."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, candidate)).ids[:length]
        found = play(model, tokens, ratio, question)
        if best is None or found[3] > best[1][3]:
            best = (tokens, found)
    tokens, (cache, logits, kept, margin) = best
    print(f"{length} tokens, question {question}, margin {margin:.2e}")
    next_token = logits[-1].argmax().item()
    return {
        "params": {"compression_ratio": ratio, "window_size": question},
        "n_kept": len(kept[0][0]),
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept": kept,
        "next_token": next_token,
        "last_logits_after": rounded(forward(model, [next_token], len(kept[0][0]), cache)[-1]),
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="sdpa")
    cases = [finch_case(model, tokenizer, *case) for case in CASES]
    write(args.out, "kvpress_finch", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
