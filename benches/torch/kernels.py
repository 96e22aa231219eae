#!/usr/bin/env python3
"""PyTorch's side of the table: the rows of `bench-kernels`, under the same names, one line of JSON each.

    python3 benches/torch/kernels.py --out torch.jsonl
    python3 benches/torch/kernels.py --quick --device cpu      # whether it runs

Times are medians of CUDA events around back-to-back calls (`ms`), and of replays of a CUDA graph (`ms_graph`). On a CPU both
clocks are the host's. A row that fails is written with its error and stops nothing.
"""

import argparse
import datetime
import json
import math
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F

HEAD_DIM = 128


class Bench:
    def __init__(self, args):
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        self.quick = args.quick
        self.rows = [row for row in (args.rows or "").split(",") if row]
        self.dtype = getattr(torch, {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[args.dtype])
        self.dtype_name = args.dtype
        self.compile = not args.no_compile
        self.graph = self.cuda and not args.no_graph
        self.out = open(args.out, "a") if args.out else None
        self.generator = torch.Generator(device=self.device).manual_seed(2026)
        self.name = torch.cuda.get_device_name(self.device) if self.cuda else "cpu"
        self.versions = f"torch {torch.__version__}" + (f", CUDA {torch.version.cuda}" if self.cuda else "")

    def wants(self, row):
        return not self.rows or any(part in row for part in self.rows)

    def size(self, full, quick):
        return quick if self.quick else full

    def noise(self, *shape, dtype=None):
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype, generator=self.generator)

    def sets(self, bytes_of_one):
        """How many sets of inputs together are far larger than the cache of the device."""
        return 2 if self.quick else max(1, min(64, math.ceil(400e6 / bytes_of_one)))

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def window(self, work):
        """Milliseconds that `work` takes: on the device's clock, and on the host's."""
        self.sync()
        started = time.perf_counter()
        if self.cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            self.sync()
            host = (time.perf_counter() - started) * 1e3
            return begin.elapsed_time(end), host
        work()
        host = (time.perf_counter() - started) * 1e3
        return host, host

    def time(self, call, sets):
        started = time.perf_counter()
        call(0)
        self.sync()
        first = (time.perf_counter() - started) * 1e3
        for index in range(max(5 if not self.quick else 1, sets)):
            call(index % sets)
        self.sync()
        once = min(self.window(lambda: call(0))[1] for _ in range(2))
        window, calls_at_most, all_windows = (1, 3, 10) if self.quick else (30, 300, 900)
        calls = max(1, min(calls_at_most, int(window / max(once, 5e-4))))
        calls = math.ceil(calls / sets) * sets
        windows = max(3 if self.quick else 5, min(30, int(all_windows / max(once * calls, 1e-3))))

        def work():
            for index in range(calls):
                call(index % sets)

        times = [self.window(work) for _ in range(windows)]
        device = [of_device / calls for of_device, _ in times]
        host = [of_host / calls for _, of_host in times]
        return {
            "ms": statistics.median_low(device),
            "ms_call": statistics.median_low(host),
            "ms_first": first,
            "ms_range": [min(device), max(device)],
        }

    def time_graph(self, call, sets, about):
        calls = sets if sets > 1 else 1 if about > 1 else 10
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for index in range(max(3, sets)):
                call(index % sets)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call(index % sets) for index in range(calls)]
        graph.replay()
        once = self.window(graph.replay)[0]
        replays = max(1, min(300, int(30 / max(once, 1e-3))))

        def work():
            for _ in range(replays):
                graph.replay()

        time_of_call = statistics.median_low(self.window(work)[0] / (replays * calls) for _ in range(15))
        del kept
        return time_of_call

    def run(self, row, variant, call, sets=1, bytes_=None, operations=None, shape="", graph=True, dtype=None):
        record = {
            "side": "pytorch", "row": row, "variant": variant, "shape": shape, "bytes": bytes_,
            "operations": operations, "dtype": dtype or self.dtype_name, "device": self.name, "versions": self.versions,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "quick": self.quick,
        }
        try:
            with torch.no_grad():
                record |= self.time(call, sets)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            record["error"] = f"{type(error).__name__}: {error}"
        # Of a long call launches do not count.
        if graph and self.graph and record.get("ms", 100) < 10:
            self.write(record)
            try:
                with torch.no_grad():
                    record["ms_graph"] = self.time_graph(call, sets, record["ms"])
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                record["graph_error"] = f"{type(error).__name__}: {error}"
                self.sync()
        self.write(record)
        if self.cuda:
            torch.cuda.empty_cache()

    def write(self, record):
        line = json.dumps(record)
        print(line, flush=True)
        if self.out:
            print(line, file=self.out, flush=True)

    def compiled(self, function):
        return torch.compile(function, dynamic=False)


