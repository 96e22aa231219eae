"""Write `kvpress_compose.json`: the tokens that kvpress's KVComposePress keeps.

    python kvpress_compose.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import torch
from kvpress.presses.kvcompose_press import KVComposePress
from transformers import DynamicCache

from common import CANDIDATES, arguments, full_cache, load, needle_prompt, places, versions, write

CASES = [(200, 0.5, {}), (120, 0.75, {}), (200, 0.5, {"add_mean_across_heads": False})]


def play(model, tokens, ratio, params):
    """What is kept [layer][kv_head][..], and how near another layer's or another token was."""
    press = KVComposePress(compression_ratio=ratio, **params)
    found, compress = {}, press.compress_cache

    def recording(model):
        found["scores"] = press.scores.clone()
        found["layers"] = press.composite_scores_per_layer.clone()
        compress(model)

    press.compress_cache = recording
    cache = DynamicCache()
    with press(model):
        model(input_ids=torch.tensor([tokens]), past_key_values=cache)
    kept = [places(held.keys[0], full.keys[0]) for held, full in zip(cache.layers, full_cache(model, tokens).layers)]
    # The first layer's composites are another's: of equal ones it does not matter which stays, but of layers it does.
    ranked = found["layers"].flatten().sort(descending=True).values
    count = sum(len(layer[0]) for layer in kept)
    gaps = [((ranked[count - 1] - ranked[count]) / ranked[count - 1]).item()]
    for scores, layer in zip(found["scores"], kept):
        for head, positions in zip(scores, layer):
            stays = torch.zeros(len(head), dtype=torch.bool)
            stays[positions] = True
            gaps.append(((head[stays].min() - head[~stays].max()) / head[stays].min()).item())
    return kept, min(gaps)


def compose_case(model, tokenizer, length, ratio, params):
    """One entry."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, candidate)).ids[:length]
        kept, margin = play(model, tokens, ratio, params)
        if best is None or margin > best[2]:
            best = (tokens, kept, margin)
    tokens, kept, margin = best
    print(f"{length} tokens, {params}, margin {margin:.2e}, layers {[len(layer[0]) for layer in kept]}")
    return {
        "params": {"compression_ratio": ratio, **params},
        "n_kept": int(length * (1 - ratio)),
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept": kept,
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="eager")
    cases = [compose_case(model, tokenizer, *case) for case in CASES]
    write(args.out, "kvpress_compose", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
