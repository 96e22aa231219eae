"""Prompt and decode speed of `briquette generate` and of llama.cpp (`llama-cpp-python`) on one GGUF file and a CPU, in turn.

    python benches/beside_llama_cpp.py --model models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf \
        --briquette target/release/briquette --out benches/results/llama-cpp.csv

Both read the same prompt and generate greedily; a round is a process of ours, then a generation of llama.cpp, whose first is not counted.
One line a round; medians are printed.
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from llama_cpp import Llama

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT = REPOSITORY / "crates/briquette-eval/assets/haystack.txt"


def ours(args, text):
    """Prompt and decode, in tokens a second."""
    with tempfile.TemporaryDirectory() as folder:
        prompt, out = Path(folder) / "prompt.txt", Path(folder) / "out.json"
        prompt.write_text(text)
        command = [args.briquette, "generate", "--device", "flex", "--model", args.model, "--policy", "full"]
        command += ["--file", prompt, "--max-new-tokens", str(args.tokens), "--json", out]
        environment = os.environ | {"RAYON_NUM_THREADS": str(args.threads)}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.loads(out.read_text())
    return [report[part]["tokens_per_second"] for part in ("prefill", "decode")], report["prefill"]["tokens"]


def theirs(llama, tokens, count):
    llama.reset()
    begin = time.perf_counter()
    llama.eval(tokens)
    token = llama.sample(temp=0.0)
    first = time.perf_counter()
    for _ in range(count):
        llama.eval([token])
        token = llama.sample(temp=0.0)
    end = time.perf_counter()
    return [len(tokens) / (first - begin), count / (end - first)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--briquette", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--characters", type=int, default=2400, help="of the prompt")
    parser.add_argument("--tokens", type=int, default=200, help="to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    text = TEXT.read_text()[: args.characters]
    llama = Llama(args.model, n_ctx=2048, n_batch=512, n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    tokens = llama.tokenize(text.encode(), add_bos=False)
    theirs(llama, tokens, 8)
    rows = []
    for _ in range(args.rounds):
        found, prompt = ours(args, text)
        if prompt != len(tokens):
            sys.exit(f"the prompt has {prompt} tokens here, {len(tokens)} there")
        rows.append([*found, *theirs(llama, tokens, args.tokens)])
    head = ["prompt tokens/s", "decode tokens/s", "llama.cpp prompt tokens/s", "llama.cpp decode tokens/s"]
    with args.out.open("w", newline="") as file:
        write = csv.writer(file)
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
        date = time.strftime("%Y-%m-%d")
        write.writerow(["date", "cpu", "threads", "prompt", "generated", "llama-cpp-python", *head])
        for row in rows:
            fixed = [date, cpu, args.threads, len(tokens), args.tokens, version("llama-cpp-python")]
            write.writerow([*fixed, *(f"{number:.1f}" for number in row)])
    for name, column in zip(head, zip(*rows)):
        print(f"{statistics.median(column):8.1f}  {name}")


if __name__ == "__main__":
    main()
