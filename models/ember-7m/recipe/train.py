"""Train a small Llama on prose and retrieval tasks and write it as a Hugging Face folder.

    python train.py --data DIR --out DIR [--minutes M | --steps N] [--seed S]
    python train.py --data DIR --out DIR --evaluate       # measure what lies in --out, train nothing

`--data` is what `prepare.py` wrote. The curriculum is the point: a model this small learns to retrieve only when it first
meets dense copying and recall at 256 tokens, until the heads that copy have formed; then the length doubles, stage by stage,
with the needle in ever more prose. The tokens of an answer weigh 20 times a token of prose, or they would drown in it.
Words under "test" in words.json are never a key in training.
"""

import argparse
import json
import math
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

HERE = Path(__file__).resolve().parent
BOS, EOS, PAD = 0, 1, 2


@dataclass(frozen=True)
class Stage:
    """One length of the curriculum."""

    length: int  # tokens in a sequence
    micro: int  # micro-batches in a step
    share: float  # share of the whole training
    early: bool = False  # the dense mixture of tasks
    enough: float = 2.0  # go on to the next stage at this accuracy; above 1: never early


STAGES = [
    Stage(256, 2, 0.19, early=True, enough=0.97),
    Stage(512, 4, 0.12, enough=0.97),
    Stage(1024, 4, 0.11, enough=0.98),
    Stage(2048, 4, 0.19),
    Stage(4096, 4, 0.39),
]

# How often each task is drawn.
MIXTURE = {"prose": 0.30, "needle": 0.25, "needles": 0.23, "lines": 0.10, "copy": 0.05, "variables": 0.07}
EARLY_MIXTURE = {"prose": 1, "needles": 3, "lines": 4, "copy": 4}

# Weights in the loss; what cannot be predicted (needles, keys, random numbers) weighs nothing.
PROSE, QUESTION, LINE_ANSWER, COPIED, ANSWER = 1, 1, 10, 3, 20


# --- tasks: every one returns (token ids, loss weight of each), at most `length` long, or None when it does not fit ---


