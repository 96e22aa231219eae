#[cfg(cubecl_0_12)]
use super::wgmma;
use super::{
    mma::{self, column_scores_mma},
    portable::{ColumnSumsBlueprint, column_scores_tiled},
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

/// Fewest keys of a cube, of both kernels.
pub(super) const FEWEST_KEYS: usize = SIDE;

/// Sums over columns as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ColumnScoresBackend: Backend {
    /// See [`super::column_scores`]: sums, local sums and sums of squares.
    #[fusion(meta = |queries, keys, _lse, _visible, _scores, local, squares| {
        let shapes = output_shapes(&queries.shape, &keys.shape, *local, *squares);
        let [sums, local_sums, squares] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
        (sums, local_sums, squares)
    })]
    fn column_scores(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        #[extension_type] visible: Visible<Self>,
        #[extension_type] scores: Scores<Self>,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of sums, local sums and sums of squares; one number for those not wanted.
fn output_shapes(queries: &Shape, keys: &Shape, local: usize, squares: bool) -> [Shape; 3] {
    let all = Shape::from([queries[0], queries[1], keys[2]]);
    let none = Shape::from([1, 1, 1]);
    let if_wanted = |wanted: bool| if wanted { all.clone() } else { none.clone() };
    [all.clone(), if_wanted(local > 0), if_wanted(squares)]
}

impl ColumnScoresBackend for CubeBackend {
    fn column_scores(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        visible: Visible<Self>,
        scores: Scores<Self>,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let shape = queries.shape();
        let (batch, heads, head_dim) = (shape[0], shape[1], shape[3]);
        let entries = keys.shape()[2];
        let client = queries.client.clone();
        let sums = output_shapes(&shape, &keys.shape(), local, squares)
            .map(|shape| empty(&queries, shape, DType::F32));
        let (by_position, positions) = visible.positions(&queries, DType::I32);
        #[cfg(cubecl_0_12)]
        let scale = scores.numbers().scale;
        let (scoring, kinds) = scores.into_arg();
        let blueprint =
            ColumnSumsBlueprint { head_dim, by_position, local: local > 0, squares, kinds };
        #[cfg(cubecl_0_12)]
        if !by_position && takes_heads(&queries, &keys) && kinds == ScoreKinds::default() {
            wgmma::launch([queries, keys, log_sum_exp], sums.clone(), scale, local, blueprint);
            return sums.into();
        }
        let [of_queries, of_entries] = positions;
        let [query, key, int] =
            [queries.dtype, keys.dtype, of_queries.dtype].map(dtype_to_storage_type);
        let [out, local_out, squared_out] = sums.clone().map(CubeTensor::into_tensor_arg);
        if queries.dtype == keys.dtype && multiplies(&client, queries.dtype, head_dim) {
            let blocks = entries.div_ceil(mma::ROWS);
            column_scores_mma::launch(
                &client,
                CubeCount::Static(heads as u32, blocks as u32, batch as u32),
                CubeDim::new_1d(mma::ROWS as u32),
                chunked(queries).into_tensor_arg(),
                chunked(keys).into_tensor_arg(),
                log_sum_exp.into_tensor_arg(),
                of_queries.into_tensor_arg(),
                of_entries.into_tensor_arg(),
                out,
                local_out,
                squared_out,
                local,
                scoring,
                blueprint,
                [query, int],
            );
        } else {
            column_scores_tiled::launch(
                &client,
                CubeCount::Static(entries.div_ceil(SIDE) as u32, heads as u32, batch as u32),
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
                scoring,
                blueprint,
                [query, key, int],
            );
        }
        sums.into()
    }
}
