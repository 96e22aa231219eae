use briquette_ops::{SparseMap, SparseTiles};
use cubecl::prelude::ComptimeOptionArgs;

#[cfg(cubecl_0_12)]
use super::wgmma;
use super::{
    mma::{self, attention_mma},
    pattern::{Pattern, PatternLaunch},
    portable::{PrefillBlueprint, attention_tiled},
};
#[cfg(cubecl_0_12)]
use crate::{attention::scoring::ScoreKinds, common::tile::wgmma::takes_heads};
use crate::{
    attention::{scoring::Scores, visible::Visible},
    common::{
        backend::*,
        tile::{
            portable::{SIDE, UNITS},
            support::{chunked, multiplies},
        },
    },
};

/// Fewest queries of a cube, of both kernels.
pub(crate) const FEWEST_QUERIES: usize = SIDE;
// Lists of tiles are made for cubes of so many queries, or a whole number of cubes of them, and
// blocks of so many keys.
const _: () = assert!(mma::KEYS == SparseTiles::KEYS && SIDE == SparseTiles::KEYS);
const _: () = assert!(mma::QUERIES == SparseTiles::QUERIES);
const _: () = assert!(SparseTiles::QUERIES.is_multiple_of(SIDE));

/// Tiles of keys that a head computes.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Tiles<B: Backend> {
    /// All that a query sees.
    All,
    /// Those of lists, and of what is seen in them what bits say, as [`SparseTiles`] has both. They
    /// come with positions: a causal mask would pass over the bits.
    Listed { lists: IntTensor<B>, bits: IntTensor<B>, map: SparseMap },
}

/// Attention of a prompt as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(crate) trait AttentionBackend: Backend {
    /// See [`super::attention`] and [`crate::sparse_attention`]: output and log-sum-exp.
    #[fusion(meta = |queries, _keys, _values, _visible, _tiles, _scores| {
        let sums = Shape::from([0, 1, 2].map(|dim| queries.shape[dim]));
        (queries.clone(), TensorSpec::new(sums, DType::F32))
    })]
    fn prompt_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] visible: Visible<Self>,
        #[extension_type] tiles: Tiles<Self>,
        #[extension_type] scores: Scores<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl AttentionBackend for CubeBackend {
    fn prompt_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        visible: Visible<Self>,
        tiles: Tiles<Self>,
        scores: Scores<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let shape = queries.shape();
        let (batch, heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
        let client = queries.client.clone();
        let log_sum_exp = empty(&queries, [batch, heads, new], DType::F32);
        let output = empty(&queries, shape, queries.dtype);
        let (by_position, positions) = visible.positions(&queries, DType::I32);
        let pattern = match tiles {
            Tiles::All => None,
            Tiles::Listed { lists, bits, map } => {
                let SparseMap { distances, pairs, first_block, blocks } = map;
                let [lists, bits] = [lists, bits].map(CubeTensor::into_tensor_arg);
                Some(PatternLaunch::new(lists, bits, distances, pairs, first_block, blocks))
            }
        };
        let sparse = pattern.is_some();
        #[cfg(cubecl_0_12)]
        let scale = scores.numbers().scale;
        let (scoring, kinds) = scores.into_arg();
        let blueprint = PrefillBlueprint { head_dim, by_position, sparse, kinds };
        let pattern: ComptimeOptionArgs<Pattern> = pattern.into();
        #[cfg(cubecl_0_12)]
        if takes_heads(&queries, &keys) && kinds == ScoreKinds::default() {
            let outputs = [&output, &log_sum_exp];
            wgmma::launch([queries, keys, values], positions, pattern, outputs, scale, blueprint);
            return (output, log_sum_exp);
        }
        let [of_queries, of_entries] = positions;
        let [query, key, int] =
            [queries.dtype, keys.dtype, of_queries.dtype].map(dtype_to_storage_type);
        if queries.dtype == keys.dtype && multiplies(&client, queries.dtype, head_dim) {
            let blocks = new.div_ceil(mma::QUERIES);
            attention_mma::launch(
                &client,
                CubeCount::Static(heads as u32, blocks as u32, batch as u32),
                CubeDim::new_1d(mma::UNITS as u32),
                chunked(queries).into_tensor_arg(),
                chunked(keys).into_tensor_arg(),
                chunked(values).into_tensor_arg(),
                of_queries.into_tensor_arg(),
                of_entries.into_tensor_arg(),
                pattern,
                output.clone().into_tensor_arg(),
                log_sum_exp.clone().into_tensor_arg(),
                scoring,
                blueprint,
                [query, int],
            );
        } else {
            attention_tiled::launch(
                &client,
                CubeCount::Static(new.div_ceil(SIDE) as u32, heads as u32, batch as u32),
                CubeDim::new_1d(UNITS as u32),
                queries.into_tensor_arg(),
                keys.into_tensor_arg(),
                values.into_tensor_arg(),
                of_queries.into_tensor_arg(),
                of_entries.into_tensor_arg(),
                pattern,
                output.clone().into_tensor_arg(),
                log_sum_exp.clone().into_tensor_arg(),
                scoring,
                blueprint,
                [query, key, int],
            );
        }
        (output, log_sum_exp)
    }
}
