"""How this project shares a cache out, written once more and apart from the library.

The generators use it to tell where published arithmetic and this project's agree.
"""

import math

STEPS = 2**20  # fractional parts are compared this finely
BISECTIONS = 200


def clamped(factor, weights, least, most):
    """Every weight times the factor, inside the limits."""
    return [min(max(factor * weight, low), high) for weight, low, high in zip(weights, least, most)]


def apportion(total, weights, least=0, most=math.inf):
    """Whole numbers that add up to `total`, in proportion to the weights inside the limits, largest remainders first.

    A limit is one number for all or a list.
    """
    least, most = ([limit] * len(weights) if isinstance(limit, (int, float)) else limit for limit in (least, most))
    if total <= sum(least):
        return list(least)
    if total >= sum(most):
        return list(most)
    largest = max(weights)
    weights = [max(weight, 1e-12 * largest) if largest > 0 else 1.0 for weight in weights]
    low, high = 0.0, 1.0
    while sum(clamped(high, weights, least, most)) < total:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(clamped(middle, weights, least, most)) < total else (low, middle)
    shares = clamped(high, weights, least, most)
    counts = [math.floor(share + 1e-9) for share in shares]
    steps = [math.floor((share + 1e-9 - count) * STEPS) for share, count in zip(shares, counts)]
    order = sorted((i for i in range(len(counts)) if counts[i] < most[i]), key=lambda i: (-steps[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    assert sum(counts) == total
    return counts


def pyramid(layers, tokens, budget, window, beta):
    """PyramidKV: entries a layer, window included."""
    body, most = budget - window, tokens - window
    low, high = body / beta, 2 * body - body / beta
    if high > most:
        low, high = 2 * body - most, most
    shares = [high - layer * (high - low) / (layers - 1) for layer in range(layers)]
    return [window + share for share in apportion(layers * body, shares, 0, most)]


def adaptive(scores, budget, window, floor):
    """AdaKV: entries a head, window included; `scores` [heads, tokens before the window]."""
    least = max(int(floor * budget) - window, 0)
    ordered = scores.sort(-1, descending=True).values.tolist()
    pool = sorted((-score, head) for head, row in enumerate(ordered) for score in row[least:])
    counts = [window + least] * len(ordered)
    for _, head in pool[: len(ordered) * (budget - window - least)]:
        counts[head] += 1
    return counts


def by_profile(table, budget, window, beta, most=math.inf):
    """HeadKV: entries a head beside the window, `[layer][head]`, from a table of head scores."""
    body, layers, heads = budget - window, len(table), len(table[0])
    total = sum(map(sum, table))
    shares = [body * (1 - 1 / beta) + score / total * (body / beta) * layers * heads for row in table for score in row]
    counts = apportion(body * layers * heads, shares, 0, most)
    return [counts[i : i + heads] for i in range(0, len(counts), heads)]
