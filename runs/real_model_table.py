"""The answers of a run on the real model beside those of kvpress to the same prompts, as a table in Markdown.

    python runs/real_model_table.py out/real-model-kvpress/results.jsonl out/kvpress.jsonl
    python runs/real_model_table.py out/real-model-kvpress/results.jsonl out/kvpress.jsonl --join out/both.jsonl

Only prompts that both answered count. The last column counts answers that are the same to the letter. `--join` writes both answers to a prompt
as a line of JSON too.
"""

import argparse
import json
from pathlib import Path


def answers(path, cell):
    found = {}
    for line in path.read_text().splitlines():
        line = json.loads(line)
        if "said" in line or "answers" in line:
            policy, budget, ask, score, said = cell(line)
            found.setdefault((policy, budget, ask), {})[line["task"], line["sample"]] = (score, said)
    return found


def ours(line):
    [answer] = line["answers"]
    budget = 1.0 if line["budget"] == "-" else float(line["budget"].rstrip("%")) / 100
    return line["policy"], budget, line["ask"], answer["score"], answer["said"]


def theirs(line):
    return line["policy"], line["budget"], line["ask"], line["score"], line["said"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("briquette", type=Path)
    parser.add_argument("kvpress", type=Path)
    parser.add_argument("--join", type=Path)
    args = parser.parse_args()
    briquette, kvpress = answers(args.briquette, ours), answers(args.kvpress, theirs)
    joined = []
    print("| policy | kept | asked | prompts | Briquette | kvpress | same answer |")
    print("|---|---:|---|---:|---:|---:|---:|")
    order = {cell: number for number, cell in enumerate(kvpress)}
    for cell in sorted(kvpress, key=lambda cell: (cell[0] != "full", cell[2] != "before", cell[1], order[cell])):
        policy, budget, ask = cell
        # What a run file changes in all policies is in no label.
        ours_of = briquette.get(cell) or briquette.get((policy.partition(":")[0], budget, ask), {})
        both = [prompt for prompt in kvpress[cell] if prompt in ours_of]
        if not both:
            continue
        mean = [sum(side[prompt][0] for prompt in both) / len(both) for side in (ours_of, kvpress[cell])]
        same = sum(ours_of[prompt][1].strip() == kvpress[cell][prompt][1].strip() for prompt in both)
        print(f"| `{policy}` | {budget:.0%} | {ask} | {len(both)} | {mean[0]:.2f} | {mean[1]:.2f} | {same} |")
        for prompt in both:
            line = dict(zip(["policy", "budget", "ask", "task", "sample"], (*cell, *prompt)))
            for name, side in (("briquette", ours_of), ("kvpress", kvpress[cell])):
                line[name] = dict(zip(["score", "said"], side[prompt]))
            joined.append(line)
    if args.join:
        args.join.write_text("".join(json.dumps(line) + "\n" for line in joined))


if __name__ == "__main__":
    main()
