//! The hot operations, behind one trait.
//!
//! [`Reference`] computes each with Burn's tensor operations on any device. A backend's own kernels come in
//! as another implementation of [`Ops`]; policies never name a backend.

mod accumulate;
mod attention;
mod compact;
mod ema;
mod extend;
mod global_local;
mod group;
#[cfg(feature = "kernels")]
mod kernels;
mod linear;
mod lists;
mod merge;
mod nearest;
mod product;
mod regroup;
mod rotate;
mod row_weights;
mod select;
mod unit;
mod window;

pub(crate) use unit::{norm, unit};

use std::{fmt::Debug, sync::Arc};

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::{
    Result,
    cache::{Entries, Tracks, sharing::counted},
    score::Pool,
};

/// The operations every policy is made of.
pub trait Ops: Debug + Send + Sync {
    /// Causal attention of new queries over the entries of a layer, with the column sums a scorer may
    /// want. See [`AttentionInput`] for shapes.
    fn attention(&self, input: AttentionInput) -> AttentionOutput {
        attention::attention(input)
    }

    /// Causal attention of a few queries over entries in buffers with room for more, read where they lie; `None` if
    /// there is no kernel for it, and the entries are to be taken out of their buffers. See [`DecodeInput`] for shapes.
    fn decode_attention(&self, input: &DecodeInput) -> Option<AttentionOutput> {
        let _ = input;
        None
    }

    /// Attention of one query a head over heads that hold different numbers of entries, read where they lie; `None`
    /// if there is no kernel for it, and the entries are to be padded to the longest head. See [`RaggedInput`] for
    /// shapes.
    fn ragged_attention(&self, input: &RaggedInput) -> Option<DecodeOutput> {
        let _ = input;
        None
    }

    /// Attention of one query a head over entries that tokens share, without laying tokens out; `None` if there is no
    /// kernel for it, and every token is to be laid out as an entry of its own. See [`SharedInput`] for shapes.
    fn shared_attention(&self, input: &SharedInput) -> Option<DecodeOutput> {
        let _ = input;
        None
    }

    /// Attention of one query a head over quantized entries, read as they are packed; `None` if there is no kernel for
    /// it, and entries are to be laid out in full precision. See [`QuantizedInput`] for shapes.
    fn quantized_attention(&self, input: &QuantizedInput) -> Option<DecodeOutput> {
        let _ = input;
        None
    }

    /// Turns rows to their positions, `[batch, heads, tokens, head_dim]`.
    fn rotate(&self, x: Tensor<4>, rotary: RotaryInput) -> Tensor<4> {
        rotate::rotate(x, rotary)
    }

    /// The product of rows with a matrix of weights, `[rows, outputs]`: `x` is `[rows, inputs]`, `weight`
    /// `[inputs, outputs]`, and `bias`, `[outputs]`, is added to every row.
    fn linear(&self, x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        linear::linear(x, weight, bias)
    }

    /// The attention weights of a few queries over the entries of a layer:
    /// `[batch, query_heads, queries, entries]`, f32, zero where the query is padding.
    fn window_weights(&self, input: WindowInput) -> Tensor<4> {
        window::window_weights(input)
    }

    /// For each entry sums over a few queries of what their attention weights are, so that the weights need not be
    /// kept. See [`MomentsInput`] for shapes.
    fn window_moments(&self, input: MomentsInput) -> Moments {
        let weights = self.window_weights(input.window);
        window::moments(weights, &input.own, input.deviations, input.entropies)
    }

