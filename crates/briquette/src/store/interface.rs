use std::{any::Any, fmt::Debug, sync::Arc};

use burn::tensor::{DType, Device, Int, Tensor};

use super::{replay::ReplayStore, slots::SlotStore};
use crate::{
    CacheShape, Result,
    device::Rows,
    ops::{
        AttentionInput, AttentionOutput, AttentionStatistics, DecodeInput, Entries, HeadPattern,
        KvLayout, Ops, Scoring, SparseAttentionInput, Visibility, constant_ints, expand_clusters,
    },
    position::Encode,
    prefix::Parts,
    stage::{AttentionRequest, statistics},
};

/// Makes the store of a layer.
pub trait StoreBuilder: Any + Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Checks that it can hold the entries of a cache of this shape.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check_shape(&self, shape: CacheShape) -> Result<()> {
        let _ = shape;
        Ok(())
    }

    /// Whether heads may hold different numbers of entries without padding them to the longest.
    fn holds_ragged_heads(&self) -> bool {
        false
    }

    /// Whether keys and values are packed where heads differ in length, so that padding before a
    /// head costs next to nothing.
    fn packs_heads(&self) -> bool {
        false
    }

    /// Whether it packs the kept entries again when others are dropped, which changes their
    /// numbers.
    fn repacks_entries(&self) -> bool {
        false
    }

    /// Number of queries at the end of a prompt that its stores [observe](Store::observe_queries).
    fn window(&self) -> usize {
        0
    }

    /// Whether it must be given keys with their positions encoded.
    fn needs_encoded_keys(&self) -> bool {
        false
    }

    /// Whether values may have another number of channels than keys.
    fn holds_value_dims(&self) -> bool {
        false
    }

    /// Whether it holds an entry that several tokens share only once.
    fn holds_clusters(&self) -> bool {
        false
    }

    /// Builds an empty store. Nothing is allocated on the device before the first entry.
    fn build(&self, options: StoreOptions) -> Box<dyn Store>;

    /// Restores the store that [`Store::save`] wrote; `None` if it has no file form.
    ///
    /// # Errors
    /// [`Error::Prefix`](crate::Error::Prefix) if the parts are not those of such a store.
    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        let _ = (options, parts);
        Ok(None)
    }
}

/// Options that a store is built with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The layer it is for.
    pub layer: usize,
    /// The dimensions of the cache, with those of its layer.
    pub shape: CacheShape,
    /// Number of channels of a value.
    pub value_dim: usize,
    /// Whether values are the first channels of keys.
    pub(crate) values_in_keys: bool,
    /// Number of batch rows.
    pub batch: usize,
    /// The type keys and values are held in.
    pub dtype: DType,
    /// What the stages observe, which decides the attention statistics of each entry.
    pub observes: AttentionRequest,
    /// The device of the entries.
    pub device: Device,
    /// The layout of rows on the device.
    pub(crate) rows: Rows,
    /// The hot operations.
    pub(crate) ops: Arc<dyn Ops>,
}

impl StoreOptions {
    /// The same options for `batch` rows.
    pub(super) fn with_batch(&self, batch: usize) -> Self {
        Self { batch, ..self.clone() }
    }

    /// Bytes of an integer on the device.
    pub(crate) fn int_bytes(&self) -> usize {
        DType::from(self.device.settings().int_dtype).size()
    }

    /// Bytes of a key and a value of every row and kv head, in the cache's type.
    pub(crate) fn pair_bytes(&self) -> usize {
        let row = |channels| self.rows.bytes(channels, self.dtype.size());
        let pair = row(self.shape.head_dim) + row(self.value_dim);
        self.batch * self.shape.kv_heads * pair
    }

    /// Maximum bytes of the offsets at which each row and head begins in a list.
    pub(crate) fn offset_bytes(&self) -> usize {
        let offsets = self.batch * self.shape.kv_heads + 1;
        self.rows.bytes(offsets, self.int_bytes())
    }

