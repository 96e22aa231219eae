"""Write `kvpress_passes.json`: what kvpress keeps by a second pass over the prompt, by layers and by heads.

    python kvpress_passes.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import sys
from types import SimpleNamespace

import torch
from kvpress import (
    BlockPress,
    DMSPress,
    DuoAttentionPress,
    KeyDiffPress,
    KeyRerotationPress,
    KnormPress,
    KVzipPress,
    PerLayerCompressionPress,
    SimLayerKVPress,
)
from kvpress.presses import duo_attention_press
from transformers import AutoTokenizer, DynamicCache

from common import CANDIDATES, arguments, forward, full_cache, load, needle_prompt, places, prose_of, rounded, versions, write

KVZIP = [  # tokens, part that is removed, parameters
    (300, 0.5, {"chunk_size": 128}),
    (200, 0.75, {"chunk_size": 2048, "n_sink": 2}),
    (300, 0.5, {"chunk_size": 128, "kvzip_plus_normalization": True}),
    (300, 0.5, {"chunk_size": 100, "layerwise": True}),
]
SIMLAYER = [
    (300, {"lazy_threshold": 0.5, "n_last": 1, "n_recent": 61, "n_initial": 4}),
    (300, {"lazy_threshold": 0.25, "n_last": 8, "n_recent": 40, "n_initial": 2}),
]
WRAPPED = [  # wrapper, tokens, press inside, part that is removed, parameters
    ("block", 203, KeyDiffPress, 0.5, {"block_size": 32}),
    ("dms", 300, KnormPress, 0.0, {"threshold": -9.0, "sliding_window_size": 32}),
    ("per_layer", 200, KnormPress, 0.0, {"compression_ratios": [0.0, 0.25, 0.5, 0.75, 0.5, 0.25, 0.5, 0.1]}),
    ("rerotation", 200, KnormPress, 0.75, {}),
]
WRAPPERS = {"block": BlockPress, "dms": DMSPress, "per_layer": PerLayerCompressionPress, "rerotation": KeyRerotationPress}
DUO_TEXTS = [(220, 0), (180, 31), (260, 57)]


def held(model, heads, tokens):
    """What a mask of dropped keys leaves, [layer][kv_head][..]."""
    kept = []
    for layer in model.model.layers:
        here = torch.ones(heads, tokens, dtype=torch.bool)
        if layer.self_attn.masked_key_indices is not None:
            _, which, positions = layer.self_attn.masked_key_indices
            here[which, positions] = False
        kept.append([head.nonzero().flatten().tolist() for head in here])
        layer.self_attn.masked_key_indices = None
    return kept


def kvzip(model, tokens, ratio, params):
    """What is kept, the scores [layers, kv_heads, tokens] and how near another outcome was."""
    press = KVzipPress(compression_ratio=ratio, **params)
    recorded = {}
    compress = press.compress_post

    def compress_post(model):
        compress(model)
        recorded["scores"] = press.score_val[:, 0].clone()

    press.compress_post = compress_post
    with torch.no_grad(), press(model):
        model(input_ids=torch.tensor([tokens]), past_key_values=DynamicCache())
    scores = recorded["scores"]
    kept = held(model, scores.shape[1], len(tokens))
    layers = [scores[i] for i in range(len(scores))] if params.get("layerwise") else [scores]
    parts = [kept[i : i + 1] for i in range(len(kept))] if params.get("layerwise") else [kept]
    gaps = []
    for part, here in zip(layers, parts):
        part = part.reshape(-1, len(tokens))
        stays = torch.zeros(part.shape, dtype=torch.bool)
        for head, positions in zip(stays, [head for layer in here for head in layer]):
            head[positions] = True
        lowest, highest = part[stays].min().item(), part[~stays].max().item()
        gaps.append((lowest - highest) / lowest)
    return kept, min(gaps)


def simlayer(model, tokens, params):
    """What is kept, and how near the attention of a layer is to the threshold."""
    press = SimLayerKVPress(**params)
    shares, is_lazy = [], press.is_lazy

    def recording(*args):
        press.lazy_threshold, threshold = -1.0, press.lazy_threshold
        compute = torch.Tensor.item
        found = []

        def item(self):
            found.append(compute(self))
            return found[-1]

        torch.Tensor.item = item
        try:
            is_lazy(*args)
        finally:
            torch.Tensor.item = compute
            press.lazy_threshold = threshold
        shares.append(found[-1])
        return found[-1] > threshold

    press.is_lazy = recording
    cache = DynamicCache()
    with press(model):
        forward(model, tokens, 0, cache)
    full = full_cache(model, tokens)
    kept = [places(layer.keys[0], whole.keys[0]) for layer, whole in zip(cache.layers, full.layers)]
    return kept, min(abs(share - params["lazy_threshold"]) / params["lazy_threshold"] for share in shares)


def wrapped(model, tokens, name, inner, ratio, params):
    """What is kept [layer][kv_head][..], and one more token behind it."""
    press = WRAPPERS[name](inner(compression_ratio=ratio), **params)
    cache = DynamicCache()
    with press(model):
        logits = forward(model, tokens, 0, cache)
    next_token = logits[-1].argmax().item()
    if name == "dms":
        return {"kept": held(model, model.config.num_key_value_heads, len(tokens))}
    full = full_cache(model, tokens)
    if name != "rerotation":
        return {"kept": [places(layer.keys[0], whole.keys[0]) for layer, whole in zip(cache.layers, full.layers)]}
    # Keys that are rotated anew are found nowhere: the shortest ones were kept.
    count = cache.layers[0].keys.shape[2]
    shortest = [whole.keys[0].norm(dim=-1).topk(count, largest=False).indices.sort().values for whole in full.layers]
    kept = [layer.tolist() for layer in shortest]
    for layer, whole, positions in zip(cache.layers, full.layers, shortest):
        index = positions[:, :, None].expand(-1, -1, whole.values.shape[-1])
        assert torch.equal(layer.values[0], whole.values[0].gather(1, index)), "other tokens were kept"
    last = forward(model, [next_token], len(kept[0][0]), cache)[-1]
    return {"kept": kept, "next_token": next_token, "last_logits_after": rounded(last)}


def best_of(tokenizer, length, play):
    """The prompt whose outcome hangs least on rounding."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, candidate)).ids[:length]
        assert len(tokens) == length
        kept, margin = play(tokens)
        if best is None or margin > best["margin"]:
            best = {"tokens": tokens, "margin": float(f"{margin:.3g}"), "kept": kept}
    return best


