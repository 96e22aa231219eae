mod extension;
mod launch;
mod planes;

use burn::{
    backend::Dispatch,
    tensor::{DType, Int, Tensor},
};

use self::extension::SharedAttentionBackend;
use crate::{
    Result, RotaryTables,
    check::Check,
    split::{self, Heads},
};

/// What [`shared_attention`] works on. Every token it is given is seen by every query of its head; a column that is none is
/// a filler.
#[derive(Clone, Debug)]
pub struct SharedAttention {
    /// One query a head, positions encoded, `[batch, query_heads, 1, head_dim]`.
    pub queries: Tensor<4>,
    /// The directions of the keys of all entries, head after head, `[entries, head_dim]`.
    pub directions: Tensor<2>,
    /// The values of all entries, `[entries, head_dim]`.
    pub values: Tensor<2>,
    /// The columns of each head in the order of their entries, so that those of one entry stand together:
    /// `[batch, kv_heads, width]`. Fillers come first, here and in the other two.
    pub members: Tensor<3, Int>,
    /// The entry of each column, counted from the first of its head, `[batch, kv_heads, width]`.
    pub entry: Tensor<3, Int>,
    /// What the direction of each column's key is multiplied by, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// How many columns of each batch row and kv head are fillers, `[batch · kv_heads]`. Only the device need know.
    pub fillers: Tensor<1, Int>,
    /// Where the entries of each batch row and kv head begin, and behind the last where they end,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// How keys are to be encoded, of entries and of the tail, if they are held as they came. Columns of fillers are
    /// not looked at.
    pub rotary: Option<RotaryTables>,
    /// Keys that are nobody's, the same number for every head, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// Their values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many of the rows of the tail there are: the first.
    pub tail: usize,
    /// What query-key products are multiplied by.
    pub scale: f64,
    /// Whether the weights are wanted.
    pub weights: bool,
}

/// What [`shared_attention`] returns.
#[derive(Clone, Debug)]
pub struct SharedOutput {
    /// `[batch, query_heads, 1, head_dim]`, of the type of the queries.
    pub output: Tensor<4>,
    /// The weights of the tokens and behind them of the tail, `[batch, query_heads, width + tail]`, f32; zero in the
    /// columns before those of a head that has fewer tokens than others. One number if they are not wanted.
    pub weights: Tensor<3>,
}