    /// The entries to keep: the protected ones, then the highest scores; of equal ones the older.
    ///
    /// # Errors
    /// [`Error::NotFinite`](crate::Error::NotFinite) if a score is NaN and [`SelectInput::check`] asks for it,
    /// [`Error::Execution`](crate::Error::Execution) if the device failed.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        select::select(input)
    }

    /// [`select`](Self::select), and what is left of the entries held.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    fn split(&self, input: SelectInput<'_>) -> Result<Split> {
        select::split(input)
    }

    /// Sorts the columns of each row by their class, `[batch, kv_heads, columns]`: less than zero is none, the others
    /// are less than `number`.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device failed.
    fn group(&self, classes: Tensor<3, Int>, number: usize) -> Result<Groups> {
        let _ = number;
        group::group(classes)
    }

    /// A table of entries that tokens share, with the tokens that have come since. See [`ExtendInput`] for shapes.
    fn extend(&self, input: ExtendInput<'_>) -> Extended {
        extend::extend(input)
    }

    /// For each column the entry it is in now, counted from 0, or −1; and what it is ranked by: a center `f32::MAX`, others
    /// their score, those in no entry `f32::MIN`. Both `[batch, kv_heads, columns]`. See [`ClassifyInput`].
    fn classify(&self, input: ClassifyInput<'_>) -> (Tensor<3, Int>, Tensor<3>) {
        regroup::classify(input)
    }

    /// What is known of columns, where they go. See [`RegroupInput`] for shapes.
    fn regroup(&self, input: RegroupInput<'_>) -> Regrouped {
        regroup::regroup(input)
    }

    /// Keys and values of lists of different lengths side by side, and rows of a tail behind them,
    /// `[batch, kv_heads, width + tail, head_dim]` each; any of their rows at fillers. See [`LayOutInput`] for shapes.
    fn lay_out(&self, input: LayOutInput) -> [Tensor<4>; 2] {
        lists::lay_out(input)
    }

    /// Keys and values of heads that hold different numbers of entries in one list each, `[total, head_dim]`. See
    /// [`PackInput`] for shapes.
    fn pack(&self, input: PackInput<'_>) -> [Tensor<2>; 2] {
        lists::pack(input)
    }

    /// Positions, `[batch, kv_heads, columns]`, and what is counted of as many columns, and those behind them.
    fn join(
        &self,
        positions: [Tensor<3, Int>; 2],
        tracks: Tracks,
        more: Tracks,
    ) -> (Tensor<3, Int>, Tracks) {
        let all = tracks.zip(more, |tracks, more| Tensor::cat(vec![tracks, more], 2));
        (Tensor::cat(positions.to_vec(), 2), all)
    }

    /// For each row the sum of what its columns are ranked by, f32, `[batch, kv_heads, height]`. See [`WeightsInput`] for
    /// shapes.
    fn row_weights(&self, input: WeightsInput) -> Tensor<3> {
        row_weights::row_weights(input, |input| self.accumulate(input))
    }

    /// The Global-Local scores of EMS, f32, `[batch, kv_heads, columns]`. See [`GlobalLocalInput`] for shapes.
    fn global_local(&self, input: GlobalLocalInput) -> Tensor<3> {
        global_local::global_local(input)
    }

    /// What evicted entries weigh in those that they are merged into, `[batch, kv_heads, evicted]`, and the thresholds of
    /// batch rows that they are held against, `[batch, 1]`, both f32: D2O, Eq. 5 to 9. See [`EmaInput`] for shapes.
    fn ema_weights(&self, input: EmaInput<'_>) -> (Tensor<3>, Tensor<2>) {
        ema::ema_weights(input)
    }

    /// For each of some rows the most similar of others. See [`NearestInput`] for shapes.
    fn nearest(&self, input: NearestInput) -> Nearest {
        nearest::nearest(input)
    }

    /// Weighted sums of rows, each added to the slot it is sent to. See [`AccumulateInput`] for shapes.
    fn accumulate(&self, input: AccumulateInput) -> Tensor<4> {
        accumulate::accumulate(input)
    }

    /// Keys and values of some rows, each the weighted mean of itself and of others that go to it. See [`MergeInput`] for
    /// shapes.
    fn merge(&self, input: MergeInput) -> (Tensor<4>, Tensor<4>) {
        merge::merge(input, |input| self.accumulate(input))
    }

    /// The selected entries with all that is known of them: entries of which each has a row.
    fn compact_entries(&self, entries: Entries, selection: &Selection) -> Entries {
        Entries {
            keys: self.compact(entries.keys, selection),
            values: self.compact(entries.values, selection),
            positions: self.compact_positions(entries.positions, selection),
            tracks: entries.tracks.map(|track| self.compact_scalars(track, selection)),
            sharing: None,
        }
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

/// The best operations of this build: kernels on the devices that have them, tensor operations elsewhere.
pub fn best() -> Arc<dyn Ops> {
    #[cfg(feature = "kernels")]
    return Arc::new(kernels::Kernels);
    #[cfg(not(feature = "kernels"))]
    return Arc::new(Reference);
}

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
    /// Whether [`AttentionOutput::column_squares`] is wanted.
    pub column_squares: bool,
}

