"""Trains the tokenizer of ember-7m on a folder of plain text, and makes its word list.

    python tokenizer_and_words.py --text DIR --out DIR [--held-out NAME ...]

Reads every `*.txt` directly in `--text` but the held-out ones and writes to `--out`:

    tokenizer.json  byte-level BPE; every digit is a token of its own
    words.json      {"train": [...], "test": [...]}: the keys of the retrieval tasks; with --new-words from the text
    manifest.json   what went in and what came out

`train-ember prepare` takes both and makes the tokens to train on.
"""

import argparse
import collections
import hashlib
import json
import random
import re
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"]  # ids 0, 1, 2: train-ember relies on the order

# The fixed wording of the tasks, repeated so that it gets tokens of its own.
TASK_WORDING = (
    "The special magic number for the word is: 1234567. What is the special magic number for mentioned in the "
    "provided text? The answer is VAR X = Y. Find all variables that are assigned the value. Question: Answer:\n"
)


def train_tokenizer(texts, vocab_size):
    """Train the byte-level BPE on an iterable of strings."""
    tokenizer = Tokenizer(models.BPE())
    # Digits apart: a number of seven digits is always seven tokens, so accuracy per digit means something.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def pieces():
        for text in texts:
            for start in range(0, len(text), 10_000):
                yield text[start : start + 10_000]
        for _ in range(200):
            yield TASK_WORDING

    tokenizer.train_from_iterator(pieces(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], 0)]
    )
    return tokenizer


def choose_words(texts, seed):
    """Common lowercase words of 4 to 9 letters, shuffled; the last seventh is held out of training."""
    counts = collections.Counter()
    for text in texts:
        counts.update(re.findall(r"\b[a-z]{4,9}\b", text))
    words = [word for word, _ in counts.most_common(6000)]
    words = words[min(200, len(words) // 10) :]  # without the commonest: they are in every sentence
    random.Random(seed).shuffle(words)
    cut = len(words) - len(words) * 8 // 58
    return {"train": words[:cut], "test": words[cut:]}


def main():
    """Read the folder, train the tokenizer, write the files."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder of *.txt files, UTF-8")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, made if missing")
    parser.add_argument("--held-out", nargs="*", default=[], metavar="NAME", help="names of files, without .txt, not to train on")
    parser.add_argument("--vocab", type=int, default=4096, help="entries of the tokenizer, at most (default 4096)")
    parser.add_argument("--max-chars", type=int, help="read at most this much of each file, so that none dominates")
    parser.add_argument("--words", type=Path, default=here / "words.json", help="word list (default: beside this script)")
    parser.add_argument("--new-words", action="store_true", help="make a word list from the text instead")
    parser.add_argument("--seed", type=int, default=0, help="shuffles a new word list")
    args = parser.parse_args()

    texts = {path.stem: path.read_text(encoding="utf-8")[: args.max_chars] for path in sorted(args.text.glob("*.txt"))}
    if missing := set(args.held_out) - set(texts):
        parser.error(f"--held-out names files that are not in {args.text}: {', '.join(sorted(missing))}")
    training = [text for name, text in texts.items() if name not in args.held_out]
    if not training:
        parser.error(f"no *.txt left to train on in {args.text}")
    if args.vocab > 2**16:
        parser.error("train-ember keeps tokens in 16 bits: --vocab is too large")

    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(training, args.vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))
    words = choose_words(training, args.seed) if args.new_words else json.loads(args.words.read_text())
    (args.out / "words.json").write_text(json.dumps(words))

    files = [
        {"name": name, "held_out": name in args.held_out, "chars": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        for name, text in texts.items()
    ]
    manifest = {
        "vocab_size": tokenizer.get_vocab_size(),
        "words": {split: len(listed) for split, listed in words.items()},
        "tokenizers": tokenizers.__version__,
        "files": files,
    }
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(training)} files, {tokenizer.get_vocab_size()} tokenizer entries, {len(words['train'])} words")


if __name__ == "__main__":
    main()
