"""The results of `decoding.toml` as a table in Markdown, and the losses by token in a file beside it.

    python runs/decoding.py docs/src/results/decoding out/decoding/results.jsonl

Nats a token, and above the full cache's with the 95 % interval of the mean of the differences, token by token in blocks of 64 (neighbours are
alike). The second half of `read twice` repeats the first, and is counted alone.
"""

import json
import math
import sys
from pathlib import Path

BLOCK = 64


def over(losses, full):
    blocks = [sum(a - b for a, b in zip(losses[i : i + BLOCK], full[i : i + BLOCK])) / BLOCK for i in range(0, len(losses) - BLOCK + 1, BLOCK)]
    mean = sum(blocks) / len(blocks)
    spread = math.sqrt(sum((x - mean) ** 2 for x in blocks) / (len(blocks) - 1) / len(blocks))
    return mean, 1.96 * spread


def main():
    out = Path(sys.argv[1])
    found = {}
    for line in Path(sys.argv[2]).read_text().splitlines()[1:]:
        line = json.loads(line)
        if line["kind"] == "text":
            cache = line["cache"]
            kept = (cache["bytes"] - cache["spare"]) / cache["full"]
            found[line["policy"], line["budget"], line["task"]] = (line["nats"], kept)
    rows = []
    for policy, budget in dict.fromkeys((policy, budget) for policy, budget, _ in found):
        cells = []
        for task in ["prose", "read twice"]:
            nats, kept = found[policy, budget, task]
            full, _ = found["full", "-", task]
            half = len(nats) // 2 if task == "read twice" else 0
            mean, spread = over(nats[half:], full[half:])
            cells.append((sum(nats[half:]) / len(nats[half:]), mean, spread))
        rows.append((policy, budget, cells, kept))
    rows.sort(key=lambda row: (row[0] != "full", row[2][0][1]))
    lines = ["| method | budget | prose, nats per token | above full | second reading, nats per token | above full | kept |", "|---|---:|---:|---:|---:|---:|---:|"]
    for policy, budget, cells, kept in rows:
        shown = [text for nats, mean, spread in cells for text in (f"{nats:.3f}", f"{mean:+.3f} ± {spread:.3f}" if policy != "full" else "")]
        lines.append(f"| `{policy}` | {budget} | " + " | ".join(shown) + f" | {kept:.0%} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    with out.with_suffix(".jsonl").open("w") as file:
        for (policy, budget, task), (nats, _) in found.items():
            file.write(json.dumps({"policy": policy, "budget": budget, "task": task, "nats": [round(x, 4) for x in nats]}) + "\n")


main()
