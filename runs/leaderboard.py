"""The results of `leaderboard.toml`, `leaderboard-known.toml` and `leaderboard-tasks.toml` as a table in Markdown, as CSV and as a plot.

    python runs/leaderboard.py docs/src/results/leaderboard-smollm2 out/leaderboard/results.jsonl out/leaderboard-known/results.jsonl
    python runs/leaderboard.py docs/src/results/leaderboard-ember out/leaderboard-ember/results.jsonl
    python runs/leaderboard.py --plot docs/src/images/leaderboard-smollm2 docs/src/results/leaderboard-smollm2 …
    python runs/leaderboard.py --add docs/src/results/leaderboard-smollm2 …
    python runs/leaderboard.py --tasks docs/src/results/leaderboard-tasks out/leaderboard-tasks/results.jsonl
    python runs/leaderboard.py --beside docs/src/results/leaderboard

Without results `--add` writes the table of a committed CSV anew, and `--beside` the table of both models from the results in its folder.

A score is the mean of the tasks, which have equally many prompts. Brackets are 95 % intervals of that mean, from the Wilson interval of each
task (Donner and Zou, 2012). *Kept* is what the cache holds after the answer over what a full cache would, without the room for tokens to come;
question and answer are part of both. The plot needs matplotlib.
"""

import argparse
import csv
import json
import math
from pathlib import Path


def wilson(scores, z=1.959964):
    of, share = len(scores), sum(scores) / len(scores)
    scale = 1 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    spread = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / scale
    return share, max(0, middle - spread), min(1, middle + spread)


def cells(paths):
    """Prompts, score with its interval, and kept share by model, policy, budget, time of the question and task."""
    prompts = {}
    for path in paths:
        for line in Path(path).read_text().splitlines()[1:]:
            line = json.loads(line)
            if line["kind"] == "answers":
                scores = [answer["score"] for answer in line["answers"]]
                cache = line["cache"]
                cell = (line["model"], line["policy"], line["budget"], line["ask"])
                prompt = (sum(scores) / len(scores), cache["bytes"] - cache["spare"], cache["full"])
                prompts.setdefault(cell, {}).setdefault(line["task"], []).append(prompt)
    found = {}
    for cell, tasks in prompts.items():
        for task, each in tasks.items():
            kept = sum(bytes for _, bytes, _ in each) / sum(full for *_, full in each)
            found.setdefault(cell, {})[task] = (len(each), *wilson([score for score, *_ in each]), kept)
    return found


COLUMNS = ["model", "policy", "budget", "ask", "task", "prompts", "score", "low", "high", "kept"]


def read_csv(path):
    found = {}
    for row in csv.DictReader(path.with_suffix(".csv").open()):
        cell = found.setdefault(tuple(row[name] for name in COLUMNS[:4]), {})
        cell[row["task"]] = (int(row["prompts"]), *(float(row[name]) for name in COLUMNS[6:]))
    return found


def write_csv(path, found):
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for cell, tasks in sorted(found.items()):
            for task, (prompts, *numbers) in sorted(tasks.items()):
                writer.writerow([*cell, task, prompts, *(f"{number:.4f}" for number in numbers)])


def mean(tasks):
    """Score with its interval, and kept share, of all tasks together."""
    each = list(tasks.values())
    score = sum(score for _, score, *_ in each) / len(each)
    below = math.sqrt(sum((score - low) ** 2 for _, score, low, *_ in each)) / len(each)
    above = math.sqrt(sum((high - score) ** 2 for _, score, _, high, _ in each)) / len(each)
    kept = sum(kept for *_, kept in each) / len(each)
    return score, max(0, score - below), min(1, score + above), kept


def share(budget):
    return 1.0 if budget == "-" else float(budget.rstrip("%")) / 100