    /// Bytes of the positions and statistics of `columns` tokens per row and head, held in one row
    /// per head.
    pub(crate) fn scalar_row_bytes(&self, columns: usize) -> usize {
        let positions = self.shape.kv_heads * self.rows.bytes(columns, self.int_bytes());
        let statistics = statistics::rows(self.observes, self.shape)
            * self.rows.bytes(columns, DType::F32.size());
        self.batch * (positions + statistics)
    }

    /// Maximum bytes by which the device pads positions and statistics in rectangles.
    pub(crate) fn most_padding(&self) -> usize {
        let rows = self.shape.kv_heads + statistics::rows(self.observes, self.shape);
        self.batch * rows * self.rows.most_padding()
    }
}

/// Holds the entries of one layer.
///
/// A new store implements at least [`columns`](Self::columns), [`bytes`](Self::bytes),
/// [`bytes_of`](Self::bytes_of), [`append`](Self::append), [`truncate`](Self::truncate),
/// [`entries`](Self::entries), [`positions`](Self::positions), [`statistics`](Self::statistics),
/// [`set_statistics`](Self::set_statistics), [`replace`](Self::replace) and
/// [`boxed_clone`](Self::boxed_clone). The other methods add:
///
/// - attention over its own layout: [`attend`](Self::attend), [`entries_at`](Self::entries_at);
/// - buffers that are not copied at every token: [`capacity`](Self::capacity),
///   [`reserve`](Self::reserve), [`spare_bytes`](Self::spare_bytes),
///   [`least_bytes`](Self::least_bytes);
/// - another form for a prompt that is complete: [`settle`](Self::settle),
///   [`observe_queries`](Self::observe_queries), [`packed_counts`](Self::packed_counts);
/// - files: [`save`](Self::save) with [`StoreBuilder::restore`];
/// - batches whose rows change: [`select_rows`](Self::select_rows),
///   [`append_rows`](Self::append_rows);
/// - captured steps: [`replay`](Self::replay);
/// - tokens written where others were evicted: [`in_place`](Self::in_place).
pub trait Store: Any + Debug + Send + Sync {
    /// Number of columns held, which is that of the longest head.
    fn columns(&self) -> usize;

    /// Number of columns that its buffers have room for.
    fn capacity(&self) -> usize {
        self.columns()
    }

    /// Bytes its buffers take on the device.
    fn bytes(&self) -> usize;

    /// Bytes among [`bytes`](Self::bytes) that are free for future columns.
    fn spare_bytes(&self) -> usize {
        0
    }

    /// Returns the number of tokens held packed, per batch row and kv head; `None` if the store
    /// packs nothing.
    fn packed_counts(&self) -> Option<Vec<usize>> {
        None
    }

    /// Bytes of the [slots](super::SlotStore::hold_slots) that are free if heads hold `held`
    /// tokens, per batch row and kv head.
    fn free_slot_bytes(&self, held: &[usize]) -> usize {
        let _ = held;
        0
    }

    /// Maximum bytes of the store if each head holds `entries` entries and `columns` columns, one
    /// column per token. Tokens that share a key and a value are columns of one entry.
    fn bytes_of(&self, entries: usize, columns: usize) -> usize;

    /// As [`bytes_of`](Self::bytes_of), behind a prompt: fewer where the store always keeps room
    /// for tokens to come.
    fn bytes_of_prompt(&self, entries: usize, columns: usize) -> usize {
        self.bytes_of(entries, columns)
    }

    /// Minimum bytes of the store once it has room for `capacity` columns in all, as far as it can
    /// tell.
    fn least_bytes(&self, capacity: usize) -> usize {
        let _ = capacity;
        self.bytes()
    }

    /// Makes room for `capacity` columns in all, if there is less.
    fn reserve(&mut self, capacity: usize) {
        let _ = capacity;
    }