/// What [`Ops::attention`] returns.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// `[batch, query_heads, new, head_dim]`, of the type of the queries; zero where the query is padding.
    pub output: Tensor<4>,
    /// For each entry the sum of its weights over the queries, `[batch, query_heads, entries]`, f32.
    pub column_sums: Option<Tensor<3>>,
    /// For each entry the sum of the squares of its weights, `[batch, query_heads, entries]`, f32.
    pub column_squares: Option<Tensor<3>>,
}

/// What [`Ops::decode_attention`] works on. The queries belong to the last of the entries.
#[derive(Clone, Debug)]
pub struct DecodeInput {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, head_dim]`.
    pub values: Tensor<4>,
    /// How many rows of the buffers are entries: the first.
    pub entries: usize,
    /// Which entry each query may see.
    pub visibility: Visibility,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether [`AttentionOutput::column_sums`] is wanted.
    pub column_sums: bool,
    /// Whether [`AttentionOutput::column_squares`] is wanted.
    pub column_squares: bool,
}

/// What [`Ops::ragged_attention`] works on. Every query sees every entry of its head.
#[derive(Clone, Debug)]
pub struct RaggedInput {
    /// Queries, positions encoded, `[batch, query_heads, 1, head_dim]`.
    pub queries: Tensor<4>,
    /// The keys of all heads one after another, positions encoded, `[total, head_dim]`.
    pub keys: Tensor<2>,
    /// The values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Where those of each batch row and kv head begin, and behind the last where they end,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Columns of the list among the weights, at least as many as the longest head has entries.
    pub width: usize,
    /// More keys, the same number for every head, in buffers with room for more,
    /// `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// More values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many rows of the tail are entries: the first.
    pub tail: usize,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether [`DecodeOutput::weights`] are wanted.
    pub weights: bool,
}

/// What [`Ops::shared_attention`] works on. Every query sees every token of its head. The key of a token is its norm
/// times the direction of its entry, its value that of its entry.
#[derive(Clone, Debug)]
pub struct SharedInput {
    /// Queries, positions encoded, `[batch, query_heads, 1, head_dim]`.
    pub queries: Tensor<4>,
    /// Directions of keys, head after head, `[entries, head_dim]`.
    pub directions: Tensor<2>,
    /// Values, `[entries, head_dim]`.
    pub values: Tensor<2>,
    /// The columns of each head in the order of their entries: those of an entry stand together, and each has at least
    /// one. `[batch, kv_heads, width]`. Fillers come first, here and in the other two.
    pub members: Tensor<3, Int>,
    /// The entry of each column, counted from the first of its head, `[batch, kv_heads, width]`.
    pub entry: Tensor<3, Int>,
    /// What the direction of each column's key is multiplied by, f32, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// How many columns of each batch row and kv head are fillers, `[batch · kv_heads]`.
    pub fillers: Tensor<1, Int>,
    /// Where the entries of each batch row and kv head begin, and behind the last where they end,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// How keys are to be encoded, if they are held as they came.
    pub rotary: Option<RotaryInput>,
    /// More keys, the same number for every head, in buffers with room for more,
    /// `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// More values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many rows of the tail are entries: the first.
    pub tail: usize,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether [`DecodeOutput::weights`] are wanted.
    pub weights: bool,
}

