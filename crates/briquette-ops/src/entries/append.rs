use burn::tensor::{
    IndexingUpdateOp, Int, Tensor,
    kind::{Basic, Numeric},
};

use super::AttentionStatistics;

/// A new token per head, and the buffers of a layer that it is written into.
#[derive(Debug)]
pub struct AppendInput<'a> {
    /// Keys, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: &'a mut Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, head_dim]`, of the type of the keys.
    pub values: &'a mut Tensor<4>,
    /// Position of each entry, `[batch, kv_heads, capacity]`.
    pub positions: &'a mut Tensor<3, Int>,
    /// Attention statistics of each entry, `capacity` wide. Those of the new token are zero.
    pub tracks: &'a mut AttentionStatistics,
    /// Keys of the new token, `[batch, kv_heads, 1, head_dim]`, of the type of `keys`.
    pub new_keys: Tensor<4>,
    /// Its values, `[batch, kv_heads, 1, head_dim]`, of the type of `values`.
    pub new_values: Tensor<4>,
    /// Its position in each batch row, `[batch, kv_heads, 1]`.
    pub new_positions: Tensor<3, Int>,
    /// The column that it is written to.
    pub column: AppendColumn<'a>,
}

/// The column of a new token.
#[derive(Debug)]
pub enum AppendColumn<'a> {
    /// This column of every head, below `capacity`.
    At(usize),
    /// The column that the device has counted to, per batch row and kv head,
    /// `[batch · kv_heads]`, the same in all and below `capacity`; it is counted on by one.
    Counted(&'a mut Tensor<1, Int>),
}

/// Writes the token: the reference of [`EntryOps::append`](super::EntryOps::append).
pub(super) fn append(input: AppendInput<'_>) {
    let AppendInput { keys, values, positions, tracks, .. } = input;
    let (new_keys, new_values, new_positions) =
        (input.new_keys, input.new_values, input.new_positions);
    let zeros = tracks.stacked().map(|tracks| {
        let [rows, heads, _] = tracks.dims();
        Tensor::zeros([rows, heads, 1], (&tracks.device(), tracks.dtype()))
    });
    match input.column {
        AppendColumn::At(column) => {
            write(keys, new_keys, column);
            write(values, new_values, column);
            write(positions, new_positions, column);
            if let (Some(tracks), Some(zeros)) = (tracks.stacked_mut(), zeros) {
                write(tracks, zeros, column);
            }
        }
        AppendColumn::Counted(counted) => {
            let column = counted.clone().narrow(0, 0, 1);
            write_at(keys, new_keys, &column);
            write_at(values, new_values, &column);
            write_at(positions, new_positions, &column);
            if let (Some(tracks), Some(zeros)) = (tracks.stacked_mut(), zeros) {
                write_at(tracks, zeros, &column);
            }
            counted.inplace(|counted| counted.add_scalar(1));
        }
    }
}

/// Writes a column (dimension 2). The buffer is moved out and back, so a backend that owns it alone
/// writes in place.
fn write<const D: usize, K: Basic>(buffer: &mut Tensor<D, K>, values: Tensor<D, K>, column: usize) {
    let mut ranges = buffer.dims().map(|size| 0..size);
    ranges[2] = column..column + 1;
    buffer.inplace(|buffer| buffer.slice_assign(ranges, values));
}

/// Writes the column that a tensor says, `[1]`.
fn write_at<const D: usize, K: Basic + Numeric>(
    buffer: &mut Tensor<D, K>,
    values: Tensor<D, K>,
    column: &Tensor<1, Int>,
) {
    let column = column.clone();
    buffer.inplace(|buffer| buffer.select_assign(2, column, values, IndexingUpdateOp::Assign));
}
