"""The answers of a run on the real model beside those of kvpress to the same prompts, as a table in Markdown.

    python runs/real_model_table.py out/real-model-kvpress/results.jsonl out/kvpress.jsonl
    python runs/real_model_table.py out/real-model-kvpress/results.jsonl out/kvpress.jsonl --differences out/differences.jsonl

Only prompts that both answered count. The last column counts answers that are the same to the letter. `--differences`
writes both answers to a prompt as a line of JSON, where they differ.
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


def joined(briquette, kvpress):
    """Both answers to each prompt, cell by cell."""
    for (policy, budget, ask), theirs_of in kvpress.items():
        # What a run file changes in all policies is in no label.
        ours_of = briquette.get((policy, budget, ask)) or briquette.get((policy.partition(":")[0], budget, ask), {})
        for prompt in theirs_of:
            if prompt in ours_of:
                line = dict(zip(["policy", "budget", "ask", "task", "sample"], (policy, budget, ask, *prompt)))
                for name, side in (("briquette", ours_of), ("kvpress", theirs_of)):
                    line[name] = dict(zip(["score", "said"], side[prompt]))
                yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("briquette", type=Path)
    parser.add_argument("kvpress", type=Path)
    parser.add_argument("--differences", type=Path)
    args = parser.parse_args()
    lines = list(joined(answers(args.briquette, ours), answers(args.kvpress, theirs)))
    cells = {}
    for line in lines:
        cells.setdefault((line["policy"], line["budget"], line["ask"]), []).append((line["briquette"], line["kvpress"]))
    print("| policy | kept | asked | prompts | Briquette | kvpress | same answer |")
    print("|---|---:|---|---:|---:|---:|---:|")
    order = {cell: number for number, cell in enumerate(cells)}
    for cell in sorted(cells, key=lambda cell: (cell[0] != "full", cell[2] != "before", cell[1], order[cell])):
        policy, budget, ask = cell
        both = cells[cell]
        mean = [sum(answer["score"] for answer in side) / len(side) for side in zip(*both)]
        same = sum(ours_of["said"].strip() == theirs_of["said"].strip() for ours_of, theirs_of in both)
        print(f"| `{policy}` | {budget:.0%} | {ask} | {len(both)} | {mean[0]:.2f} | {mean[1]:.2f} | {same} |")
    if args.differences:
        differ = [line for line in lines if line["briquette"]["said"] != line["kvpress"]["said"]]
        args.differences.write_text("".join(json.dumps(line) + "\n" for line in differ))


if __name__ == "__main__":
    main()