/// A rotary encoding: channel `i` is paired with channel `i + head_dim / 2`. Tables are f32, but for keys of 16 bits that a
/// kernel encodes as it reads them, see [`RotaryEmbedding::tables_for`](crate::position::RotaryEmbedding::tables_for).
#[derive(Clone, Debug)]
pub struct RotaryInput {
    /// The cosine of each position and pair, `[positions, head_dim / 2]`.
    pub cosines: Tensor<2>,
    /// The sine of each position and pair, `[positions, head_dim / 2]`.
    pub sines: Tensor<2>,
    /// At which position each column is encoded, `[batch, heads or 1, columns]`; any number at a filler.
    pub positions: Tensor<3, Int>,
}

/// What [`Ops::quantized_attention`] works on. Every query sees every token of its head: those of its pages, oldest
/// first, and behind them those of its tail.
#[derive(Clone, Debug)]
pub struct QuantizedInput {
    /// Queries, positions encoded, `[batch, query_heads, 1, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded: rows of a page are channels, numbers of a row its tokens, which are one group.
    pub keys: PackedInput,
    /// Values: rows of a page are tokens, numbers of a row channels.
    pub values: PackedInput,
    /// Bits a number: 2, 4 or 8.
    pub bits: usize,
    /// Tokens of a page.
    pub group: usize,
    /// The pages of all heads one after another, oldest first, `[all pages]`.
    pub pages: Tensor<1, Int>,
    /// Where those of each batch row and kv head begin, and behind the last where they end, `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Pages of the head that has most.
    pub most_pages: usize,
    /// Keys in full precision, in buffers with room for more, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many rows of the tail are in use: the first.
    pub tail: usize,
    /// How many of them are fillers in each batch row and kv head: the first of the first. `[batch · kv_heads]`
    pub tail_fillers: Tensor<1, Int>,
    /// Tokens of the longest head. Columns of the others begin with fillers.
    pub columns: usize,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether [`DecodeOutput::weights`] are wanted.
    pub weights: bool,
}

/// Numbers of a few bits in 32-bit words, from the lowest bit on, and the line each group of them lies on: a number is
/// its level times `scale`, plus `min`.
#[derive(Clone, Debug)]
pub struct PackedInput {
    /// `[pages, rows · words]`
    pub words: Tensor<2, Int>,
    /// `[pages, rows · groups]`
    pub scale: Tensor<2>,
    /// `[pages, rows · groups]`
    pub min: Tensor<2>,
}

/// What [`Ops::ragged_attention`], [`Ops::shared_attention`] and [`Ops::quantized_attention`] return.
#[derive(Clone, Debug)]
pub struct DecodeOutput {
    /// `[batch, query_heads, 1, head_dim]`, of the type of the queries.
    pub output: Tensor<4>,
    /// The weight of each column, the tail last, `[batch, query_heads, columns]`, f32; zero at fillers.
    pub weights: Option<Tensor<3>>,
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

/// What [`Ops::window_moments`] works on.
#[derive(Clone, Debug)]
pub struct MomentsInput {
    /// Queries and keys.
    pub window: WindowInput,
    /// How many of the queries are a row's own, the last, one number a batch row; the others are not counted.
    pub own: Vec<usize>,
    /// Whether [`Moments::deviations`] are wanted.
    pub deviations: bool,
    /// Whether [`Moments::entropies`] are wanted.
    pub entropies: bool,
}

/// What [`Ops::window_moments`] returns: sums over the queries, `[batch, query_heads, entries]`, f32.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Of the weights.
    pub sums: Tensor<3>,
    /// Of the squares of what the weights of a row's own queries deviate from their mean.
    pub deviations: Option<Tensor<3>>,
    /// Of −w · ln(w + 10⁻¹⁰).
    pub entropies: Option<Tensor<3>>,
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

/// What [`Ops::select`] works on. Slices hold one number a batch row and kv head, rows first.
#[derive(Clone, Debug)]
pub struct SelectInput<'a> {
    /// The layer, for errors.
    pub layer: usize,
    /// `[batch, kv_heads, entries]`, f32; what stands at padding does not matter.
    pub scores: &'a Tensor<3>,
    /// Entries held: the last columns. Before them stands padding.
    pub held: &'a [usize],
    /// Entries to keep; a head that holds fewer keeps all.
    pub keep: &'a [usize],
    /// The first so many entries are kept whatever their scores.
    pub sinks: usize,
    /// The last so many entries are kept whatever their scores.
    pub recent: &'a [usize],
    /// Whether NaN is looked for among the scores of the entries held. Where selection runs on the device, that reads
    /// one list of counts back from it; without it a NaN is the lowest score. On the host it is always looked for.
    pub check: bool,
}

