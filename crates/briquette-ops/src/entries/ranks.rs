use burn::tensor::{Int, Tensor, TensorData};

use crate::{error::Result, host::HostInput, send::send};

/// Ranks of tokens by their positions, on the host: the reference of
/// [`EntryOps::ranks`](super::EntryOps::ranks). Positions are read from the device.
pub(super) fn ranks(positions: Tensor<3, Int>) -> Result<Tensor<3, Int>> {
    let (dims, device, dtype) = (positions.dims(), positions.device(), positions.dtype());
    let all = HostInput("ranks").ints(&positions)?;
    let ranks: Vec<i64> = all.chunks(dims[2].max(1)).flat_map(of_head).collect();
    Ok(send("ranks", TensorData::new(ranks, dims), (&device, dtype)))
}

fn of_head(positions: &[i64]) -> Vec<i64> {
    let mut columns: Vec<usize> =
        (0..positions.len()).filter(|&column| positions[column] >= 0).collect();
    // Most are in order, but for the one that took another's place.
    columns.sort_by_key(|&column| positions[column]);
    let mut ranks = vec![-1; positions.len()];
    for (rank, column) in columns.into_iter().enumerate() {
        ranks[column] = rank as i64;
    }
    ranks
}
