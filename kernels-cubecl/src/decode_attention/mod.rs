mod extension;
mod launch;
pub(crate) mod merge;
mod part;
mod planes;

use burn::{
    backend::Dispatch,
    tensor::{Int, Shape, Tensor},
};

use self::extension::{DecodeAttentionBackend, Found, Seen};
use crate::{Result, Visibility, check::Check};

/// What [`decode_attention`] works on.
#[derive(Clone, Debug)]
pub struct DecodeAttention {
    /// A few queries a head, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Entries of which heads hold different numbers, before the others; with them, queries are one a head and see
    /// everything.
    pub list: Option<EntryList>,
    /// Keys, positions encoded, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, head_dim]`.
    pub values: Tensor<4>,
    /// How many rows of keys and values are entries: the first. The queries belong to the last of them.
    pub entries: usize,
    /// Who sees what. The positions of entries may be as many as the capacity.
    pub visibility: Visibility,
    /// What query-key products are multiplied by.
    pub scale: f64,
    /// Whether weights are wanted.
    pub weights: bool,
}

/// The entries of all heads one after another (AdaKV, HeadKV, KVMerger).
#[derive(Clone, Debug)]
pub struct EntryList {
    /// Keys, positions encoded, `[total, head_dim]`.
    pub keys: Tensor<2>,
    /// Values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Where those of each batch row and kv head begin, and behind the last where they end, `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Columns of a head among the weights, at least as many as the longest has entries: those of a head that holds fewer
    /// begin with fillers.
    pub width: usize,
}

/// What [`decode_attention`] returns.
#[derive(Clone, Debug)]
pub struct DecodeOutput {
    /// `[batch, query_heads, new, head_dim]`, of the type of the queries; zero where a query sees nothing.
    pub output: Tensor<4>,
    /// The weights of all entries, f32, if they are wanted: `[batch, query_heads, new, entries]`, before them those of a
    /// list, `width` columns, zero at fillers.
    pub weights: Option<Tensor<4>>,
}

/// Decode attention: a few queries over all entries of a cache, read where they lie (Flash-Decoding, Dao et al. 2023;
/// the weights are what H2O, TOVA, D2O and EMS add up). Nothing is padded to the longest head, and buffers may have more
/// room than entries.
///
/// The entries of a kv head are split among cubes, as many as keep the device busy. A cube serves the query rows of a kv
/// head together, so that each key and value is loaded once for the group. Each cube has a running maximum and sum
/// (online softmax); a second kernel puts the parts of each query together, always in the same order, and turns scores
/// into weights. All sums are f32, and every run gives the same numbers.
///
/// Where the device multiplies tiles of 16-bit numbers and head_dim is 64 or 128, each plane takes 16 entries at a
/// time and up to 16 query rows; keys and values go from memory to the registers of the instruction. Elsewhere, and
/// for f32, a cube of 256 units has up to 8 query rows. As many units as a row has loads of 16 bytes multiply a key;
/// parts of products meet in shared memory and are added in order. 128 entries are scored, then their values added up.
///
/// It reads 2 · head_dim · bytes an entry and kv head, and does 4 · head_dim operations an entry and query row; each part
/// writes and reads 4 · (head_dim + 2) bytes a query row, and a weight is written twice and read once.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes or types do not fit, there is nothing to attend to, or the device has no
/// kernels or cannot launch so much.
pub fn decode_attention(input: DecodeAttention) -> Result<DecodeOutput> {
    input.check()?;
    let DecodeAttention { queries, list, keys, values, entries, visibility, scale, weights } =
        input;
    let seen = match (list, visibility) {
        (Some(EntryList { keys, values, offsets, width }), _) => Seen::List {
            keys: keys.into_dispatch(),
            values: values.into_dispatch(),
            offsets: offsets.into_dispatch(),
            width,
        },
        (None, Visibility::Causal) => Seen::Causal,
        (None, Visibility::Positions { queries, entries }) => {
            Seen::Positions { queries: queries.into_dispatch(), entries: entries.into_dispatch() }
        }
    };
    let [queries, keys, values] = [queries, keys, values].map(Tensor::into_dispatch);
    let scale = scale as f32;
    let found = Dispatch::decode_attention(queries, keys, values, seen, entries, scale, weights);
    let (output, weights) = match found {
        Found::Plain { output } => (output, None),
        Found::Weights { output, weights } => (output, Some(weights)),
    };
    Ok(DecodeOutput {
        output: Tensor::from_dispatch(output),
        weights: weights.map(Tensor::from_dispatch),
    })
}

