"""Write `kvpress_cam.json`: what kvpress's CAMPress keeps in decoding, and the values it merges.

    python kvpress_cam.py [--model DIR] [--out DIR]

`torch.bernoulli` is replaced while a press works: whether a value is merged is decided by the number that this project
draws for its layer, head and position. README.md beside this file describes the fields.
"""

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from kvpress import CAMPress, StreamingLLMPress, TOVAPress
from kvpress.presses.scorer_press import ScorerPress
from transformers import DynamicCache

from common import CANDIDATES, SEED, arguments, forward, load, prose_of, rounded, versions, write

MODULUS = 46337
SINKS = 4  # never evicted; kvpress counts nothing that the first token attends to, which is only itself
DRAWS = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (7, 1, 4), (3, 0, 95), (31, 7, 46336), (31, 7, 46337), (2, 1, 100000)]

AGREE = [  # what is evicted, budget, merge window, tokens, all of them fed one by one
    ("recency", 48, 32, 96),
    ("last_query", 40, 16, 96),
    ("accumulated", 32, 8, 80),
]
DIFFER = [  # the same, tokens fed as a prompt before, and why
    ("recency", 48, 32, 96, 40, "attention is accumulated in decoding only, so entries of the prompt come with less of it"),
    ("recency", 48, 32, 96, 64, "attention is accumulated in decoding only; a prompt above the budget is cut at the first "
     "decoded token, and of all it evicts one entry is merged"),
]


def draw(layer, head, position, seed=SEED):
    """The number that decides over an entry, in [0, MODULUS)."""
    x = 0
    for value in (seed % MODULUS, layer, head, position % MODULUS, 0):
        x = ((x + value) % MODULUS * 25173 + 13849) % MODULUS
        x = x * x % MODULUS * x % MODULUS
    return x


