"""What llama.cpp makes of small GGUF files: the tokens of texts by tokenizers of SentencePiece. Fields are described in README.md.

    pip install gguf==0.19.0 sentencepiece==0.2.3 llama-cpp-python==0.3.36
    python gguf_llama_cpp.py
"""

import io
import json
import random
from importlib.metadata import version
from pathlib import Path

import gguf
import sentencepiece
from llama_cpp import Llama

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / "crates/briquette-models/tests/fixtures/gguf"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


# --- tokenizers ---


def vocabulary():
    """Tokens, scores and types: learned from prose, and those that files have beside them."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((HERE / "prose.txt").read_text().splitlines()), model_writer=model, model_type="bpe",
        vocab_size=360, byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2, user_defined_symbols=["<|turn|>"],
    )
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [(made.id_to_piece(i), float(made.get_score(i)), kind(made, i)) for i in range(made.vocab_size())]
    # Runs of one character, whose pairs make the same token in several ways.
    runs = ["▁▁", "▁▁▁▁", "▁▁▁", "aa", "aaa", "aaaa", "--", "---", "----"]
    tokens += [(run, -1000.0 - place, NORMAL) for place, run in enumerate(runs)]
    tokens += [("-", -2000.0, NORMAL), ("\n", -2001.0, NORMAL)]
    tokens += [("x  x", 0.0, USER_DEFINED), ("<unused0>", 0.0, UNUSED)]
    tokens += [("<|end|>", 0.0, CONTROL), ("<|endoftext|>", 0.0, CONTROL)]
    tokens += [(f"[PAD{i}]", -1e4, UNUSED) for i in range(len(tokens), 384)]
    return tokens


def kind(made, i):
    if made.is_unknown(i):
        return UNKNOWN
    if made.is_control(i):
        return CONTROL
    if made.is_byte(i):
        return BYTE
    return USER_DEFINED if made.id_to_piece(i) == "<|turn|>" else NORMAL


def add_tokenizer(writer, **keys):
    names, scores, kinds = zip(*vocabulary())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


TEXTS = [
    "", " ", "  ", "The gardener wrote 1234 words on 5 pages, didn't she?", "  two spaces,\n\na line\tand a tab;   three",
    "Größe, naïve café — 東京 и Москва 🙂!", "<s>one</s> two<|turn|>three <unk> four<|end|>\n", "x  xy    x", "<0x41><unused0>▁a▁",
    "fn main() {\n        println!(\"aaaaaaa ------- \");\n}\n", "١٢٣ ½ Ⅷ x² + y³", "\u0000\u007f\u0085\ufeff",
]


def texts():
    """Those, and texts of pieces in a random order."""
    pieces = list("abcdeth   \n\t--aaa") + [" the", " and", "<s>", "</s>", "<|turn|>", "é", "東", "🙂", "x  x", "<0x41>", "▁", "  "]
    draw = random.Random(65)
    return TEXTS + ["".join(draw.choices(pieces, k=draw.randint(5, 40))) for _ in range(60)]


# A file that says nothing but its tokens; one as Gemma's; one as Phi-3's, whose special tokens take the spaces behind them.
TOKENIZERS = {
    "sentencepiece": {},
    "sentencepiece-bare": dict(add_space_prefix=False, bos_token_id=1, eos_token_id=2, unk_token_id=0, add_bos_token=True),
    "sentencepiece-phi3": dict(name="A Phi-3", add_bos_token=False),
}


def tokenizers():
    found = {}
    for name, keys in TOKENIZERS.items():
        path = OUT / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        add_tokenizer(writer, **keys)
        finish(writer)
        model = Llama(str(path), vocab_only=True, verbose=False)
        found[name] = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts()]
    return dict(texts=texts(), tokens=found)


def main():
    made = {package: version(package) for package in ["gguf", "sentencepiece", "llama_cpp_python"]}
    for name, expected in dict(sentencepiece=tokenizers()).items():
        (OUT / f"{name}.json").write_text(json.dumps(dict(versions=made, **expected), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
