use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

#[cfg(cubecl_0_12)]
use super::wgmma;
use super::{
    mma::{ColumnSumsBlueprint, column_scores_mma},
    portable::column_scores_tiled,
};
#[cfg(cubecl_0_12)]
use crate::common::tile::wgmma::takes_heads;
use crate::common::tile::{
    portable::{SIDE, UNITS},
    support::{chunked, multiplies},
};

/// Shapes of sums, local sums and sums of squares; one number for those not wanted.
pub(super) fn output_shapes(
    queries: &Shape,
    keys: &Shape,
    local: usize,
    squares: bool,
) -> [Shape; 3] {
    let all = Shape::from([queries[0], queries[1], keys[2]]);
    let none = Shape::from([1, 1, 1]);
    let if_wanted = |wanted: bool| if wanted { all.clone() } else { none.clone() };
    [all.clone(), if_wanted(local > 0), if_wanted(squares)]
}

/// Fewest keys of a cube, of both kernels.
pub(super) const FEWEST_KEYS: usize = SIDE;
/// Planes of a cube, of 32 keys each.
const PLANES: usize = 4;
/// Queries in shared memory at a time; there are as many again on their way.
const QUERIES: usize = 32;

/// Takes queries, keys and log-sum-exp, and positions of queries and entries. Returns sums, local
/// sums and sums of squares.
pub(super) fn launch(
    [queries, keys, log_sum_exp]: [CubeTensor; 3],
    positions: Option<[CubeTensor; 2]>,
    scale: f32,
    local: usize,
    squares: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let shape = queries.shape();
    let (batch, heads, head_dim) = (shape[0], shape[1], shape[3]);
    let entries = keys.shape()[2];
    let client = queries.client.clone();
    let empty =
        |shape, dtype| empty_device_dtype(client.clone(), queries.device.clone(), shape, dtype);
    let [sums, local_sums, squared] =
        output_shapes(&shape, &keys.shape(), local, squares).map(|shape| empty(shape, DType::F32));
    let by_position = positions.is_some();
    let [of_queries, of_entries] =
        positions.unwrap_or_else(|| [(); 2].map(|()| empty(Shape::from([1, 1, 1]), DType::I32)));
    let int = dtype_to_storage_type(of_queries.dtype);
    let [query, key] = [queries.dtype, keys.dtype].map(dtype_to_storage_type);
    let cubes =
        |rows: usize| CubeCount::Static(entries.div_ceil(rows) as u32, heads as u32, batch as u32);
    let outputs = || [&sums, &local_sums, &squared].map(|x| x.clone().into_tensor_arg());
    #[cfg(cubecl_0_12)]
    if !by_position && takes_heads(&queries, &keys) {
        let sums_of = [&sums, &local_sums, &squared];
        wgmma::launch([queries, keys, log_sum_exp], sums_of, scale, local, squares);
        return (sums, local_sums, squared);
    }
    let [out, local_out, squared_out] = outputs();
    if queries.dtype == keys.dtype && multiplies(&client, queries.dtype, head_dim) {
        let blocks = entries.div_ceil(PLANES * 32);
        column_scores_mma::launch(
            &client,
            CubeCount::Static(heads as u32, blocks as u32, batch as u32),
            CubeDim::new_1d(PLANES as u32 * 32),
            chunked(queries).into_tensor_arg(),
            chunked(keys).into_tensor_arg(),
            log_sum_exp.into_tensor_arg(),
            of_queries.into_tensor_arg(),
            of_entries.into_tensor_arg(),
            out,
            local_out,
            squared_out,
            local,
            scale,
            ColumnSumsBlueprint {
                head_dim,
                planes: PLANES,
                queries: QUERIES,
                by_position,
                local: local > 0,
                squares,
            },
            [query, int],
        );
    } else {
        column_scores_tiled::launch(
            &client,
            cubes(SIDE),
            CubeDim::new_1d(UNITS as u32),
            queries.into_tensor_arg(),
            keys.into_tensor_arg(),
            log_sum_exp.into_tensor_arg(),
            of_queries.into_tensor_arg(),
            of_entries.into_tensor_arg(),
            out,
            local_out,
            squared_out,
            local,
            scale,
            head_dim,
            by_position,
            local > 0,
            squares,
            [query, key, int],
        );
    }
    (sums, local_sums, squared)
}
