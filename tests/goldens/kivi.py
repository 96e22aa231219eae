"""Write `kivi.json`: keys and values as KIVI's published code rounds them.

    git clone https://github.com/jy-yuan/KIVI
    python kivi.py --kivi DIR [--out DIR]

Only its functions in plain PyTorch run; its kernels need a GPU. README.md beside this file describes the fields.
"""

import importlib.util
import sys
import warnings
from types import ModuleType

import torch

from common import CANDIDATES, SEED, arguments, commit, rounded, settle, versions, write

BITS = [2, 4, 8]
GROUP = 32
KEYS, VALUES = (1, 2, 64, 8), (1, 2, 8, 64)  # [batch, heads, tokens, channels]
FLAT, HALVES = 0, 1  # of the first head: the channel (token) whose first group is of equal numbers, or holds halves


def load_kivi(folder):
    """Its file of packing functions; Triton is stood in for where it is missing."""
    try:
        import triton  # noqa: F401
    except ImportError:
        triton, language = ModuleType("triton"), ModuleType("triton.language")
        triton.jit, triton.language, language.constexpr = lambda function: function, language, None
        sys.modules.update({"triton": triton, "triton.language": language})
    spec = importlib.util.spec_from_file_location("new_pack", folder / "quant" / "new_pack.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps_and_halves(top):
    """A group from 0 to `top`, so that a step is 1, at steps and halfway between them."""
    line = torch.arange(GROUP) * 0.5 % top
    line[0], line[-1] = 0, top
    return line


def lines_of(numbers, along):
    """The lines of the first head that are cut into groups: channels of keys, tokens of values."""
    return numbers[0, 0].transpose(0, 1) if along == 2 else numbers[0, 0]


def inputs(shape, along, bits, candidate):
    """Random numbers of four decimals, and two groups that are not."""
    generator = torch.Generator().manual_seed(1000 * SEED + candidate)
    numbers = (torch.randn(shape, generator=generator) * 10**4).round() / 10**4
    lines_of(numbers, along)[FLAT, :GROUP] = 0.75
    lines_of(numbers, along)[HALVES, :GROUP] = steps_and_halves(2**bits - 1)
    return numbers


def round_trip(kivi, before, along, bits):
    """Through its functions and back: the numbers, scales, minima, and how close a number came to another step."""
    pack = kivi.quant_and_pack_kcache if along == 2 else kivi.quant_and_pack_vcache
    unpack = kivi.unpack_and_dequant_kcache if along == 2 else kivi.unpack_and_dequant_vcache
    code, scale, least = pack(before.clone(), GROUP, bits)
    after = unpack(code, scale, least, GROUP, bits)
    assert after.dtype == before.dtype and torch.isfinite(after).all()

    flat, halves = (lines_of(after, along)[line, :GROUP] for line in (FLAT, HALVES))
    assert (flat == 0.75).all(), "equal numbers come back as they were"
    assert torch.equal(halves, steps_and_halves(2**bits - 1).round().to(after.dtype)), "a half goes to the even step"

    # In its own type it may take another step than in f32 with the same scale and minimum. Not in these cases.
    steps = (before.unflatten(along, (-1, GROUP)).float() - least.float()) / scale.float()
    codes = kivi.unpack_tensor(code, bits, along).unflatten(along, (-1, GROUP))
    is_number = ~steps.isnan()
    another = (steps.round() != codes)[is_number].sum().item()
    off = (steps - steps.floor() - 0.5).abs()
    return after, scale, least, 0.0 if another else off[off > 0].min().item()


def case(kivi, name, bits, dtype):
    """Numbers before and after: of all candidates, those that come least close to a half."""
    shape, along = (KEYS, 2) if name == "keys" else (VALUES, 3)
    best = None
    for candidate in range(CANDIDATES):
        before = inputs(shape, along, bits, candidate).to(dtype)
        after, scale, least, off = round_trip(kivi, before, along, bits)
        if best is None or off > best[0]:
            best = (off, before, after, scale, least)
    off, before, after, scale, least = best
    assert off > 0
    in_f32 = (((before.unflatten(along, (-1, GROUP)).float() - least.float()) / scale.float()).nan_to_num().round())
    in_f32 = (in_f32 * scale.float() + least.float()).flatten(along, along + 1)
    print(
        f"kivi: {name}, {bits} bits, {dtype}: {off:.1e} of a step from a half, error {(after - before).abs().max():.4f}, "
        f"{(after.float() - in_f32).abs().max():.1e} from what f32 gives"
    )
    return {
        "of": name,
        "bits": bits,
        "group": GROUP,
        "type": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "before": rounded(before.float().flatten(), 9),
        "scale": rounded(scale.float().flatten(), 9),
        "min": rounded(least.float().flatten(), 9),
        "after": rounded(after.float().flatten(), 7),
        "nearest_half": float(f"{off:.2g}"),
    }


def main():
    """Every case."""
    args = arguments(__doc__, checkout="kivi")
    settle()
    warnings.filterwarnings("ignore", "Using a non-tuple sequence")  # in its code; goes through torch 2.9
    kivi = load_kivi(args.kivi)
    cases = [case(kivi, name, bits, torch.float32) for bits in BITS for name in ("keys", "values")]
    cases += [case(kivi, name, 4, torch.float16) for name in ("keys", "values")]
    write(args.out, "kivi", {"versions": {**versions("torch"), "kivi": commit(args.kivi)}, "cases": cases})


if __name__ == "__main__":
    with torch.no_grad():
        main()
