use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};

use super::evict::{EvictInput, Place, SlotRows, replace};
use crate::{error::Result, host::HostInput};

/// How the value of an evicted entry is added to those behind it (CaM).
///
/// Let n be the number of the next tokens by position, at most `window`, and s the sum of their
/// attention: if the entry's random number times s is below its own attention times n, each of them
/// receives 1/n of its value.
#[derive(Clone, Debug)]
pub struct EvictSpreadInput {
    /// Attention that each entry has received, the new token's last, `[batch, kv_heads, columns +
    /// 1]`, f32.
    pub attention: Tensor<3>,
    /// A random number in 0..1 of each, of the same shape and type.
    pub drawn: Tensor<3>,
    /// Number of next tokens that share a value.
    pub window: usize,
}

/// Evicts one entry a head and spreads its value: decided on the host.
pub(super) fn evict_spreading(mut input: EvictInput<'_>, spread: EvictSpreadInput) -> Result<()> {
    let place = Place::of(&input)?;
    let shares = Shares::of(&place, &spread)?;
    shares.add(&mut input.rows, &place)?;
    replace(input, &place, None);
    Ok(())
}

/// Columns that an evicted value is added to, and the share of it that each receives, per head.
struct Shares {
    /// As many columns for each head: those that receive nothing are the evicted entry's own.
    columns: Vec<usize>,
    /// Shares, zero where nothing is added.
    shares: Vec<f32>,
    /// Columns of a head.
    width: usize,
}

impl Shares {
    fn of(place: &Place, spread: &EvictSpreadInput) -> Result<Self> {
        let host = HostInput("evict_spreading");
        let attention = host.floats(&spread.attention)?;
        let drawn = host.floats(&spread.drawn)?;
        let all = place.dims[2];
        let width = spread.window.min(all - 1);
        let (mut columns, mut shares) = (Vec::new(), Vec::new());
        let heads = place.tokens.chunks(all).zip(attention.chunks(all)).zip(drawn.chunks(all));
        for (head, ((tokens, attention), drawn)) in heads.enumerate() {
            let gone = place.columns[head];
            let mut next: Vec<usize> = match place.evicts[head] {
                true => (0..all).filter(|&column| tokens[column] > tokens[gone]).collect(),
                false => Vec::new(),
            };
            next.sort_unstable_by_key(|&column| tokens[column]);
            next.truncate(spread.window);
            let number = next.len() as f32;
            let sum: f32 = next.iter().map(|&column| attention[column]).sum();
            if drawn[gone] * sum >= attention[gone] * number {
                next.clear();
            }
            shares.extend((0..width).map(|at| if at < next.len() { 1.0 / number } else { 0.0 }));
            next.resize(width, gone);
            columns.extend(next);
        }
        Ok(Self { columns, shares, width })
    }

    /// Adds the values that go to those of their columns.
    fn add(&self, rows: &mut SlotRows<'_>, place: &Place) -> Result<()> {
        if self.shares.iter().all(|&share| share == 0.0) {
            return Ok(());
        }
        let [batch, heads, all] = place.dims;
        let lists = batch * heads;
        match rows {
            SlotRows::Dense { values, .. } => {
                let [_, _, slots, channels] = values.dims();
                let list =
                    List { first: (0..lists).map(|list| list * slots).collect(), columns: all };
                values.inplace(|values| {
                    let values = values.reshape([lists * slots, channels]);
                    let gone = list.gone(&values, place);
                    list.added(values, gone, self, place).reshape([batch, heads, slots, channels])
                });
            }
            SlotRows::Ragged { values, offsets, new_values, .. } => {
                let offsets = HostInput("evict_spreading").ints(offsets)?;
                // The new token's column is the one behind a head's last row.
                let first = |end: &i64| (*end as usize + 1).wrapping_sub(all);
                let list =
                    List { first: offsets[1..].iter().map(first).collect(), columns: all - 1 };
                let gone = list.gone(values, place);
                let dims = new_values.dims();
                new_values.inplace(|new| {
                    self.added_to_newest(new.reshape([lists, dims[3]]), &gone, place).reshape(dims)
                });
                values.inplace(|values| list.added(values, gone, self, place));
            }
        }
        Ok(())
    }

    /// The values of the new tokens, `[batch · kv_heads, channels]`, with what is added.
    fn added_to_newest(&self, new: Tensor<2>, gone: &Tensor<2>, place: &Place) -> Tensor<2> {
        let newest = place.dims[2] - 1;
        let heads = self.columns.chunks(self.width).zip(self.shares.chunks(self.width));
        let share = |(columns, shares): (&[usize], &[f32])| -> f32 {
            columns
                .iter()
                .zip(shares)
                .filter(|(column, _)| **column == newest)
                .map(|(_, share)| share)
                .sum()
        };
        let shares: Vec<f32> = heads.map(share).collect();
        let rows = shares.len();
        (new.clone().cast(DType::F32) + gone.clone() * floats(shares, rows, place))
            .cast(new.dtype())
    }
}

/// Rows of all heads, one after another.
struct List {
    /// Where the columns of each head begin; before the first row where a head has padding.
    first: Vec<usize>,
    /// Columns of a head that lie in it.
    columns: usize,
}

impl List {
    /// The row of a head's column, or of its last where the new token lies elsewhere.
    fn row(&self, head: usize, column: usize) -> usize {
        self.first[head].wrapping_add(column.min(self.columns - 1))
    }

    /// The values that go, `[batch · kv_heads, channels]`, f32; any where a new token goes, which
    /// is added to nothing.
    fn gone(&self, values: &Tensor<2>, place: &Place) -> Tensor<2> {
        let rows = place.columns.iter().enumerate().map(|(head, &column)| self.row(head, column));
        values.clone().select(0, indices(rows.collect(), place)).cast(DType::F32)
    }

    /// The values with what is added to them.
    fn added(
        &self,
        values: Tensor<2>,
        gone: Tensor<2>,
        shares: &Shares,
        place: &Place,
    ) -> Tensor<2> {
        let Shares { columns, shares, width } = shares;
        let [lists, channels] = gone.dims();
        let to = |(at, (&column, &share)): (usize, (&usize, &f32))| {
            let head = at / width;
            // What goes stays as it is until the new token takes its place.
            match share > 0.0 && column < self.columns {
                true => (self.row(head, column), share),
                false => (self.row(head, place.columns[head]), 0.0),
            }
        };
        let (rows, shares): (Vec<usize>, Vec<f32>) =
            columns.iter().zip(shares).enumerate().map(to).unzip();
        let (number, rows) = (rows.len(), indices(rows, place));
        let shared = gone.unsqueeze_dim::<3>(1).expand([lists, *width, channels]);
        let added = shared.reshape([number, channels]) * floats(shares, number, place);
        let sum = values.clone().select(0, rows.clone()).cast(DType::F32) + added;
        let sum = sum.cast(values.dtype());
        values.select_assign(0, rows, sum, IndexingUpdateOp::Assign)
    }
}

fn indices(rows: Vec<usize>, place: &Place) -> Tensor<1, Int> {
    let rows: Vec<i64> = rows.into_iter().map(|row| row as i64).collect();
    let number = rows.len();
    Tensor::from_data(TensorData::new(rows, [number]), &place.device)
}

fn floats(numbers: Vec<f32>, rows: usize, place: &Place) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers, [rows, 1]), (&place.device, DType::F32))
}
