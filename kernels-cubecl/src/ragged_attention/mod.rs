mod extension;
mod kernel;

use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Int, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::RaggedAttentionBackend;
use crate::{Result, check::Check};

/// What [`ragged_attention`] works on. Every key it is given is seen by every query of its head.
#[derive(Clone, Debug)]
pub struct RaggedAttention {
    /// One query a head, positions encoded, `[batch, query_heads, 1, head_dim]`.
    pub queries: Tensor<4>,
    /// The keys of all heads one after another, positions encoded, `[total, head_dim]`.
    pub keys: Tensor<2>,
    /// The values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Where the keys of each batch row and kv head begin, and behind the last where they end,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// More keys, the same number for every head, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_keys: Tensor<4>,
    /// More values, `[batch, kv_heads, capacity, head_dim]`.
    pub tail_values: Tensor<4>,
    /// How many of the rows of the tail there are.
    pub tail: usize,
    /// What query-key products are multiplied by.
    pub scale: f64,
    /// Whether the weights are wanted.
    pub weights: bool,
}

/// What [`ragged_attention`] returns.
#[derive(Clone, Debug)]
pub struct RaggedOutput {
    /// `[batch, query_heads, 1, head_dim]`, of the type of the queries.
    pub output: Tensor<4>,
    /// The weights of the entries, `[total, query heads a kv head]`, f32; one number if they are not wanted.
    pub weights: Tensor<2>,
    /// The weights of the tail, `[batch, query_heads, tail]`, f32; one number if they are not wanted.
    pub tail_weights: Tensor<3>,
}

/// Decode attention over heads that hold different numbers of entries (AdaKV, HeadKV, KVMerger), read where they lie:
/// nothing is padded to the longest head.
///
/// One cube of 64 units a query head goes through its keys a block at a time. Each unit scores one key; then each
/// adds up one channel of the values, with the running maximum and sum of an online softmax. All sums are f32.
///
/// Where weights are wanted, each unit writes the scores it computes, and turns them into weights when it knows the
/// highest and the sum: 4 bytes an entry and query head, written twice.
///
/// It reads (2 · head_dim · bytes) for each entry and query head and writes head_dim numbers: 4 · head_dim operations an
/// entry. Query heads of one group read the same entries, mostly from the cache of the device.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes do not fit, or the device has no kernels or cannot launch so much.
pub fn ragged_attention(input: RaggedAttention) -> Result<RaggedOutput> {
    input.check()?;
    let (output, weights, tail_weights) = Dispatch::ragged_attention(
        input.queries.into_dispatch(),
        input.keys.into_dispatch(),
        input.values.into_dispatch(),
        input.offsets.into_dispatch(),
        input.tail_keys.into_dispatch(),
        input.tail_values.into_dispatch(),
        input.tail,
        input.scale as f32,
        input.weights,
    );
    Ok(RaggedOutput {
        output: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
        tail_weights: Tensor::from_dispatch(tail_weights),
    })
}

impl RaggedAttention {
    fn check(&self) -> Result<()> {
        let check = Check::new("ragged_attention", &self.queries.device())?;
        let [batch, query_heads, _, head_dim] = self.queries.dims();
        let [_, kv_heads, capacity, _] = self.tail_keys.dims();
        let total = self.keys.dims()[0];
        check.shape("queries", self.queries.dims(), [batch, query_heads, 1, head_dim])?;
        check.shape("keys", self.keys.dims(), [total, head_dim])?;
        check.shape("values", self.values.dims(), [total, head_dim])?;
        check.shape("offsets", self.offsets.dims(), [batch * kv_heads + 1])?;
        let tail = [batch, kv_heads, capacity, head_dim];
        check.shape("tail_keys", self.tail_keys.dims(), tail)?;
        check.shape("tail_values", self.tail_values.dims(), tail)?;
        let grouped = kv_heads > 0 && query_heads.is_multiple_of(kv_heads);
        check.value("query_heads", query_heads, grouped, format!("a multiple of {kv_heads}"))?;
        check.value("tail", self.tail, self.tail <= capacity, format!("at most {capacity}"))?;
        check.countable("keys", &self.keys.dims())?;
        check.countable("tail_keys", &self.tail_keys.dims())?;
        check.cubes([batch * query_heads, 1, 1])
    }
}

/// The shapes of the weights of entries and tail, for queries, keys and keys of the tail of these shapes.
fn weight_shapes(
    queries: &Shape,
    keys: &Shape,
    tail_keys: &Shape,
    tail: usize,
    wanted: bool,
) -> [Shape; 2] {
    if !wanted {
        return [Shape::from([1, 1]), Shape::from([1, 1, 1])];
    }
    let (batch, query_heads, kv_heads) = (queries[0], queries[1], tail_keys[1]);
    // A buffer of nothing is not one.
    let rows = |rows: usize| rows.max(1);
    [
        Shape::from([rows(keys[0]), query_heads / kv_heads]),
        Shape::from([batch, query_heads, rows(tail)]),
    ]
}

/// Takes queries, keys, values, offsets, and keys and values of the tail. Returns output and weights.
fn launch(
    tensors: [CubeTensor; 6],
    tail: usize,
    scale: f32,
    wanted: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [queries, keys, values, offsets, tail_keys, tail_values] = tensors;
    let shape = queries.shape();
    let (batch, query_heads, head_dim) = (shape[0], shape[1], shape[3]);
    let client = queries.client.clone();
    let empty =
        |shape, dtype| empty_device_dtype(client.clone(), queries.device.clone(), shape, dtype);
    let [weights, tail_weights] =
        weight_shapes(&shape, &keys.shape(), &tail_keys.shape(), tail, wanted)
            .map(|shape| empty(shape, DType::F32));
    let output = empty(shape, queries.dtype);
    let types = [queries.dtype, keys.dtype, offsets.dtype].map(dtype_to_storage_type);
    kernel::ragged_attention::launch(
        &client,
        CubeCount::Static((batch * query_heads) as u32, 1, 1),
        CubeDim::new_1d(kernel::BLOCK as u32),
        queries.into_tensor_arg(),
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        offsets.into_tensor_arg(),
        tail_keys.into_tensor_arg(),
        tail_values.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        tail_weights.clone().into_tensor_arg(),
        query_heads,
        tail,
        scale,
        head_dim,
        wanted,
        types,
    );
    (output, weights, tail_weights)
}
