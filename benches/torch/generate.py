#!/usr/bin/env python3
"""Hugging Face transformers beside `bench-generate`: a Llama of the same dimensions with random weights and the full cache
(DynamicCache, attention by scaled_dot_product_attention), at the same settings. One line of JSON a setting. With `--presses`
also the methods of kvpress, whose package must then be there.

    python3 benches/torch/generate.py --at 8:4096+256 --find-largest --out generate.jsonl
    python3 benches/torch/generate.py --quick --device cpu --at 2:96+16
"""

import argparse
import contextlib
import json
import time
import traceback
from importlib import metadata

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


def versions(method):
    names = ["torch", "transformers"] + ["kvpress"] * (method != "full")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def build(args):
    if args.quick:
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, vocab_size=256, max_position_embeddings=4096)
    else:
        sizes = dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=65536)
    if args.layers:
        sizes["num_hidden_layers"] = args.layers
    config = LlamaConfig(rms_norm_eps=1e-5, tie_word_embeddings=False, attn_implementation="sdpa",
                         rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, **sizes)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[args.dtype]))
    try:
        with torch.device(args.device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval()


class Runner:
    def __init__(self, args):
        self.args = args
        self.cuda = args.device.startswith("cuda")
        self.model = build(args)
        self.vocabulary = self.model.config.vocab_size

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def press(self, name, prompt):
        """A context in which the model keeps `--budget` tokens of a prompt; for "full" one that does nothing."""
        if name == "full":
            return contextlib.nullcontext()
        import kvpress

        classes = {kind.lower().removesuffix("press"): getattr(kvpress, kind) for kind in dir(kvpress) if kind.endswith("Press")}
        return classes[name.replace("-", "")](compression_ratio=1 - self.args.budget / prompt)(self.model)

    @torch.inference_mode()
    def prefill(self, batch, prompt, method="full"):
        tokens = torch.randint(self.vocabulary, (batch, prompt), device=self.args.device)
        cache = DynamicCache(config=self.model.config)
        # A press compresses the prompt it is given: in parts, it would compress each of them.
        start = 0
        with self.press(method, prompt):
            for part in self.parts(batch, prompt) if method == "full" else [prompt]:
                place = torch.arange(start, start + part, device=self.args.device)
                out = self.model(tokens[:, start:start + part], past_key_values=cache, use_cache=True, logits_to_keep=1,
                                 cache_position=place)
                start += part
        self.sync()
        return cache, out.logits[:, -1].argmax(-1, keepdim=True), prompt

    def parts(self, batch, tokens):
        """The lengths of the parts in which so many tokens a row are given to the model."""
        part = max(1, min(tokens, self.args.chunk // batch))
        return [min(part, tokens - start) for start in range(0, tokens, part)]

    @torch.inference_mode()
    def step(self, tokens, cache, seen):
        """The next token of each row, behind `seen` that the model was given and `tokens`."""
        count = tokens.shape[1]
        place = torch.arange(seen, seen + count, device=self.args.device).expand_as(tokens)
        out = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, position_ids=place)
        return out.logits[:, -1].argmax(-1, keepdim=True), seen + count

    def run(self, method, batch, prompt, new):
        report = {"kind": "generate", "side": "transformers" if method == "full" else "kvpress", "method": method,
                  "budget": "-" if method == "full" else str(self.args.budget), "batch": batch, "prompt": prompt, "new": new,
                  "versions": versions(method),
                  "device": torch.cuda.get_device_name() if self.cuda else "cpu"}
        try:
            if self.cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            cache, tokens, seen = self.prefill(batch, prompt, method)
            report["first_prefill_s"] = report["prefill_s"] = time.perf_counter() - started
            if time.perf_counter() - started < self.args.limit / 4:
                del cache, tokens
                again = time.perf_counter()
                cache, tokens, seen = self.prefill(batch, prompt, method)
                report["prefill_s"] = time.perf_counter() - again
            for _ in range(4):
                tokens, seen = self.step(tokens, cache, seen)
            self.sync()
            decoded, whole, host = 0, 0.0, 0.0
            while decoded < new and (time.perf_counter() - started < self.args.limit or decoded == 0):
                steps = min(16, new - decoded)
                begun = time.perf_counter()
                for _ in range(steps):
                    tokens, seen = self.step(tokens, cache, seen)
                host += time.perf_counter() - begun
                self.sync()
                whole += time.perf_counter() - begun
                decoded += steps
            step = whole / decoded
            report |= {
                "decoded": decoded, "step_ms": step * 1e3, "host_ms": host / decoded * 1e3,
                "decode_tokens_per_s": batch / step,
                "tokens_per_s": batch * new / (report["prefill_s"] + step * (new - 1)),
            }
            if self.cuda:
                report["bytes_in_use"] = torch.cuda.memory_allocated()
                report["bytes_reserved"] = torch.cuda.max_memory_reserved()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            report["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return report

    def fits(self, method, batch, prompt, new):
        """Whether the cache of the whole generation fits beside a prefill: what is generated comes in large parts."""
        try:
            torch.cuda.empty_cache()
            cache, tokens, seen = self.prefill(batch, prompt, method)
            for part in self.parts(batch, new - 4):
                tokens, seen = self.step(tokens.expand(batch, part), cache, seen)
            for _ in range(4):
                tokens, seen = self.step(tokens, cache, seen)
            self.sync()
            return True
        except torch.OutOfMemoryError:
            return False

    def largest(self, method, batch, prompt, new):
        fits, fails = 0, None
        for _ in range(8):
            if self.fits(method, batch, prompt, new):
                fits = batch
            else:
                fails = batch
            print(f"batch {batch}: {'ran' if fits == batch else 'out of memory'}", flush=True)
            batch = 2 * fits if fails is None else (fits + fails) // 2
            if batch == 0 or (fails is not None and batch <= fits + fits // 8):
                break
        return fits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    parser.add_argument("--at", default="8:4096+256", help="BATCH:PROMPT+NEW, separated by commas")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--presses", default="", help="methods of kvpress, as snapkv,compactor; separated by commas")
    parser.add_argument("--budget", type=int, default=256, help="tokens a press keeps of a prompt")
    parser.add_argument("--chunk", type=int, default=131072, help="tokens of all prompts given to the model at a time")
    parser.add_argument("--limit", type=float, default=50, help="seconds a setting may take")
    parser.add_argument("--find-largest", action="store_true", help="try the largest batch too")
    parser.add_argument("--quick", action="store_true", help="a model of two small layers")
    parser.add_argument("--out", help="append the lines to this file too")
    args = parser.parse_args()
    runner = Runner(args)
    out = open(args.out, "a") if args.out else None

    def write(report):
        line = json.dumps(report)
        print(line, flush=True)
        if out:
            print(line, file=out, flush=True)

    for setting in args.at.split(","):
        batch, rest = setting.split(":")
        prompt, new = rest.split("+")
        batch, prompt, new = int(batch), int(prompt), int(new)
        full = None
        for method in ["full", *filter(None, args.presses.split(","))]:
            report = runner.run(method, batch, prompt, new)
            if "error" not in report:
                full = full or report
                report["decode_ratio"] = report["decode_tokens_per_s"] / full["decode_tokens_per_s"]
                report["ratio"] = report["tokens_per_s"] / full["tokens_per_s"]
            write(report)
            if args.find_largest and runner.cuda and "error" not in report:
                report["largest_batch_ran"] = runner.largest(method, batch, prompt, new)
                write(report)


if __name__ == "__main__":
    main()
