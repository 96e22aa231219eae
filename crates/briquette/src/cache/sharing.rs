use burn::tensor::{DType, Device, Int, Tensor, TensorData, kind::Basic};

use super::Entries;
use crate::{
    Result,
    ops::{ExtendInput, Extended, Groups, Ops, Selection},
};

/// Which tokens share a key and a value (EMS): the key of a token is its norm times the row of its entry.
///
/// It describes the first tokens each head holds. Which of them are left only the device knows: those that are none have
/// position −1 and come first. Tokens behind them have rows of their own.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Tokens described, one number a batch row and kv head, those that are none included.
    pub(crate) tokens: Vec<usize>,
    /// Entries they belong to, the same.
    pub(crate) entries: Vec<usize>,
    /// Tokens behind them, the same.
    pub(crate) own: Vec<usize>,
    /// The entry of each, counted from the first of its head, `[batch, kv_heads, columns]`.
    pub(crate) entry: Tensor<3, Int>,
    /// What the row of the entry is multiplied by, f32, `[batch, kv_heads, columns]`.
    pub(crate) norms: Tensor<3>,
    /// The token at the center of each entry, counted from the first of its head, `[batch, kv_heads, entries]`.
    pub(crate) centers: Tensor<3, Int>,
    /// The columns: those that hold no token, then entry by entry, `[batch, kv_heads, columns]`.
    pub(crate) members: Tensor<3, Int>,
    /// How many columns hold no token, `[batch, kv_heads]`.
    pub(crate) none: Tensor<2, Int>,
}

/// [`Sharing`] of all tokens, by the columns and rows of [`Entries`].
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Entries, one number a batch row and kv head: the last rows.
    pub(crate) entries: Vec<usize>,
    /// The row of each column, any at a filler, `[batch, kv_heads, columns]`.
    pub(crate) rows: Tensor<3, Int>,
    /// What the row is multiplied by, f32, `[batch, kv_heads, columns]`.
    pub(crate) norms: Tensor<3>,
    /// The column of the center of each row, any at a filler, `[batch, kv_heads, rows]`.
    pub(crate) centers: Tensor<3, Int>,
}

impl Sharing {
    /// Entries of each batch row and kv head, tokens behind those described included.
    pub(crate) fn all_entries(&self) -> Vec<usize> {
        self.entries.iter().zip(&self.own).map(|(entries, own)| entries + own).collect()
    }

    /// With as many more tokens behind each head.
    pub(crate) fn followed_by(mut self, tokens: usize) -> Self {
        self.own.iter_mut().for_each(|own| *own += tokens);
        self
    }
}

impl Table {
    /// The table of tokens each of which has a row of its own, the last `held` columns of each head.
    pub(crate) fn of_own(entries: &Entries, held: &[usize]) -> Self {
        let dims = entries.positions.dims();
        let device = entries.positions.device();
        let place = counted(dims, &device);
        Self {
            entries: held.to_vec(),
            rows: place.clone(),
            norms: Tensor::ones(dims, (&device, DType::F32)),
            centers: place,
        }
    }

    /// The table of entries that are shared; `None` if each token has its own.
    pub(crate) fn of(entries: &Entries, ops: &dyn Ops) -> Option<Self> {
        let sharing = entries.sharing.as_ref()?;
        let Sharing { tokens, entries: shared, own, entry, norms, centers, .. } = sharing;
        let heads = tokens.iter().zip(shared).zip(own);
        let counts: Vec<[usize; 3]> =
            heads.map(|((&tokens, &shared), &own)| [tokens, shared, own]).collect();
        let Extended { rows, norms, centers } = ops.extend(ExtendInput {
            entry: entry.clone(),
            norms: norms.clone(),
            centers: centers.clone(),
            counts: &counts,
            columns: entries.positions.dims()[2],
            rows: entries.keys.dims()[2],
        });
        Some(Self { entries: sharing.all_entries(), rows, norms, centers })
    }

    /// The same as what a store takes in: all that `counts` columns of each head, the last, may hold is described.
    /// `positions` are −1 where they hold nothing; those come first.
    pub(crate) fn sharing(
        self,
        positions: &Tensor<3, Int>,
        counts: &[usize],
        ops: &dyn Ops,
    ) -> Result<Sharing> {
        let (columns, rows) = (self.rows.dims()[2], self.centers.dims()[2]);
        let back = |counts: &[usize], width: usize| -> Vec<i64> {
            counts.iter().map(|&count| count as i64 - width as i64).collect()
        };
        let nothing = positions.clone().lower_scalar(0);
        let entry = moved(self.rows, &back(&self.entries, rows));
        let Groups { members, none, .. } = ops.group(entry.clone().mask_fill(nothing, -1), rows)?;
        Ok(Sharing {
            tokens: counts.to_vec(),
            own: vec![0; counts.len()],
            entry: entry.clamp_min(0),
            norms: self.norms,
            centers: moved(self.centers, &back(counts, columns)).clamp_min(0),
            entries: self.entries,
            members,
            none,
        })
    }
}

/// 0, 1, 2 … in every row.
pub(crate) fn counted(dims: [usize; 3], device: &Device) -> Tensor<3, Int> {
    let place = Tensor::<1, Int>::arange(0..dims[2] as i64, device);
    place.reshape([1, 1, dims[2]]).expand(dims)
}

/// Every number plus one that is its head's, rows first; not below zero where heads differ, since fillers may be.
pub(crate) fn moved(x: Tensor<3, Int>, by: &[i64]) -> Tensor<3, Int> {
    let first = by.first().copied().unwrap_or(0);
    if by.iter().all(|&by| by == first) {
        return if first == 0 { x } else { x + first };
    }
    let dims = x.dims();
    let by = TensorData::new(by.to_vec(), [dims[0], dims[1], 1]);
    let by = Tensor::<3, Int>::from_data(by, &x.device());
    (x + by.expand(dims)).clamp_min(0)
}

/// `width` columns of each head from one on that is its own, rows first. What is read before or behind those there are
/// does not matter.
pub(crate) fn aligned<K: Basic>(x: Tensor<3, K>, from: &[i64], width: usize) -> Tensor<3, K> {
    let [batch, heads, columns] = x.dims();
    match same(from, width, columns) {
        Some(0) if width == columns => x,
        Some(first) => x.narrow(2, first, width),
        None => {
            let places = places([batch, heads, width], from, columns, &x.device());
            x.gather(2, places)
        }
    }
}

/// The same for rows, `[batch, kv_heads, rows, channels]`.
pub(crate) fn aligned_rows(x: Tensor<4>, from: &[i64], width: usize, ops: &dyn Ops) -> Tensor<4> {
    let [batch, heads, rows, _] = x.dims();
    match same(from, width, rows) {
        Some(0) if width == rows => x,
        Some(first) => x.narrow(2, first, width),
        None => {
            let indices = places([batch, heads, width], from, rows, &x.device());
            ops.compact(x, &Selection { indices, counts: vec![width; batch * heads] })
        }
    }
}

/// Where all heads begin, if it is the same and `width` columns are there.
fn same(from: &[i64], width: usize, columns: usize) -> Option<usize> {
    let first = usize::try_from(*from.first()?).ok()?;
    let all = from.iter().all(|&from| from == first as i64);
    (all && first + width <= columns).then_some(first)
}

/// The columns of each head from its own first on, within those there are.
fn places(dims: [usize; 3], from: &[i64], columns: usize, device: &Device) -> Tensor<3, Int> {
    moved(counted(dims, device), from).clamp(0, columns as i64 - 1)
}