/// The entries of a layer to keep, in the order of their positions.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `[batch, kv_heads, kept]`. A head that keeps fewer than the widest begins with as many fillers, which
    /// point at the first entry and become padding.
    pub indices: Tensor<3, Int>,
    /// Entries kept, one number a batch row and kv head, rows first.
    pub counts: Vec<usize>,
}

/// What [`Ops::split`] returns.
#[derive(Clone, Debug)]
pub struct Split {
    /// The entries to keep.
    pub kept: Selection,
    /// The others.
    pub rest: Selection,
}

/// What [`Ops::group`] returns.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The columns of each row: those of no class, then those that have one, both ascending.
    /// `[batch, kv_heads, columns]`
    pub order: Tensor<3, Int>,
    /// Places of `order`: those of no class, then class by class, ascending in each. `[batch, kv_heads, columns]`
    pub members: Tensor<3, Int>,
    /// How many are of no class, `[batch, kv_heads]`.
    pub none: Tensor<2, Int>,
}

/// What [`Ops::extend`] works on: which entry each token of a head belongs to, and how many tokens with an entry of their
/// own have come since.
#[derive(Clone, Debug)]
pub struct ExtendInput<'a> {
    /// The entry of each token, counted from the first of its head, `[batch, kv_heads, width]`. Heads of fewer begin with
    /// fillers, here and everywhere.
    pub entry: Tensor<3, Int>,
    /// What its row is multiplied by, f32, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// The token at the center of each entry, counted from the first of its head, `[batch, kv_heads, entries]`.
    pub centers: Tensor<3, Int>,
    /// Tokens, entries, and tokens behind them, of each batch row and kv head, rows first.
    pub counts: &'a [[usize; 3]],
    /// Columns of all tokens together.
    pub columns: usize,
    /// Rows of all entries together.
    pub rows: usize,
}

/// What [`Ops::extend`] returns. At fillers stands any number there is.
#[derive(Clone, Debug)]
pub struct Extended {
    /// The row of each column, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// What the row is multiplied by, f32, 1 for a token with a row of its own, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The column at the center of each row, `[batch, kv_heads, rows]`.
    pub centers: Tensor<3, Int>,
}

/// What [`Ops::row_weights`] works on.
#[derive(Clone, Debug)]
pub struct WeightsInput {
    /// The row of each column, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// −1 where a column holds nothing, `[batch, kv_heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// What columns are ranked by, f32, `[batch, kv_heads, columns]`.
    pub scores: Tensor<3>,
    /// How many rows there are.
    pub height: usize,
    /// What less and what more than these count as.
    pub bounds: (f32, f32),
}

/// What [`Ops::global_local`] works on. Tracks are f32, `[batch, n · kv_heads, columns]`, zero where nothing is held.
#[derive(Clone, Debug)]
pub struct GlobalLocalInput {
    /// What all queries gave to each column.
    pub sums: Tensor<3>,
    /// What the queries of the window before this one gave to it.
    pub past: Tensor<3>,
    /// What those of this window gave to it so far.
    pub current: Tensor<3>,
    /// Heads of the scores.
    pub kv_heads: usize,
    /// The last so many columns have the score zero and do not count.
    pub window: usize,
    /// Pooling, if any.
    pub pool: Option<Pool>,
}

