"""Configurations as people have them: every pair of keys that say the same thing, and every key left out or null, of each
tiny checkpoint of `architectures.py`, and what transformers writes with them.

A case changes keys of a checkpoint's `config.json`, or which of its tensors are stored and under which names. Its result
is greedy text, or the error of transformers. Fields are described in README.md.
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig

from architectures import scale_full_attention_only
from common import REPOSITORY, settle, versions, write

FIXTURES = REPOSITORY / "crates" / "briquette-models" / "tests" / "fixtures"
# One of each family.
FAMILIES = [
    "llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "falcon", "qwen3-moe", "mixtral", "gemma2", "gemma3",
    "olmo2", "olmo3", "glm", "glm4", "granite", "gpt-oss", "deepseek-v3", "qwen3-next",
    "llama4", "gemma3-multimodal",
]
PROMPT = 10
GREEDY = 12
PROMPTS = 8  # tried for each case; the one whose greedy text hangs least on rounding is taken

S, F = "sliding_attention", "full_attention"
LINEAR = dict(rope_type="linear", factor=4.0)
# Keys that change nothing of what is computed, here or there.
IDLE = {
    "architectures", "attention_dropout", "initializer_range", "transformers_version", "use_cache", "model_type",
    "pretraining_tp", "hidden_dropout", "embd_pdrop", "resid_pdrop", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise", "ignore_keys_at_rope_validation", "_sliding_window_pattern",
}


def rope(keys):
    """Ways to say the rotary embedding of a checkpoint whose layers share one."""
    inner = keys["rope_parameters"]
    theta = {"rope_theta": inner["rope_theta"]}
    bare = {key: value for key, value in inner.items() if key != "rope_theta"}
    plain = dict(theta, rope_type="default")
    unlike = {"rope_theta": 3000.0}
    old = dict(rope_parameters=None, **theta)
    yield "rope: theta outside", dict(rope_parameters=bare, **theta), []
    yield "rope: theta of the class", dict(rope_parameters=bare), ["rope_theta"]
    yield "rope: two thetas", unlike, []
    yield "rope: rope_scaling, theta outside", dict(old, rope_scaling=bare), ["rope_parameters"]
    yield "rope: rope_scaling, theta inside", dict(rope_scaling=inner), ["rope_parameters"]
    yield "rope: rope_scaling is empty", dict(rope_scaling={}), []
    yield "rope: both alike", dict(rope_scaling=inner), []
    yield "rope: none", {}, ["rope_parameters"]
    yield "rope: other theta outside only", dict(unlike), ["rope_parameters"]
    yield "rope: type for rope_type", dict(rope_parameters=renamed(inner, "rope_type", "type")), []
    yield "rope: two types", dict(rope_parameters=dict(inner, type="linear")), []
    yield "rope: a factor and no type", dict(rope_scaling=dict(factor=4.0), **theta), ["rope_parameters"]
    yield "rope: a factor of 1 and no type", dict(rope_scaling=dict(factor=1.0), **theta), ["rope_parameters"]
    yield "rope: linear beside default", dict(rope_parameters=plain, rope_scaling=dict(LINEAR, **theta)), []
    yield "rope: linear beside another theta", dict(rope_parameters=dict(plain, **unlike), rope_scaling=LINEAR), []
    yield "rope: linear beside linear", dict(rope_parameters=dict(LINEAR, **theta), rope_scaling=dict(LINEAR, factor=2.0)), []
    for kind in [S, F]:
        yield f"rope: nested {kind}", dict(rope_parameters={kind: plain}), []
    yield "rope: partial outside", dict(partial_rotary_factor=0.5), []
    yield "rope: partial inside", dict(rope_parameters=dict(inner, partial_rotary_factor=0.5)), ["partial_rotary_factor"]
    yield "rope: two partials", dict(partial_rotary_factor=0.75, rope_parameters=dict(plain, partial_rotary_factor=0.5)), []
    scaled = dict(LINEAR, **theta, partial_rotary_factor=0.5)
    yield "rope: two partials, linear", dict(partial_rotary_factor=0.75, rope_parameters=scaled), []
    yield "rope: empty", dict(rope_parameters={}), []
    yarn = dict(rope_type="yarn", factor=4.0)
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
    for kind in [yarn, llama3]:
        name = f"rope: {kind['rope_type']}"
        given = dict(kind, original_max_position_embeddings=64)
        no = ["original_max_position_embeddings"]
        yield f"{name}, original inside", dict(old, rope_scaling=given), ["rope_parameters", *no]
        yield f"{name}, original outside", dict(old, rope_scaling=kind, original_max_position_embeddings=64), ["rope_parameters"]
        yield f"{name}, no original", dict(old, rope_scaling=kind), ["rope_parameters", *no]
        yield f"{name}, two originals", dict(old, rope_scaling=given, original_max_position_embeddings=32), ["rope_parameters"]
    yield "rope: yarn, null truncate", dict(old, rope_scaling=dict(yarn, original_max_position_embeddings=64, truncate=None)), ["rope_parameters"]
    yield "rope: dynamic", dict(old, rope_scaling=dict(type="dynamic", factor=2.0)), ["rope_parameters"]


def nested_rope(keys):
    """Ways to say the two rotary embeddings of Gemma 3."""
    inner = keys["rope_parameters"]
    full, sliding = inner[F], inner[S]
    bare = {key: value for key, value in full.items() if key != "rope_theta"}
    no = ["rope_parameters"]
    yield "rope: old", dict(rope_theta=50000.0, rope_scaling=bare, rope_local_base_freq=10000.0), no
    yield "rope: old, other bases", dict(rope_theta=7000.0, rope_local_base_freq=500.0), no
    yield "rope: none", {}, no
    yield "rope: theta outside", dict(rope_theta=7000.0, rope_parameters={F: bare, S: sliding}), []
    yield "rope: two thetas", dict(rope_theta=7000.0), []
    yield "rope: two local thetas", dict(rope_local_base_freq=500.0), []
    yield "rope: local theta outside", dict(rope_local_base_freq=500.0, rope_parameters={F: full}), []
    yield "rope: only sliding", dict(rope_parameters={S: sliding}), []
    yield "rope: flat", dict(rope_parameters=full), []
    # What save_pretrained writes where no layer is of one of the kinds.
    stray = dict(inner, rope_type="default", rope_theta=None)
    yield "rope: nothing beside both kinds", dict(rope_parameters=stray), []
    yield "rope: nothing beside both kinds, one of them in use", dict(rope_parameters=stray, layer_types=[S] * keys["num_hidden_layers"]), []
    yield "rope: a base beside both kinds", dict(rope_parameters=dict(inner, rope_type="default", rope_theta=7000.0)), []
    yield "rope: scaling beside full", dict(rope_scaling=dict(LINEAR)), []
    yield "rope: scaling beside default", dict(rope_scaling=dict(LINEAR), rope_parameters={
        F: dict(rope_type="default", rope_theta=50000.0), S: sliding}), []


def windows(keys):
    """Ways to say that layers have a window, and that none has."""
    layers = keys["num_hidden_layers"]
    kinds = {"sliding": [S] * layers, "full": [F] * layers, "mixed": [F] + [S] * (layers - 1)}
    for window in [None, 16]:
        for use in [None, False, True]:
            said = dict(sliding_window=window)
            said |= {} if use is None else dict(use_sliding_window=use)
            name = f"window: {window}, use {use}"
            yield name, said, ["layer_types"]
            for kind, types in kinds.items():
                yield f"{name}, layers {kind}", dict(said, layer_types=types), []
    for bound in [0, 1, layers]:
        yield f"window: 16 from layer {bound}", dict(sliding_window=16, use_sliding_window=True, max_window_layers=bound), ["layer_types"]
    yield "window: from layer 0, layers full", dict(sliding_window=16, use_sliding_window=True, max_window_layers=0, layer_types=kinds["full"]), []
    yield "window: used and left out", dict(use_sliding_window=True, max_window_layers=0), ["layer_types", "sliding_window"]
    yield "window: left out", dict(max_position_embeddings=8192), ["layer_types", "sliding_window"]
    yield "layer_types: too short", dict(layer_types=[F]), []
    yield "layer_types: unknown", dict(layer_types=["chunked_attention"] * layers), []


def others(keys):
    """Pairs of keys of one architecture or of all."""
    heads, hidden = keys["num_attention_heads"], keys["hidden_size"]
    yield "torch_dtype: another than dtype", dict(torch_dtype="float16", dtype="float32"), []
    yield "torch_dtype alone", dict(torch_dtype="float32"), ["dtype"]
    yield "head_dim: hidden_size / heads", dict(head_dim=hidden // heads), []
    yield "head_dim: null", dict(head_dim=None), []
    yield "head_dim: twice as wide", dict(head_dim=2 * hidden // heads), []
    yield "num_key_value_heads: null", dict(num_key_value_heads=None), []
    yield "num_key_value_heads: all", dict(num_key_value_heads=heads), []
    yield "multi_query beside kv heads", dict(multi_query=True), []
    for act in ["hidden_act", "hidden_activation", "activation"]:
        for name in ["gelu", "gelu_pytorch_tanh", "gelu_new", "swish"]:
            yield f"{act}: {name}", {act: name}, []
    yield "attention_bias: null", dict(attention_bias=None, mlp_bias=None, bias=None), []
    yield "eos_token_id: two", dict(eos_token_id=[1, 5]), []
    match keys["model_type"]:
        case "falcon":
            yield "n_embed: as hidden_size", dict(n_embed=hidden), []
            yield "n_embed: another", dict(n_embed=2 * hidden), []
            yield "num_kv_heads: 1", dict(num_kv_heads=1), []
            yield "multi_query: false", dict(multi_query=False), []
        case "qwen3_moe" | "mixtral":
            number = keys["num_local_experts"]
            yield "experts: num_experts", dict(num_experts=number), ["num_local_experts"]
            yield "experts: both alike", dict(num_experts=number), []
            yield "experts: both, unlike", dict(num_experts=number // 2), []
            yield "experts: both, local unlike", dict(num_experts=number, num_local_experts=number // 2), []
        case "smollm3":
            yield "no_rope: interval", dict(no_rope_layer_interval=2), ["no_rope_layers"]
            yield "no_rope: interval beside layers", dict(no_rope_layer_interval=3), []
        case "gpt_oss":
            number = keys["num_experts_per_tok"]
            yield "experts per token: both alike", dict(experts_per_token=number), []
            yield "experts per token: both, unlike", dict(experts_per_token=number - 1), []
            yield "limit: another", dict(swiglu_limit=1.0), []
            yield "experts per token: the older name", dict(experts_per_token=number), ["num_experts_per_tok"]
        case "deepseek_v3":
            number, rotated = keys["n_routed_experts"], keys["qk_rope_head_dim"]
            yield "experts: num_local_experts", dict(num_local_experts=number), ["n_routed_experts"]
            yield "experts: both alike", dict(num_local_experts=number), []
            yield "experts: both, unlike", dict(num_local_experts=number // 2), []
            yield "head_dim: another than the rotated", dict(head_dim=rotated // 2), []
            yield "qk_head_dim: another than the sum", dict(qk_head_dim=rotated), []
            yield "kv heads: fewer", dict(num_key_value_heads=heads // 2), []
            yield "rope: not interleaved", dict(rope_interleave=False), []
            for key in ["mscale", "mscale_all_dim"]:
                without = {other: value for other, value in keys["rope_parameters"].items() if other != key}
                yield f"rope: no {key}", dict(rope_parameters=without), []
        case "llama4_text":
            layers = keys["num_hidden_layers"]
            without = ["no_rope_layers", "layer_types"]
            yield "no_rope: interval", dict(no_rope_layer_interval=2), without
            yield "no_rope: interval, no list", dict(no_rope_layer_interval=2, no_rope_layers=[]), ["layer_types"]
            yield "no_rope: interval beside layers", dict(no_rope_layer_interval=3), []
            yield "no_rope: neither", {}, without
            yield "experts: step", {}, ["moe_layers"]
            yield "experts: step beside layers", dict(interleave_moe_layer_step=1), []
            yield "experts: neither", {}, ["moe_layers", "interleave_moe_layer_step"]
            yield "chunk: null", dict(attention_chunk_size=None), []
            yield "chunk: null, layers full", dict(attention_chunk_size=None, layer_types=[F] * layers), []
            yield "chunk: layers full", dict(layer_types=[F] * layers), []
            yield "temperature: a number", dict(attn_temperature_tuning=4), []
            yield "temperature: 0", dict(attn_temperature_tuning=0), []
            yield "temperature: false", dict(attn_temperature_tuning=False), []
            yield "norms: false", dict(use_qk_norm=False), []
        case "glm" | "glm4" | "qwen3_next":
            without = {key: value for key, value in keys["rope_parameters"].items() if key != "partial_rotary_factor"}
            yield "rope: no partial", dict(rope_parameters=without), ["partial_rotary_factor"]
            if keys["model_type"] == "qwen3_next":
                yield "layers: interval", dict(full_attention_interval=2), ["layer_types"]
                yield "layers: interval beside layers", dict(full_attention_interval=3), []
                yield "window: beside layers that have none", dict(sliding_window=16), []
        case "gemma2" | "gemma3_text":
            yield "window: pattern", dict(sliding_window_pattern=2), ["layer_types"]
            yield "window: pattern beside layers", dict(sliding_window_pattern=3), []
            yield "caps: null", dict(final_logit_softcapping=None), []


# What becomes of the stored tensors, by name.
HEADS = ["both stored", "both stored, alike", "only the head", "only the embedding", "names without the first part"]


def cases(keys):
    """Names, keys that are set, keys that are left out, and what becomes of tensors."""
    yield "as it is", {}, [], None
    for key in sorted(set(keys) - IDLE):
        yield f"without {key}", {}, [key], None
        yield f"null {key}", {key: None}, [], None
    ways = nested_rope if keys["model_type"] == "gemma3_text" else rope
    for name, said, without in [*ways(keys), *windows(keys), *others(keys)]:
        yield name, said, without, None
    for tied in [True, False, None]:
        for head in HEADS:
            said, without = ({}, ["tie_word_embeddings"]) if tied is None else (dict(tie_word_embeddings=tied), [])
            yield f"tied {tied}: {head}", said, without, head


def beside(keys):
    """Cases of keys that stand beside the text part of a model that sees more."""
    for key in sorted(set(keys) - IDLE):
        yield f"beside: without {key}", {}, [key], None
        yield f"beside: null {key}", {key: None}, [], None
    for tied in [True, False, None]:
        for head in [None, "both stored", "only the head"]:
            yield f"beside: tied {tied}: {head or 'as it is'}", dict(tie_word_embeddings=tied), [], head
    yield "beside: eos_token_id", dict(eos_token_id=[5, 6]), [], None
    yield "beside: pad_token_id", dict(pad_token_id=3), [], None
    yield "beside: vocab_size", dict(vocab_size=50), [], None
    yield "beside: sliding_window", dict(sliding_window=8), [], None
    yield "beside: no type of the text part", dict(text_config={
        key: value for key, value in keys["text_config"].items() if key != "model_type"}), [], None
    yield "beside: another type of the text part", dict(text_config=dict(keys["text_config"], model_type="gemma2")), [], None
    yield "beside: a cap of logits", dict(text_config=dict(keys["text_config"], final_logit_softcapping=0.5)), [], None


def renamed(keys, name, other):
    return {other if key == name else key: value for key, value in keys.items()}


def stored(tensors, head):
    """The tensors of a checkpoint with its head and its embedding stored in another way."""
    if head is None:
        return tensors
    embedding = next(name for name in tensors if name.endswith(("embed_tokens.weight", "word_embeddings.weight")))
    rest = {name: tensor for name, tensor in tensors.items() if name not in [embedding, "lm_head.weight"]}
    weight = tensors[embedding]
    match head:
        case "both stored":
            return dict(rest, **{embedding: weight, "lm_head.weight": weight.roll(1, 0).contiguous()})
        case "both stored, alike":
            return dict(rest, **{embedding: weight, "lm_head.weight": weight.clone()})
        case "only the head":
            return dict(rest, **{"lm_head.weight": weight})
        case "only the embedding":
            return dict(rest, **{embedding: weight})
        case "names without the first part":
            return {name.split(".", 1)[1] if name != "lm_head.weight" else name: tensor for name, tensor in tensors.items()}


# The class writes what a file says outside into its default, which the next file without rope_parameters would then have.
DEFAULTS_OF_GPT_OSS = copy.deepcopy(GptOssConfig.__init__.__defaults__)


def load(folder):
    """The model, or why not: weights that are missing would be random ones."""
    GptOssConfig.__init__.__defaults__ = copy.deepcopy(DEFAULTS_OF_GPT_OSS)
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    for kind in ["missing_keys", "mismatched_keys", "unexpected_keys"]:
        if found[kind]:
            raise ValueError(f"{kind}: {sorted(map(str, found[kind]))[0]}")
    if model.config.model_type == "olmo3":
        scale_full_attention_only(model)
    return model.eval()


@torch.no_grad()
def greedy(model, prompt, vocabulary):
    """The text after a prompt, its last best logit, and the smallest gap between the best and the second."""
    generator = torch.Generator().manual_seed(prompt)
    tokens = torch.randint(2, vocabulary, (1, PROMPT), generator=generator)
    out = model(tokens, use_cache=True)
    text, gap = [], float("inf")
    for _ in range(GREEDY):
        best = out.logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        text.append(best.indices[0].item())
        out = model(best.indices[:1][None], past_key_values=out.past_key_values, use_cache=True)
    logit = out.logits[0, -1].max().item()
    return dict(prompt=tokens[0].tolist(), greedy=text, logit=round(logit, 4)), gap


class Table:
    """Rows, each once."""

    def __init__(self):
        self.rows, self.places = [], {}

    def place(self, row):
        key = json.dumps(row, sort_keys=True)
        if key not in self.places:
            self.places[key] = len(self.rows)
            self.rows.append(row)
        return self.places[key]


def window(config):
    """The tokens that a layer with a window sees, as the classes of transformers decide it; `None` without one."""
    types = getattr(config, "layer_types", None)
    if config.model_type == "llama4_text":
        return config.attention_chunk_size if "chunked_attention" in types else None
    size = getattr(config, "sliding_window", None)
    # Of these all layers have one; those of Llama and others that hide nothing forget in decoding what their cache does.
    all_layers = config.model_type in ["mistral", "phi3", "qwen3_moe", "mixtral"]
    return None if not all_layers and types is not None and S not in types else size


def result(folder, vocabulary):
    """What transformers makes of a folder."""
    try:
        model = load(folder)
        size = window(model.config.get_text_config())
        eos = model.generation_config.eos_token_id
        best, _ = max((greedy(model, prompt, vocabulary) for prompt in range(PROMPTS)), key=lambda one: one[1])
    except Exception as error:
        return dict(error=f"{type(error).__name__}: {error}".split("\n")[0][:60])
    return best | (dict(window=size) if size else {}) | dict(eos=eos)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIXTURES, help="folder to write")
    parser.add_argument("--only", nargs="*", help="checkpoints (default: all)")
    arguments = parser.parse_args()
    settle()
    changes, results, checkpoints = Table(), Table(), {}
    for name in arguments.only or FAMILIES:
        keys = json.loads((FIXTURES / name / "config.json").read_text())
        tensors = load_file(FIXTURES / name / "model.safetensors")
        text = keys.get("text_config", keys)
        rows = [(text, *row) for row in cases(text)] + [(keys, *row) for row in (beside(keys) if text is not keys else [])]
        for part, case, said, without, head in rows:
            with tempfile.TemporaryDirectory() as folder:
                changed = {key: value for key, value in (part | said).items() if key not in set(without) - set(said)}
                if changed == part and head is None and case != "as it is":
                    continue
                whole = changed if part is keys else dict(keys, text_config=changed)
                (Path(folder) / "config.json").write_text(json.dumps(whole))
                save_file(stored(tensors, head), Path(folder) / "model.safetensors", dict(format="pt"))
                found = result(Path(folder), text["vocab_size"])
            change = dict(case=case, set=said, drop=without, head=head)
            change = {key: value for key, value in change.items() if value}
            checkpoints.setdefault(name, []).append([changes.place(change), results.place(found)])
        print(name, len(checkpoints[name]), flush=True)
    write(arguments.out, "keys", dict(
        versions=versions("torch", "transformers"), changes=changes.rows, results=results.rows, checkpoints=checkpoints,
    ))


if __name__ == "__main__":
    main()
