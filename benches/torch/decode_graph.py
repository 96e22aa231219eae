#!/usr/bin/env python3
"""The decode step of PyTorch at its best, beside the replayed steps of `bench-generate`: a Llama with random bf16 weights, a
static cache, queries, keys and values as one product and gate and up as one, scaled_dot_product_attention with grouped queries,
and the whole step captured as a CUDA graph. One line of JSON for each ROWS:TOKENS.

    python3 benches/torch/decode_graph.py 1:4096 16:4096 64:4096 --bandwidth 4.28 --out decode.jsonl
    python3 benches/torch/decode_graph.py 2:4224 16:256 --model llama-2-7b --compile
    python3 benches/torch/decode_graph.py 2:64 --model tiny --device cpu
"""

import argparse
import json
import time

import torch
from torch.nn import functional

MODELS = {
    "llama-3-8b": dict(layers=32, hidden=4096, inner=14336, query_heads=32, kv_heads=8, head_dim=128, vocabulary=128256),
    "llama-3.2-1b": dict(layers=16, hidden=2048, inner=8192, query_heads=32, kv_heads=8, head_dim=64, vocabulary=128256),
    "smollm2-135m": dict(layers=30, hidden=576, inner=1536, query_heads=9, kv_heads=3, head_dim=64, vocabulary=49152),
    "ember-7m": dict(layers=8, hidden=256, inner=768, query_heads=8, kv_heads=2, head_dim=32, vocabulary=4096),
    "llama-2-7b": dict(layers=32, hidden=4096, inner=11008, query_heads=32, kv_heads=32, head_dim=128, vocabulary=32000),
    "tiny": dict(layers=2, hidden=64, inner=128, query_heads=4, kv_heads=2, head_dim=16, vocabulary=256),
}
EPSILON = 1e-5
BASE = 500000.0


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def normed(x, weight):
    return functional.rms_norm(x, x.shape[-1:], weight, EPSILON)


def layer(matrices, norms, heads, x, keys, values, place, cosine, sine):
    """A layer of a decode step: of nothing but what it is given, so that one compilation serves all layers."""
    qkv, output, gate_up, down = matrices
    rows = x.shape[0]
    projected = functional.linear(normed(x, norms[0]), qkv).view(rows, sum(heads), 1, keys.shape[-1])
    queries, key, value = projected.split(heads, 1)
    keys.index_copy_(2, place, rotated(key, cosine, sine))
    values.index_copy_(2, place, value)
    # The token is the last of the buffer: it sees all of it.
    attended = functional.scaled_dot_product_attention(rotated(queries, cosine, sine), keys, values, enable_gqa=True)
    x = x + functional.linear(attended.reshape(rows, -1), output)
    gate, up = functional.linear(normed(x, norms[1]), gate_up).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, down)


