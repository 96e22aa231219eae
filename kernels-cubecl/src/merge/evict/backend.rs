use cubecl::ir::ElemType;

#[cfg(feature = "fusion")]
use super::operands::{HeadsMetadata, NewRowsMetadata};
use super::{
    kernel::{self, BoundsLaunch, ROWS},
    operands::{Changed, Heads, Limits, NewRows},
    spread,
};
use crate::common::{
    backend::*, copy_rows::vector_size, eviction::weakest::UNITS, optional::Optional,
    processors::processors, rows::cube_count, writable::writable,
};

/// Cubes of [`kernel::find`] that hide each other's loads, per multiprocessor.
const CUBES_A_PROCESSOR: usize = 8;
/// The shape of what stands in for new values that lie behind the others.
const NOWHERE: [usize; 4] = [1; 4];

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EvictBackend: Backend {
    /// See [`super::evict`].
    #[fusion(meta = |changed, _heads, _counted| changed.clone())]
    fn evict(
        #[extension_type] changed: Changed<Self>,
        #[extension_type] heads: Heads<Self>,
        counted: FloatTensor<Self>,
    ) -> Changed<Self>;

    /// See [`super::evict_merging`]: the same, and thresholds.
    #[fusion(meta = |changed, heads, _counted, _before, _beta| {
        (changed.clone(), thresholds(heads))
    })]
    fn evict_merging(
        #[extension_type] changed: Changed<Self>,
        #[extension_type] heads: Heads<Self>,
        counted: FloatTensor<Self>,
        #[extension_type] before: Optional<Self>,
        beta: f32,
    ) -> (Changed<Self>, FloatTensor<Self>);

    /// See [`super::evict_spreading`], of which this is the first launch: values, and those of new
    /// tokens that lie beside them.
    #[fusion(meta = |values, _positions, heads, _attention, _drawn, _window| {
        (values.clone(), new_values(values, heads))
    })]
    fn spread(
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        #[extension_type] heads: Heads<Self>,
        attention: FloatTensor<Self>,
        drawn: FloatTensor<Self>,
        window: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shape of the thresholds, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn thresholds(heads: &HeadsMetadata) -> TensorSpec {
    TensorSpec::new(Shape::from([heads.scores.shape[0], 1]), DType::F32)
}

/// Shape of the values of new tokens, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn new_values(values: &TensorSpec, heads: &HeadsMetadata) -> TensorSpec {
    match &heads.new {
        NewRowsMetadata::Behind => TensorSpec::new(Shape::from(NOWHERE), values.dtype),
        NewRowsMetadata::Beside { values, .. } => values.clone(),
    }
}

impl Changed<CubeBackend> {
    /// The same in buffers that nobody else reads.
    fn writable(self) -> Self {
        let Self { keys, values, positions, statistics, is_tracked } = self;
        let statistics = if is_tracked { writable(statistics) } else { statistics };
        let [keys, values, positions] = [keys, values, positions].map(writable);
        Self { keys, values, positions, statistics, is_tracked }
    }
}

/// Parameters of every launch. Where there is no tensor of the kind, any stands in.
struct Call {
    client: Client,
    cubes: CubeCount,
    units: CubeDim,
    scores: CubeTensor,
    offsets: CubeTensor,
    new_keys: CubeTensor,
    new_values: CubeTensor,
    new_positions: CubeTensor,
    limits: CubeTensor,
    bounds: BoundsLaunch,
    channels: usize,
    is_ragged: bool,
    has_free_slots: bool,
    types: [ElemType; 2],
}

impl Call {
    /// Of rows, keys or values.
    fn new(rows: &CubeTensor, positions: &CubeTensor, heads: Heads<CubeBackend>) -> Self {
        let Heads { scores, new, limits, has_free_slots } = heads;
        let is_ragged = matches!(new, NewRows::Beside { .. });
        let [offsets, new_keys, new_values, new_positions] = match new {
            NewRows::Behind => [(); 4].map(|()| scores.clone()),
            NewRows::Beside { offsets, keys, values, positions } => {
                [offsets, keys, values, positions]
            }
        };
        let (bounds, limits) = match limits {
            Limits::Alike { sinks, recent, takes_free } => {
                (BoundsLaunch::new(sinks, recent, usize::from(takes_free), false), scores.clone())
            }
            Limits::Differ { table } => (BoundsLaunch::new(0, 0, 0, true), table),
        };
        let shape = scores.shape();
        Self {
            client: rows.client.clone(),
            cubes: cube_count(shape[0] * shape[1]),
            units: CubeDim::new_1d(UNITS as u32),
            scores,
            offsets,
            new_keys,
            new_values,
            new_positions,
            limits,
            bounds,
            channels: rows.shape()[rows.meta.num_dims() - 1],
            is_ragged,
            has_free_slots,
            types: [rows.dtype, positions.dtype].map(dtype_to_storage_type),
        }
    }

