"""Prompts a second of each method in a run of two seeds: of the first, which compiles, and of the second.

    python runs/speed.py out/speed/results.jsonl out/speed/table

Seconds are those of the prompt, which a batch shares out among its rows, and of all decoded tokens of the longest answer of the
batch. *Longest* is the longest answer of the second seed in tokens: steps end with it.
"""

import csv
import json
import sys
from pathlib import Path


def main():
    results, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows = {}
    for line in results.read_text().splitlines()[1:]:
        line = json.loads(line)
        if line["kind"] != "answers":
            continue
        row = rows.setdefault((line["policy"], line["seed"]), [0, 0.0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] += line["seconds"]
        row[2] += line["prefill_seconds"]
        row[3] += line["decode_seconds"]
        row[4] = max(row[4], line["decoded_tokens"])
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", "seed", "prompts", "seconds", "prefill_seconds", "decode_seconds", "longest"])
        writer.writerows([policy, seed, row[0], *(f"{x:.3f}" for x in row[1:4]), row[4]] for (policy, seed), row in rows.items())
    first, last = min(seed for _, seed in rows), max(seed for _, seed in rows)
    whole = [policy for policy, seed in rows if seed == last and rows[policy, seed][0] == rows[policy, first][0]]

    def rate(policy, seed):
        return rows[policy, seed][0] / rows[policy, seed][1]

    lines = ["| method | prompts/s, compiling | prompts/s | prompt, ms | answer, ms | longest |", "|---|---:|---:|---:|---:|---:|"]
    for policy in sorted(whole, key=lambda policy: (policy != "full", -rate(policy, last))):
        prompts, _, prefill, decode, longest = rows[policy, last]
        rates = f"{rate(policy, first):.1f} | {rate(policy, last):.1f}"
        lines.append(f"| `{policy}` | {rates} | {prefill / prompts * 1000:.0f} | {decode / prompts * 1000:.0f} | {longest} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
