mod backend;
mod mma;
mod plan;
mod portable;

use briquette_ops::{NearestInput, NearestOutput, OpError, Result, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::{backend::NearestBackend, plan::Plan};
use crate::common::{
    check::Check,
    tile::product::{SIDE, UNITS, shared_bytes},
};

/// For each row of `from` the most similar row of `to` and their similarity, which is the cosine,
/// or the product of the cosines of two pairs, at most 1. Of equals the first; a zero vector is
/// like nothing, 0; a row with a NaN is nobody's nearest. What D2O, KVMerger and EMS merge by.
///
/// No matrix of similarities is kept. A first kernel measures every row. Where the device
/// multiplies tiles of 16-bit numbers, rows are such, and channels are a multiple of 16 up to 128,
/// a plane then keeps 32 rows of `from` in registers (16 for two pairs, or if there are few), and
/// rows of `to` pass through shared memory 32 at a time. Elsewhere, and for f32, a cube of 256
/// units takes 128 rows of `from` (fewer if there are few) against tiles of 128 rows of `to` (64
/// for two pairs): 16 channels at a time in shared memory. Either way products are in registers,
/// and with them the best so far. Where rows of `from` are too few to keep the device busy `to` is
/// split, and the best of all splits is taken at the end. Products of what is given are exact in
/// f32, and so is all that follows: who is merged with whom hangs on it.
///
/// For each head and pair it multiplies and adds 2 · from · to · channels times, reads `from` and
/// `to` once for their lengths, and `to` once more for every 128 rows of `from` (32 at least),
/// mostly from the cache of the device. It writes 8 bytes a row of `from` and split, reads them if
/// there is more than one, and writes similarity and index.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no pair or are more
/// than two, a tensor is empty, or the device has no kernels or cannot launch so much.
pub fn nearest(input: NearestInput) -> Result<NearestOutput> {
    check(&input)?;
    let NearestInput { pairs, padding } = input;
    let number = pairs.len();
    let (from, to) = pairs[0].clone();
    let (more_from, more_to) = pairs[number - 1].clone();
    let lists = padding.len();
    let padding = padding.into_iter().map(|padding| padding as i64).collect::<Vec<_>>();
    let padding = constant_ints("nearest", padding, [lists], &pairs[0].0.device());
    let (similarity, index) = Dispatch::nearest(
        from.into_dispatch(),
        to.into_dispatch(),
        more_from.into_dispatch(),
        more_to.into_dispatch(),
        padding.into_dispatch(),
        number,
    );
    Ok(NearestOutput {
        similarity: Tensor::from_dispatch(similarity),
        index: Tensor::from_dispatch(index),
    })
}

fn check(input: &NearestInput) -> Result<()> {
    const OPERATION: &str = "nearest";
    let pairs = input.pairs.len();
    OpError::check_value(OPERATION, "pairs", pairs, (1..=2).contains(&pairs), "1 or 2")?;
    let check = Check::new(OPERATION, &input.pairs[0].0.device())?;
    let [batch, heads, from, _] = input.pairs[0].0.dims();
    let to = input.pairs[0].1.dims()[2];
    check.some([("batch", batch), ("heads", heads), ("from", from), ("to", to)])?;
    for (rows, others) in &input.pairs {
        let channels = rows.dims()[3];
        check.some([("channels", channels)])?;
        check.shape("from", rows.dims(), [batch, heads, from, channels])?;
        check.shape("to", others.dims(), [batch, heads, to, channels])?;
        let bytes = rows.dtype().size();
        let same = rows.dtype() == others.dtype();
        let expected = format!("{bytes} bytes, of the type of the other");
        check.value("a number of to", others.dtype().size(), same, expected)?;
        check.countable("from", &rows.dims())?;
        check.countable("to", &others.dims())?;
    }
    check.shape("padding", [input.padding.len()], [batch * heads])?;
    let lists = batch * heads;
    let Plan { tile, row_tiles, splits, .. } = Plan::new(lists, from, to, pairs);
    check.countable("the best of splits", &[splits, lists, from])?;
    let lengths = 4 * SIDE * (tile[0] + tile[1]);
    check.shared_bytes(tile.map(shared_bytes).iter().sum::<usize>() + lengths + 8 * UNITS)?;
    check.cubes([row_tiles, lists, splits])?;
    check.cubes([from.max(to).div_ceil(portable::MEASURED), lists, 1])
}
