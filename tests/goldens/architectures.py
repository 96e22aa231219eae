"""Tiny random checkpoints of every architecture that briquette-models reads, and what transformers computes with them.

A folder a checkpoint: `config.json` and `model.safetensors` as `save_pretrained` writes them (bfloat16, so that the files are
small; everything is computed in f32 from the rounded weights), and `expected.safetensors`. Fields are described in README.md.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from common import REPOSITORY, versions

VOCABULARY = 96
PROMPT = 32
GREEDY = 64
SEEDS = 12  # tried for each checkpoint; the one whose greedy text hangs least on rounding is taken

SHARED = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=None,
)
WIDE = dict(head_dim=16)  # heads that are wider together than the residual stream
NARROW = dict(num_attention_heads=2, num_key_value_heads=1)  # for configurations without `head_dim`


def llama(**rope):
    return dict(SHARED, **WIDE, model_type="llama", tie_word_embeddings=False, rope_parameters=rope)


FACTORS = dict(short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[1.5 + 0.5 * i for i in range(8)])
CHECKPOINTS = {
    "llama": llama(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "llama-linear": llama(rope_type="linear", rope_theta=10000.0, factor=4.0),
    "llama-dynamic": dict(llama(rope_type="dynamic", rope_theta=10000.0, factor=2.0), max_position_embeddings=128),
    "llama-yarn": llama(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64),
    "mistral": dict(SHARED, **WIDE, model_type="mistral", sliding_window=128, tie_word_embeddings=False),
    "qwen2": dict(SHARED, **NARROW, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(SHARED, **WIDE, model_type="qwen3", tie_word_embeddings=False),
    "phi3": dict(
        SHARED, **NARROW, model_type="phi3", tie_word_embeddings=False, original_max_position_embeddings=128,
        rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=128, **FACTORS,
        ),
    ),
    "phi3-partial": dict(
        SHARED, **NARROW, model_type="phi3", tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75),
    ),
    "smollm3": dict(
        SHARED, **NARROW, model_type="smollm3", num_hidden_layers=3, no_rope_layers=[1, 0, 1],
        rope_parameters=dict(rope_type="default", rope_theta=20000.0),
    ),
    "falcon": dict(
        SHARED, model_type="falcon", num_attention_heads=2, ffn_hidden_size=64, multi_query=True, parallel_attn=True,
        new_decoder_architecture=False, bias=False, alibi=False,
    ),
    "qwen3-moe": dict(
        SHARED, **WIDE, model_type="qwen3_moe", num_hidden_layers=3, mlp_only_layers=[1], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True, tie_word_embeddings=False,
    ),
    "mixtral": dict(
        SHARED, **NARROW, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
        intermediate_size=24,
    ),
    "gemma2": dict(
        SHARED, **WIDE, model_type="gemma2", query_pre_attn_scalar=24, attn_logit_softcapping=None,
        final_logit_softcapping=0.5, sliding_window=128,
    ),
    "gemma3": dict(
        SHARED, **WIDE, model_type="gemma3_text", num_hidden_layers=3, query_pre_attn_scalar=24, sliding_window=128,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
        ),
    ),
}
# Texts beyond the context of the first training: frequencies are others there. Dynamic frequencies hang on the length of the text
# in every step, so there is a prompt only.
LONG = {"phi3": dict(prompt=160, greedy=16), "llama-dynamic": dict(prompt=160, greedy=0)}
def checkpoint(keys, seed):
    """A model with weights that all matter: of spread 1 after each matrix, norms around 1, biases that are not 0."""
    config = AutoConfig.for_model(**keys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    gemma = keys["model_type"].startswith("gemma")
    # A tied embedding that outweighs the layers would only repeat its input; Gemma multiplies it by the root of its width.
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif weight.dim() == 1:
            value = 0.2 * noise + (0.0 if gemma else 1.0)
        elif "embed" in name:
            value = noise * (0.06 if gemma else 0.3 if config.tie_word_embeddings else 1.0)
        else:
            value = noise * 1.3 / weight.shape[-1] ** 0.5
        weight.data = value.to(torch.bfloat16).to(torch.float32)
    return model


@torch.no_grad()
def run(model, seed, length, count):
    """The logits of a prompt, the text that follows it, and the smallest gap between the best logit and the second."""
    generator = torch.Generator().manual_seed(seed + 1000)
    tokens = torch.randint(2, VOCABULARY, (1, length), generator=generator)
    out = model(tokens, use_cache=True)
    logits, past, text, gap = out.logits[0], out.past_key_values, [], float("inf")
    last = logits[-1]
    for _ in range(count):
        best = last.topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        text.append(best.indices[0].item())
        last = model(best.indices[:1][None], past_key_values=past, use_cache=True).logits[0, -1]
    return dict(tokens=tokens[0], logits=logits, greedy=torch.tensor(text, dtype=torch.int64)), gap, len(set(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fixtures = REPOSITORY / "crates" / "briquette-models" / "tests" / "fixtures"
    parser.add_argument("--out", type=Path, default=fixtures, help="folder to write")
    parser.add_argument("--only", nargs="*", help="checkpoints to make (default: all)")
    arguments = parser.parse_args()
    for name, keys in CHECKPOINTS.items():
        if arguments.only and name not in arguments.only:
            continue
        best = None
        for seed in range(SEEDS):
            expected, gap, distinct = run(checkpoint(keys, seed), seed, PROMPT, GREEDY)
            # A text that only repeats itself would be the same with wrong positions.
            if distinct >= 8 and (best is None or gap > best[1]):
                best = (seed, gap, expected)
        seed, gap, expected = best
        model = checkpoint(keys, seed)
        folder = arguments.out / name
        if name in LONG:
            long, long_gap, _ = run(model, seed, LONG[name]["prompt"], LONG[name]["greedy"])
            long["logits"] = long["logits"][-1:]
            expected.update({f"long_{field}": value for field, value in long.items()})
            gap = min(gap, long_gap)
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        made_with = dict(versions("torch", "transformers"), seed=str(seed), gap=f"{gap:.4f}")
        save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors",
                  # One entry: several are written in any order.
                  dict(made_with=json.dumps(made_with)))
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(name, json.dumps(made_with), f"{size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