    /// Writes new columns behind those held, into reserved room if there is any. `counts` are the
    /// numbers of entries among them, per batch row and kv head; the columns before these entries
    /// are padding.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input; nothing is
    /// appended then.
    fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()>;

    /// Whether [`append`](Self::append) itself moves padding in front of the entries a row holds.
    /// Otherwise the cache replaces all entries when padding arrives behind some.
    fn moves_padding(&self) -> bool {
        false
    }

    /// Whether tokens share entries now. If so, only the device knows how many tokens the store
    /// holds.
    fn is_clustered(&self) -> bool {
        false
    }

    /// Drops all but the first `columns` columns, which undoes [`append`](Self::append)s. Those
    /// dropped hold a token of every head.
    fn truncate(&mut self, columns: usize);

    /// Number of first columns that are packed, so that [`truncate`](Self::truncate) cannot drop
    /// some of them.
    fn packed_columns(&self) -> usize {
        0
    }

    /// Returns the entries in one rectangle; heads that hold fewer begin with padding.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn entries(&self) -> Result<Entries>;

    /// Returns the entries without their statistics. `positions` are the entries' own, which the
    /// caller knows already.
    ///
    /// # Errors
    /// The errors of [`entries`](Self::entries).
    fn entries_at(&self, positions: Tensor<3, Int>) -> Result<Entries> {
        Ok(Entries { positions, statistics: AttentionStatistics::default(), ..self.entries()? })
    }

    /// The positions of the entries, `[batch, kv_heads, columns]`, −1 at padding.
    fn positions(&self) -> Tensor<3, Int>;

    /// The attention statistics of the entries.
    fn statistics(&self) -> AttentionStatistics;

    /// Positions and statistics at once.
    fn scalars(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        (self.positions(), self.statistics())
    }

    /// Computes the attention of new queries over the entries. The last columns are the queries'
    /// own.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        attend_entries(self.entries()?, input)
    }

    /// Whether it knows itself which columns are padding when one query per row attends.
    /// [`attend`](Self::attend) is then given [`Visibility::Causal`].
    fn knows_padding(&self) -> bool {
        false
    }

    /// Replaces the statistics of each entry.
    fn set_statistics(&mut self, statistics: AttentionStatistics);

    /// Replaces all entries, with room for at most `capacity` columns. `counts` are the numbers of
    /// entries per batch row and kv head. They are the last columns; those before them are padding.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input; the store
    /// is then unchanged.
    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()>;

    /// Observes the last [queries](StoreBuilder::window) of a complete or compressed prompt, before
    /// the store [settles](Self::settle). `squares` are the mean squares of their channels, over
    /// the query heads that share a kv head, `[batch, kv_heads, head_dim]`, f32. Rows in which no
    /// token has `arrived` have none.
    fn observe_queries(&mut self, squares: Tensor<3>, arrived: &[usize]) {
        let _ = (squares, arrived);
    }

    /// Moves entries into another form, if the store has one. Called after each call that succeeds,
    /// except one that leaves a prompt incomplete and uncompressed.
    fn settle(&mut self) {}

    /// Reads the parts of a file from the device; `None` if the store has no file form.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device failed.
    fn save(&self) -> Result<Option<Parts>> {
        Ok(None)
    }

    /// The store as [`ReplayStore`]; `None` if its steps cannot be captured.
    fn replay(&mut self) -> Option<&mut dyn ReplayStore> {
        None
    }

    /// The store as [`SlotStore`]; `None` if it does not decode in place.
    fn in_place(&mut self) -> Option<&mut dyn SlotStore> {
        None
    }

    /// Returns a store in which row `i` holds what row `rows[i]` of this one does; `None` if the
    /// store cannot select rows. Tensors are shared until they are written to, where possible.
    /// `counts` are the numbers of entries that are left per batch row and kv head: columns before
    /// the longest may go.
    fn select_rows(&self, rows: &[usize], counts: &[usize]) -> Option<Box<dyn Store>> {
        let _ = (rows, counts);
        None
    }

    /// Returns a store with the rows of `more` behind its own; `None` if it cannot join with
    /// `more`. `counts` are the numbers of entries of either, per batch row and kv head.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn append_rows(
        &self,
        more: &dyn Store,
        counts: [&[usize]; 2],
    ) -> Result<Option<Box<dyn Store>>> {
        let _ = (more, counts);
        Ok(None)
    }

    /// Returns a copy that shares its tensors until either is written to.
    fn boxed_clone(&self) -> Box<dyn Store>;
}

