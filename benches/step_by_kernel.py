#!/usr/bin/env python3
"""Times each kernel of one layer's decode step with Nsight Compute, for each method and number of rows.

    python3 benches/step_by_kernel.py target/debug/bench-generate 4:2048 16:256 256:256 --methods h2o,d2o

ROWS:BUDGET. Caches are filled with noise, of a prompt as long as the budget, and steps are launched. A time is the median of
eight steps. Nsight Compute runs one kernel at a time with empty caches, at the card's own clock: compare kernels, not their sum with
a step's time, where one kernel finds in the second-level cache what another has left.
"""

import argparse
import csv
import io
import re
import statistics
import subprocess
import sys

METRIC = "gpu__time_duration.sum"
LAYERS = 3
STEPS = 8


def kernels(bench, method, rows, budget):
    """(name, grid, nanoseconds) of each kernel of the process, in order."""
    settings = f"{rows}:{budget}+{STEPS + 4}"
    command = ["ncu", "--metrics", METRIC, "--csv", "--page", "raw", "--clock-control", "none", bench, "--device", "cuda"]
    command += ["--layers", str(LAYERS), "--methods", method, "--budgets", str(budget), "--at", settings, "--fill"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    _units, *measured = csv.DictReader(io.StringIO("\n".join(lines)))
    return [(row["Kernel Name"], row["Grid Size"], float(row[METRIC].replace(",", ""))) for row in measured]


def layer(measured):
    """One layer's kernels of a step: each begins with the rotation of queries and keys."""
    starts = [at for at, (name, _, _) in enumerate(measured) if name.startswith("rotate")]
    if len(starts) < LAYERS * STEPS:
        sys.exit(f"{len(starts)} rotations where {STEPS} steps of {LAYERS} layers have {LAYERS * STEPS}")
    starts = starts[-LAYERS * STEPS :]
    layers = [measured[starts[step] : starts[step + 1]] for step in range(0, len(starts), LAYERS)]
    names = [[name for name, _, _ in kernels] for kernels in layers]
    if any(other != names[0] for other in names):
        sys.exit("steps differ in their kernels")
    return [(*same[0][:2], statistics.median(time for _, _, time in same)) for same in zip(*layers)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="the binary bench-generate, built with `cuda`")
    parser.add_argument("settings", nargs="+", metavar="ROWS:BUDGET")
    parser.add_argument("--methods", default="h2o,d2o")
    parser.add_argument("--out", default="step-by-kernel.csv")
    args = parser.parse_args()
    with open(args.out, "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["rows", "budget", "method", "kernel", "grid", "nanoseconds"])
        for setting in args.settings:
            rows, budget = map(int, setting.split(":"))
            for method in args.methods.split(","):
                measured = layer(kernels(args.bench, method, rows, budget))
                for name, grid, time in measured:
                    writer.writerow([rows, budget, method, name, grid, round(time)])
                out.flush()
                print(f"\n{method}, {rows} rows, budget {budget}: {sum(time for *_, time in measured) / 1000:.1f} us a layer")
                for name, grid, time in measured:
                    if not re.match("linear|matmul|tiling", name):
                        print(f"  {name[:60]:60} {grid:>18} {time / 1000:8.1f} us")


if __name__ == "__main__":
    main()