    /// Parts that heads are searched in, so that few heads keep a device busy.
    fn parts(&self) -> usize {
        let shape = self.scores.shape();
        let tiles = shape[2].div_ceil(ROWS);
        let all = CUBES_A_PROCESSOR * processors(&self.client);
        let wanted = all.div_ceil(shape[0] * shape[1]);
        tiles.div_ceil(tiles.div_ceil(wanted))
    }
}

impl EvictBackend for CubeBackend {
    fn evict(
        changed: Changed<Self>,
        heads: Heads<Self>,
        counted: FloatTensor<Self>,
    ) -> Changed<Self> {
        let changed = changed.writable();
        let call = Call::new(&changed.keys, &changed.positions, heads);
        kernel::evict::launch(
            &call.client,
            call.cubes,
            call.units,
            changed.keys.clone().into_tensor_arg(),
            changed.values.clone().into_tensor_arg(),
            changed.positions.clone().into_tensor_arg(),
            changed.statistics.clone().into_tensor_arg(),
            counted.into_tensor_arg(),
            call.scores.into_tensor_arg(),
            call.offsets.into_tensor_arg(),
            call.new_keys.into_tensor_arg(),
            call.new_values.into_tensor_arg(),
            call.new_positions.into_tensor_arg(),
            call.limits.into_tensor_arg(),
            call.channels,
            call.bounds,
            call.is_ragged,
            changed.is_tracked,
            call.has_free_slots,
            call.types,
        );
        changed
    }

    fn evict_merging(
        changed: Changed<Self>,
        heads: Heads<Self>,
        counted: FloatTensor<Self>,
        before: Optional<Self>,
        beta: f32,
    ) -> (Changed<Self>, FloatTensor<Self>) {
        let changed = changed.writable();
        let call = Call::new(&changed.keys, &changed.positions, heads);
        let shape = call.scores.shape();
        let (batch, heads, parts) = (shape[0], shape[1], call.parts());
        let places = empty(&call.scores, [batch, heads, 1 + 2 * parts], changed.positions.dtype);
        let similarity = empty(&call.scores, [batch, heads, parts], DType::F32);
        let threshold = empty(&call.scores, [batch, 1], DType::F32);
        // Vectors are not read from a tensor that may be smaller than one.
        let new_keys = if call.is_ragged { &call.new_keys } else { &changed.keys };
        let vector = vector_size([&changed.keys, new_keys]);
        kernel::find::launch(
            &call.client,
            cube_count(batch * heads * parts),
            call.units,
            vector,
            changed.keys.clone().into_tensor_arg(),
            changed.positions.clone().into_tensor_arg(),
            call.scores.clone().into_tensor_arg(),
            call.offsets.clone().into_tensor_arg(),
            new_keys.clone().into_tensor_arg(),
            call.new_positions.clone().into_tensor_arg(),
            call.limits.into_tensor_arg(),
            changed.statistics.clone().into_tensor_arg(),
            counted.into_tensor_arg(),
            places.clone().into_tensor_arg(),
            similarity.clone().into_tensor_arg(),
            call.bounds,
            parts,
            call.channels / vector,
            vector,
            call.is_ragged,
            changed.is_tracked,
            call.has_free_slots,
            call.types,
        );
        let before = before.into_option();
        let follows = before.is_some();
        let before = before.unwrap_or_else(|| call.scores.clone());
        kernel::merge::launch(
            &call.client,
            call.cubes,
            call.units,
            changed.keys.clone().into_tensor_arg(),
            changed.values.clone().into_tensor_arg(),
            changed.positions.clone().into_tensor_arg(),
            places.into_tensor_arg(),
            similarity.into_tensor_arg(),
            before.into_tensor_arg(),
            threshold.clone().into_tensor_arg(),
            call.offsets.into_tensor_arg(),
            call.new_keys.into_tensor_arg(),
            call.new_values.into_tensor_arg(),
            call.new_positions.into_tensor_arg(),
            call.scores.into_tensor_arg(),
            call.channels,
            beta,
            follows,
            call.is_ragged,
            call.types,
        );
        (changed, threshold)
    }

    fn spread(
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        heads: Heads<Self>,
        attention: FloatTensor<Self>,
        drawn: FloatTensor<Self>,
        window: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let values = writable(values);
        let call = Call::new(&values, &positions, heads);
        // The kernel may write there: nothing that it reads stands in.
        let new_values = match call.is_ragged {
            true => writable(call.new_values),
            false => empty(&call.scores, NOWHERE, values.dtype),
        };
        spread::spread::launch(
            &call.client,
            call.cubes,
            call.units,
            values.clone().into_tensor_arg(),
            new_values.clone().into_tensor_arg(),
            positions.into_tensor_arg(),
            call.new_positions.into_tensor_arg(),
            call.scores.into_tensor_arg(),
            attention.into_tensor_arg(),
            drawn.into_tensor_arg(),
            call.offsets.into_tensor_arg(),
            call.limits.into_tensor_arg(),
            call.channels,
            call.bounds,
            window,
            call.is_ragged,
            call.has_free_slots,
            call.types,
        );
        (values, new_values)
    }
}
