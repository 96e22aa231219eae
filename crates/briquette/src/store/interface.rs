use std::{any::Any, fmt::Debug, sync::Arc};

use burn::tensor::{DType, Device, Int, Tensor};

use crate::{
    CacheShape, Result,
    device::Rows,
    ops::{AttentionOutput, DecodeInput, HeadPattern, KvLayout, Ops, Visibility},
    ops::{AttentionStatistics, Entries},
    position::Encode,
    prefix::Parts,
    stage::{AttentionRequest, statistics},
    state::StateVisitor,
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

    /// Whether keys and values of heads that differ are packed, so that fillers before them cost next to nothing.
    fn packs_heads(&self) -> bool {
        false
    }

    /// Whether it packs what is left anew when entries are dropped, which changes their numbers.
    fn repacks_entries(&self) -> bool {
        false
    }

    /// Queries at the end of a prompt that its stores [ask for](Store::observe_queries); 0 if they ask for none.
    fn window(&self) -> usize {
        0
    }

    /// Whether it must be given keys with their positions encoded.
    fn needs_encoded_keys(&self) -> bool {
        false
    }

    /// Whether it holds what tokens share once.
    fn holds_shared_entries(&self) -> bool {
        false
    }

    /// An empty store. Nothing is allocated on the device before the first entry.
    fn build(&self, options: StoreOptions) -> Box<dyn Store>;

    /// The store that [`Store::save`] wrote; `None` if it does not say how.
    ///
    /// # Errors
    /// [`Error::Prefix`](crate::Error::Prefix) if the parts are not those of such a store.
    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        let _ = (options, parts);
        Ok(None)
    }
}

/// What a store is made for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The layer it is for.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// Batch rows.
    pub batch: usize,
    /// The type keys and values are held in.
    pub dtype: DType,
    /// What is counted of each entry.
    pub observes: AttentionRequest,
    /// Where the entries live.
    pub device: Device,
    /// How rows lie there.
    pub(crate) rows: Rows,
    /// The hot operations.
    pub(crate) ops: Arc<dyn Ops>,
}

impl StoreOptions {
    /// Bytes of an integer on the device.
    pub(crate) fn int_bytes(&self) -> usize {
        DType::from(self.device.settings().int_dtype).size()
    }

    /// Bytes of a key and a value of every row and kv head, in the cache's type.
    pub(crate) fn pair_bytes(&self) -> usize {
        let row = self.rows.bytes(self.shape.head_dim, self.dtype.size());
        2 * self.batch * self.shape.kv_heads * row
    }

    /// Bytes of where the tokens of each row and head begin in a list, at most.
    pub(crate) fn offset_bytes(&self) -> usize {
        let offsets = self.batch * self.shape.kv_heads + 1;
        self.rows.bytes(offsets, self.int_bytes())
    }

    /// Bytes of what is known of `columns` tokens of every row and head besides their keys and values: a row a head.
    pub(crate) fn scalar_row_bytes(&self, columns: usize) -> usize {
        let positions = self.shape.kv_heads * self.rows.bytes(columns, self.int_bytes());
        let tracks = statistics::rows(self.observes, self.shape)
            * self.rows.bytes(columns, DType::F32.size());
        self.batch * (positions + tracks)
    }

    /// The most by which scalars in rectangles are padded.
    pub(crate) fn most_padding(&self) -> usize {
        let rows = self.shape.kv_heads + statistics::rows(self.observes, self.shape);
        self.batch * rows * self.rows.most_padding()
    }
}

/// Holds the entries of one layer.
pub trait Store: Debug + Send + Sync {
    /// Columns held, those of the longest head.
    fn columns(&self) -> usize;

    /// Columns there is room for.
    fn capacity(&self) -> usize;

    /// Bytes its buffers take on the device.
    fn bytes(&self) -> usize;

    /// Those of [`bytes`](Self::bytes) that hold nothing yet: the room for columns to come. 0 if it does not tell.
    fn spare_bytes(&self) -> usize {
        0
    }

    /// The most bytes it takes while it holds so many entries a head and so many columns, one a token. Tokens that
    /// share a key and a value are columns of one entry.
    fn bytes_of(&self, entries: usize, columns: usize) -> usize;

    /// The least bytes it takes once there is room for `capacity` columns in all, as far as it can tell.
    fn least_bytes(&self, capacity: usize) -> usize {
        let _ = capacity;
        self.bytes()
    }

    /// Makes room for `capacity` columns in all, if there is less.
    fn reserve(&mut self, capacity: usize);

    /// Writes new columns behind those held, into room made before where there is any. `counts` says how many of
    /// them are entries of each batch row and kv head; before them stands padding.
    fn append(&mut self, entries: Entries, counts: &[usize]);

