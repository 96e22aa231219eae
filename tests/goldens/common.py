"""What the generators share: arguments, the model, the prompts, the files."""

import argparse
import json
import random
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
SEED = 0
DECIMALS = 6
CANDIDATES = 24  # prompts tried for each case; the one whose outcome hangs least on rounding is taken

INTRO = (
    "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. "
    "I will quiz you about the numbers afterwards.\n"
)
NEEDLE = "\nOne of the special magic numbers is {}:{}."
QUESTION = (
    "\nWhat is the special magic number for {0} mentioned in the provided text? The special magic number is {0}:"
)
WORDS = ["squadron", "countess", "chairs", "encounter", "wing", "salute"]


# --- arguments, files ---


def arguments(doc, checkout=None):
    """The command line: `--model`, `--out` and, for foreign code, the folder it was checked out to."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models" / "ember-7m", help="Hugging Face folder")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests" / "fixtures", help="folder to write")
    if checkout:
        parser.add_argument(f"--{checkout}", type=Path, required=True, help="checkout of the published code")
    return parser.parse_args()


def versions(*packages):
    """What is installed, without the build's suffix."""
    return {package: version(package).split("+")[0] for package in packages}


def commit(folder):
    """The commit that a checkout stands at."""
    return subprocess.check_output(["git", "-C", str(folder), "rev-parse", "HEAD"], text=True).strip()


def write(folder, name, fixture):
    """One fixture, as one line of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fixture, separators=(",", ":"), ensure_ascii=False) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


def rounded(tensor, decimals=DECIMALS):
    """Floats short enough to store, nested as the tensor is."""

    def short(x):
        return [short(inner) for inner in x] if isinstance(x, list) else round(x, decimals)

    return short(tensor.tolist())


# --- the model ---


def settle():
    """One seed, one thread: the order of a sum must not depend on the machine."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def load(folder, attention="eager"):
    """The model in f32 on the CPU, and its tokenizer."""
    settle()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    ).eval()
    return model, tokenizer


def forward(model, ids, position, cache):
    """Logits [tokens, vocab] of tokens that stand at `position` and after it, whatever the cache still holds."""
    positions = torch.arange(position, position + len(ids))
    # Given explicitly: left to itself, transformers counts on from the entries in the cache, and some are gone.
    with torch.no_grad():
        out = model(
            torch.tensor([ids]), past_key_values=cache, position_ids=positions[None], cache_position=positions
        )
    return out.logits[0]


def full_cache(model, tokens):
    """The cache of a prompt nothing was removed from."""
    cache = DynamicCache()
    forward(model, tokens, 0, cache)
    return cache


def places(held, full):
    """Where the rows of `held` [heads, kept, dim] stand in `full` [heads, tokens, dim]: ascending, one list a head.

    Rows are compared bit for bit, so this also proves that they are rows of `full`.
    """
    found = []
    for held_head, full_head in zip(held, full):
        same = (held_head[:, None] == full_head[None]).all(-1)
        assert (same.sum(1) == 1).all(), "a row is not exactly one row of the full cache"
        found.append(sorted(same.int().argmax(1).tolist()))
    return found


def relative_gap(higher, lower):
    """How far apart scores lie, measured by the higher one: the smallest of all."""
    return ((higher - lower) / higher.abs().clamp(min=1e-30)).min().item()


# --- prompts ---


def sentences(text):
    """The text cut after each sentence and each line."""
    return [piece for piece in re.split(r"(?<=[.?!] )|(?<=\n)", text) if piece]


def prose_of(tokenizer, length, first):
    """`length` tokens of `prose.txt`, from sentence number `first` on, and round again."""
    pieces = sentences((HERE / "prose.txt").read_text())
    first %= len(pieces)
    tokens = tokenizer.encode("".join(pieces[first:] + pieces[:first]), add_special_tokens=False).ids
    assert len(tokens) >= length, "prose.txt is too short"
    return tokenizer.decode(tokens[:length])


def needle_prompt(tokenizer, length, candidate):
    """A needle in about `length` tokens; every candidate number gives another prompt."""
    rng = random.Random(SEED * 1000 + candidate)
    word, number = rng.choice(WORDS), str(rng.randrange(10**6, 10**7))
    frame = INTRO + NEEDLE.format(word, number) + QUESTION.format(word)
    prose = prose_of(tokenizer, length - len(tokenizer.encode(frame).ids), rng.randrange(100))
    pieces = sentences(prose)
    place = rng.randrange(len(pieces) + 1)
    return INTRO + "".join(pieces[:place]) + NEEDLE.format(word, number) + "".join(pieces[place:]) + QUESTION.format(word)