@dataclass
class AccumulatedPress(ScorerPress):
    """What CaM's paper evicts, for kvpress, which has no such scorer: least accumulated attention, the recent half safe.

    The mean over all heads: CAMPress evicts one set a layer.
    """

    budget: int = 0
    sums = None  # CAMPress's own, a layer

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        scores = self.sums[module.layer_idx].mean(1, keepdim=True).repeat(1, keys.shape[1], 1)
        scores[..., -(self.budget // 2) :] = scores.max().item() + 1
        return scores


def scorer(name, budget):
    """The press that says what is evicted."""
    match name:
        case "recency":
            return StreamingLLMPress(n_sink=SINKS)
        case "last_query":
            return TOVAPress()
        case "accumulated":
            return AccumulatedPress(budget=budget)


class Recorder:
    """Follows a CAMPress: which positions every layer holds, and every decision over an evicted value."""

    def __init__(self, press, layers):
        self.press = press
        self.held = [[] for _ in range(layers)]
        self.fed = 0
        self.evicted = [[] for _ in range(layers)]
        self.merge_candidates = [[] for _ in range(layers)]
        self.probabilities = [[] for _ in range(layers)]
        self.merged = [[] for _ in range(layers)]
        self.margin = float("inf")
        self.inner_compress, self.inner_score = press.compress, press.base_press.score
        self.layer, self.places, self.left = None, None, None  # of the compression at work
        press.compress, press.base_press.score = self.compress, self.score

    def see(self, tokens):
        """So many tokens come now."""
        for held in self.held:
            held.extend(range(self.fed, self.fed + tokens))
        self.fed += tokens

    def score(self, module, *args, **kwargs):
        """The scorer's answer, with the first tokens safe; what it evicts is read off it."""
        scores = self.inner_score(module, *args, **kwargs)
        scores[..., :SINKS] = scores.max().item() + 1
        mean = scores.mean(1)[0]
        layer, target = self.layer, self.press.target_size
        evicted = mean.topk(len(mean) - target, largest=False).indices.sort().values
        by_score = sorted(evicted.tolist(), key=lambda i: (-mean[i].item(), -i))
        self.places = sorted(by_score[: self.press.layer_step_counts[layer]])
        self.evicted[layer].append([self.held[layer][i] for i in evicted.tolist()])
        if len(evicted) == 1 and not isinstance(self.press.base_press, StreamingLLMPress):
            lowest, second = mean.topk(2, largest=False).values.tolist()
            self.margin = min(self.margin, (second - lowest) / second)
        self.left = [position for i, position in enumerate(self.held[layer]) if i not in set(evicted.tolist())]
        return scores

    def bernoulli(self, probabilities):
        """In place of `torch.bernoulli`: 1 where the drawn number lies below the probability."""
        layer = self.layer
        candidates = [self.held[layer][place] for place in self.places]
        assert probabilities.shape[2] == len(candidates)
        numbers = [[draw(layer, head, at) / MODULUS for at in candidates] for head in range(probabilities.shape[1])]
        numbers = torch.tensor([numbers], dtype=torch.float64)
        self.margin = min(self.margin, (probabilities - numbers).abs().min().item())
        merged = (numbers < probabilities).to(probabilities)
        self.merge_candidates[layer].append(candidates)
        self.probabilities[layer].append(rounded(probabilities[0]))
        self.merged[layer].append(merged[0].int().tolist())
        return merged

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        """CAMPress's, proven to leave the positions that were read off the scores."""
        self.layer = int(module.layer_idx)
        before = keys.clone()
        keys, values = self.inner_compress(module, hidden_states, keys, values, attentions, kwargs)
        places = [self.held[self.layer].index(position) for position in self.left]
        assert torch.equal(keys, before[:, :, places])
        self.held[self.layer] = self.left
        return keys, values


@contextmanager
def recording(model, name, budget, window):
    """A CAMPress at work on the model that evicts at every token, and what it does."""
    base = scorer(name, budget)
    press = CAMPress(base_press=base, compression_interval=1, target_size=budget, merge_budget=window)
    if isinstance(base, AccumulatedPress):
        base.sums = press._running_attn_sum
    recorder = Recorder(press, model.config.num_hidden_layers)
    with patch("torch.bernoulli", recorder.bernoulli), press(model):
        yield recorder


def decode(model, name, budget, window, tokens, prompt):
    """Feeds `prompt` tokens at once and the others one by one."""
    cache = DynamicCache()
    with recording(model, name, budget, window) as recorder:
        for start, end in [(0, prompt)] + [(i, i + 1) for i in range(prompt, len(tokens))]:
            recorder.see(end - start)
            logits = forward(model, tokens[start:end], start, cache)[-1]
    return cache, recorder, logits


def case(model, tokenizer, name, budget, window, length, prompt=1, why=None):
    """One entry."""
    best = None
    for candidate in range(CANDIDATES):
        tokens = tokenizer.encode(prose_of(tokenizer, length + 4, 3 * candidate)).ids[:length]
        cache, recorder, logits = decode(model, name, budget, window, tokens, prompt)
        if best is None or recorder.margin > best[0]:
            best = (recorder.margin, tokens, cache, recorder, logits)
    margin, tokens, cache, recorder, logits = best
    next_token = logits.argmax().item()
    values = rounded(cache.layers[-1].values[0])
    after = forward(model, [next_token], len(tokens), cache)[-1]
    decisions = [merged for layer in recorder.merged for event in layer for head in event for merged in head]
    print(
        f"cam: {name} {budget} {window}, {len(tokens)} tokens, {prompt} at once, "
        f"{sum(decisions)} of {len(decisions)} merged, margin {margin:.2e}"
    )
    entry = {
        "params": {
            "evicts": name,
            "n_sink": SINKS,
            "target_size": budget,
            "merge_budget": window,
            "compression_interval": 1,
            "seed": SEED,
        },
        "agrees": why is None,
        "tokens": tokens,
        "n_prompt": prompt,
        "margin": float(f"{margin:.3g}"),
        "evicted": recorder.evicted,
        "merge_candidates": recorder.merge_candidates,
        "probabilities": recorder.probabilities,
        "merged": recorder.merged,
    }
    if why:
        return {**entry, "why": why}
    assert recorder.evicted == recorder.merge_candidates, "one entry a token"
    return {
        **entry,
        "kept": recorder.held,
        "last_layer_values": values,
        "next_token": next_token,
        "last_logits_after": rounded(after),
    }


def main():
    """Every case."""
    args = arguments(__doc__)
    logging.getLogger("kvpress").setLevel(logging.ERROR)
    model, tokenizer = load(args.model)
    cases = [case(model, tokenizer, *each) for each in AGREE]
    cases += [case(model, tokenizer, *each) for each in DIFFER]
    fixture = {
        "versions": versions("torch", "transformers", "kvpress"),
        "modulus": MODULUS,
        "draws": [[*place, draw(*place)] for place in DRAWS],
        "cases": cases,
    }
    write(args.out, "kvpress_cam", fixture)


if __name__ == "__main__":
    with torch.no_grad():
        main()