/// Decode attention over entries that tokens share (EMS): the key of a token is its own norm times the direction of
/// its entry, turned to its own position, its value that of its entry. Tokens are never laid out.
///
/// Where the device multiplies tiles of 16-bit numbers, head_dim is 64 or 128 and everything has the type of the queries,
/// a plane takes 16 tokens at a time for up to 8 query heads of one kv head. Directions and values go from memory to the
/// registers of the instruction, for each token anew: those of one entry are beside each other and read together, so
/// that an entry comes from memory once. Norms multiply the products. Turned keys are rounded to the type of the
/// queries, as keys of a cache that holds them turned. Where one cube has all of a head, it writes the output itself.
///
/// Elsewhere, and for f32, cubes have 64 units and up to 4 query heads of one kv head. A cube takes
/// them in tiles of 64, in the order of their entries. 8 units share a token (as many as keep the queries in registers):
/// each turns its part of the direction and multiplies it with all queries of the cube; direction and value of an
/// entry come from memory once, and once more where its tokens go on in the next tile. Weights of the tokens of one
/// entry are added before its value is, once. Maxima and sums are those of an online softmax, in f32; a second kernel
/// puts splits together in a fixed order.
///
/// With `d` channels, `b` bytes a number, `E` entries, `T` tokens and `t` rows of the tail, a kv head reads
/// (E + t) · 2 · d · b bytes, and of each token 16 bytes besides (member, entry, norm, position) and, where keys are
/// encoded, d cosines and sines, which all heads share and caches hold. Each split of a query head writes
/// and reads 4 · d + 8 bytes, and each weight is written twice and read once. Operations, for `g` query heads a
/// kv head: 3 · d · (T + t) to turn keys, 2 · d · g · (T + t) for scores, 2 · d · g · (E + t) for values.
///
/// A score that is NaN makes the output of its head NaN. A head that sees nothing has an output of zeros.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes do not fit, there are no entries or no room for a tail, or the device
/// has no kernels or cannot launch so much.
pub fn shared_attention(input: SharedAttention) -> Result<SharedOutput> {
    input.check()?;
    let dtype = input.directions.dtype();
    let ints = input.fillers.dtype();
    let encoded = input.rotary.is_some();
    // What is not looked at: other tensors stand in.
    let (cosines, sines, positions) = match input.rotary {
        None => {
            let directions = input.directions.clone().into_dispatch();
            (directions.clone(), directions, input.fillers.clone().into_dispatch())
        }
        Some(RotaryTables { cosines, sines, positions }) => {
            let sines = sines.cast(cosines.dtype());
            (cosines.into_dispatch(), sines.into_dispatch(), positions.cast(ints).into_dispatch())
        }
    };
    let (output, weights) = Dispatch::shared_attention(
        input.queries.into_dispatch(),
        input.directions.into_dispatch(),
        input.values.cast(dtype).into_dispatch(),
        input.members.cast(ints).into_dispatch(),
        input.entry.cast(ints).into_dispatch(),
        input.norms.cast(DType::F32).into_dispatch(),
        input.fillers.into_dispatch(),
        input.offsets.cast(ints).into_dispatch(),
        positions,
        cosines,
        sines,
        input.tail_keys.cast(dtype).into_dispatch(),
        input.tail_values.cast(dtype).into_dispatch(),
        encoded,
        input.tail,
        input.scale as f32,
        input.weights,
    );
    Ok(SharedOutput {
        output: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
    })
}

impl SharedAttention {
    fn check(&self) -> Result<()> {
        let check = Check::new("shared_attention", &self.queries.device())?;
        let [batch, query_heads, _, head_dim] = self.queries.dims();
        let [_, kv_heads, capacity, _] = self.tail_keys.dims();
        let heads = Heads { batch, query_heads, kv_heads, head_dim };
        let entries = self.directions.dims()[0];
        let width = self.members.dims()[2];
        check.shape("queries", self.queries.dims(), [batch, query_heads, 1, head_dim])?;
        check.shape("directions", self.directions.dims(), [entries, head_dim])?;
        check.shape("values", self.values.dims(), [entries, head_dim])?;
        check.shape("members", self.members.dims(), [batch, kv_heads, width])?;
        check.shape("entry", self.entry.dims(), [batch, kv_heads, width])?;
        check.shape("norms", self.norms.dims(), [batch, kv_heads, width])?;
        check.shape("fillers", self.fillers.dims(), [batch * kv_heads])?;
        check.shape("offsets", self.offsets.dims(), [batch * kv_heads + 1])?;
        let tail = [batch, kv_heads, capacity, head_dim];
        check.shape("tail_keys", self.tail_keys.dims(), tail)?;
        check.shape("tail_values", self.tail_values.dims(), tail)?;
        let columns = batch * kv_heads * width;
        check.value("entries", entries, (1..=columns).contains(&entries), "1 to a column")?;
        check.value("capacity", capacity, capacity > 0, "at least 1")?;
        check.value("tail", self.tail, self.tail <= capacity, format!("at most {capacity}"))?;
        heads.check(&check)?;
        let columns = width + self.tail;
        if let Some(rotary) = &self.rotary {
            rotary.check(&check, heads, columns)?;
        }
        check.countable("directions", &self.directions.dims())?;
        check.countable("members", &self.members.dims())?;
        check.countable("tail_keys", &self.tail_keys.dims())?;
        if self.weights {
            split::check_columns(&check, heads, columns)?;
        }
        Ok(())
    }
}
