use briquette_ops::{SparseMap, SparseTiles};
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{ComptimeOptionArgs, CubeCount, CubeDim};

#[cfg(cubecl_0_12)]
use super::wgmma;
use super::{
    mma::{PrefillBlueprint, attention_mma},
    pattern::{Pattern, PatternLaunch},
    portable::attention_tiled,
};
#[cfg(cubecl_0_12)]
use crate::common::tile::wgmma::takes_heads;
use crate::common::tile::{
    portable::{SIDE, UNITS},
    support::{chunked, multiplies},
};

/// Fewest queries of a cube, of both kernels.
pub(crate) const FEWEST_QUERIES: usize = SIDE;
/// Planes of a cube.
const PLANES: usize = 4;
/// Queries of a plane, in tiles of 16: two share each load of a key or value.
const TALL: usize = 2;
/// Keys in shared memory at a time; there are as many again on their way.
const KEYS: usize = 32;
// Lists of tiles are made for cubes of so many queries, or a whole number of cubes of them, and
// blocks of so many keys.
const _: () = assert!(KEYS == SparseTiles::KEYS && SIDE == SparseTiles::KEYS);
const _: () = assert!(PLANES * TALL * 16 == SparseTiles::QUERIES);
const _: () = assert!(SparseTiles::QUERIES.is_multiple_of(SIDE));

/// Entries that each query sees.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Mask {
    /// The entries up to that of the query.
    Causal,
    /// Entries at the position of the query or before; positions of queries and of entries.
    Positions([CubeTensor; 2]),
    /// Entries as by position, within a pattern of lists and bits.
    Pattern { positions: [CubeTensor; 2], lists: CubeTensor, bits: CubeTensor, map: SparseMap },
}

/// Takes queries, keys and values. Returns output and log-sum-exp.
pub(crate) fn launch(
    [queries, keys, values]: [CubeTensor; 3],
    mask: Mask,
    scale: f32,
) -> (CubeTensor, CubeTensor) {
    let shape = queries.shape();
    let (batch, heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let client = queries.client.clone();
    let empty =
        |shape, dtype| empty_device_dtype(client.clone(), queries.device.clone(), shape, dtype);
    let log_sum_exp = empty(Shape::from([batch, heads, new]), DType::F32);
    let output = empty(shape, queries.dtype);
    let (positions, pattern) = match mask {
        Mask::Causal => (None, None),
        Mask::Positions(positions) => (Some(positions), None),
        Mask::Pattern { positions, lists, bits, map } => {
            let SparseMap { distances, pairs, first_block, blocks } = map;
            let [lists, bits] = [lists, bits].map(CubeTensor::into_tensor_arg);
            let pattern = PatternLaunch::new(lists, bits, distances, pairs, first_block, blocks);
            (Some(positions), Some(pattern))
        }
    };
    let by_position = positions.is_some();
    let sparse = pattern.is_some();
    let pattern: ComptimeOptionArgs<Pattern> = pattern.into();
    let [of_queries, of_entries] =
        positions.unwrap_or_else(|| [(); 2].map(|()| empty(Shape::from([1, 1, 1]), DType::I32)));
    #[cfg(cubecl_0_12)]
    if takes_heads(&queries, &keys) {
        wgmma::launch(
            [queries, keys, values],
            [of_queries, of_entries],
            pattern,
            [by_position, sparse],
            &output,
            &log_sum_exp,
            scale,
        );
        return (output, log_sum_exp);
    }
    let int = dtype_to_storage_type(of_queries.dtype);
    let [query, key] = [queries.dtype, keys.dtype].map(dtype_to_storage_type);
    let cubes =
        |rows: usize| CubeCount::Static(new.div_ceil(rows) as u32, heads as u32, batch as u32);
    if queries.dtype == keys.dtype && multiplies(&client, queries.dtype, head_dim) {
        let blueprint = PrefillBlueprint {
            head_dim,
            planes: PLANES,
            tall: TALL,
            keys: KEYS,
            by_position,
            sparse,
        };
        let blocks = new.div_ceil(PLANES * TALL * 16);
        attention_mma::launch(
            &client,
            CubeCount::Static(heads as u32, blocks as u32, batch as u32),
            CubeDim::new_1d(PLANES as u32 * 32),
            chunked(queries).into_tensor_arg(),
            chunked(keys).into_tensor_arg(),
            chunked(values).into_tensor_arg(),
            of_queries.into_tensor_arg(),
            of_entries.into_tensor_arg(),
            pattern,
            output.clone().into_tensor_arg(),
            log_sum_exp.clone().into_tensor_arg(),
            scale,
            blueprint,
            [query, int],
        );
    } else {
        attention_tiled::launch(
            &client,
            cubes(SIDE),
            CubeDim::new_1d(UNITS as u32),
            queries.into_tensor_arg(),
            keys.into_tensor_arg(),
            values.into_tensor_arg(),
            of_queries.into_tensor_arg(),
            of_entries.into_tensor_arg(),
            pattern,
            output.clone().into_tensor_arg(),
            log_sum_exp.clone().into_tensor_arg(),
            scale,
            head_dim,
            by_position,
            sparse,
            [query, key, int],
        );
    }
    (output, log_sum_exp)
}
