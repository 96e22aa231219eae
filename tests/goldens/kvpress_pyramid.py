"""Write `kvpress_pyramid.json`: the tokens that kvpress's PyramidKVPress keeps of a prompt, and how many a layer.

    python kvpress_pyramid.py [--model DIR] [--out DIR]

kvpress shapes the pyramid with the window inside it, this project above the window. `beta_here` is the beta with which
this project's pyramid has the same slope. README.md beside this file describes the fields.
"""

import logging
from types import SimpleNamespace

import torch
from kvpress import PyramidKVPress
from transformers import DynamicCache

from common import CANDIDATES, arguments, forward, full_cache, load, needle_prompt, places, rounded, versions, write
from shares import pyramid

AGREE = [  # about so many tokens, and the press
    (204, {"compression_ratio": 0.5, "window_size": 16, "kernel_size": 7, "beta": 2}),
    (204, {"compression_ratio": 0.75, "window_size": 16, "kernel_size": 5, "beta": 3}),
    (604, {"compression_ratio": 0.75, "window_size": 32, "kernel_size": 5, "beta": 3}),
    (604, {"compression_ratio": 0.5, "window_size": 32, "kernel_size": 7, "beta": 2}),
]
DIFFER = [  # exactly so many tokens, the press, beta_here (None: the one of the same slope), and why
    (604, {"compression_ratio": 0.75, "window_size": 32, "beta": 20}, 20, "the last layer would get fewer than "
     "window_size entries, so kvpress keeps the same number in every layer"),
    (604, {"compression_ratio": 0.5, "window_size": 32, "beta": 2}, 2, "kvpress divides the whole budget by beta, "
     "this project what is left of it above the window"),
    (604, {"compression_ratio": 0.25, "window_size": 32, "beta": 2}, 2, "kvpress stops the first layer window_size "
     "entries short of the prompt, window included; here it may keep the whole prompt"),
    (204, {"compression_ratio": 0.75, "window_size": 16, "beta": 2}, None, "first and last layer end on a half: "
     "kvpress rounds each to even, here the lower layer gets the entry"),
    (203, {"compression_ratio": 0.5, "window_size": 16, "beta": 2}, None, "half of 203 tokens is no whole number: "
     "kvpress spreads 101.5 a layer, here the budget is 101"),
]


def slope_above_window(tokens, params):
    """The beta of a pyramid above the window that falls as fast as kvpress's does with the window inside."""
    budget = tokens * (1 - params["compression_ratio"])
    return (budget - params["window_size"]) / (budget / params["beta"] - params["window_size"])


def per_layer(config, tokens, params):
    """What kvpress keeps a layer."""
    press = PyramidKVPress(**params)
    modules = [SimpleNamespace(config=config, layer_idx=layer) for layer in range(config.num_hidden_layers)]
    return [press.get_layer_budget(module, tokens) for module in modules]


def counts(config, tokens, params, beta_here=None):
    """The numbers of a case, kvpress's and this project's."""
    beta_here = beta_here or slope_above_window(tokens, params)
    budget = int(tokens * (1 - params["compression_ratio"]))
    return {
        "params": params,
        "n_tokens": tokens,
        "budget": budget,
        "beta_here": beta_here,
        "kept_per_layer": per_layer(config, tokens, params),
        "kept_per_layer_here": pyramid(config.num_hidden_layers, tokens, budget, params["window_size"], beta_here),
    }


def press_prompt(model, params, tokens):
    """Prefill under the press: the cache it leaves, its scores a layer, the prompt's last logits."""
    press, scores = PyramidKVPress(**params), []
    score = press.score

    def recording_score(*args, **kwargs):
        scores.append(score(*args, **kwargs))
        return scores[-1]

    press.score = recording_score
    cache = DynamicCache()
    with press(model):
        logits = forward(model, tokens, 0, cache)[-1]
    return cache, [layer[0] for layer in scores], logits


def margin_of(scores, kept_per_layer):
    """The smallest relative gap between the last score kept and the first one dropped."""
    gaps = []
    for layer, kept in zip(scores, kept_per_layer):
        ordered = layer.sort(-1, descending=True).values
        gaps.append(((ordered[:, kept - 1] - ordered[:, kept]) / ordered[:, kept - 1]).min().item())
    return min(gaps)


def agreeing_case(model, tokenizer, length, params):
    """A prompt under a press whose numbers this project shares."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(needle_prompt(tokenizer, length, candidate)).ids
        if len(tokens) % 4:
            continue  # a half and a quarter of it must be whole numbers
        case = counts(model.config, len(tokens), params)
        cache, scores, logits = press_prompt(model, params, tokens)
        margin = margin_of(scores, case["kept_per_layer"])
        if best is None or margin > best[0]:
            best = (margin, case, tokens, cache, logits)
    margin, case, tokens, cache, logits = best
    assert case["kept_per_layer"] == case["kept_per_layer_here"], case
    full = full_cache(model, tokens)
    kept = [places(held.keys[0], whole.keys[0]) for held, whole in zip(cache.layers, full.layers)]
    assert [len(layer[0]) for layer in kept] == case["kept_per_layer"]
    next_token = logits.argmax().item()
    after = forward(model, [next_token], len(tokens), cache)[-1]
    print(f"pyramid: {params}, {len(tokens)} tokens, {case['kept_per_layer']} kept, margin {margin:.2e}")
    return {
        **case,
        "agrees": True,
        "tokens": tokens,
        "margin": float(f"{margin:.3g}"),
        "kept": kept,
        "next_token": next_token,
        "last_logits_after": rounded(after),
    }


def differing_case(model, tokens, params, beta_here, why):
    """Numbers only."""
    case = counts(model.config, tokens, params, beta_here)
    assert case["kept_per_layer"] != case["kept_per_layer_here"], case
    print(f"pyramid: {params}, {tokens} tokens, kvpress {case['kept_per_layer']}, here {case['kept_per_layer_here']}")
    return {**case, "agrees": False, "why": why}


def main():
    """Every case."""
    args = arguments(__doc__)
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    # Layers of different length: eager attention builds one mask for all of them, sdpa needs none for one token.
    model, tokenizer = load(args.model, attention="sdpa")
    cases = [agreeing_case(model, tokenizer, *case) for case in AGREE]
    cases += [differing_case(model, *case) for case in DIFFER]
    write(args.out, "kvpress_pyramid", {"versions": versions("torch", "transformers", "kvpress"), "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
