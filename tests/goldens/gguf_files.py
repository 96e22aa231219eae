"""GGUF: blocks of every quantization by the Python package `gguf`, small files of tiny checkpoints, and what transformers
computes with SmolLM2-135M-Instruct read from its GGUF file. Fields are described in README.md.

    python gguf_files.py [--model ../../models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf]

Without `--model` only what needs no download is made.
"""

import argparse
import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from common import REPOSITORY, versions

FIXTURES = REPOSITORY / "crates/briquette-models/tests/fixtures"
OUT = FIXTURES / "gguf"
BLOCKS = 4
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "MXFP4"]
# Where the scales lie in a block: numbers of 16 bits that random bits would make infinite.
SCALES = dict(
    Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208],
    Q2_K=[80, 82], Q3_K=[108], IQ4_NL=[0], MXFP4=[],
)


def blocks():
    """Random blocks with every bit in use, and the numbers they stand for."""
    random = np.random.default_rng(18)
    tensors = {}
    for kind in KINDS:
        number = gguf.GGMLQuantizationType[kind]
        _, size = gguf.GGML_QUANT_SIZES[number]
        data = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in SCALES[kind]:
            scales = random.normal(0, 0.1, BLOCKS).astype(np.float16)
            data[:, at:at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
        if kind == "MXFP4":  # the smallest exponents are written another way
            data[:2, 0] = 0, 1
        tensors[f"{kind}.blocks"] = data
        tensors[f"{kind}.numbers"] = gguf.quants.dequantize(data, number).astype(np.float32)
    save_file(tensors, OUT / "blocks.safetensors", metadata=versions("gguf", "numpy"))


# Of a checkpoint's names.
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def renamed(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permuted(weights, heads):
    """As `LlamaModel.permute` of convert_hf_to_gguf.py."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def tiny(name, family):
    """A checkpoint of `architectures.py` as the converter of llama.cpp writes it: matrices in BF16 and F16, norms in F32."""
    config = json.loads((FIXTURES / name / "config.json").read_text())
    tensors = load_file(FIXTURES / name / "model.safetensors")
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", family)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_eos_token_id(config["eos_token_id"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3(rope, head_dim))
    for source, tensor in tensors.items():
        data = tensor.float().numpy()
        target = renamed(source)
        if family == "llama" and ".attn_q." in target:
            data = permuted(data, heads)
        if family == "llama" and ".attn_k." in target:
            data = permuted(data, kv_heads)
        if data.ndim == 1:
            writer.add_tensor(target, data)
        else:
            # The checkpoint is BF16; F16 has those of its numbers exactly that are not very small.
            half = data.astype(np.float16)
            kind = gguf.GGMLQuantizationType.BF16
            if np.array_equal(half.astype(np.float32), data):
                writer.add_tensor(target, half)
            else:
                writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Of the matrices of a small file, by the ends of their names; those whose rows are no whole blocks stay as they are.
QUANTIZED = {
    "token_embd.weight": "Q8_0", "output.weight": "Q4_1", "attn_q.weight": "Q8_0", "attn_k.weight": "Q8_0",
    "attn_v.weight": "Q5_0", "attn_output.weight": "Q4_0", "ffn_gate.weight": "Q4_0", "ffn_up.weight": "MXFP4",
}


def quantized(name, family):
    """The file of a tiny checkpoint with its matrices in blocks, and a checkpoint with the numbers that these stand for."""
    reader = gguf.GGUFReader(OUT / f"{name}.gguf")
    writer = gguf.GGUFWriter(OUT / f"{name}-quantized.gguf", family)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    heads = {part: reader.fields[f"{family}.attention.head_count{kind}"].contents() for part, kind in HEADS.items()}
    expanded = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type
        numbers = gguf.quants.dequantize(tensor.data, kind).astype(np.float32)
        new = next((gguf.GGMLQuantizationType[to] for end, to in QUANTIZED.items() if tensor.name.endswith(end)), None)
        if numbers.ndim == 1:
            writer.add_tensor(tensor.name, numbers)
        elif new is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=kind)
        else:
            data = gguf.quants.quantize(numbers, new)
            writer.add_tensor(tensor.name, data, raw_dtype=new)
            numbers = gguf.quants.dequantize(data, new).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if family == "llama" and part in heads:
            numbers = restored(numbers, heads[part])
        expanded[original(tensor.name)] = np.ascontiguousarray(numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expanded = {tensor: numbers for tensor, numbers in expanded.items() if tensor}
    save_file(expanded, OUT / f"{name}-quantized.safetensors", metadata=versions("gguf", "numpy"))


HEADS = {"attn_q": "", "attn_k": "_kv"}


def restored(weights, heads):
    """The rows that `permuted` has brought into another order."""
    shape = weights.shape
    return weights.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def original(name):
    """The name of a tensor in a checkpoint; frequencies have none there."""
    if name.startswith("rope_freqs"):
        return None
    stem, kind = name.rsplit(".", 1)
    names = {theirs: ours for ours, theirs in NAMES.items()}
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{names[part]}.{kind}"
    return f"{names[stem]}.{kind}"


def vocabulary():
    """The tokenizer of the embedded model, which splits digits as SmolLM2's does, with a chat template and no weights."""
    source = json.loads((REPOSITORY / "models/ember-7m/tokenizer.json").read_text())
    tokens = sorted(source["model"]["vocab"], key=source["model"]["vocab"].get)
    special = {token["content"] for token in source["added_tokens"]}
    writer = gguf.GGUFWriter(OUT / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in source["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}{{ eos_token }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3(rope, head_dim):
    """As `LlamaModel.generate_extra_tensors` of convert_hf_to_gguf.py."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        length = 2 * math.pi / frequency
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


TEXTS = [
    "The gardener wrote 1234 words on 5 pages, didn't she?",
    "  two spaces,\n\na line\tand a tab;   three",
    "Größe, naïve café — 東京 и Москва 🙂!",
    "<|im_start|>user\nx² + y³ = 10_000<|im_end|>\n",
    "١٢٣ ½ Ⅷ fn main() { println!(\"{}\", 0x1F); }",
]
QUESTIONS = [  # tried; the one whose greedy text hangs least on rounding is taken
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What is gravity? Explain it to a child.",
    "Give me a recipe for vegetable soup, step by step.",
    "How do bees make honey?",
]
GREEDY = 200
EVERY = 96  # of the vocabulary's logits that are stored


def tokenizer(reader):
    """The tokenizer that the files of SmolLM2 describe, from the metadata."""
    def texts(key):
        return reader.fields[key].contents()

    tokens = texts("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in texts("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([t for t, kind in zip(tokens, texts("tokenizer.ggml.token_type")) if kind == 3])
    return made


def answer(model, made, question):
    """The smallest gap between the best and the second logit on the way, and what is stored of it."""
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = made.encode(prompt).ids
    gap, greedy = math.inf, []
    with torch.no_grad():
        out = model(torch.tensor([ids]))
        logits = out.logits[0]
        for _ in range(GREEDY):
            best = out.logits[0, -1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
            out = model(torch.tensor([greedy[-1:]]), past_key_values=out.past_key_values)
    print("smallest gap", gap, question, flush=True)
    return gap, question, prompt, ids, logits, greedy


def smollm2(path):
    made = tokenizer(gguf.GGUFReader(path))
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    answers = [answer(model, made, question) for question in QUESTIONS]
    gap, question, prompt, ids, logits, greedy = max(answers, key=lambda one: one[0])
    save_file(
        {
            "logits": np.ascontiguousarray(logits[:, ::EVERY].numpy()),
            "last": logits[-1].numpy(),
            "greedy": np.array(greedy, np.int64),
        },
        OUT / "smollm2.safetensors",
        metadata=versions("gguf", "torch", "transformers"),
    )
    (OUT / "smollm2.json").write_text(
        json.dumps(
            dict(
                versions=versions("gguf", "tokenizers", "torch", "transformers"), question=question, prompt=prompt,
                tokens=ids, every=EVERY, smallest_gap=gap, text=made.decode(greedy),
                texts=[dict(text=text, tokens=made.encode(text).ids) for text in TEXTS],
            ),
            ensure_ascii=False, indent=1,
        ) + "\n"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    blocks()
    for name, family in [("llama", "llama"), ("llama-linear", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]:
        tiny(name, family)
    for name, family in [("llama", "llama"), ("qwen2", "qwen2")]:
        quantized(name, family)
    vocabulary()
    if args.model:
        smollm2(args.model)


if __name__ == "__main__":
    main()