def table(found):
    """Policies down, budgets across, best first by the mean over the budgets. Rows are query-agnostic unless they say otherwise."""
    whole = max(prompts for tasks in found.values() for prompts, *_ in tasks.values())
    tasks = {task for cell in found.values() for task in cell}
    complete = {cell: all(of.get(task, [0])[0] == whole for task in tasks) for cell, of in found.items()}
    budgets = sorted({budget for _, _, budget, _ in found if budget != "-"}, key=share, reverse=True)
    rows = {}
    for cell in found:
        if complete[cell]:
            _, policy, budget, ask = cell
            name = policy if ask == "after" or policy == "full" else f"{policy}, query-aware"
            rows.setdefault(name, {})[budget] = mean(found[cell])
    order = sorted(rows, key=lambda name: (name != "full", -sum(row[0] for row in rows[name].values()) / len(rows[name]), name))
    lines = ["| method | " + " | ".join(["no budget", *budgets]) + " | kept |", "|---|" + "---:|" * (len(budgets) + 1) + "---|"]
    for name in order:
        shown = []
        for budget in ["-", *budgets]:
            if budget in rows[name]:
                score, low, high, _ = rows[name][budget]
                shown.append(f"{score:.2f} [{low:.2f}, {high:.2f}]")
            else:
                shown.append("")
        kept = ", ".join(f"{rows[name][budget][3]:.0%}" for budget in ["-", *budgets] if budget in rows[name])
        method, _, rest = name.partition(",")
        lines.append(f"| `{method}`{',' + rest if rest else ''} | " + " | ".join(shown) + f" | {kept} |")
    return "\n".join(lines) + "\n"


def quarter(csv_path):
    """Scores at a quarter of the cache, or without a budget, and kept shares, by policy and time of the question."""
    return {(policy, ask): mean(tasks) for (_, policy, budget, ask), tasks in read_csv(csv_path).items() if budget in ("25%", "-")}


def of_policies(path):
    """Mean scores by policy and time of the question, of a CSV with a line for each."""
    return {(row["policy"], row["ask"]): float(row["score"]) for row in csv.DictReader(path.open())}


def of_report(path, task, budget):
    """Scores of a task at a budget, query-aware, of a report's CSV."""
    rows = csv.DictReader(path.open())
    rows = [row for row in rows if (row["task"], row["ask"], row["measure"]) == (task, "before", "score") and row["budget"] in (budget, "-")]
    return {plain(row["policy"]): float(row["mean"]) for row in rows}


def of_short(path):
    """The cells of the table of short prompts by policy and head."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in path.open() if line.startswith("|")]
    return {plain(row[0].strip("`")): dict(zip(head, row)) for row in rows}


def plain(label):
    return label.removesuffix(":kernel=15")


def beside(folder):
    """Both models at a quarter of the cache, all lengths, query-agnostic and query-aware; then other budgets for the best."""
    smollm2, ember = quarter(folder / "leaderboard-smollm2"), quarter(folder / "leaderboard-ember")
    shorter, short = of_policies(folder / "real-model-methods.csv"), of_short(folder / "short-prompts.md")
    aware = [of_report(folder / "all-methods.csv", f"needle in {length}", f"{length // 4}") for length in (512, 1024)]
    aware.append(of_report(folder / "all-methods-long.csv", "needle in 4096", "1024"))
    methods = {policy for policy, _ in smollm2}

    def score(found):
        return "" if found is None else f"{found:.2f}" if isinstance(found, float) else f"{found[0]:.2f}"

    def row(method):
        at = short.get(method, {})
        kept = f"{smollm2[method, 'after'][3]:.0%}"
        cells = [shorter.get((method, "after")), shorter.get((method, "before")), smollm2.get((method, "after")), smollm2.get((method, "before"))]
        cells = [score(cell) for cell in cells]
        cells += [at.get("needle in 512", ""), score(aware[0].get(method)), at.get("needle in 1024", ""), score(aware[1].get(method))]
        cells += [score(ember.get((method, "after"))), score(aware[2].get(method))]
        return [f"`{method}`", kept, *cells]

    heads = ["SmolLM2, 1,024: agnostic", "aware", "SmolLM2, 4,096: agnostic", "aware", "ember, 512: agnostic", "aware"]
    heads += ["ember, 1,024: agnostic", "aware", "ember, 4,096: agnostic", "aware"]
    order = sorted(methods, key=lambda method: (method != "full", -smollm2[method, "after"][0], -ember[method, "after"][0], method))
    lines = ["| method | kept | " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) + 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row(method)) + " |" for method in order]) + "\n"


def budgets(folder):
    """Methods that keep half of the full cache's score at a quarter on SmolLM2, at the other budgets and 4,096 tokens, on both models."""
    models = [read_csv(folder / f"leaderboard-{model}") for model in ("smollm2", "ember")]
    shares = ["75%", "50%", "12.5%"]
    found = [{(policy, ask, budget): mean(tasks)[0] for (_, policy, budget, ask), tasks in model.items()} for model in models]
    least = found[0]["full", "after", "-"] / 2
    rows = [(ask, policy) for policy, ask, budget in found[0] if budget == "25%" and found[0][policy, ask, budget] >= least]
    rows.sort(key=lambda row: (row[0], -sum(found[0][row[1], row[0], budget] for budget in shares)))
    lines = ["| method | " + " | ".join(f"{name}{budget}" for name in ("SmolLM2: ", "ember: ") for budget in shares) + " |"]
    lines.append("|---" + "|---:" * (2 * len(shares)) + "|")
    for ask, policy in rows:
        cells = [scores.get((policy, ask, budget)) for scores in found for budget in shares]
        name = f"`{policy}`" + (", query-aware" if ask == "before" else "")
        lines.append("| " + " | ".join([name, *("" if cell is None else f"{cell:.2f}" for cell in cells)]) + " |")
    return "\n".join(lines) + "\n"


