"""Files as torch.save writes them, of the tiny checkpoint `qwen2`, and some that are no plain state dictionary.

They go to `../../crates/briquette-models/tests/fixtures/pytorch`. The good ones hold the numbers of
`qwen2/model.safetensors` and a head that shares the bytes of the embedding.
"""

import os
from collections import OrderedDict

import torch
from safetensors.torch import load_file

from common import REPOSITORY

FIXTURES = REPOSITORY / "crates" / "briquette-models" / "tests" / "fixtures"
OUT = FIXTURES / "pytorch"


class Code:
    """What runs a command where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch it-was-run",)


def state():
    tensors = OrderedDict(load_file(FIXTURES / "qwen2" / "model.safetensors"))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors._metadata = OrderedDict({"": dict(version=1), "model": dict(version=1)})
    return tensors


def views():
    """The same numbers in other types and layouts: transposed, and as parts of one storage."""
    tensors = state()
    for name, tensor in tensors.items():
        half = tensor.half()
        if name.endswith(".down_proj.weight"):
            tensors[name] = tensor.t().contiguous().t()
        elif name.endswith(".bias"):
            tensors[name] = tensor.double()
        elif name.endswith(".o_proj.weight"):
            tensors[name] = torch.nn.Parameter(tensor.float())
        elif torch.equal(half.to(tensor.dtype), tensor):
            tensors[name] = half
    for layer in range(2):
        names = [f"model.layers.{layer}.self_attn.{one}_proj.weight" for one in "qkv"]
        parts = [tensors[name].bfloat16() for name in names]
        split = torch.cat(parts).split([len(part) for part in parts])
        tensors.update(zip(names, split))
    return tensors


def save(name, content, **options):
    path = OUT / name
    torch.save(content, path, **options)
    print(f"{name}: {path.stat().st_size} bytes")
    return path


def main():
    OUT.mkdir(exist_ok=True)
    good = [
        save("zip.bin", state()),
        save("legacy.bin", state(), _use_new_zipfile_serialization=False),
        save("views.bin", views()),
    ]
    expected = state()
    for path in good:
        found = torch.load(path, weights_only=True)
        assert all(torch.equal(found[name].to(tensor.dtype), tensor) for name, tensor in expected.items())
    norm = {"model.norm.weight": expected["model.norm.weight"]}
    save("nested.bin", dict(state_dict=norm, epoch=3))
    save("model.bin", torch.nn.Sequential(torch.nn.Linear(2, 2)))
    save("code.bin", dict(norm, extra=Code()))
    save("sparse.bin", {"model.norm.weight": torch.eye(4).to_sparse()})


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
