"""Write `cake.json`: what CAKE's published code prefers, shares out and keeps of a prompt.

    git clone https://github.com/antgroup/cakekv
    python cakekv.py --cakekv DIR [--model DIR] [--out DIR]

Its attention function runs in place of every attention layer of the model; only the flash attention inside it, which needs
a GPU, is replaced. README.md beside this file describes the fields.
"""

import sys
from types import SimpleNamespace
from typing import List, Union
from unittest.mock import patch

import numpy as np
import torch
import transformers.cache_utils
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama import modeling_llama
from transformers.modeling_outputs import BaseModelOutputWithPast

from common import (
    CANDIDATES,
    arguments,
    commit,
    forward,
    load,
    needle_prompt,
    places,
    rounded,
    versions,
    write,
)
from shares import apportion

LENGTHS = [204, 604]
BUDGETS = {204: [64, 72, 80, 88, 96], 604: [96, 112, 128, 144, 160]}
CLIPPED = (204, 120)  # tokens, budget: the first layers would like more than there is
WINDOW, TAU1, TAU2, GAMMA = 32, 1.0, 1.0, 200.0  # as pred_cake.py sets them


def load_cake(folder):
    """Its attention function and its eviction, made to import.

    They were written for transformers 4.43, whose modeling_llama exported more names and whose caches had one more class.
    """
    for name, value in [("List", List), ("Union", Union), ("BaseModelOutputWithPast", BaseModelOutputWithPast)]:
        if not hasattr(modeling_llama, name):
            setattr(modeling_llama, name, value)
    modeling_llama.__all__ = [name for name in vars(modeling_llama) if not name.startswith("__")]
    if not hasattr(transformers.cache_utils, "HybridCache"):
        transformers.cache_utils.HybridCache = transformers.cache_utils.DynamicCache
    sys.path.insert(0, str(folder))
    from cake import cake_cache, utils
    from cake.model import modify_llama

    return SimpleNamespace(cache=cake_cache, attention=modify_llama, utils=utils)


def attend(query, key, value, mask, length, **_):
    """What flash attention computes: causal attention over `[batch, tokens, heads, dim]`."""
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


class Cache(SimpleNamespace):
    """The part of its CakeCache that its functions use; that class does not fit the base class of newer transformers."""

    def __init__(self, cake):
        super().__init__(key_cache=[], value_cache=[], pref_scores=[], evict_scores=[], layer_budget=[], _seen_tokens=0)
        self.cake = cake
        self.prompt_keys, self.prompt_scores = [], []  # before anything is evicted

    def __len__(self):
        return len(self.key_cache)

    def update(self, keys, values, *args):
        self.prompt_keys.append(keys[0])
        return self.cake.CakeCache.update(self, keys, values, *args)

    def update_score(self, preference, scores):
        self.prompt_scores.append(scores[0])
        return self.cake.CakeCache.update_score(self, preference, scores)

    def kept(self):
        """The positions held, `[layer][kv_head][ascending]`."""
        return [places(held[0], prompt) for held, prompt in zip(self.key_cache, self.prompt_keys)]


def prefill(model, cake, budget, tokens, cascading):
    """A prompt through its attention function: the cache it leaves, and the prompt's last logits."""
    layers, config = model.config.num_hidden_layers, model.config
    settings = SimpleNamespace(
        prefill=[True] * layers,
        decoding_evict=[None] * layers,
        window_size=[WINDOW] * layers,
        key_size=[budget - WINDOW] * layers,
        tau1=TAU1,
        tau2=TAU2,
        gamma=GAMMA,
        prefill_cake_evict=[
            cake.cache.CakeprefillKVCache(
                cache_size=budget,
                window_size=WINDOW,
                num_heads=config.num_attention_heads,
                num_layers=layers,
                use_cascading=cascading,
            )
        ]
        * layers,
    )
    cache = Cache(cake.cache)

    def forward_of(layer):
        own = model.model.layers[layer].self_attn
        module = SimpleNamespace(
            **{name: getattr(own, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "training")},
            config=settings,
            layer_idx=layer,
            num_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            num_key_value_groups=own.num_key_value_groups,
            attention_dropout=0.0,
            is_causal=True,
            _flash_attn_uses_top_left_mask=False,
        )

        def call(hidden_states, position_embeddings, **_):
            output, _, _ = cake.attention.llama_attn_forward_cake(
                module, hidden_states, past_key_value=cache, position_embeddings=position_embeddings
            )
            return output, None

        return call

    patches = [patch.object(model.model.layers[layer].self_attn, "forward", forward_of(layer)) for layer in range(layers)]
    patches += [patch.object(cake.attention, "_flash_attention_forward", attend), patch("builtins.print")]
    for each in patches:
        each.start()
    try:
        logits = forward(model, tokens, 0, None)[-1]
    finally:
        for each in patches:
            each.stop()
    return cache, logits


