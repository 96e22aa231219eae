use super::{kernel, plan::Plan};
use crate::common::{backend::*, vector::vector_size};

/// Units that add up parts, and numbers of the output of one cube.
pub(super) const MERGERS: usize = 256;

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AccumulateBackend: Backend {
    /// See [`super::accumulate`].
    #[fusion(dtype = DType::F32, shape = Shape::from([x[0], x[1], *slots, x[3]]))]
    fn accumulate(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        span: usize,
        slots: usize,
    ) -> FloatTensor<Self>;
}

impl AccumulateBackend for CubeBackend {
    fn accumulate(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        span: usize,
        slots: usize,
    ) -> FloatTensor<Self> {
        let shape = x.shape();
        let (batch, heads, rows, channels) = (shape[0], shape[1], shape[2], shape[3]);
        let lists = batch * heads;
        let Plan { chunks, buckets, of_bin, bins, chunks_of_part, parts } =
            Plan::new(rows, channels, span, slots);
        let client = x.client.clone();
        let keys = empty(&x, [lists, chunks, kernel::CHUNK], DType::U32);
        let starts = empty(&x, [lists, chunks, bins + 1], DType::U32);
        kernel::sort::launch(
            &client,
            CubeCount::Static(chunks as u32, lists as u32, 1),
            CubeDim::new_1d(kernel::SORTERS as u32),
            weights.clone().into_tensor_arg(),
            slot.clone().into_tensor_arg(),
            keys.clone().into_tensor_arg(),
            starts.clone().into_tensor_arg(),
            heads,
            span,
            buckets,
            of_bin,
            bins,
            dtype_to_storage_type(slot.dtype),
        );
        let sums = empty(&x, [parts, lists, buckets, channels], DType::F32);
        let (vector, dtype) = (vector_size(&x).min(vector_size(&sums)), x.dtype);
        let output = empty(&x, [batch, heads, slots, channels], DType::F32);
        kernel::add::launch(
            &client,
            CubeCount::Static(bins as u32, parts as u32, lists as u32),
            CubeDim::new_1d(kernel::ADDERS as u32),
            vector,
            x.into_tensor_arg(),
            weights.into_tensor_arg(),
            keys.into_tensor_arg(),
            starts.into_tensor_arg(),
            sums.clone().into_tensor_arg(),
            heads,
            chunks_of_part,
            buckets,
            of_bin,
            channels,
            dtype_to_storage_type(dtype),
        );
        kernel::merge::launch(
            &client,
            CubeCount::Static((slots * channels).div_ceil(MERGERS) as u32, lists as u32, 1),
            CubeDim::new_1d(MERGERS as u32),
            sums.into_tensor_arg(),
            output.clone().into_tensor_arg(),
            span,
            MERGERS,
        );
        output
    }
}