impl DecodeAttention {
    fn check(&self) -> Result<()> {
        let check = Check::new("decode_attention", &self.queries.device())?;
        let [batch, query_heads, new, head_dim] = self.queries.dims();
        let [_, kv_heads, capacity, _] = self.keys.dims();
        let buffers = [batch, kv_heads, capacity, head_dim];
        check.shape("keys", self.keys.dims(), buffers)?;
        check.shape("values", self.values.dims(), buffers)?;
        check.same_type("values", self.values.dtype(), self.keys.dtype())?;
        let grouped = kv_heads > 0 && query_heads.is_multiple_of(kv_heads);
        check.value("query_heads", query_heads, grouped, format!("a multiple of {kv_heads}"))?;
        let sizes = [("batch", batch), ("query_heads", query_heads), ("head_dim", head_dim)];
        for (what, size) in sizes.into_iter().chain([("the number of queries", new)]) {
            check.value(what, size, size > 0, "at least 1")?;
        }
        check.value("the capacity", capacity, capacity > 0, "at least 1")?;
        check.at_most("head_dim", head_dim, part::UNITS)?;
        let held = self.entries <= capacity;
        check.value("entries", self.entries, held, format!("at most {capacity}, the capacity"))?;
        let mut total = self.entries;
        if let Some(list) = &self.list {
            check.value("the number of queries", new, new == 1, "1 where there is a list")?;
            let causal = matches!(self.visibility, Visibility::Causal);
            check.value("positions", 1, causal, "none where there is a list")?;
            let rows = list.keys.dims()[0];
            check.value("the rows of the list", rows, rows > 0, "at least 1")?;
            check.shape("the keys of the list", list.keys.dims(), [rows, head_dim])?;
            check.shape("the values of the list", list.values.dims(), [rows, head_dim])?;
            for tensor in [&list.keys, &list.values] {
                check.same_type("the list", tensor.dtype(), self.keys.dtype())?;
            }
            check.shape("offsets", list.offsets.dims(), [batch * kv_heads + 1])?;
            check.countable("the list", &[rows, head_dim])?;
            total += list.width;
        } else {
            let fits = new <= self.entries;
            let expected = format!("at most {}, the entries", self.entries);
            check.value("the number of queries", new, fits, expected)?;
        }
        check.value("entries with those of the list", total, total > 0, "at least 1")?;
        if let Visibility::Positions { queries, entries } = &self.visibility {
            check.shape("the queries' positions", queries.dims(), [batch, 1, new])?;
            let columns = entries.dims()[2];
            check.shape("the entries' positions", entries.dims(), [batch, kv_heads, columns])?;
            let fits = columns >= self.entries;
            let expected = format!("at least {}, the entries", self.entries);
            check.value("the positions of entries", columns, fits, expected)?;
            check.same_type("the entries' positions", entries.dtype(), queries.dtype())?;
        }
        check.countable("keys", &buffers)?;
        check.countable("weights", &[batch, query_heads, new, total])?;
        check.tensors(11)?;
        // The most cubes of all ways to launch.
        let rows = query_heads / kv_heads * new;
        check.cubes([merge::MOST_PARTS, kv_heads * rows, batch])?;
        check.cubes([total.div_ceil(merge::WEIGHTS), batch * query_heads * new, 1])
    }
}

/// The shape of the weights of so many columns.
fn weight_shape(queries: &Shape, columns: usize) -> Shape {
    Shape::from([queries[0], queries[1], queries[2], columns])
}
