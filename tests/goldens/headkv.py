"""Write `headkv.json`: how HeadKV's published code shares a cache out, and what it keeps of a prompt.

    git clone https://github.com/FYYFU/HeadKV
    python headkv.py --headkv DIR [--model DIR] [--out DIR]

Its file also holds the clusters of AdaKV and PyramidKV that it was built on. They count query heads; where a case is about
kv heads they are given kv heads, and the mean of their scores over the query heads of a group. README.md beside this file
describes the fields.
"""

import importlib.util
import json
import math
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from transformers.models.llama import modeling_llama

from common import CANDIDATES, SEED, arguments, commit, forward, load, needle_prompt, places, versions, write
from shares import adaptive, by_profile, pyramid

WINDOW, KERNEL, POOLING = 32, 7, "avgpool"  # its defaults, but for the pooling: the maximum gives neighbours equal scores

CAPACITIES = [  # which heads, budget, beta, the table, and why this project's numbers are others
    ("kv", 32 + 96, 1.2, "any", None),
    ("kv", 32 + 120, 2.0, "any", None),
    ("kv", 32 + 300, 1.5, "zeros", None),
    ("query", 32 + 120, 1.2, "grouped", None),
    ("kv", 32 + 100, 1.2, "any", "100 / 1.2 is 83.3: it rounds the part that is shared down to 83, here it is 83.3"),
    ("kv", 32 + 96, 1.2, "odd", "it rounds every head's number, and their sum is not the budget's; here it is"),
    ("query", 32 + 120, 1.2, "any", "it keeps a cache a query head; here a kv head gets what its group gets on average"),
]
PROMPTS = [  # about so many tokens, budget, beta, and why
    (204, 32 + 60, 1.2, None),
    (604, 32 + 120, 2.0, None),
    (604, 32 + 240, 1.2, "a head's number exceeds the prompt: it keeps the prompt and loses the rest, here others get it"),
]
ADAPTIVE = [(204, 32 + 70, 0.2), (604, 32 + 90, 0.5)]  # about so many tokens, budget, the floor of its AdaKV cluster
WHY_ADAPTIVE = "it mixes a head's part of the pool with the uniform number, floor to 1 - floor; here the floor is a minimum"
PYRAMIDS = [  # tokens, budget, beta, and why this project's numbers are others
    (604, 32 + 140, 20, None),
    (604, 32 + 120, 20, "it rounds the step between layers down, so the sum is above the budget's"),
]


