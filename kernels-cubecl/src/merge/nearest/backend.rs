use super::{
    mma::{self, Cut, lengths, search_planes},
    plan::Plan,
    portable,
};
use crate::common::{
    backend::*,
    tile::{
        product::UNITS,
        support::{chunked, multiplies},
    },
    vector::vector_size,
};

/// Cubes that fill a large device: two a multiprocessor.
const BUSY: usize = 264;
/// Blocks of `to` that a split has at least: merging splits takes another launch.
const LEAST_BLOCKS: usize = 8;

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait NearestBackend: Backend {
    /// See [`super::nearest`]. One pair is given twice.
    #[fusion(meta = |from, _to, _more_from, _more_to, padding, _pairs| found(from, padding.dtype))]
    fn nearest(
        from: FloatTensor<Self>,
        to: FloatTensor<Self>,
        more_from: FloatTensor<Self>,
        more_to: FloatTensor<Self>,
        padding: IntTensor<Self>,
        pairs: usize,
    ) -> (FloatTensor<Self>, IntTensor<Self>);
}

/// Shapes and types of the outputs, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn found(from: &TensorSpec, int: DType) -> (TensorSpec, TensorSpec) {
    let shape = || Shape::from([from.shape[0], from.shape[1], from.shape[2]]);
    (TensorSpec::new(shape(), DType::F32), TensorSpec::new(shape(), int))
}

impl NearestBackend for CubeBackend {
    fn nearest(
        from: FloatTensor<Self>,
        to: FloatTensor<Self>,
        more_from: FloatTensor<Self>,
        more_to: FloatTensor<Self>,
        padding: IntTensor<Self>,
        pairs: usize,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        let shape = from.shape();
        let search = Search {
            batch: shape[0],
            heads: shape[1],
            lists: shape[0] * shape[1],
            from: shape[2],
            to: to.shape()[2],
            channels: [shape[3], more_from.shape()[3]],
            pairs,
        };
        let (client, int) = (from.client.clone(), padding.dtype);
        let tensors = [from, to, more_from, more_to];
        let (similarities, indices) = if search.takes_planes(&tensors) {
            let (similarities, indices, whole) = search.on_planes(tensors, padding);
            if whole {
                return (similarities, indices);
            }
            (similarities, indices)
        } else {
            search.on_units(tensors, padding)
        };
        let shape = [search.batch, search.heads, search.from];
        let similarity = empty(&similarities, shape, DType::F32);
        let index = empty(&similarities, shape, int);
        portable::merge::launch(
            &client,
            CubeCount::Static(search.from.div_ceil(UNITS) as u32, search.lists as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            similarities.into_tensor_arg(),
            indices.into_tensor_arg(),
            similarity.clone().into_tensor_arg(),
            index.clone().into_tensor_arg(),
            dtype_to_storage_type(int),
        );
        (similarity, index)
    }
}

/// Sizes of a search.
struct Search {
    batch: usize,
    heads: usize,
    /// Heads of all batch rows.
    lists: usize,
    /// Rows of either side.
    from: usize,
    to: usize,
    /// Of the rows of each pair.
    channels: [usize; 2],
    pairs: usize,
}

impl Search {
    /// Whether tensor cores can take the call.
    fn takes_planes(&self, tensors: &[CubeTensor; 4]) -> bool {
        let rows = [self.batch, self.heads, self.from.max(self.to)];
        let numbers = rows.into_iter().try_fold(2 * self.pairs, usize::checked_mul);
        tensors.iter().all(|tensor| multiplies(&tensor.client, tensor.dtype, tensor.shape()[3]))
            && numbers.is_some_and(|numbers| numbers <= u32::MAX as usize)
    }

    /// Planes of a cube and tiles of rows of a plane: as large as keeps the device busy and
    /// registers hold.
    fn sides(&self) -> [usize; 2] {
        let tiles = |[planes, tall]: [usize; 2]| self.from.div_ceil(planes * tall * 16);
        let busy = |sides| tiles(sides) * self.lists >= BUSY;
        match self.pairs {
            1 if busy([4, 2]) => [4, 2],
            _ if busy([4, 1]) => [4, 1],
            _ => [2, 1],
        }
    }