/// What [`Ops::ema_weights`] works on.
#[derive(Clone, Debug)]
pub struct EmaInput<'a> {
    /// How like each evicted entry is to the kept one that it is most like, f32, `[batch, kv_heads, evicted]`.
    pub similarity: Tensor<3>,
    /// How many are evicted of each batch row and kv head, the last, rows first.
    pub counts: &'a [usize],
    /// The threshold each batch row had, `[batch, 1]`, f32, if there was one.
    pub before: Option<Tensor<2>>,
    /// The weight of the newest mean.
    pub beta: f64,
}

/// What [`Ops::lay_out`] works on.
#[derive(Clone, Debug)]
pub struct LayOutInput {
    /// The keys of all heads one after another, `[total, head_dim]`; one at least.
    pub keys: Tensor<2>,
    /// The values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Where those of each batch row and kv head begin, and behind the last where they end,
    /// `[batch · kv_heads + 1]`; `None` if each has `width`.
    pub offsets: Option<Tensor<1, Int>>,
    /// Columns they are laid out in, at least as many as the longest head has. Heads of fewer begin with fillers.
    pub width: usize,
    /// More keys, the same number for every head, in buffers with room for more,
    /// `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// More values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many rows of the tail are entries: the first.
    pub tail: usize,
}

/// What [`Ops::pack`] works on.
#[derive(Clone, Debug)]
pub struct PackInput<'a> {
    /// `[batch, kv_heads, columns, head_dim]`
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, columns, head_dim]`
    pub values: Tensor<4>,
    /// How many columns of each batch row and kv head are in its list: the last. Rows first.
    pub counts: &'a [usize],
    /// Where those of each begin among all, and behind the last where they end, `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
}

/// What [`Ops::classify`] works on: columns, each of which belongs to a row, and what becomes of the rows.
#[derive(Clone, Debug)]
pub struct ClassifyInput<'a> {
    /// The row of each column, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// How many rows there are.
    pub height: usize,
    /// The row that is each entry from now on, ascending, any at the fillers that heads of fewer begin with,
    /// `[batch, kv_heads, entries]`.
    pub left: Tensor<3, Int>,
    /// Entries of each batch row and kv head, rows first.
    pub entries: &'a [usize],
    /// Rows that may be merged into entries; all others are in none.
    pub merged: Option<MergedInput<'a>>,
    /// The column at the center of each entry, any at fillers, `[batch, kv_heads, entries]`.
    pub centers: Tensor<3, Int>,
    /// −1 where a column holds nothing, `[batch, kv_heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// What columns are ranked by, f32, `[batch, kv_heads, columns]`.
    pub scores: Tensor<3>,
}

/// Rows that are merged into an entry if they are like it.
#[derive(Clone, Debug)]
pub struct MergedInput<'a> {
    /// The rows, ascending, any at the fillers that heads of fewer begin with, `[batch, kv_heads, merged]`.
    pub rows: Tensor<3, Int>,
    /// How many of them each batch row and kv head has, rows first.
    pub counts: &'a [usize],
    /// The entry each is most like, `[batch, kv_heads, merged]`.
    pub nearest: Tensor<3, Int>,
    /// From what number on the entries of each batch row and kv head are counted there, rows first.
    pub first: &'a [usize],
    /// How like it is, f32, `[batch, kv_heads, merged]`.
    pub similarity: Tensor<3>,
    /// What the similarity must be more than.
    pub threshold: f64,
}