def margin_of(scores, budgets):
    """The smallest relative gap between the last score kept and the first one dropped."""
    gaps = []
    for layer, kept in zip(scores, budgets):
        if kept < layer.shape[-1]:
            ordered = layer.sort(-1, descending=True).values
            gaps.append(((ordered[:, kept - 1] - ordered[:, kept]) / ordered[:, kept - 1]).min().item())
    return min(gaps)


def share_margin(shares):
    """How far the shares lie from the next whole number, and their fractional parts from each other."""
    parts = sorted(share % 1 for share in shares)
    return min([parts[0], 1 - parts[-1]] + [b - a for a, b in zip(parts, parts[1:])])


def steadiness(entry):
    """How little a case hangs on rounding."""
    return min(entry["margin"], 10 * entry["share_margin"])


def case(model, cake, budget, tokens):
    """What it keeps of a prompt, and what this project would share out."""
    layers, most = model.config.num_hidden_layers, len(tokens) - WINDOW
    cache, logits = prefill(model, cake, budget, tokens, cascading=True)
    kept, kept_at_once = cache.kept(), prefill(model, cake, budget, tokens, cascading=False)[0].kept()
    preferences = [float(score) for score in cache.pref_scores]
    total = (budget - WINDOW) * layers
    shares = [preference / sum(preferences) * total for preference in preferences]
    # Where a share exceeds the prompt, spreading the excess can give another layer more than there is: it holds what there is.
    published = np.minimum(cake.utils.adjust_budgets(shares, total, most, layers), most)
    assert np.array_equal(cache.layer_budget, published)
    here = apportion(total, preferences, 0, most)
    return {
        "params": {"cache_size": budget, "window_size": WINDOW, "tau1": TAU1, "tau2": TAU2, "gamma": GAMMA},
        "agrees": list(cache.layer_budget) == here and kept == kept_at_once,
        "n_tokens": len(tokens),
        "preferences": [float(f"{preference:.7g}") for preference in preferences],
        "shares": [round(share, 6) for share in shares],
        "layer_budgets": [int(share) for share in cache.layer_budget],
        "layer_budgets_here": here,
        "cascading_keeps_the_same": kept == kept_at_once,
        "kept_per_layer": [len(layer[0]) for layer in kept],
        "tokens": tokens,
        "share_margin": float(f"{share_margin(shares):.3g}"),
        "margin": float(f"{margin_of(cache.prompt_scores, cache.layer_budget):.3g}"),
        "kept": kept,
        "prompt_logits": logits,
    }


def prompts(tokenizer, length):
    """The candidates of a length."""
    return [tokenizer.encode(needle_prompt(tokenizer, length, candidate)).ids for candidate in range(CANDIDATES)]


def report(entry):
    """One line, and the entry as it is stored."""
    print(
        f"cake: {entry['params']['cache_size']} of {entry['n_tokens']}, shares {entry['shares']}, "
        f"theirs {entry['layer_budgets']}, here {entry['layer_budgets_here']}, held {entry['kept_per_layer']}, "
        f"cascading the same: {entry['cascading_keeps_the_same']}, "
        f"margins {entry['share_margin']:.1e} {entry['margin']:.1e}"
    )
    return {name: value for name, value in entry.items() if name != "prompt_logits"}


def main():
    """Every case."""
    args = arguments(__doc__, checkout="cakekv")
    model, tokenizer = load(args.model)
    cake = load_cake(args.cakekv)
    cases = []
    for length in LENGTHS:
        entries = [case(model, cake, budget, tokens) for tokens in prompts(tokenizer, length) for budget in BUDGETS[length]]
        for entry in entries:
            expected = forward(model, entry["tokens"], 0, None)[-1]
            assert torch.allclose(entry["prompt_logits"], expected, atol=1e-4), "its attention is not the model's"
        same = [sum(entry[name] for entry in entries) for name in ("agrees", "cascading_keeps_the_same")]
        print(f"cake: of {len(entries)} prompts of {length} tokens, {same[0]} agree; cascading changes nothing in {same[1]}")
        # One case whose whole numbers this project shares, one that is only rounded otherwise.
        cases.append(max((entry for entry in entries if entry["agrees"]), key=steadiness))
        others = (entry for entry in entries if not entry["agrees"] and max(entry["shares"]) < entry["n_tokens"] - WINDOW)
        why = "it cuts every share down to a whole number and gives what is left to the first layers, here the largest "
        cases.append({**max(others, key=steadiness), "why": why + "remainders get it"})
    length, budget = CLIPPED
    clipped = max((case(model, cake, budget, tokens) for tokens in prompts(tokenizer, length)), key=lambda e: max(e["shares"]))
    why = "a layer's share exceeds the prompt: it spreads the excess evenly, here it goes by preference"
    cases.append({**clipped, "why": why})
    cases = [report(entry) for entry in cases]
    fixture = {"versions": {**versions("torch", "transformers"), "cakekv": commit(args.cakekv)}, "cases": cases}
    write(args.out, "cake", fixture)


if __name__ == "__main__":
    with torch.no_grad():
        main()
