//! The hot operations, behind one trait.
//!
//! [`Reference`] computes each with Burn's tensor operations on any device. A backend's own kernels come in
//! as another implementation of [`Ops`]; policies never name a backend.

mod attention;
mod compact;
mod product;
mod select;
mod window;

use std::fmt::Debug;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::Result;

/// The operations every policy is made of.
pub trait Ops: Debug + Send + Sync {
    /// Causal attention of new queries over the entries of a layer, with the column sums a scorer may
    /// want. See [`AttentionInput`] for shapes.
    fn attention(&self, input: AttentionInput) -> AttentionOutput {
        attention::attention(input)
    }

    /// The attention weights of a few queries over the entries of a layer:
    /// `[batch, query_heads, queries, entries]`, f32, zero where the query is padding.
    fn window_weights(&self, input: WindowInput) -> Tensor<4> {
        window::window_weights(input)
    }

    /// The entries to keep: the protected ones, then the highest scores; of equal ones the older.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) if a score is NaN, [`Error::Execution`](crate::Error::Execution)
    /// if the device failed.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        select::select(input)
    }

    /// The selected rows of `x`: `[batch, kv_heads, entries, channels]` becomes
    /// `[batch, kv_heads, kept, channels]`.
    fn compact(&self, x: Tensor<4>, selection: &Selection) -> Tensor<4> {
        compact::rows(x, selection)
    }

    /// The selected numbers of `x`, `[batch, heads, entries]`, where `heads` is a multiple of the kv heads:
    /// query heads follow the kv head they share. Returns `[batch, heads, kept]`.
    fn compact_scalars(&self, x: Tensor<3>, selection: &Selection) -> Tensor<3> {
        compact::scalars(x, selection)
    }

    /// The positions of the selected entries, −1 where a row keeps fewer than the widest:
    /// `[batch, kv_heads, entries]` becomes `[batch, kv_heads, kept]`.
    fn compact_positions(
        &self,
        positions: Tensor<3, Int>,
        selection: &Selection,
    ) -> Tensor<3, Int> {
        compact::positions(positions, selection)
    }
}

/// Burn's tensor operations, on any device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl Ops for Reference {}

/// What [`Ops::attention`] works on. The queries belong to the last `new` of the entries.
#[derive(Clone, Debug)]
pub struct AttentionInput {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, entries, head_dim]`.
    pub values: Tensor<4>,
    /// Which entry each query may see.
    pub visibility: Visibility,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether [`AttentionOutput::column_sums`] is wanted.
    pub column_sums: bool,
}

/// What [`Ops::attention`] returns.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// `[batch, query_heads, new, head_dim]`, of the type of the queries; zero where the query is padding.
    pub output: Tensor<4>,
    /// For each entry the sum of its weights over the queries, `[batch, query_heads, entries]`, f32.
    pub column_sums: Option<Tensor<3>>,
}

/// What [`Ops::window_weights`] works on.
#[derive(Clone, Debug)]
pub struct WindowInput {
    /// Queries, positions encoded, `[batch, query_heads, queries, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// Which entry each query may see, by its position.
    pub visibility: Visibility,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
}

/// Which entry a query may see: those written at its own position or before, padding excepted.
#[derive(Clone, Debug)]
pub struct Visibility {
    /// The position of each query, `[batch, 1, queries]`; −1 is padding.
    pub queries: Tensor<3, Int>,
    /// The position of each entry, `[batch, kv_heads, entries]`; −1 is padding.
    pub entries: Tensor<3, Int>,
    /// False if it is known that nothing is padding and that the queries belong to the last entries in
    /// order, so that the column tells what the positions would.
    pub by_position: bool,
}

/// What [`Ops::select`] works on. Vectors hold one number a batch row.
#[derive(Clone, Debug)]
pub struct SelectInput<'a> {
    /// The layer, for errors.
    pub layer: usize,
    /// `[batch, kv_heads, entries]`, f32; what stands at padding does not matter.
    pub scores: &'a Tensor<3>,
    /// `[batch, kv_heads, entries]`, or `None` if nothing is padding.
    pub positions: Option<&'a Tensor<3, Int>>,
    /// Entries to keep in a row; a row that holds fewer keeps all.
    pub keep: &'a [usize],
    /// The first so many entries are kept whatever their scores.
    pub sinks: usize,
    /// The last so many entries of a row are kept whatever their scores.
    pub recent: &'a [usize],
}

/// The entries of a layer to keep, in the order of their positions.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `[batch, kv_heads, kept]`. A row that keeps fewer than the widest begins with as many fillers, which
    /// point at the first entry and become padding.
    pub indices: Tensor<3, Int>,
    /// Entries kept, one number a batch row.
    pub counts: Vec<usize>,
}

impl Selection {
    /// The same entries for every one of `heads` heads: one ascending list a batch row.
    pub(crate) fn of_rows(rows: &[Vec<usize>], heads: usize, device: &Device) -> Self {
        let lists: Vec<&[usize]> =
            rows.iter().flat_map(|row| std::iter::repeat_n(&row[..], heads)).collect();
        Self::of_heads(&lists, heads, device)
    }

    /// One ascending list a batch row and head; those of a batch row are of one length.
    pub(crate) fn of_heads(lists: &[&[usize]], heads: usize, device: &Device) -> Self {
        let counts: Vec<usize> = lists.iter().step_by(heads).map(|list| list.len()).collect();
        let width = counts.iter().copied().max().unwrap_or(0);
        let mut indices = Vec::with_capacity(lists.len() * width);
        for list in lists {
            indices.extend(std::iter::repeat_n(0, width - list.len()));
            indices.extend(list.iter().map(|&entry| entry as i64));
        }
        let data = TensorData::new(indices, [counts.len(), heads, width]);
        Self { indices: Tensor::from_data(data, device), counts }
    }

    /// Columns of the result.
    pub fn width(&self) -> usize {
        self.indices.dims()[2]
    }
}
