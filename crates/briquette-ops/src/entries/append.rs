use burn::tensor::{
    Bool, IndexingUpdateOp, Int, Tensor,
    kind::{Basic, Numeric},
};

use super::{AttentionStatistics, iota};

/// A new token per head, and the buffers of a layer that it is written into.
#[derive(Debug)]
pub struct AppendInput<'a> {
    /// Keys, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: &'a mut Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, value_dim]`, of the type of the keys.
    pub values: &'a mut Tensor<4>,
    /// Position of each entry, `[batch, kv_heads, capacity]`.
    pub positions: &'a mut Tensor<3, Int>,
    /// Attention statistics of each entry, `capacity` wide. Those of the new token are zero.
    pub statistics: &'a mut AttentionStatistics,
    /// Keys of the new token, `[batch, kv_heads, 1, head_dim]`, of the type of `keys`.
    pub new_keys: Tensor<4>,
    /// Its values, `[batch, kv_heads, 1, value_dim]`, of the type of `values`.
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
    /// The column before the one that the device has counted down to, per batch row and kv head,
    /// `[batch · kv_heads]`, 1 to `capacity`; it is counted down by one.
    CountedDown(&'a mut Tensor<1, Int>),
}

/// Writes the token: the reference of [`EntryOps::append`](super::EntryOps::append).
pub(super) fn append(input: AppendInput<'_>) {
    let AppendInput { keys, values, positions, statistics, .. } = input;
    let (new_keys, new_values, new_positions) =
        (input.new_keys, input.new_values, input.new_positions);
    let zeros = statistics.stacked().map(|statistics| {
        let [rows, heads, _] = statistics.dims();
        Tensor::zeros([rows, heads, 1], (&statistics.device(), statistics.dtype()))
    });
    match input.column {
        AppendColumn::At(column) => {
            write(keys, new_keys, column);
            write(values, new_values, column);
            write(positions, new_positions, column);
            if let (Some(statistics), Some(zeros)) = (statistics.stacked_mut(), zeros) {
                write(statistics, zeros, column);
            }
        }
        AppendColumn::Counted(counted) => {
            let column = counted.clone().narrow(0, 0, 1);
            write_at(keys, new_keys, &column);
            write_at(values, new_values, &column);
            write_at(positions, new_positions, &column);
            if let (Some(statistics), Some(zeros)) = (statistics.stacked_mut(), zeros) {
                write_at(statistics, zeros, &column);
            }
            counted.inplace(|counted| counted.add_scalar(1));
        }
        AppendColumn::CountedDown(counted) => {
            counted.inplace(|counted| counted.sub_scalar(1));
            let [batch, heads, capacity] = positions.dims();
            let column: Tensor<3, Int> = counted.clone().reshape([batch, heads, 1]);
            let there = iota([batch, heads, capacity], &positions.device()).cast(column.dtype());
            let there = there.equal(column.expand([batch, heads, capacity]));
            let there_of_rows = there.clone().unsqueeze_dim::<4>(3);
            write_where(keys, new_keys, &there_of_rows);
            write_where(values, new_values, &there_of_rows);
            if let (Some(statistics), Some(zeros)) = (statistics.stacked_mut(), zeros) {
                let [rows, of_heads, _] = statistics.dims();
                let (kinds, group) = (rows / batch, of_heads / heads);
                let there = there.clone().unsqueeze_dim::<4>(2).repeat_dim(2, group);
                let there: Tensor<3, Bool> = there.reshape([batch, of_heads, capacity]);
                write_where(statistics, zeros, &there.repeat_dim(0, kinds));
            }
            write_where(positions, new_positions, &there);
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

/// Writes a column of each head, where it is `there`.
fn write_where<const D: usize, K: Basic>(
    buffer: &mut Tensor<D, K>,
    values: Tensor<D, K>,
    there: &Tensor<D, Bool>,
) {
    let shape = buffer.dims();
    let there = there.clone().expand(shape);
    buffer.inplace(|buffer| buffer.mask_where(there, values.expand(shape)));
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
