"""Write `kvpress_gated.json`: the tokens that kvpress's EntropyGatedChunkKVPress keeps.

    python kvpress_gated.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import torch
from kvpress import ExpectedAttentionPress, KeyDiffPress, KnormPress
from kvpress.presses.entropy_gated_chunkkv_press import EntropyGatedChunkKVPress
from transformers import DynamicCache

from common import arguments, forward, full_cache, load, needle_prompt, places, versions, write

CASES = [  # press inside, its name, tokens, part that is removed, parameters of both; the last chunk is whole, short, a token
    (KnormPress, "knorm", 200, 0.5, {}, {}),
    (KeyDiffPress, "keydiff", 605, 0.75, {}, {"chunk_length": 20, "low_entropy_chunk_length": 6}),
    (ExpectedAttentionPress, "expected_attention", 301, 0.6, {"n_sink": 0, "epsilon": 0.01}, {}),
    (ExpectedAttentionPress, "expected_attention", 203, 0.3, {"n_sink": 0, "epsilon": 0.01}, {"low_entropy_chunk_length": 1}),
]


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="sdpa")
    cases = []
    for number, (inner, name, length, ratio, of, params) in enumerate(CASES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, number)).ids[:length]
        cache = DynamicCache()
        with EntropyGatedChunkKVPress(inner(compression_ratio=ratio, **of), **params)(model):
            forward(model, tokens, 0, cache)
        layers = zip(cache.layers, full_cache(model, tokens).layers)
        kept = [places(held.keys[0], full.keys[0]) for held, full in layers]
        print(f"{name} {params}, {len(kept[0][0])} of {length} tokens")
        params = {"compression_ratio": ratio, **of, **params}
        cases.append({"press": name, "params": params, "n_kept": len(kept[0][0]), "tokens": tokens, "margin": 0.0, "kept": kept})
    write(args.out, "kvpress_gated", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