class Decoder:
    def __init__(self, args):
        self.device, self.steps = args.device, args.steps
        self.cuda = args.device.startswith("cuda")
        self.sizes = MODELS[args.model]
        hidden, inner = self.sizes["hidden"], self.sizes["inner"]
        self.heads = [self.sizes["query_heads"], self.sizes["kv_heads"], self.sizes["kv_heads"]]
        channels = [count * self.sizes["head_dim"] for count in self.heads]
        shapes = [(sum(channels), hidden), (hidden, channels[0]), (2 * inner, hidden), (hidden, inner)]
        self.layers = [
            ([self.weight(*shape) for shape in shapes], [self.weight(hidden), self.weight(hidden)])
            for _ in range(self.sizes["layers"])
        ]
        self.embedding = self.weight(self.sizes["vocabulary"], self.sizes["hidden"])
        self.head = self.weight(self.sizes["vocabulary"], self.sizes["hidden"])
        self.norm = self.weight(self.sizes["hidden"])

    def weight(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16) * 0.02

    def noise(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

    def matrices(self):
        """All that a step multiplies by."""
        return [matrix for matrices, _ in self.layers for matrix in matrices] + [self.head]

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, call):
        """A call, the median of five windows of back-to-back calls."""
        for _ in range(3):
            call()
        windows = []
        for _ in range(5):
            self.sync()
            begun = time.perf_counter()
            for _ in range(self.steps):
                call()
            self.sync()
            windows.append((time.perf_counter() - begun) * 1e3 / self.steps)
        return sorted(windows)[2]

    def graphed(self, call):
        """The call as a graph; itself on a device without graphs."""
        if not self.cuda:
            return call
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def step(self, rows, tokens, run):
        """A decode step of a cache of so many tokens, the new one included."""
        sizes = self.sizes
        shape = (rows, sizes["kv_heads"], tokens, sizes["head_dim"])
        caches = [(self.noise(*shape), self.noise(*shape)) for _ in self.layers]
        chosen = torch.zeros(rows, dtype=torch.long, device=self.device)
        place = torch.tensor([tokens - 1], device=self.device)
        frequencies = BASE ** (-torch.arange(0, sizes["head_dim"], 2, device=self.device) / sizes["head_dim"])
        angles = torch.arange(tokens, device=self.device)[:, None] * frequencies
        tables = [torch.cat([part, part], -1).to(torch.bfloat16) for part in (angles.cos(), angles.sin())]

        def call():
            x = self.embedding[chosen]
            cosine, sine = (table.index_select(0, place) for table in tables)
            for (matrices, norms), (keys, values) in zip(self.layers, caches):
                x = run(matrices, norms, self.heads, x, keys, values, place, cosine, sine)
            chosen.copy_(functional.linear(normed(x, self.norm), self.head).argmax(-1))

        return call

    def products(self, rows):
        """The products of a step with its weights alone."""
        matrices = self.matrices()
        inputs = {width: self.noise(rows, width) for width in {matrix.shape[1] for matrix in matrices}}

        def call():
            for matrix in matrices:
                functional.linear(inputs[matrix.shape[1]], matrix)

        return call

    def read_bytes(self, rows, tokens):
        """Bytes that a step reads at least: every weight but the embedding, and the cache."""
        cached = 2 * len(self.layers) * rows * self.sizes["kv_heads"] * tokens * self.sizes["head_dim"]
        return 2 * sum(matrix.numel() for matrix in self.matrices()), 2 * cached


def measure(decoder, args, rows, tokens):
    report = {"kind": "decode-graph", "side": "pytorch", "model": args.model, "batch": rows, "tokens": tokens,
              "versions": f"torch {torch.__version__}",
              "device": torch.cuda.get_device_name() if decoder.cuda else "cpu"}
    try:
        plain = decoder.step(rows, tokens, layer)
        report["launched_step_ms"] = decoder.milliseconds(plain)
        report["step_ms"] = decoder.milliseconds(decoder.graphed(plain))
        report["products_ms"] = decoder.milliseconds(decoder.graphed(decoder.products(rows)))
        if args.compile:
            torch.compiler.reset()
            compiled = torch.compile(layer, mode="max-autotune-no-cudagraphs", dynamic=False)
            step = decoder.step(rows, tokens, compiled)
            report["compiled_step_ms"] = decoder.milliseconds(decoder.graphed(step))
        best = min(report["step_ms"], report.get("compiled_step_ms", float("inf")))
        report["tokens_per_s"] = rows / best * 1e3
        weights, cache = decoder.read_bytes(rows, tokens)
        report |= {"weight_bytes": weights, "cache_bytes": cache}
        if args.bandwidth:
            report["floor_ms"] = (weights + cache) / args.bandwidth * 1e-9
        if decoder.cuda:
            report["bytes_reserved"] = torch.cuda.max_memory_reserved()
    except Exception as error:  # noqa: BLE001
        report["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=["1:4096", "16:4096", "64:4096"], help="ROWS:TOKENS")
    parser.add_argument("--model", default="llama-3-8b", choices=MODELS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20, help="steps of a window, of which the median of five counts")
    parser.add_argument("--compile", action="store_true", help="layers by torch.compile, too")
    parser.add_argument("--bandwidth", type=float, help="bandwidth of a copy in TB/s, for the floor of a step")
    parser.add_argument("--out", help="append the lines to this file too")
    args = parser.parse_args()
    torch.manual_seed(2026)
    with torch.inference_mode():
        decoder = Decoder(args)
        for setting in args.settings:
            rows, tokens = map(int, setting.split(":"))
            line = json.dumps(measure(decoder, args, rows, tokens))
            print(line, flush=True)
            if args.out:
                with open(args.out, "a") as out:
                    print(line, file=out)
            if decoder.cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