def ceilings(b):
    if b.wants("copy"):
        size = b.size(2 << 30, 1 << 20)
        source = b.noise(size // 2, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        b.run("copy", "copy", lambda _: target.copy_(source), bytes_=2.0 * size, shape=f"{size >> 20} MiB", graph=False)
    if b.wants("matmul"):
        n = b.size(8192, 64)
        left, right = b.noise(n, n), b.noise(n, n)
        b.run("matmul", "matmul", lambda _: left @ right, operations=2.0 * n**3, shape=f"{n}³", graph=False)


def select(b):
    entries, longest = b.size(32768, 512), b.size(1 << 20, 1024)
    for row, n, k in [("select/256", entries, 256), ("select/1024", entries, 1024), ("select/1m", longest, 1024)]:
        if not b.wants(row):
            continue
        k = min(k, n // 2)
        scores = b.noise(8, n, dtype=torch.float32)
        shape = f"{k} of {n}, 8 rows"
        b.run(row, "topk", lambda _: torch.topk(scores, k, dim=-1), shape=shape, dtype="f32")
        b.run(row, "topk + sort", lambda _: torch.topk(scores, k, dim=-1, sorted=False).indices.sort(dim=-1).values,
              shape=shape, dtype="f32")
        half = scores.to(torch.bfloat16)
        b.run(row, "topk bf16", lambda _: torch.topk(half, k, dim=-1), shape=shape, dtype="bf16")


def group(b):
    for row, heads, n, classes in [("group/1024", 128, 1024, 256), ("group/16384", 8, 16384, 4096)]:
        if not b.wants(row):
            continue
        heads, n, classes = b.size(heads, 3), b.size(n, 70), b.size(classes, 17)
        drawn = torch.randint(-classes // 3, classes, (1, heads, n), device=b.device, generator=b.generator)
        drawn = drawn.clamp(min=-1).int()
        b.run(row, "argsort", lambda _: torch.argsort(drawn, dim=-1, stable=True),
              shape=f"{classes} classes of {n}, {heads} rows", dtype="i32")


def compact(b):
    entries, heads = b.size(32768, 512), 8
    for kept in [256, 1024, 8192]:
        row = f"compact/{kept}"
        if not b.wants(row):
            continue
        kept = min(kept, entries // 2)
        sets = b.sets(2 * heads * entries * HEAD_DIM * 2)
        inputs = [[b.noise(1, heads, entries, HEAD_DIM) for _ in range(2)] for _ in range(sets)]
        step = entries // kept
        place = torch.arange(kept, device=b.device) * step
        place = torch.stack([place + head % step for head in range(heads)])[None]
        index = place[..., None].expand(1, heads, kept, HEAD_DIM)
        flat = (place[0] + torch.arange(heads, device=b.device)[:, None] * entries).reshape(-1)
        shape = f"{kept} of {entries} rows, keys and values, {heads} heads × {HEAD_DIM}"
        b.run(row, "gather", lambda i: [x.gather(2, index) for x in inputs[i]], sets, shape=shape)
        b.run(row, "index_select",
              lambda i: [x.view(heads * entries, HEAD_DIM).index_select(0, flat) for x in inputs[i]], sets, shape=shape)


def column_scores(b):
    row = "column-scores"
    if not b.wants(row):
        return
    heads, n = b.size(32, 2), b.size(4096, 64)
    q, k = b.noise(1, heads, n, HEAD_DIM), b.noise(1, heads, n, HEAD_DIM)
    mask = torch.ones(n, n, device=b.device, dtype=torch.bool).tril()
    shape = f"1×{heads}×{n}×{HEAD_DIM}, causal"

    def steps(q, k, mask):
        scores = (q @ k.transpose(2, 3)) * HEAD_DIM**-0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1, dtype=torch.float32).sum(2)

    def steps_half(q, k, mask):
        scores = (q @ k.transpose(2, 3)) * HEAD_DIM**-0.5
        scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1).sum(2)

    b.run(row, "eager", lambda _: steps(q, k, mask), shape=shape)
    b.run(row, "eager, softmax in bf16", lambda _: steps_half(q, k, mask), shape=shape)
    if b.compile:
        compiled = b.compiled(steps)
        b.run(row, "compiled", lambda _: compiled(q, k, mask), shape=shape)


def window_scores(b):
    row = "window-scores"
    if not b.wants(row):
        return
    heads, kv_heads = b.size(32, 4), b.size(8, 2)
    w, n = b.size(32, 8), b.size(32768, 256)
    group = heads // kv_heads
    sets = b.sets(kv_heads * n * HEAD_DIM * 2)
    q = b.noise(1, heads, w, HEAD_DIM)
    keys = [b.noise(1, kv_heads, n, HEAD_DIM) for _ in range(sets)]
    mask = torch.ones(w, n, device=b.device, dtype=torch.bool).tril(n - w)
    shape = f"{w} queries, {heads}/{kv_heads} heads × {HEAD_DIM}, {n} entries"

    def finish(scores):
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32)
        sums = weights.sum(2)
        pooled = F.avg_pool1d(sums, 5, 1, 2)
        return pooled.view(1, kv_heads, group, n).mean(2)

    def grouped(q, k):
        scores = q.view(1, kv_heads, group * w, HEAD_DIM) @ k.transpose(2, 3)
        return finish(scores.view(1, heads, w, n) * HEAD_DIM**-0.5)

    def expanded(q, k):
        k = k[:, :, None].expand(1, kv_heads, group, n, HEAD_DIM).reshape(1, heads, n, HEAD_DIM)
        return finish((q @ k.transpose(2, 3)) * HEAD_DIM**-0.5)

    b.run(row, "eager", lambda i: grouped(q, keys[i]), sets, shape=shape)
    b.run(row, "eager, keys expanded", lambda i: expanded(q, keys[i]), sets, shape=shape)
    if b.compile:
        compiled = b.compiled(grouped)
        b.run(row, "compiled", lambda i: compiled(q, keys[i]), sets, shape=shape)


def sdpa(q, k, v, causal):
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def prefill(b):
    heads, few, n = b.size(32, 4), b.size(8, 2), b.size(4096, 64)
    for row, kv_heads in [("prefill", heads), ("prefill-grouped", few)]:
        if not b.wants(row):
            continue
        q = b.noise(1, heads, n, HEAD_DIM)
        k, v = (b.noise(1, kv_heads, n, HEAD_DIM) for _ in range(2))
        b.run(row, "sdpa", lambda _: sdpa(q, k, v, True), shape=f"1×{heads}/{kv_heads}×{n}×{HEAD_DIM}, causal",
              operations=4.0 * heads * n * n / 2 * HEAD_DIM)


def decode(b):
    heads, kv_heads = b.size(32, 4), b.size(8, 2)
    group = heads // kv_heads
    middle, long, short, many = b.size(4096, 96), b.size(32768, 160), b.size(1024, 64), b.size(32, 3)
    for row, batch, n, one_set in [
        ("decode/4096", 1, middle, False), ("decode/4096-in-cache", 1, middle, True),
        ("decode/32768", 1, long, False), ("decode/1024-batch-32", many, short, False),
    ]:
        if not b.wants(row):
            continue
        cache = 2.0 * batch * kv_heads * n * HEAD_DIM * 2
        sets = 1 if one_set else b.sets(cache)
        q = b.noise(batch, heads, 1, HEAD_DIM)
        inputs = [[b.noise(batch, kv_heads, n, HEAD_DIM) for _ in range(2)] for _ in range(sets)]
        b.run(row, "sdpa", lambda i: sdpa(q, *inputs[i], False), sets, bytes_=cache,
              shape=f"batch {batch}, {heads}/{kv_heads} heads × {HEAD_DIM}, {n} entries")
    for row, n in [("decode/4096-with-weights", middle), ("decode/32768-with-weights", long)]:
        if not b.wants(row):
            continue
        sets = b.sets(2.0 * kv_heads * n * HEAD_DIM * 2)
        q = b.noise(1, heads, 1, HEAD_DIM)
        inputs = [[b.noise(1, kv_heads, n, HEAD_DIM) for _ in range(2)] for _ in range(sets)]

        def eager(i):
            k, v = inputs[i]
            scores = (q.view(1, kv_heads, group, HEAD_DIM) @ k.transpose(2, 3)) * HEAD_DIM**-0.5
            weights = scores.softmax(-1, dtype=torch.float32)
            return weights.to(q.dtype) @ v, weights

        b.run(row, "eager", eager, sets, shape=f"batch 1, {heads}/{kv_heads} heads × {HEAD_DIM}, {n} entries, weights out")
    row = "ragged-decode"
    if b.wants(row):
        mean = short
        lengths = [mean // 4 + (mean * 3 // 2) * (head % 8) // 7 + 16 for head in range(many * kv_heads)]
        longest = max(lengths)
        q = b.noise(many, heads, 1, HEAD_DIM)
        k, v = (b.noise(many, kv_heads, longest, HEAD_DIM) for _ in range(2))
        lengths = torch.tensor(lengths, device=b.device).view(many, kv_heads, 1, 1)
        mask = torch.arange(longest, device=b.device).view(1, 1, 1, longest) < lengths
        mask = mask.repeat_interleave(group, dim=1)
        b.run(row, "sdpa, padded",
              lambda _: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
              shape=f"batch {many}, padded to {longest} entries a head")


def rotate(b):
    context, heads = 8192, b.size(32, 4)
    angles = torch.arange(context, device=b.device)[:, None] * 500000.0 ** (
        -torch.arange(0, HEAD_DIM, 2, device=b.device) / HEAD_DIM)
    for row, batch, tokens in [("rotate/prompt", 1, b.size(4096, 70)), ("rotate/step", b.size(16, 2), 1)]:
        if not b.wants(row):
            continue
        sets = b.sets(2 * batch * heads * tokens * HEAD_DIM * 2)
        inputs = [b.noise(batch, heads, tokens, HEAD_DIM) for _ in range(sets)]
        # As transformers does: cosines and sines once a model, in the type of the model.
        both = torch.cat([angles, angles], -1)[context - tokens:]
        cos, sin = both.cos().to(b.dtype), both.sin().to(b.dtype)

        def turn(i):
            x = inputs[i]
            low, high = x.chunk(2, -1)
            return x * cos + torch.cat([-high, low], -1) * sin

        shape = f"batch {batch}, {heads} heads × {HEAD_DIM}, {tokens} tokens"
        b.run(row, "apply_rotary_pos_emb", turn, sets, shape=shape)


def merge(b):
    heads = 8
    for row, source, target, pairs in [
        ("nearest/ems", b.size(768, 48), b.size(224, 16), 2), ("nearest/d2o", b.size(28672, 96), b.size(4096, 32), 1),
    ]:
        if not b.wants(row):
            continue
        tensors = [(b.noise(1, heads, source, HEAD_DIM), b.noise(1, heads, target, HEAD_DIM)) for _ in range(pairs)]

        def nearest(_):
            similarity = None
            for left, right in tensors:
                one = F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).transpose(2, 3)
                similarity = one if similarity is None else similarity * one
            return similarity.max(-1)

        b.run(row, "matmul + max", nearest, shape=f"{source} to {target} rows, {pairs} pairs")
    row = "accumulate/d2o"
    if b.wants(row):
        rows, slots = b.size(28672, 96), b.size(4096, 32)
        x = b.noise(heads, rows, HEAD_DIM)
        weights = torch.rand(heads, rows, 1, device=b.device)
        slot = torch.randint(slots, (heads, rows), device=b.device)
        place = (slot + torch.arange(heads, device=b.device)[:, None] * slots).reshape(-1)

        def add(_):
            weighted = (x * weights).reshape(-1, HEAD_DIM)
            return torch.zeros(heads * slots, HEAD_DIM, device=b.device).index_add_(0, place, weighted)

        b.run(row, "index_add", add, shape=f"{rows} rows to {slots} slots")
    for row, heads, others, rows in [("merge/step", b.size(128, 3), 1, b.size(256, 16)),
                                     ("merge/prompt", 8, b.size(768, 48), b.size(256, 16))]:
        if not b.wants(row):
            continue
        sets = b.sets(2 * heads * (2 * rows + others) * HEAD_DIM * 2)
        inputs = [[b.noise(heads, n, HEAD_DIM) for n in [rows, rows, others, others]] for _ in range(sets)]
        own, weights = (torch.rand(heads, n, 1, device=b.device) for n in [rows, others])
        slot = torch.randint(rows, (heads, others), device=b.device)
        place = (slot + torch.arange(heads, device=b.device)[:, None] * rows).reshape(-1)

        def means(i):
            keys, values, from_keys, from_values = inputs[i]
            add = lambda x, y: (x * own).reshape(-1, x.shape[-1]).index_add_(  # noqa: E731
                0, place, (y * weights).reshape(-1, x.shape[-1])).view(x.shape)
            keys = add(F.normalize(keys.float(), dim=-1), F.normalize(from_keys.float(), dim=-1))
            total = own.reshape(-1, 1).index_add(0, place, weights.reshape(-1, 1)).view(own.shape)
            values = add(values.float(), from_values.float()) / total
            return F.normalize(keys, dim=-1).to(b.dtype), values.to(b.dtype)

        b.run(row, "index_add", means, sets, shape=f"{others} into {rows} rows, {heads} heads")


def step(b):
    heads, kv_heads, n = b.size(32, 4), b.size(8, 2), b.size(32768, 256)
    head_dim = b.size(128, 16)
    kept, w = b.size(1024, 64), 32
    group = heads // kv_heads
    q = b.noise(1, heads, n, head_dim)
    k, v = (b.noise(1, kv_heads, n, head_dim) for _ in range(2))
    shape = f"{heads}/{kv_heads} heads × {head_dim}, {n} tokens"
    if b.wants("layer-prefill"):
        b.run("layer-prefill", "sdpa", lambda _: sdpa(q, k, v, True), shape=shape)
    if b.wants("layer-prefill/whole"):
        hidden, inner = b.size(4096, 64), b.size(14336, 128)
        matrix = lambda i, o: b.noise(i, o) * (i**-0.5)  # noqa: E731
        wq, wk, wv, wo = (matrix(hidden, heads * head_dim), matrix(hidden, kv_heads * head_dim),
                          matrix(hidden, kv_heads * head_dim), matrix(heads * head_dim, hidden))
        gate, up, down = matrix(hidden, inner), matrix(hidden, inner), matrix(inner, hidden)
        x, ones = b.noise(1, n, hidden), torch.ones(hidden, device=b.device, dtype=b.dtype)

        def layer(_):
            y = F.rms_norm(x, (hidden,), ones)
            split = lambda t, h: t.view(1, n, h, head_dim).transpose(1, 2)  # noqa: E731
            out = sdpa(split(y @ wq, heads), split(y @ wk, kv_heads), split(y @ wv, kv_heads), True)
            y = x + out.transpose(1, 2).reshape(1, n, heads * head_dim) @ wo
            z = F.rms_norm(y, (hidden,), ones)
            return y + (F.silu(z @ gate) * (z @ up)) @ down

        b.run("layer-prefill/whole", "layer", layer, shape=f"one layer of Llama 3 8B without RoPE, {n} tokens")
    if b.wants("compress-step/snapkv"):
        mask = torch.ones(w, n, device=b.device, dtype=torch.bool).tril(n - w)

        def snapkv(_):
            scores = q[:, :, -w:].reshape(1, kv_heads, group * w, head_dim) @ k.transpose(2, 3)
            scores = scores.view(1, heads, w, n) * head_dim**-0.5
            sums = scores.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.float32).sum(2)
            pooled = F.avg_pool1d(sums, 5, 1, 2).view(1, kv_heads, group, n).mean(2)
            best = pooled[..., :-w].topk(kept - w, dim=-1, sorted=False).indices.sort(-1).values
            index = best[..., None].expand(1, kv_heads, kept - w, head_dim)
            return [torch.cat([x.gather(2, index), x[:, :, -w:]], 2) for x in (k, v)]

        b.run("compress-step/snapkv", "eager", snapkv, shape=f"{shape}, {kept} kept")