def duo(model, tokenizer):
    """The scores of heads that are computed on the fly, of texts of our own."""
    texts = [prose_of(tokenizer, length, first) for length, first in DUO_TEXTS]
    sample = SimpleNamespace(tolist=lambda: texts)
    frame = SimpleNamespace(sample=lambda count, random_state: {"chapter": sample})
    duo_attention_press.load_dataset = lambda *args, **kwargs: SimpleNamespace(to_pandas=lambda: frame)
    scores = duo_attention_press.duo_attention_on_the_fly(model, num_samples=len(texts), q_len=500)
    auto = AutoTokenizer.from_pretrained(model.config.name_or_path)
    tokens = [auto(text).input_ids for text in texts]
    press = DuoAttentionPress(head_compression_ratio=0.5, on_the_fly_scoring=True)
    press.post_init_from_model(model)
    streams = press.streaming_mask.tolist()
    return {"texts": tokens, "reach": [[round(x, 6) for x in layer] for layer in scores.tolist()], "streams": streams}


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="sdpa")  # kvpress hides keys in any attention but eager
    auto = AutoTokenizer.from_pretrained(model.config.name_or_path)
    encode = lambda text: auto.encode(text, add_special_tokens=False)
    cases = []
    for length, ratio, params in KVZIP:
        case = best_of(tokenizer, length, lambda tokens: kvzip(model, tokens, ratio, params))
        print("kvzip", length, params, case["margin"], file=sys.stderr)
        cases.append({"press": "kvzip", "params": params, "n_kept": int(length * (1 - ratio)), **case})
    for length, params in SIMLAYER:
        case = best_of(tokenizer, length, lambda tokens: simlayer(model, tokens, params))
        print("simlayerkv", params, case["margin"], [len(heads[0]) for heads in case["kept"]], file=sys.stderr)
        count = params["n_initial"] + params["n_recent"] - params["n_last"]
        cases.append({"press": "simlayerkv", "params": params, "n_kept": count, **case})
    for name, length, inner, ratio, params in WRAPPED:
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, 3)).ids[:length]
        case = wrapped(model, tokens, name, inner, ratio, params)
        print(name, params, [[len(head) for head in layer] for layer in case["kept"]], file=sys.stderr)
        of = {KeyDiffPress: "keydiff", KnormPress: "knorm"}[inner]
        count = int(length * (1 - ratio))
        cases.append({"press": name, "of": of, "params": params, "n_kept": count, "tokens": tokens, "margin": 0.0, **case})
    fixture = {
        "versions": versions("torch", "transformers", "kvpress"),
        "instruction": {
            "first": encode("\n\nRepeat the previous context exactly."),
            "next": encode("\n\nRepeat the part of the previous context exactly, starting with"),
            "answer": encode("\n"),
        },
        "cases": cases,
        "duo": duo(model, tokenizer),
    }
    write(args.out, "kvpress_passes", fixture)


if __name__ == "__main__":
    with torch.no_grad():
        main()
