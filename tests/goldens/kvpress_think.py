"""Write `kvpress_think.json`: the channels of keys that kvpress's ThinKPress leaves.

    python kvpress_think.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import torch
from kvpress import ComposedPress, SnapKVPress, ThinKPress
from transformers import DynamicCache

from common import CANDIDATES, arguments, forward, load, needle_prompt, rounded, versions, write

CASES = [  # tokens, part of them that SnapKV removes, parameters; what is left is whole pages of 32 tokens
    (320, 0.0, {"key_channel_compression_ratio": 0.5, "window_size": 32}),
    (224, 0.0, {"key_channel_compression_ratio": 0.4, "window_size": 16}),
    (320, 0.5, {"key_channel_compression_ratio": 0.3, "window_size": 32}),
]


def play(model, tokens, ratio, params):
    """The cache and the logits of a prompt, which channels stay, [layer][kv_head][..], and how near another choice was."""
    press = ThinKPress(**params)
    gaps, topk = [], torch.Tensor.topk

    def recording(self, count, *args, largest=True, **kwargs):
        if not largest:
            ranked = self.sort(-1).values
            gaps.append(((ranked[..., count] - ranked[..., count - 1]) / ranked[..., count]).min().item())
        return topk(self, count, *args, largest=largest, **kwargs)

    outer = ComposedPress([SnapKVPress(compression_ratio=ratio, window_size=32), press]) if ratio else press
    cache = DynamicCache()
    torch.Tensor.topk = recording
    try:
        with outer(model):
            logits = forward(model, tokens, 0, cache)
    finally:
        torch.Tensor.topk = topk
    kept = [[head.any(0).nonzero().flatten().tolist() for head in layer.keys[0]] for layer in cache.layers]
    return cache, logits, kept, min(gaps)


def think_case(model, tokenizer, length, ratio, params):
    """One entry."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, candidate)).ids[:length]
        assert len(tokens) == length
        cache, logits, kept, margin = play(model, tokens, ratio, params)
        if best is None or margin > best[0]:
            best = (margin, tokens, cache, logits, kept)
    margin, tokens, cache, logits, kept = best
    print(f"{params}, {length} tokens, margin {margin:.2e}")
    next_token = logits[-1].argmax().item()
    return {
        "params": {"compression_ratio": ratio, **params},
        "n_kept": cache.layers[0].keys.shape[2],
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept_channels": kept,
        "next_token": next_token,
        "last_logits_after": rounded(forward(model, [next_token], length, cache)[-1]),
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    cases = [think_case(model, tokenizer, *case) for case in CASES]
    write(args.out, "kvpress_think", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
