"""The results of `real-model.toml` as a table in Markdown, best first, and as CSV with a line per policy and question.

    python runs/real_model_methods.py out/real-model/results.jsonl docs/src/results/real-model-methods

Brackets are 95 % Wilson intervals over the prompts. *Kept* is what the cache holds after the answer, over what a full cache
would, without room for tokens to come; it counts the question and the answer too.
"""

import csv
import json
import sys
from pathlib import Path

from leaderboard import wilson


def shown(scores):
    return "{:.2f} [{:.2f}, {:.2f}]".format(*wilson(scores))


def main():
    results, out = Path(sys.argv[1]), Path(sys.argv[2])
    cells, sums = {}, {}
    for line in results.read_text().splitlines()[1:]:
        line = json.loads(line)
        if line["kind"] != "answers":
            continue
        [answer] = line["answers"]
        cache = line["cache"]
        kept = cache["bytes"] - cache["spare"]
        sums.setdefault((line["policy"], line["budget"], line["ask"]), []).append((answer["score"], kept, cache["full"]))
        cells.setdefault(line["policy"], {}).setdefault(line["ask"], []).append((answer["score"], kept / cache["full"]))
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "budget", "ask", "prompts", "score", "bytes_kept", "bytes_full"])
        for cell, prompts in sorted(sums.items()):
            scores, kept, full = zip(*prompts)
            writer.writerow([*cell, len(prompts), sum(scores) / len(prompts), sum(kept), sum(full)])

    def right(policy, ask):
        return sum(score for score, _ in cells[policy][ask])

    lines = ["| method | asked before | asked after | prompts | kept |", "|---|---:|---:|---:|---:|"]
    for policy in sorted(cells, key=lambda policy: (policy != "full", -right(policy, "after"), -right(policy, "before"), policy)):
        found = [cells[policy][ask] for ask in ("before", "after")]
        scores = [shown([score for score, _ in one]) for one in found]
        kept = [share for one in found for _, share in one]
        lines.append(f"| `{policy}` | {scores[0]} | {scores[1]} | {len(found[0])} | {sum(kept) / len(kept):.0%} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