    /// Whether [`append`](Self::append) itself moves padding in front of the entries a row holds. Otherwise the cache
    /// replaces all entries when padding arrives behind some.
    fn moves_padding(&self) -> bool {
        false
    }

    /// Whether tokens share entries in it now: then only the device knows how many it holds.
    fn shares_entries(&self) -> bool {
        false
    }

    /// Drops the columns behind the first `columns`: undoes an [`append`](Self::append).
    fn truncate(&mut self, columns: usize);

    /// The entries held. Stores that hold them in another form lay them out for it.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn entries(&self) -> Result<Entries>;

    /// The entries held with their positions, which are known, and without what is counted of them.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    fn entries_at(&self, positions: Tensor<3, Int>) -> Result<Entries> {
        Ok(Entries { positions, tracks: AttentionStatistics::default(), ..self.entries()? })
    }

    /// The positions of the entries held, `[batch, kv_heads, columns]`, −1 at padding, without laying out the rest.
    fn positions(&self) -> Tensor<3, Int>;

    /// What is counted of the entries held, without laying out the rest.
    fn tracks(&self) -> AttentionStatistics;

    /// Both at once.
    fn scalars(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        (self.positions(), self.tracks())
    }

    /// Attention of new queries over the entries held. The last columns are the queries' own.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input.
    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput>;

    /// Replaces what is counted of each entry.
    fn set_tracks(&mut self, tracks: AttentionStatistics);

    /// Replaces all entries, with room for at most `capacity` columns. `counts` says how many of them each batch
    /// row and kv head holds: the last ones; before them stand fillers.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) if an operation refused its input; it then holds what it held.
    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()>;

    /// Takes what the last [queries](StoreBuilder::window) of a prompt look at, when it is complete or compressed, before it
    /// [settles](Self::settle): the mean square of each of their channels, over the query heads that share a kv head,
    /// `[batch, kv_heads, head_dim]`, f32. Rows to which no tokens have `arrived` asked nothing.
    fn observe_queries(&mut self, squares: Tensor<3>, arrived: &[usize]) {
        let _ = (squares, arrived);
    }

    /// Called when a call has succeeded and no columns of a prompt are missing: the time to move entries into
    /// another form.
    fn settle(&mut self) {}

    /// What it is written to a file as, read from the device; `None` if it does not say how.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::Error::Execution) if the device failed.
    fn save(&self) -> Result<Option<Parts>> {
        Ok(None)
    }

    /// Makes room for so many more columns, and lets the device count where the next is written: steps are then alike. `false`
    /// if it cannot.
    fn open(&mut self, more: usize) -> bool {
        let _ = more;
        false
    }

    /// Lets the host say again where columns are written.
    fn close(&mut self) {}

    /// Whether the device counts where columns are written.
    fn is_open(&self) -> bool {
        false
    }

    /// Columns that are still free since it was [opened](Self::open), 0 if it is not; `None` if it cannot be.
    fn open_columns(&self) -> Option<usize> {
        None
    }

    /// Counts a column that a replayed step has written.
    fn skip_append(&mut self) {}

    /// Visits what it holds, see [`Replay::visit_state`](crate::state::Replay::visit_state); `false` if it does not say.
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> bool {
        let _ = visitor;
        false
    }

    /// A store of so many rows, each with the entries of this one, which has one row; `None` if it does not say how. What
    /// can be shared is, until it is written to.
    fn repeated(&self, rows: usize) -> Option<Box<dyn Store>> {
        let _ = rows;
        None
    }

    /// A copy that shares its tensors until either is written to.
    fn boxed_clone(&self) -> Box<dyn Store>;
}

impl Clone for Box<dyn Store> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// What [`Store::attend`] works on.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreQuery<'a> {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Which entry each query may see.
    pub visibility: Visibility,
    /// How to encode the keys, if they are held as they came.
    pub encode: Option<Encode<'a>>,
    /// The part of its weights that each query head computes, `[query_heads]`; all if there is none.
    pub patterns: Option<Vec<HeadPattern>>,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether the sum of the weights of each entry is wanted.
    pub column_sums: bool,
    /// Whether the sum of their squares is.
    pub column_squares: bool,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

impl StoreQuery<'_> {
    /// Attention over keys and values as they lie; `None` if there is no way.
    pub(super) fn decode(&self, kv: KvLayout) -> Result<Option<AttentionOutput>> {
        if self.patterns.is_some() {
            return Ok(None);
        }
        let found = self.ops.decode(&DecodeInput {
            queries: self.queries.clone(),
            kv,
            scale: self.scale,
            weights: self.column_sums || self.column_squares,
        })?;
        Ok(found.map(|found| found.with_column_sums(self.column_sums, self.column_squares)))
    }
}
