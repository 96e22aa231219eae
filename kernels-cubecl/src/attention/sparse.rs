use briquette_ops::{AttentionOutput, Result, SparseAttentionInput, SparseTiles};
use burn::{
    backend::Dispatch,
    tensor::{DType, Int, Tensor, TensorData},
};

use crate::{
    attention::{
        prefill::{AttentionBackend, FEWEST_QUERIES, Tiles, check_heads},
        visible::Visible,
    },
    common::check::Check,
};

/// Attention of a prompt of which each head computes a part of the weights: the kernels of
/// [`attention`](crate::attention()) over lists of tiles, 32 keys each, for every 128 queries.
///
/// What a head sees is estimated by tensor operations and picked on the host, where the lists are
/// made ([`SparseAttentionInput::tiles`]). Tiles that no query of the 128 sees are neither read nor
/// multiplied. In a tile that is seen in part three bits are read per weight; in one that is seen
/// as a whole positions are compared, no more.
///
/// With T tiles in all lists it does 2 · T · 128 · 32 · 2 · head_dim operations and reads T · 32
/// keys and values.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, a pattern cannot be, column
/// sums are asked for, or the device has no kernels or cannot launch so much.
pub fn sparse_attention(input: &SparseAttentionInput) -> Result<AttentionOutput> {
    let attention = &input.attention;
    let device = attention.queries.device();
    let check = Check::new("sparse attention", &device)?;
    check_heads(&check, &attention.queries, &attention.keys, &attention.visibility)?;
    check.values("values", attention.values.dims(), attention.keys.dims())?;
    check.same_type("values", attention.values.dtype(), attention.keys.dtype())?;
    let sums = usize::from(attention.column_sums || attention.column_squares);
    check.value("the number of column sums", sums, sums == 0, "0")?;
    let [batch, heads, new, _] = attention.queries.dims();
    let [_, kv_heads, entries, _] = attention.keys.dims();
    check.plain(&attention.scoring)?;
    check.tensors(9)?;
    let blocks = new.div_ceil(FEWEST_QUERIES);
    check.cubes([blocks.max(heads), blocks.max(heads), batch])?;

    let SparseTiles { queries, entries: of_entries, lists, list_dims, bits, bit_dims, map } =
        input.tiles()?;
    check.countable("lists of tiles", &list_dims)?;
    check.countable("bits of patterns", &bit_dims)?;
    let positions = |list: Vec<i64>, dims: [usize; 3]| -> Tensor<3, Int> {
        Tensor::from_data(TensorData::new(list, dims), (&device, DType::I32))
    };
    let visible = Visible::Positions {
        queries: positions(queries, [batch, 1, new]).into_dispatch(),
        entries: positions(of_entries, [batch, kv_heads, entries]).into_dispatch(),
    };
    let lists: Tensor<4, Int> =
        Tensor::from_data(TensorData::new(lists, list_dims), (&device, DType::I32));
    let bits: Tensor<3, Int> =
        Tensor::from_data(TensorData::new(bits, bit_dims), (&device, DType::I32));
    let (output, _) = Dispatch::prompt_attention(
        attention.queries.clone().into_dispatch(),
        attention.keys.clone().into_dispatch(),
        attention.values.clone().into_dispatch(),
        visible,
        Tiles::Listed { lists: lists.into_dispatch(), bits: bits.into_dispatch(), map },
        attention.scoring.clone().into(),
    );
    let output = Tensor::from_dispatch(output);
    Ok(AttentionOutput { output, column_sums: None, column_squares: None })
}