    /// Finds the best of each split on tensor cores; whether there is only one, so that it is the
    /// best of all.
    fn on_planes(
        &self,
        tensors: [CubeTensor; 4],
        padding: CubeTensor,
    ) -> (CubeTensor, CubeTensor, bool) {
        let &Self { lists, from, to, channels, pairs, .. } = self;
        let client = tensors[0].client.clone();
        let types = [tensors[0].dtype, tensors[2].dtype].map(dtype_to_storage_type);
        let tensors = tensors.map(chunked);
        let arguments = || tensors.clone().map(CubeTensor::into_tensor_arg);

        let inverse = empty(&tensors[0], [2 * pairs, lists, from.max(to)], DType::F32);
        let measured = from.max(to).div_ceil(mma::MEASURED);
        let [rows, others, more_rows, more_others] = arguments();
        lengths::launch(
            &client,
            CubeCount::Static(measured as u32, lists as u32, 2 * pairs as u32),
            CubeDim::new_1d(mma::UNITS as u32),
            rows,
            others,
            more_rows,
            more_others,
            inverse.clone().into_tensor_arg(),
            channels,
            pairs,
            types,
        );

        let [planes, tall] = self.sides();
        let row_tiles = from.div_ceil(planes * tall * 16);
        let blocks = to.div_ceil(mma::BLOCK);
        let splits = (BUSY / (row_tiles * lists)).min(blocks / LEAST_BLOCKS).max(1);
        let share = blocks.div_ceil(splits);
        let splits = blocks.div_ceil(share);
        let whole = splits == 1;
        let (shape, places) = match whole {
            true => ([self.batch, self.heads, from], padding.dtype),
            false => ([splits, lists, from], DType::U32),
        };
        let similarities = empty(&tensors[0], shape, DType::F32);
        let indices = empty(&tensors[0], shape, places);
        let [int, places] = [padding.dtype, places].map(dtype_to_storage_type);
        let [rows, others, more_rows, more_others] = arguments();
        search_planes::launch(
            &client,
            CubeCount::Static(row_tiles as u32, lists as u32, splits as u32),
            CubeDim::new_1d(planes as u32 * 32),
            rows,
            others,
            more_rows,
            more_others,
            inverse.into_tensor_arg(),
            padding.into_tensor_arg(),
            similarities.clone().into_tensor_arg(),
            indices.clone().into_tensor_arg(),
            share,
            Cut { channels, pairs, planes, tall, whole },
            [types[0], types[1], int, places],
        );
        (similarities, indices, whole)
    }

    /// Finds the best of each split on any device.
    fn on_units(&self, tensors: [CubeTensor; 4], padding: CubeTensor) -> (CubeTensor, CubeTensor) {
        let &Self { heads, lists, from, to, channels, pairs, .. } = self;
        let client = tensors[0].client.clone();
        let vector = tensors.iter().map(vector_size).min().unwrap_or(1);
        let norms = |x: &CubeTensor| {
            let (rows, channels) = (x.shape()[2], x.shape()[3]);
            let inverse = empty(x, [lists, rows], DType::F32);
            portable::inverse_norms::launch(
                &client,
                CubeCount::Static(rows.div_ceil(portable::MEASURED) as u32, lists as u32, 1),
                CubeDim::new_1d(UNITS as u32),
                vector,
                x.clone().into_tensor_arg(),
                inverse.clone().into_tensor_arg(),
                heads,
                channels,
                dtype_to_storage_type(x.dtype),
            );
            inverse
        };
        let [of_from, of_to] = [norms(&tensors[0]), norms(&tensors[1])];
        let [of_more_from, of_more_to] = match pairs {
            1 => [of_from.clone(), of_to.clone()],
            _ => [norms(&tensors[2]), norms(&tensors[3])],
        };

        let Plan { tile, row_tiles, tiles_of_split, splits } = Plan::new(lists, from, to, pairs);
        let similarities = empty(&tensors[0], [splits, lists, from], DType::F32);
        let indices = empty(&tensors[0], [splits, lists, from], DType::U32);
        let types = [tensors[0].dtype, tensors[2].dtype, padding.dtype].map(dtype_to_storage_type);
        let [rows, others, more_rows, more_others] = tensors;
        portable::search::launch(
            &client,
            CubeCount::Static(row_tiles as u32, lists as u32, splits as u32),
            CubeDim::new_1d(UNITS as u32),
            vector,
            rows.into_tensor_arg(),
            others.into_tensor_arg(),
            of_from.into_tensor_arg(),
            of_to.into_tensor_arg(),
            more_rows.into_tensor_arg(),
            more_others.into_tensor_arg(),
            of_more_from.into_tensor_arg(),
            of_more_to.into_tensor_arg(),
            padding.into_tensor_arg(),
            similarities.clone().into_tensor_arg(),
            indices.clone().into_tensor_arg(),
            heads,
            tiles_of_split,
            channels,
            pairs,
            tile,
            types,
        );
        (similarities, indices)
    }
}