impl Clone for Box<dyn Store> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// Queries of [`Store::attend`], and how they attend.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreQuery<'a> {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// The entries that each query may see.
    pub visibility: Visibility,
    /// The encoding of the keys, if they are held without positions.
    pub encode: Option<Encode<'a>>,
    /// Pattern of the weights that each query head computes, `[query_heads]`; `None` computes all.
    pub patterns: Option<Vec<HeadPattern>>,
    /// How query-key products become weights. Where it [reads
    /// positions](Scoring::reads_positions), visibility is by position.
    pub scoring: Scoring,
    /// Whether to return the sum of each entry's weights.
    pub column_sums: bool,
    /// Whether to return the sum of their squares.
    pub column_squares: bool,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

impl StoreQuery<'_> {
    /// Computes attention over keys and values in their layout; `None` if no kernel supports it.
    pub(super) fn decode(&self, kv: KvLayout) -> Result<Option<AttentionOutput>> {
        if self.patterns.is_some() {
            return Ok(None);
        }
        let found = self.ops.decode(&DecodeInput {
            queries: self.queries.clone(),
            kv,
            scoring: self.scoring.clone(),
            weights: self.column_sums || self.column_squares,
        })?;
        Ok(found.map(|found| found.with_column_sums(self.column_sums, self.column_squares)))
    }

    /// Returns the query of a store that [knows its padding](Store::knows_padding) with the
    /// positions of its `entries`, so that attention over these sees the padding too.
    pub(super) fn told_of(self, entries: &Entries) -> Self {
        let visibility = match self.visibility {
            Visibility::Causal => sees_all(1, entries.positions.clone()),
            told => told,
        };
        Self { visibility, ..self }
    }
}

/// Visibility of queries that come after all entries: they see all but padding. `entries` are the
/// positions of the entries, `[batch, kv_heads, columns]`.
pub(crate) fn sees_all(queries: usize, entries: Tensor<3, Int>) -> Visibility {
    let [batch, ..] = entries.dims();
    let behind = vec![i64::from(i32::MAX); batch * queries];
    let queries = constant_ints("behind all", behind, [batch, 1, queries], &entries.device());
    Visibility::Positions { queries, entries }
}

/// Computes attention over entries in one rectangle.
pub(crate) fn attend_entries(entries: Entries, input: StoreQuery<'_>) -> Result<AttentionOutput> {
    let ops: &dyn Ops = input.ops;
    let Entries { keys, values, positions, .. } = expand_clusters(entries, ops)?;
    // Keys that were laid out are f32, and attention takes keys of the values' type.
    let keys = Encode::keys(input.encode.as_ref(), keys, input.ops)?.cast(values.dtype());
    let visibility = match input.visibility {
        Visibility::Positions { queries, .. } if input.scoring.reads_positions() => {
            Visibility::Positions { queries, entries: positions }
        }
        visibility => visibility,
    };
    let attention = AttentionInput {
        queries: input.queries,
        keys,
        values,
        visibility,
        scoring: input.scoring,
        column_sums: input.column_sums,
        column_squares: input.column_squares,
    };
    Ok(match input.patterns {
        None => ops.attention(attention)?,
        Some(patterns) => ops.sparse_attention(SparseAttentionInput { attention, patterns })?,
    })
}
