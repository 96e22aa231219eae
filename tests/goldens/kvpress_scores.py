"""Write `kvpress_scores.json`: the tokens that kvpress's presses keep which look at keys, values and queries.

    python kvpress_scores.py [--model DIR] [--out DIR]

README.md beside this file describes the fields.
"""

import math
from contextlib import contextmanager, nullcontext

import torch
from kvpress import (
    AdaKVPress,
    CapPress,
    ChunkKVPress,
    CompactorPress,
    CriticalKVPress,
    CURPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    SnapKVPress,
)
from transformers import DynamicCache

from common import CANDIDATES, arguments, forward, full_cache, load, needle_prompt, places, versions, write

CASES = [  # press, tokens, part that is removed, parameters
    ("knorm", KnormPress, 203, 0.5, {}),
    ("knorm", KnormPress, 603, 0.75, {}),
    ("keydiff", KeyDiffPress, 203, 0.5, {}),
    ("keydiff", KeyDiffPress, 603, 0.75, {}),
    # Where a rank is kept in every partition or in none: topk promises nothing about equal ranks.
    ("lagkv", LagKVPress, 198, 0.5, {"n_sink": 4, "lag_size": 16}),
    ("lagkv", LagKVPress, 641, 0.5, {"n_sink": 2, "lag_size": 128}),
    ("lagkv", LagKVPress, 203, 0.5, {"n_sink": 4, "lag_size": 128}),
    ("curdkv", CURPress, 203, 0.5, {"num_sinks": 4, "local_window_size": 16}),
    ("curdkv", CURPress, 603, 0.75, {"num_sinks": 2, "local_window_size": 10}),
    # More channels than the keys have, and fewer.
    ("leverage", LeverageScorePress, 203, 0.5, {"sketch_dimension": 48}),
    ("leverage", LeverageScorePress, 603, 0.75, {"sketch_dimension": 16}),
    # Whole chunks: the last one is not masked as it should be.
    ("chunk_attention", NonCausalAttnPress, 6 * 32, 0.5, {"chunk_size": 32}),
    ("chunk_attention", NonCausalAttnPress, 2 * 256, 0.75, {"chunk_size": 256}),
    (
        "compactor",
        CompactorPress,
        8 + 6 * 32,
        0.5,
        {"sink_size_start": 8, "sink_size_end": 0, "chunk_size": 32, "sketch_dimension": 16, "blending": 0.5},
    ),
    (
        "compactor",
        CompactorPress,
        4 + 2 * 256,
        0.75,
        {"sink_size_start": 4, "sink_size_end": 0, "chunk_size": 256, "sketch_dimension": 16, "blending": 0.35},
    ),
    ("expected_attention", ExpectedAttentionPress, 203, 0.5, {"n_sink": 4, "epsilon": 0.0}),
    ("expected_attention", ExpectedAttentionPress, 603, 0.75, {"n_sink": 4, "epsilon": 0.01}),
    ("expected_attention", ExpectedAttentionPress, 203, 0.5, {"n_sink": 2, "n_future_positions": 64}),
    ("capkv", CapPress, 203, 0.5, {"n_sink": 4}),
    ("capkv", CapPress, 603, 0.75, {"n_sink": 4, "tau": 2.0, "n_future_positions": 64}),
    # Whole chunks, as many as the share says.
    ("knorm", KnormPress, 200, 0.5, {"chunk_length": 20}),
    ("keydiff", KeyDiffPress, 640, 0.75, {"chunk_length": 20}),
    # Values behind the output projection.
    ("snapkv", SnapKVPress, 203, 0.5, {"window_size": 32, "kernel_size": 5, "first_stage_ratio": 0.5}),
    ("keydiff", KeyDiffPress, 603, 0.75, {"first_stage_ratio": 0.5}),
    # Heads of different lengths.
    ("keydiff", KeyDiffPress, 603, 0.75, {"alpha_safeguard": 0.2}),
    ("expected_attention", ExpectedAttentionPress, 603, 0.75, {"n_sink": 4, "epsilon": 0.01, "alpha_safeguard": 0.2}),
]


def normal(seed, parts):
    """This project's normal number for a layer, head and index."""
    mask = 2**64 - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def uniform(bits):
        return ((bits >> 11) + 1) / 2**53

    bits = mix(seed)
    for part in parts:
        bits = mix(bits ^ part)
    return math.sqrt(-2 * math.log(uniform(bits))) * math.cos(math.tau * uniform(mix(bits)))