class Tasks:
    """Draws training sequences: prose, and retrieval tasks written into prose."""

    def __init__(self, data):
        tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.vocab = tokenizer.get_vocab_size()
        self.prose_ids = np.load(data / "train.npy", mmap_mode="r")
        words = json.loads((data / "words.json").read_text())
        self.train_words, self.test_words = words["train"], words["test"]
        self.word = {word: self.encode(" " + word) for word in self.train_words + self.test_words}
        self.digit = [self.encode(str(d))[0] for d in range(10)]
        phrases = {
            "intro": "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. "
            "I will quiz you about the numbers afterwards.\n",
            "needle": "\nOne of the special magic numbers is",
            "ask": "\nWhat is the special magic number for",
            "answer": " mentioned in the provided text? The special magic number is",
            "colon": ":",
            "dot": ".",
            "newline": "\n",
            "question": "Question:",
            "var": "\nVAR",
            "is": " = ",
            "is_var": " = VAR",
            "ask_var": "\nQuestion: What is the value of VAR",
            "answer_var": "? Answer: ",
        }
        self.phrase = {name: self.encode(text) for name, text in phrases.items()}

    def number(self, rng, digits):
        """A random number, one token a digit."""
        return [self.digit[rng.randrange(10)] for _ in range(digits)]

    def haystack(self, rng, length):
        """`length` tokens of prose from anywhere in the training files."""
        start = rng.randrange(len(self.prose_ids) - length - 1)
        return self.prose_ids[start : start + length].tolist()

    def hide(self, rng, pieces, length):
        """Prose with the pieces put in, in order, at random places; `length` tokens with them."""
        room = length - sum(map(len, pieces))
        if room < 0:
            return None
        prose = self.haystack(rng, room)
        ids, weights, last = [], [], 0
        for place, piece in zip(sorted(rng.randrange(room + 1) for _ in pieces), pieces):
            ids += prose[last:place] + piece
            weights += [PROSE] * (place - last) + [0] * len(piece)
            last = place
        return ids + prose[last:], weights + [PROSE] * (room - last)

    def prose(self, rng, length):
        """Plain prose."""
        return [BOS] + self.haystack(rng, length - 1), [0] + [PROSE] * (length - 1)

    def needles(self, rng, length, words, hidden, asked):
        """Numbers hidden in prose under a word each; some of them asked for at the end."""
        p = self.phrase
        keys = rng.sample(words, hidden)
        values = [self.number(rng, 7) for _ in keys]
        tail, tail_weights = [], []
        for i in rng.sample(range(hidden), asked):
            word = self.word[keys[i]]
            question, answer = p["ask"] + word + p["answer"] + word + p["colon"], values[i] + [EOS]
            tail += question + answer
            tail_weights += [QUESTION] * len(question) + [ANSWER] * len(answer)
        pieces = [p["needle"] + self.word[key] + p["colon"] + value + p["dot"] for key, value in zip(keys, values)]
        middle = self.hide(rng, pieces, length - 1 - len(p["intro"]) - len(tail))
        if middle is None:
            return None
        return [BOS] + p["intro"] + middle[0] + tail, [0] * (1 + len(p["intro"])) + middle[1] + tail_weights

    def lines(self, rng, length, words):
        """Nothing but lines `word:number`, then every word asked for in another order: recall at its densest."""
        p = self.phrase
        most = max(2, min(len(words), (length - 200) // 14))
        count = rng.randint(max(2, most // 4), most)
        keys = rng.sample(words, count)
        values = [self.number(rng, 5) for _ in keys]
        ids, weights = [BOS], [0]
        for key, value in zip(keys, values):
            line = p["newline"] + self.word[key] + p["colon"] + value
            ids += line
            weights += [0] * len(line)
        order = list(range(count))
        rng.shuffle(order)
        for i in order:
            question = p["newline"] + p["question"] + self.word[keys[i]] + p["colon"]
            if len(ids) + len(question) + len(values[i]) > length:
                break
            ids += question + values[i]
            weights += [0] * len(question) + [LINE_ANSWER] * len(values[i])
        return ids, weights

    def copy(self, rng, length):
        """A segment of prose or of random tokens, then the same again."""
        count = length // 2 - 1
        count = rng.randint(count // 4, count)
        random_tokens = rng.random() >= 0.5
        segment = [rng.randrange(3, self.vocab) for _ in range(count)] if random_tokens else self.haystack(rng, count)
        return [BOS] + segment + [EOS] + segment, [0] * (count + 2) + [COPIED] * count

    def variables(self, rng, length, words):
        """Two chains of assignments in prose; the value at the end of a chain is asked for."""
        p = self.phrase
        first = self.number(rng, 5)
        a, b, c, d, e = keys = rng.sample(words, 5)

        def number_line(key, value):
            return p["var"] + self.word[key] + p["is"] + value + p["dot"]

        def copy_line(key, source):
            return p["var"] + self.word[key] + p["is_var"] + self.word[source] + p["dot"]

        pieces = [number_line(a, first), copy_line(b, a), copy_line(c, b)]
        second = self.number(rng, 5)
        pieces += [number_line(d, second), copy_line(e, d)]
        i = rng.randrange(5)
        question = p["ask_var"] + self.word[keys[i]] + p["answer_var"]
        answer = (first if i < 3 else second) + [EOS]
        middle = self.hide(rng, pieces, length - 1 - len(question) - len(answer))
        if middle is None:
            return None
        return [BOS] + middle[0] + question + answer, [0] + middle[1] + [0] * len(question) + [ANSWER] * len(answer)

    def draw(self, rng, length, early):
        """One training sequence, padded to `length`."""
        mixture, words = EARLY_MIXTURE if early else MIXTURE, self.train_words
        (task,) = rng.choices(list(mixture), mixture.values())
        if task == "prose":
            drawn = self.prose(rng, length)
        elif task == "needle":
            drawn = self.needles(rng, length, words, rng.randint(1, 4), 1)
        elif task == "needles":
            hidden = rng.randint(2, max(3, min(24, length // 80)))
            drawn = self.needles(rng, length, words, hidden, rng.randint(1, min(hidden, 8)))
        elif task == "copy":
            drawn = self.copy(rng, length)
        elif task == "variables":
            drawn = self.variables(rng, length, words)
        else:
            drawn = None
        ids, weights = drawn or self.lines(rng, length, words)  # lines fit any length
        padding = length - len(ids)
        return (ids + [PAD] * padding)[:length], (weights + [0] * padding)[:length]


class Batches(torch.utils.data.IterableDataset):
    """An endless stream of micro-batches (ids, weights), both [batch, length]; every worker draws its own."""

    def __init__(self, tasks, stage, batch, seed):
        self.tasks, self.stage, self.batch, self.seed = tasks, stage, batch, seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        while True:
            drawn = [self.tasks.draw(rng, self.stage.length, self.stage.early) for _ in range(self.batch)]
            ids, weights = zip(*drawn)
            yield torch.tensor(ids, dtype=torch.int32), torch.tensor(weights, dtype=torch.uint8)


# --- the model: Llama, with the names and the layout of the Hugging Face checkpoint ---


class RmsNorm(nn.Module):
    """RMSNorm in f32."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, c):
        super().__init__()
        self.head_dim = c["head_dim"]
        queries, keys = c["num_attention_heads"] * self.head_dim, c["num_key_value_heads"] * self.head_dim
        self.q_proj = nn.Linear(c["hidden_size"], queries, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], keys, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], keys, bias=False)
        self.o_proj = nn.Linear(queries, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin):
        def heads(projected):
            return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        def rotate(t):
            low, high = t.chunk(2, -1)
            return t * cos.to(t.dtype) + torch.cat((-high, low), -1) * sin.to(t.dtype)

        q, k, v = rotate(heads(self.q_proj(x))), rotate(heads(self.k_proj(x))), heads(self.v_proj(x))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind its norm, each added to the residual."""

    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The whole model, head tied to the embedding. Tokens [batch, length] to logits [batch, length, vocab]."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.theta, self.head_dim = c["rope_theta"], c["head_dim"]
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What writes into the residual starts smaller, so that its sum over the layers keeps its size.
                writes = "o_proj" in name or "down_proj" in name
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * c["num_hidden_layers"]) if writes else 1))

    def forward(self, ids):
        steps = torch.arange(0, self.head_dim, 2, device=ids.device).float() / self.head_dim
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device).float(), self.theta**-steps)
        angles = torch.cat((angles, angles), -1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return F.linear(self.norm(x), self.embed_tokens.weight)


def export(model, config, data, out):
    """Write a Hugging Face folder: bf16 weights, configuration, tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in model.named_parameters()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for source in (HERE.parent / "generation_config.json", HERE.parent / "tokenizer_config.json", data / "tokenizer.json"):
        if source.resolve().parent != out.resolve():
            shutil.copyfile(source, out / source.name)


# --- measuring ---


def autocast(device):
    """bf16 on a GPU; on a CPU f32, which is faster there."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


@torch.no_grad()
def accuracy(model, tasks, length, samples, hidden, seed, device):
    """Needles on held-out words, the right digits fed: share of answers right in all 7 digits, share of right digits."""
    rng, exact, digits = random.Random(seed), 0, 0
    drawn = [tasks.needles(rng, length, tasks.test_words, hidden, 1) for _ in range(samples)]
    if None in drawn:
        return math.nan, math.nan
    step = max(1, 16 * 4096 // length // (1 if device == "cuda" else 16))
    for start in range(0, samples, step):
        ids = torch.tensor([ids for ids, _ in drawn[start : start + step]], device=device)
        with autocast(device):
            predicted = model(ids)[:, -9:-2].argmax(-1)  # the last 8 tokens are the answer and the end token
        right = predicted == ids[:, -8:-1]
        exact += right.all(1).sum().item()
        digits += right.float().mean(1).sum().item()
    return exact / samples, digits / samples


@torch.no_grad()
def held_out_loss(model, held_out, length, device):
    """Nats a token on the first 16 contexts of the held-out text, each opened by the beginning token."""
    count = min(16, len(held_out) // (length - 1))
    losses = []
    for start in range(count):
        text = held_out[start * (length - 1) : (start + 1) * (length - 1)].astype(np.int64)
        ids = torch.from_numpy(np.concatenate(([BOS], text))).to(device)[None]
        with autocast(device):
            logits = model(ids)
        losses.append(F.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).item())
    return sum(losses) / count if count else math.nan


def report(model, tasks, held_out, lengths, samples, device):
    """Print the table of the model card."""
    print("| prompt tokens | 1 needle | 2 needles, one asked | 4 needles, one asked | nats a token, held out |")
    print("|---|---|---|---|---|")
    for length in lengths:
        cells = [accuracy(model, tasks, length, samples, hidden, 7, device) for hidden in (1, 2, 4)]
        cells = [f"{exact:.2f} / {digits:.2f}" for exact, digits in cells]
        loss = held_out_loss(model, held_out, length, device)
        print(f"| {length} | {' | '.join(cells)} | {loss:.2f} |", flush=True)


# --- training ---


def train_stage(model, optimizer, tasks, held_out, args, index, share, done):
    """Train one stage for its share of the time or of the steps; returns the steps taken. `done` steps went before."""
    stage, last = args.stages[index], index == len(args.stages) - 1
    steps = None if args.steps is None else max(1, round(args.steps * share))
    forward = torch.compile(model, dynamic=False) if args.device == "cuda" else model
    # Every stage draws from its own seed, or the stages would show the same books in the same order.
    stream = Batches(tasks, stage, max(1, args.batch_tokens // stage.length), args.seed * 100 + index)
    loader = torch.utils.data.DataLoader(
        stream, batch_size=None, num_workers=args.workers, pin_memory=args.device == "cuda"
    )
    batches, losses, step, began = iter(loader), [], 0, None
    while True:
        if steps is not None:
            progress = step / steps
        else:
            progress = (time.monotonic() - began) / (60 * args.minutes * share) if began else 0.0
        if progress >= 1:
            return step
        # A constant rate, warmed up once; the last stage lets it fall to zero.
        rate = 2.5e-3 * (1 - progress) if last else 3e-3
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (done + step + 1) / 150)

        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(stage.micro):
            ids, weights = (t.to(args.device, non_blocking=True) for t in next(batches))
            ids, weights = ids.long(), weights[:, 1:].float()
            with autocast(args.device):
                logits = forward(ids)
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            loss = (loss.view_as(weights) * weights).sum() / weights.sum().clamp(min=1) / stage.micro
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        losses.append(total)

        if began is None and step == 3:  # compiling is over: the clock starts
            if args.device == "cuda":
                torch.cuda.synchronize()
            began = time.monotonic()
        if step % 100 == 0 or step == steps:
            right, _ = accuracy(model, tasks, stage.length, 64, 2 if stage.length < 512 else 4, 7, args.device)
            loss, held = torch.stack(losses).mean().item(), held_out_loss(model, held_out, stage.length, args.device)
            print(f"{stage.length} tokens, step {step}: loss {loss:.3f}, needles {right:.2f}, held out {held:.3f}", flush=True)
            losses = []
            if right >= stage.enough and step >= 200:
                return step


def main():
    """Train through the stages, export, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, made if missing")
    parser.add_argument("--config", type=Path, default=HERE.parent / "config.json", help="architecture (default: ember-7m's)")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time over all stages, compiling aside (default 6)")
    parser.add_argument("--steps", type=int, help="steps over all stages instead of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=4096, help="leave out the stages above this length")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="tokens in a micro-batch (default 65536)")
    parser.add_argument("--workers", type=int, default=min(14, os.cpu_count() or 1), help="processes that draw batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--evaluate", action="store_true", help="only measure the model in --out")
    parser.add_argument("--samples", type=int, default=128, help="samples a cell of the table (default 128)")
    args = parser.parse_args()
    if args.steps is not None and args.steps < 1:
        parser.error("--steps must be at least 1")

    tasks = Tasks(args.data)
    held_out_file = args.data / "held_out.npy"
    held_out = np.load(held_out_file) if held_out_file.exists() else np.array([], dtype=np.uint16)
    args.stages = [stage for stage in STAGES if stage.length <= args.longest]
    if not args.stages:
        parser.error(f"--longest {args.longest} leaves no stage; the shortest has {STAGES[0].length} tokens")
    if len(tasks.prose_ids) < args.stages[-1].length + 2:
        parser.error(f"{len(tasks.prose_ids)} training tokens are too few for sequences of {args.stages[-1].length}")
    lengths = [stage.length for stage in args.stages if stage.length >= 512] or [args.stages[-1].length]

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    if args.evaluate:
        config = json.loads((args.out / "config.json").read_text())
        model = Llama(config).to(args.device)
        tensors = load_file(args.out / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})
        report(model, tasks, held_out, lengths, args.samples, args.device)
        return

    config = json.loads(args.config.read_text()) | {"vocab_size": tasks.vocab}
    model = Llama(config).to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters on {args.device}")
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)

    whole = sum(stage.share for stage in args.stages)
    done = 0
    for index, stage in enumerate(args.stages):
        done += train_stage(model, optimizer, tasks, held_out, args, index, stage.share / whole, done)
        export(model, config, args.data, args.out)
    print(f"{done} steps")
    report(model, tasks, held_out, lengths, args.samples, args.device)


if __name__ == "__main__":
    main()