def tasks_table(found):
    models = list(dict.fromkeys(model for model, *_ in found))
    tasks = sorted({task for cell in found.values() for task in cell}, key=lambda task: (task.startswith("short"), task))
    lines = ["| task | " + " | ".join(f"`{model}`" for model in models) + " |", "|---|" + "---|" * len(models)]
    for task in tasks:
        shown = []
        for model in models:
            cell = found.get((model, "full", "-", "after"), {}).get(task)
            shown.append("{:.2f} [{:.2f}, {:.2f}]".format(*cell[1:4]) if cell else "")
        lines.append(f"| {task} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


# Colours of Okabe and Ito, told apart by who sees fewer.
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"]


def plot(path, found, named):
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["font.size"] = 11
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9.4, 5.4))
    lines = {}
    for (_, policy, budget, ask), tasks in found.items():
        if ask == "after":
            score, _, _, kept = mean(tasks)
            lines.setdefault(policy, []).append((kept, score))
    for policy, points in lines.items():
        if policy not in named and policy != "full" and len(points) > 1:
            axes.plot(*zip(*sorted(points)), color="#c8c8c8", linewidth=0.9, zorder=1)
    [(_, full)] = lines["full"]
    axes.hlines(full, 0.09, 0.86, color="#666666", linewidth=1.2, linestyle="--", zorder=2)
    axes.text(0.64, full + 0.012, "full cache", color="#666666", va="bottom", ha="center")
    ends = []
    for policy, color in zip(named, COLORS):
        points = sorted(lines[policy])
        axes.plot(*zip(*points), color=color, linewidth=2, marker="o", markersize=5, zorder=3)
        ends.append([points[-1][1], points[-1], policy, color])
    # Names at the ends of the lines, moved apart where they would touch.
    ends.sort()
    for one, other in zip(ends, ends[1:]):
        other[0] = max(other[0], one[0] + 0.048)
    for height, (x, y), policy, color in ends:
        axes.annotate(policy, (x, y), xytext=(0.9, height), color=color, va="center", arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6})
    axes.text(0.9, 0.005, "other methods", color="#999999", va="center")
    axes.set(xlim=(0.09, 1.14), ylim=(-0.02, 1.05), xlabel="share of the full cache's bytes that is kept", ylabel="score, mean of the tasks")
    axes.set_xticks([0.125, 0.25, 0.5, 0.75], ["12.5 %", "25 %", "50 %", "75 %"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", zorder=0)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=160)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="without its ending")
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--add", action="store_true", help="keep the cells of the CSV that none of the results has")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--named", nargs="*", default=["compresskv-headkv", "kvzip", "compactor", "leverage", "keydiff-adakv", "streaming-llm", "snapkv"])
    parser.add_argument("--tasks", action="store_true", help="the full cache by task and model")
    parser.add_argument("--beside", action="store_true", help="both models side by side, from the results beside the table")
    args = parser.parse_args()
    if args.beside:
        args.out.with_suffix(".md").write_text(beside(args.out.parent))
        args.out.with_name(f"{args.out.name}-budgets.md").write_text(budgets(args.out.parent))
        return
    found = cells(args.results)
    if args.add:
        found = {**read_csv(args.out), **found}
    write_csv(args.out, found)
    args.out.with_suffix(".md").write_text(tasks_table(found) if args.tasks else table(found))
    if args.plot:
        plot(args.plot, found, args.named)


if __name__ == "__main__":
    main()