/// What [`Ops::regroup`] works on: which columns stay, and what is known of all there were.
#[derive(Clone, Debug)]
pub struct RegroupInput<'a> {
    /// The columns that stay, any at the fillers that heads of fewer begin with, `[batch, kv_heads, width]`.
    pub columns: Tensor<3, Int>,
    /// The entry each of them is in now, counted from 0; −1 is none, as at fillers. `[batch, kv_heads, width]`
    pub classes: Tensor<3, Int>,
    /// In what order they go on, as places of `columns`, `[batch, kv_heads, width]`.
    pub order: Tensor<3, Int>,
    /// Columns that stay of each batch row and kv head, rows first.
    pub counts: &'a [usize],
    /// The column at the center of each entry, any at the fillers of heads of fewer, `[batch, kv_heads, entries]`. It
    /// stays, in that entry.
    pub centers: Tensor<3, Int>,
    /// Entries of each batch row and kv head, rows first.
    pub entries: &'a [usize],
    /// The row of each column there was, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// What the row was multiplied by, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The length of each row, f32, `[batch, kv_heads, rows]`.
    pub lengths: Tensor<3>,
    /// `[batch, kv_heads, columns]`
    pub positions: Tensor<3, Int>,
    /// What was counted of each column.
    pub tracks: Tracks,
}

/// What [`Ops::regroup`] returns.
#[derive(Clone, Debug)]
pub struct Regrouped {
    /// −1 where a column is in no entry, `[batch, kv_heads, width]`.
    pub positions: Tensor<3, Int>,
    /// The entry of each column, 0 where it is in none, `[batch, kv_heads, width]`.
    pub entry: Tensor<3, Int>,
    /// The place of the center of each entry among the columns of its head, fillers not counted; 0 at fillers.
    /// `[batch, kv_heads, entries]`
    pub centers: Tensor<3, Int>,
    /// What an entry of unit length is multiplied by, f32, `[batch, kv_heads, width]`; 0 in no entry.
    pub norms: Tensor<3>,
    /// 0 in no entry.
    pub tracks: Tracks,
}

impl Selection {
    /// One ascending list a batch row and head, rows first.
    pub fn of_heads(lists: &[impl AsRef<[usize]>], heads: usize, device: &Device) -> Self {
        let width = lists.iter().map(|list| list.as_ref().len()).max().unwrap_or(0);
        let lists = || lists.iter().map(AsRef::as_ref);
        let counts: Vec<usize> = lists().map(<[usize]>::len).collect();
        let mut indices = Vec::with_capacity(counts.len() * width);
        for list in lists() {
            indices.extend(std::iter::repeat_n(0, width - list.len()));
            indices.extend(list.iter().map(|&entry| entry as i64));
        }
        let data = TensorData::new(indices, [counts.len() / heads, heads, width]);
        Self { indices: Tensor::from_data(data, device), counts }
    }

    /// The same entries for every one of `heads` heads: one ascending list a batch row.
    pub(crate) fn of_rows(rows: &[Vec<usize>], heads: usize, device: &Device) -> Self {
        let lists: Vec<&[usize]> =
            rows.iter().flat_map(|row| std::iter::repeat_n(&row[..], heads)).collect();
        Self::of_heads(&lists, heads, device)
    }

    /// With more fillers, if heads differ: in [one of few widths](few_widths).
    pub(crate) fn rounded(self) -> Self {
        let width = few_widths(&self.counts);
        self.widened(width)
    }

    /// With more fillers, in so many columns if that is more than it has.
    pub(crate) fn widened(self, columns: usize) -> Self {
        let [batch, heads, width] = self.indices.dims();
        let missing = columns.saturating_sub(width);
        if missing == 0 {
            return self;
        }
        let fillers = Tensor::zeros([batch, heads, missing], &self.indices.device());
        Self { indices: Tensor::cat(vec![fillers, self.indices], 2), counts: self.counts }
    }

    /// Whether no head keeps fewer than the widest.
    pub(crate) fn is_full(&self) -> bool {
        let width = self.width();
        self.counts.iter().all(|&count| count == width)
    }

    /// Columns of the result.
    pub fn width(&self) -> usize {
        self.indices.dims()[2]
    }

    /// True where a column of the result is a filler, `[batch, kv_heads, kept]`; `None` if none is.
    pub(crate) fn fillers(&self) -> Option<Tensor<3, Bool>> {
        if self.is_full() {
            return None;
        }
        let width = self.width();
        let missing = self.counts.iter().map(|count| width - count);
        Some(fillers(missing, self.indices.dims(), &self.indices.device()))
    }
}