def linear(b):
    layers, hidden, inner = b.size(32, 2), b.size(4096, 64), b.size(14336, 128)
    sizes = {"qkv": (hidden, b.size(6144, 96)), "output": (hidden, hidden), "gate-up": (hidden, 2 * inner),
             "down": (inner, hidden), "head": (hidden, b.size(128256, 256))}
    counts = [count for count in [1, 8, 16, 32, 64, 256, 1024, 32768] if any(b.wants(f"linear/{count}/{name}") for name in [*sizes, "step"])]
    if not counts:
        return
    # As PyTorch's Linear holds them.
    weights = {name: [b.noise(o, i) * i**-0.5 for _ in range(1 if name == "head" else layers)]
               for name, (i, o) in sizes.items()}
    for count in counts:
        x = {i: b.noise(count, i) for i in (hidden, inner)}
        for name, (i, o) in sizes.items():
            row = f"linear/{count}/{name}"
            if b.wants(row) and (name != "head" or count < 32768):
                bytes_ = 2.0 * (i * o + count * (i + o))
                sets = min(b.sets(bytes_), len(weights[name]))
                b.run(row, "linear", lambda n: F.linear(x[i], weights[name][n]), sets, bytes_=bytes_,
                      operations=2.0 * count * i * o, shape=f"{count} × {i} to {o}")
        row = f"linear/{count}/step"
        if b.wants(row) and count < 32768:
            b.run(row, "linear", lambda _: [F.linear(x[w.shape[1]], w) for layer in zip(*(weights[name] for name in
                  ["qkv", "output", "gate-up", "down"])) for w in layer] + [F.linear(x[hidden], weights["head"][0])],
                  shape=f"{count} rows, {layers} layers and head")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "f16", "f32"])
    parser.add_argument("--rows", help="parts of names of rows, separated by commas")
    parser.add_argument("--out", help="append the lines to this file too")
    parser.add_argument("--quick", action="store_true", help="small sizes and few calls")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    b = Bench(parser.parse_args())
    for rows in [ceilings, select, group, compact, rotate, column_scores, window_scores, prefill, decode, merge, step, linear]:
        try:
            rows(b)
        except Exception:  # noqa: BLE001
            print(f"{rows.__name__}:", file=sys.stderr)
            traceback.print_exc()
        if b.cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