@contextmanager
def own_sketch():
    """Sketches of this project's numbers: kvpress asks for them layer by layer."""
    torch_randn, layer = torch.randn, 0

    def randn(batch, heads, channels, width, **kwargs):
        nonlocal layer
        numbers = [normal(0, [layer, head, i]) for head in range(heads) for i in range(channels * width)]
        layer += 1
        return torch.tensor(numbers, dtype=torch.float32).reshape(1, heads, channels, width).expand(batch, -1, -1, -1)

    torch.randn = randn
    try:
        yield
    finally:
        torch.randn = torch_randn


def press_prompt(model, press, params, tokens):
    """Prefill under a press: its scores a layer [kv_heads, tokens], and what each head keeps, [layer][kv_head][..]."""
    params = dict(params)
    alpha, length, first = (params.pop(name, None) for name in ("alpha_safeguard", "chunk_length", "first_stage_ratio"))
    scorer = press(**params)
    if first is not None:
        scorer = CriticalKVPress(scorer, first_stage_ratio=first)
    score, scores = scorer.score, []

    def recording_score(*args, **kwargs):
        scores.append(score(*args, **kwargs)[0])
        return scores[-1][None].clone()  # AdaKVPress writes into it

    scorer.score = recording_score
    outer = scorer
    if alpha is not None:
        outer = AdaKVPress(scorer, alpha_safeguard=alpha)
    if length is not None:
        outer = ChunkKVPress(scorer, chunk_length=length)
    cache = DynamicCache()
    few = params.get("sketch_dimension", model.config.head_dim) < model.config.head_dim
    with own_sketch() if few else nullcontext(), outer(model):
        forward(model, tokens, 0, cache)
    count = int(len(tokens) * (1 - params["compression_ratio"]))
    if length is not None:
        layers = zip(cache.layers, full_cache(model, tokens).layers)
        # What decides is the mean of a chunk, of all heads together.
        means = [layer.mean(0).reshape(-1, length).mean(1) for layer in scores]
        spread = [mean.repeat_interleave(length).expand_as(layer) for mean, layer in zip(means, scores)]
        return spread, [places(held.keys[0], full.keys[0]) for held, full in layers]
    if alpha is None:
        return scores, [layer.topk(count, -1).indices.sort(-1).values.tolist() for layer in scores]
    kept = []
    for layer in model.model.layers:
        _, heads, positions = layer.self_attn.masked_key_indices
        held = torch.ones(scores[0].shape, dtype=torch.bool)
        held[heads, positions] = False
        kept.append([head.nonzero().flatten().tolist() for head in held])
        layer.self_attn.masked_key_indices = None
    return scores, kept


def margin_of(scores, kept, floor):
    """How close a layer's choice came to another one, as a share of the score at the border.

    Heads share a budget where there is a `floor`. One that holds no more than that competes with nobody: its border is its own.
    """
    gaps = []

    def compare(lowest, highest):
        gaps.append((lowest - highest) / max(abs(lowest), abs(highest)))

    for layer, positions in zip(scores, kept):
        pooled_kept, pooled_dropped = [], []
        for head, held in zip(layer, positions):
            dropped = torch.ones(len(head), dtype=torch.bool)
            dropped[held] = False
            lowest, highest = head[held].min().item(), head[dropped].max().item()
            pooled_dropped.append(highest)
            if floor is None or len(held) == floor:
                compare(lowest, highest)
            else:
                pooled_kept.append(lowest)
        if pooled_kept:
            compare(min(pooled_kept), max(pooled_dropped))
    return min(gaps)


def press_case(model, tokenizer, name, press, length, ratio, params):
    """One entry."""
    best = None
    params = {"compression_ratio": ratio, **params}
    count = int(length * (1 - ratio))
    floor = int(count * params["alpha_safeguard"]) if "alpha_safeguard" in params else None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length + 40, candidate)).ids[:length]
        assert len(tokens) == length
        scores, kept = press_prompt(model, press, params, tokens)
        margin = margin_of(scores, kept, floor)
        if best is None or margin > best[0]:
            best = (margin, tokens, kept)
    margin, tokens, kept = best
    print(f"{name} {params}, {length} tokens, margin {margin:.2e}")
    return {
        "press": name,
        "params": params,
        "n_kept": count,
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept": kept,
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    model, tokenizer = load(args.model, attention="sdpa")  # kvpress hides keys in any attention but eager
    cases = [press_case(model, tokenizer, *case) for case in CASES]
    write(args.out, "kvpress_scores", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