/// Columns for heads of so many entries where fillers cost next to nothing: as many as the longest has, and if they differ
/// up to an eighth more, one of eight widths between a power of two and the next. A backend may keep what it sends along with
/// a launch by its shapes (CubeCL's CUDA does, for 4 096 of them); layers and steps whose longest heads differ by a few are
/// to share it.
pub(crate) fn few_widths(counts: &[usize]) -> usize {
    let longest = counts.iter().copied().max().unwrap_or(0);
    if counts.iter().all(|&count| count == longest) {
        return longest;
    }
    few_widths_from(longest)
}

/// The first of the [few widths](few_widths) that is at least so many columns, for what changes from step to step.
pub(crate) fn few_widths_from(columns: usize) -> usize {
    columns.next_multiple_of(1 << (columns / 8).max(1).ilog2())
}

/// Which columns of `[batch, kv_heads, columns]` are fillers: of each head as many of the first as `missing` says.
pub(crate) fn fillers(
    missing: impl Iterator<Item = usize>,
    dims: [usize; 3],
    device: &Device,
) -> Tensor<3, Bool> {
    let [batch, heads, _] = dims;
    let missing: Vec<i64> = missing.map(|missing| missing as i64).collect();
    // One number a head goes to the device, not one a column.
    let missing = Tensor::<3, Int>::from_data(TensorData::new(missing, [batch, heads, 1]), device);
    counted(dims, device).lower(missing.expand(dims))
}

/// What [`Ops::nearest`] works on.
#[derive(Clone, Debug)]
pub struct NearestInput {
    /// Pairs of `[batch, kv_heads, from, head_dim]` and `[batch, kv_heads, to, head_dim]`. The similarity of two
    /// rows is the product of the cosines of all pairs; that of a zero vector is 0.
    pub pairs: Vec<(Tensor<4>, Tensor<4>)>,
    /// The first rows of `to` that are fillers, which are nobody's nearest, one number a batch row and kv head.
    pub fillers: Vec<usize>,
}

/// What [`Ops::nearest`] returns.
#[derive(Clone, Debug)]
pub struct Nearest {
    /// The similarity to the most similar, `[batch, kv_heads, from]`, f32, at most 1.
    pub similarity: Tensor<3>,
    /// Which one it is, the first of equals, `[batch, kv_heads, from]`.
    pub index: Tensor<3, Int>,
}

/// What [`Ops::merge`] works on.
#[derive(Clone, Debug)]
pub struct MergeInput {
    /// Keys of the rows that are merged into, `[batch, kv_heads, rows, head_dim]`.
    pub keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, rows, head_dim]`.
    pub values: Tensor<4>,
    /// What each of them weighs itself, `[batch, kv_heads, rows]`, f32, not below zero.
    pub own: Tensor<3>,
    /// Keys of those that are merged, `[batch, kv_heads, others, head_dim]`, of the type of the keys above.
    pub other_keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, others, head_dim]`, of the type of the values above.
    pub other_values: Tensor<4>,
    /// What each of them weighs, `[batch, kv_heads, others]`, f32, not below zero; zero drops it.
    pub weights: Tensor<3>,
    /// The row each goes to, `[batch, kv_heads, others]`.
    pub slot: Tensor<3, Int>,
    /// Whether keys are merged as directions: each made unit length before, and so is what comes out.
    pub directions: bool,
}

/// What [`Ops::accumulate`] works on.
#[derive(Clone, Debug)]
pub struct AccumulateInput {
    /// `[batch, kv_heads, rows, channels]`
    pub x: Tensor<4>,
    /// What each row is multiplied by, `[batch, kv_heads, rows]`, f32; zero drops it.
    pub weights: Tensor<3>,
    /// The first slot each row is added to, `[batch, kv_heads, rows]`.
    pub slot: Tensor<3, Int>,
    /// How many slots from there on it is added to.
    pub span: usize,
    /// Slots of the result, `[batch, kv_heads, slots, channels]`, f32; what falls behind them is dropped.
    pub slots: usize,
}
