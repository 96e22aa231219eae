mod backend;
mod kernel;

use briquette_ops::{PackedGroups, PackedVectors, QuantizeInput, Result};
use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use self::{backend::QuantizeBackend, kernel::UNITS};
use crate::common::{check::Check, rows::cubes_of_rows};

/// Quantizes numbers to a few bits between the minimum and the maximum of their group, and packs
/// them into words (KIVI). See [`QuantizeInput`] for shapes.
///
/// One launch: a unit has a group, reads its numbers twice and writes its words, its scale and its
/// minimum. Numbers are read where they lie: of keys, whose groups are tokens, units beside each
/// other have channels beside each other.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, or the device has no kernels or cannot
/// launch so much.
pub fn quantize(input: QuantizeInput) -> Result<PackedGroups> {
    let QuantizeInput { x, group, bits, dtype } = input;
    let check = Check::new("quantize", &x.device())?;
    let [pages, rows, numbers] = x.dims();
    let known = [1, 2, 4, 8].contains(&bits);
    check.value("bits", usize::from(bits), known, "1, 2, 4 or 8")?;
    check_pages(&check, &x)?;
    let divides = group > 0 && numbers.is_multiple_of(group);
    check.value("group", group, divides, format!("a divisor of {numbers}"))?;
    let word = 32 / usize::from(bits);
    let fills = group == numbers || group.is_multiple_of(word);
    check.value(
        "group",
        group,
        fills,
        format!("a multiple of {word}, or all {numbers} numbers"),
    )?;
    check.cubes(cubes_of_rows((pages * rows * numbers / group).div_ceil(UNITS)))?;
    let (words, scale, min) = Dispatch::quantize(x.into_dispatch(), group, bits, dtype);
    let [scale, min] = [scale, min].map(Tensor::from_dispatch);
    Ok(PackedGroups { words: Tensor::from_dispatch(words), scale, min })
}

/// Rounds vectors, `[pages, rows, channels]`, to 8-bit floating point, E4M3, and packs them into
/// words; scales are held in `dtype`.
///
/// One launch: a unit has a vector, reads it twice and writes its words and its scale. Numbers are
/// rounded by integer arithmetic, so that no device needs the type.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_fp8(x: Tensor<3>, dtype: DType) -> Result<PackedVectors> {
    let check = Check::new("quantize_fp8", &x.device())?;
    let [pages, rows, _] = x.dims();
    check_pages(&check, &x)?;
    check.cubes(cubes_of_rows((pages * rows).div_ceil(UNITS)))?;
    let (words, scale) = Dispatch::quantize_fp8(x.into_dispatch(), dtype);
    Ok(PackedVectors { words: Tensor::from_dispatch(words), scale: Tensor::from_dispatch(scale) })
}

fn check_pages(check: &Check, x: &Tensor<3>) -> Result<()> {
    let [pages, rows, numbers] = x.dims();
    check.some([("pages", pages), ("rows", rows), ("numbers", numbers)])?;
    check.countable("x", &x.dims())?;
    check.tensors(4)
}
