mod backend;
mod kernel;

use briquette_ops::Result;
use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor},
};

use self::backend::RanksBackend;
use crate::common::{check::Check, eviction::weakest::UNITS, rows::cubes_of_rows};

/// Counts how many tokens of a head come before each, whichever order they lie in: `[batch, heads,
/// columns]`, −1 at padding. Positions are −1 at padding, the others of a head distinct; `sinks`
/// are the first tokens that heads are likely to hold.
///
/// A cube of 256 units a head, in one launch. A head that holds its first `sinks` tokens, or fewer,
/// and its last ones besides is told by its lowest and its highest position: columns · 8 bytes read
/// and columns · 4 written. In others each token is compared with all, columns² / 256 comparisons a
/// unit.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if there is no entry, or the device has no kernels or cannot
/// launch so much.
pub fn ranks(positions: Tensor<3, Int>, sinks: usize) -> Result<Tensor<3, Int>> {
    let check = Check::new("ranks", &positions.device())?;
    let [batch, heads, columns] = positions.dims();
    check.some([("batch", batch), ("heads", heads), ("columns", columns)])?;
    check.countable("positions", &positions.dims())?;
    check.tensors(2)?;
    check.shared_bytes(UNITS * size_of::<u32>())?;
    check.cubes(cubes_of_rows(batch * heads))?;
    // No head holds as many as can be told: more are as good as all.
    let sinks = sinks.min(columns) as u32;
    Ok(Tensor::from_dispatch(Dispatch::ranks(positions.into_dispatch(), sinks)))
}