def load_clusters(folder):
    """Its file of clusters."""
    spec = importlib.util.spec_from_file_location("snapkv_utils", folder / "headkv" / "snapkv_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- shares ---


def table_of(kind, layers, heads, group, seed):
    """Head scores, `[layer][head]`, `group` heads alike if they are grouped."""
    rng = random.Random(1000 * SEED + seed)
    table = []
    for _ in range(layers):
        row = [round(rng.random() ** 3, 4) for _ in range(heads // group if kind == "grouped" else heads)]
        if kind == "zeros":
            row = [x if x > 0.1 else 0.0 for x in row]
        table.append([x for x in row for _ in range(group)] if kind == "grouped" else row)
    return table


def cluster_of(module, table, budget, beta, layer=0):
    """Its HeadKV cluster with a table of ours; it looks for tables beside its own file."""
    layers, heads = len(table), len(table[0])
    scores = {f"{row}-{head}": [table[row][head]] for row in range(layers) for head in range(heads)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "Important_Head" / "head_score" / "Meta-Llama-3-8B-Instruct_retrieval_reasoning_heads.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(scores))
        with patch.object(module, "__file__", str(Path(folder) / "headkv" / "snapkv_utils.py")):
            return module.ReasonSnapKVCluster(
                window_size=WINDOW,
                kernel_size=KERNEL,
                pooling=POOLING,
                base_capacity=budget,
                head_choice="reason",
                beta=beta,
                temp=1,
                layer_idx=layer,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                model="llama",
            )


def capacity_case(module, config, unit, budget, beta, kind, why):
    """Numbers that depend on the table only: the first table that shows what the case is about."""
    layers, query_heads, kv_heads = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
    heads, group = (query_heads, query_heads // kv_heads) if unit == "query" else (kv_heads, 1)
    for seed in range(1000):
        table = table_of(kind, layers, heads, group, seed)
        theirs = cluster_of(module, table, budget, beta).head_capacity.tolist()
        of_groups = [[sum(row[i : i + group]) / group for i in range(0, heads, group)] for row in table]
        here = by_profile(of_groups, budget, WINDOW, beta)
        same = theirs == [[count for count in row for _ in range(group)] for row in here]
        if same != (why is None) or (kind == "odd" and sum(map(sum, theirs)) == heads * layers * (budget - WINDOW)):
            continue
        print(f"headkv: {unit} heads, {budget}, {beta}, {kind}: {theirs} {here}")
        entry = {
            "heads": unit,
            "params": {"base_capacity": budget, "window_size": WINDOW, "beta": beta, "temp": 1},
            "agrees": same,
            "table": table,
            "head_capacity": theirs,
            "head_capacity_here": here,
        }
        return entry if same else {**entry, "why": why}
    raise AssertionError("no table shows it")


def pyramid_case(module, layers, tokens, budget, beta, why):
    """What its PyramidKV cluster keeps a layer, window included."""
    nothing = torch.zeros(1, 1, tokens, 1)
    theirs = []
    for layer in range(layers):
        cluster = module.SnapKVCluster(WINDOW, budget, KERNEL, POOLING, layer, layers, pyram_mode=True, pyram_beta=beta)
        with patch("builtins.print"):
            theirs.append(cluster.update_kv(nothing, nothing, nothing)[0].shape[2])
    here = pyramid(layers, tokens, budget, WINDOW, beta)
    assert (theirs == here) == (why is None)
    print(f"pyramid: {tokens} tokens, {budget}, {beta}: {theirs} {here}")
    entry = {
        "params": {"max_capacity_prompt": budget, "window_size": WINDOW, "beta": beta},
        "agrees": why is None,
        "n_tokens": tokens,
        "kept_per_layer": theirs,
        "kept_per_layer_here": here,
    }
    return entry if why is None else {**entry, "why": why}


# --- prompts ---


def attention_inputs(model, tokens):
    """Queries, keys and values of a prompt, rotated, a layer."""
    seen, attention = [], modeling_llama.eager_attention_forward

    def see(module, query, key, value, *args, **kwargs):
        seen.append((query, key, value))
        return attention(module, query, key, value, *args, **kwargs)

    with patch.object(modeling_llama, "eager_attention_forward", see):
        forward(model, tokens, 0, None)
    return seen


def compress(cluster, queries, keys, values):
    """Its cluster at work on kv heads: the positions kept, `[kv_head][ascending]`, and the scores `[kv_head][tokens]`."""
    kv_heads, group = keys.shape[1], queries.shape[1] // keys.shape[1]
    score, scores = cluster.calcul_attn_sore, []

    def score_of_groups(keys, _):
        of_query_heads = score(modeling_llama.repeat_kv(keys, group), queries)
        scores.append(of_query_heads.unflatten(1, (kv_heads, group)).mean(2))
        return scores[-1]

    cluster.calcul_attn_sore = score_of_groups
    held, _ = cluster.update_kv(keys, keys, values)  # of the queries it reads only how many heads there are
    return places(held.split(cluster.head_lens.tolist()), keys[0]), scores[0][0]


def margin_of(scores, kept):
    """The smallest relative gap between the last score kept and the first one dropped."""
    gaps = []
    for head, positions in zip(scores, kept):
        count = len(positions) - WINDOW
        if count < len(head):
            ordered = head.sort(descending=True).values
            gaps.append(((ordered[count - 1] - ordered[count]) / ordered[count - 1]).item())
    return min(gaps, default=math.inf)


def prompt_case(module, model, tokenizer, length, budget, beta, why):
    """What its HeadKV cluster keeps of a prompt."""
    config, best = model.config, None
    layers, kv_heads = config.num_hidden_layers, config.num_key_value_heads
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length, candidate)).ids
        most = len(tokens) - WINDOW
        table = table_of("any", layers, kv_heads, 1, candidate)
        here = by_profile(table, budget, WINDOW, beta, most)
        clusters = [cluster_of(module, table, budget, beta, layer) for layer in range(layers)]
        same = clusters[0].head_capacity.tolist() == here
        clipped = clusters[0].head_capacity.max() > most
        if same != (why is None) or clipped == (why is None):
            continue
        results = [compress(cluster, *states) for cluster, states in zip(clusters, attention_inputs(model, tokens))]
        margin = min(margin_of(scores, kept) for kept, scores in results)
        if best is None or margin > best[0]:
            best = (margin, tokens, table, [kept for kept, _ in results], clusters[0].head_capacity.tolist(), here)
    margin, tokens, table, kept, capacity, here = best
    print(f"headkv: {len(tokens)} tokens, {budget}, {beta}: {capacity} {here}, margin {margin:.2e}")
    entry = {
        "params": {
            "base_capacity": budget,
            "window_size": WINDOW,
            "kernel_size": KERNEL,
            "pooling": POOLING,
            "beta": beta,
            "temp": 1,
        },
        "agrees": why is None,
        "n_tokens": len(tokens),
        "table": table,
        "head_capacity": capacity,
        "head_capacity_here": here,
        "kept_per_head": [[len(head) for head in layer] for layer in kept],
    }
    if why:
        return {**entry, "why": why}
    return {**entry, "tokens": tokens, "margin": float(f"{margin:.3g}"), "kept": kept}


def adaptive_case(module, model, tokenizer, length, budget, floor):
    """What its AdaKV cluster keeps a head."""
    tokens = tokenizer.encode(needle_prompt(tokenizer, length, 0)).ids
    layers, theirs, here = model.config.num_hidden_layers, [], []
    for layer, states in enumerate(attention_inputs(model, tokens)):
        cluster = module.AdaptiveSnapKVCluster(
            WINDOW, KERNEL, POOLING, budget, floor, skip=0, normalize=False, layer_idx=layer, num_hidden_layers=layers
        )
        kept, scores = compress(cluster, *states)
        theirs.append([len(head) for head in kept])
        here.append(adaptive(scores, budget, WINDOW, floor))
    assert theirs != here
    print(f"adakv: {len(tokens)} tokens, {budget}, {floor}: {theirs} {here}")
    return {
        "params": {
            "base_capacity": budget,
            "window_size": WINDOW,
            "kernel_size": KERNEL,
            "pooling": POOLING,
            "floor": floor,
            "normalize": False,
            "skip": 0,
        },
        "agrees": False,
        "why": WHY_ADAPTIVE,
        "n_tokens": len(tokens),
        "tokens": tokens,
        "kept_per_head": theirs,
        "kept_per_head_here": here,
    }


def main():
    """Every case."""
    args = arguments(__doc__, checkout="headkv")
    model, tokenizer = load(args.model)
    module = load_clusters(args.headkv)
    layers = model.config.num_hidden_layers
    fixture = {
        "versions": {**versions("torch", "transformers"), "headkv": commit(args.headkv)},
        "capacities": [capacity_case(module, model.config, *each) for each in CAPACITIES],
        "prompts": [prompt_case(module, model, tokenizer, *each) for each in PROMPTS],
        "adaptive": [adaptive_case(module, model, tokenizer, *each) for each in ADAPTIVE],
        "pyramids": [pyramid_case(module, layers, *each) for each in PYRAMIDS],
    }
    write(args.out, "headkv", fixture)


if __name__ == "__main__":
    with torch.no_grad():
        main()
