"""The results of a run file of one model as CSV and as a table in Markdown: policies down, budgets across.

    python runs/ablations.py docs/src/results/paper-kvmerger out/paper-kvmerger/results.jsonl
    python runs/ablations.py docs/src/results/stages out/stages/results.jsonl
    python runs/ablations.py --protection docs/src/results/protection out/protection-window/results.jsonl out/protection-ends/results.jsonl

Without results `--add` writes the table of a committed CSV anew.

A score is the mean of the tasks with the 95 % interval of that mean, as in `leaderboard.py`. `ablations.csv` has the numbers of the papers and
what rows are called, in the order of the table; a policy that it lacks comes behind under its label. With `--protection` each file is a column,
beside the same methods as published, from the leaderboard's CSV.
"""

import argparse
import csv
from pathlib import Path

from leaderboard import cells, mean, read_csv, share, write_csv

HERE = Path(__file__).parent


QUESTION = {"before": "query-aware", "after": "query-agnostic"}


def scored(tasks):
    score, low, high, _ = mean(tasks)
    return f"{score:.2f} [{low:.2f}, {high:.2f}]"


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def named(run, policies):
    """Label, name and number of the paper of each row."""
    rows = [row for row in csv.DictReader((HERE / "ablations.csv").open()) if row["run"] == run]
    known = {row["policy"] for row in rows}
    missing = known - set(policies)
    if missing:
        raise SystemExit(f"{run}: no results of {', '.join(sorted(missing))}")
    rows += [{"policy": policy, "row": policy, "paper": ""} for policy in policies if policy not in known]
    return [(row["policy"], row["row"], row["paper"]) for row in rows]


def table(run, found):
    columns = sorted({(ask, budget) for _, _, budget, ask in found if budget != "-"}, key=lambda column: (column[0], -share(column[1])))
    asks = {ask for ask, _ in columns}
    policies = list(dict.fromkeys(policy for _, policy, *_ in found))
    rows = named(run, policies)
    paper = any(number for *_, number in rows)
    head = [""] + ["paper"] * paper + [f"{budget}, {QUESTION[ask]}" if len(asks) > 1 else budget for ask, budget in columns] + ["kept"]
    lines = []
    for policy, name, number in rows:
        at = {(ask, budget): tasks for (_, of, budget, ask), tasks in found.items() if of == policy}
        whole = {ask: tasks for (ask, budget), tasks in at.items() if budget == "-"}
        each = [at.get(column) or whole.get(column[0]) for column in columns]
        shown = [scored(tasks) if tasks else "" for tasks in each]
        kept = dict.fromkeys(f"{mean(tasks)[3]:.0%}" for tasks in each if tasks)
        lines.append([name] + [number or "-"] * paper + shown + [", ".join(kept)])
    return markdown(head, lines)


PROTECTIONS = {"protection-window": "first 4, last 32", "protection-ends": "a tenth of the budget at each end"}


def protection(runs, published):
    """Methods down, as published and under the protection of each run across; `runs` has the cells of each by its name."""
    columns = [published, *runs.values()]
    measured = {cell for found in runs.values() for cell in found if cell[1] != "full"}
    order = sorted(measured, key=lambda cell: (-sum(mean(found[cell])[0] for found in runs.values() if cell in found), cell))
    rows = [[f"`{cell[1]}`"] + [scored(found[cell]) if cell in found else "" for found in columns] for cell in order]
    return markdown(["score of", "as published", *(PROTECTIONS[name] for name in runs)], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="without its ending; its name is that of the run")
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--add", action="store_true", help="keep the cells of the CSV that none of the results has")
    parser.add_argument("--protection", action="store_true")
    args = parser.parse_args()
    if args.protection:
        runs = {path.parent.name: cells([path]) for path in args.results}
        for name, found in runs.items():
            write_csv(args.out.with_name(name), found)
        text = protection(runs, read_csv(args.out.with_name("leaderboard-smollm2")))
    else:
        found = cells(args.results)
        if args.add:
            found = {**read_csv(args.out), **found}
        write_csv(args.out, found)
        text = table(args.out.name, found)
    args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
