use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::{
    ir::ElemType,
    prelude::{Client, CubeCount, CubeDim},
};

use super::{
    kernel::{self, ROWS},
    operands::{Before, Limits, NewRows},
    spread,
};
use crate::common::{
    copy_rows::vector_size, eviction::weakest::UNITS, processors::processors, rows::cube_count,
    writable::writable,
};

/// Cubes of [`kernel::find`] that hide each other's loads, per multiprocessor.
const CUBES_A_PROCESSOR: usize = 8;

/// Parts that heads of so many columns are searched in, so that few heads keep a device busy.
fn parts(columns: usize, heads: usize, client: &Client) -> usize {
    let tiles = columns.div_ceil(ROWS);
    let wanted = (CUBES_A_PROCESSOR * processors(client)).div_ceil(heads);
    tiles.div_ceil(tiles.div_ceil(wanted))
}

/// Tensors that are changed, in buffers that nobody else reads.
pub(super) struct Changed {
    keys: CubeTensor,
    values: CubeTensor,
    positions: CubeTensor,
    statistics: CubeTensor,
    /// Whether there are statistics, and not a tensor that stands in for them.
    is_tracked: bool,
    /// Whether some of the slots may be free.
    has_free_slots: bool,
}

impl Changed {
    pub(super) fn new(
        keys: CubeTensor,
        values: CubeTensor,
        positions: CubeTensor,
        statistics: CubeTensor,
        is_tracked: bool,
        has_free_slots: bool,
    ) -> Self {
        let statistics = if is_tracked { writable(statistics) } else { statistics };
        let [keys, values, positions] = [keys, values, positions].map(writable);
        Self { keys, values, positions, statistics, is_tracked, has_free_slots }
    }
}

impl From<Changed> for (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    fn from(changed: Changed) -> Self {
        (changed.keys, changed.values, changed.positions, changed.statistics)
    }
}

/// Parameters of a launch beside its tensors.
struct Call {
    client: Client,
    cubes: CubeCount,
    units: CubeDim,
    channels: usize,
    types: [ElemType; 2],
}

impl Call {
    /// Of rows, keys or values.
    fn new(rows: &CubeTensor, positions: &CubeTensor, scores: &CubeTensor) -> Self {
        let shape = scores.shape();
        Self {
            client: rows.client.clone(),
            cubes: cube_count(shape[0] * shape[1]),
            units: CubeDim::new_1d(UNITS as u32),
            channels: rows.shape()[rows.meta.num_dims() - 1],
            types: [rows.dtype, positions.dtype].map(dtype_to_storage_type),
        }
    }
}

/// The new token's tensors; where its rows lie behind the others, any tensors that stand in.
struct New {
    is_ragged: bool,
    offsets: CubeTensor,
    keys: CubeTensor,
    values: CubeTensor,
    positions: CubeTensor,
}

impl New {
    fn of(new: NewRows<CubeBackend>, stand_in: &CubeTensor) -> Self {
        match new {
            NewRows::Behind => Self {
                is_ragged: false,
                offsets: stand_in.clone(),
                keys: stand_in.clone(),
                values: stand_in.clone(),
                positions: stand_in.clone(),
            },
            NewRows::Beside { offsets, keys, values, positions } => {
                Self { is_ragged: true, offsets, keys, values, positions }
            }
        }
    }
}

/// Numbers of tokens that stay and whether a free slot is taken: of all heads, or a tensor of each.
fn limits_of(limits: Limits<CubeBackend>, stand_in: &CubeTensor) -> ([usize; 3], CubeTensor, bool) {
    match limits {
        Limits::Alike { sinks, recent, takes_free } => {
            ([sinks, recent, usize::from(takes_free)], stand_in.clone(), false)
        }
        Limits::Differ { table } => ([0; 3], table, true),
    }
}

pub(super) fn launch(
    changed: Changed,
    counted: CubeTensor,
    scores: CubeTensor,
    new: NewRows<CubeBackend>,
    limits: Limits<CubeBackend>,
) -> Changed {
    let call = Call::new(&changed.keys, &changed.positions, &scores);
    let new = New::of(new, &scores);
    let ([sinks, recent, takes_free], limits, differ) = limits_of(limits, &scores);
    kernel::evict::launch(
        &call.client,
        call.cubes,
        call.units,
        changed.keys.clone().into_tensor_arg(),
        changed.values.clone().into_tensor_arg(),
        changed.positions.clone().into_tensor_arg(),
        changed.statistics.clone().into_tensor_arg(),
        counted.into_tensor_arg(),
        scores.into_tensor_arg(),
        new.offsets.into_tensor_arg(),
        new.keys.into_tensor_arg(),
        new.values.into_tensor_arg(),
        new.positions.into_tensor_arg(),
        limits.into_tensor_arg(),
        call.channels,
        sinks,
        recent,
        takes_free,
        new.is_ragged,
        changed.is_tracked,
        differ,
        changed.has_free_slots,
        call.types,
    );
    changed
}

/// The shape of what stands in for new values that lie behind the others.
pub(super) const NOWHERE: [usize; 4] = [1; 4];

/// Values of entries, and of new tokens that lie beside them.
#[allow(clippy::too_many_arguments)]
pub(super) fn launch_spread(
    values: CubeTensor,
    positions: CubeTensor,
    scores: CubeTensor,
    new: NewRows<CubeBackend>,
    limits: Limits<CubeBackend>,
    [attention, drawn]: [CubeTensor; 2],
    window: usize,
    has_free_slots: bool,
) -> (CubeTensor, CubeTensor) {
    let values = writable(values);
    let call = Call::new(&values, &positions, &scores);
    let new = New::of(new, &scores);
    // The kernel may write there: nothing that it reads stands in.
    let new_values = match new.is_ragged {
        true => writable(new.values),
        false => {
            let (client, device) = (call.client.clone(), scores.device.clone());
            empty_device_dtype(client, device, Shape::from(NOWHERE), values.dtype)
        }
    };
    let ([sinks, recent, takes_free], limits, differ) = limits_of(limits, &scores);
    spread::spread::launch(
        &call.client,
        call.cubes,
        call.units,
        values.clone().into_tensor_arg(),
        new_values.clone().into_tensor_arg(),
        positions.into_tensor_arg(),
        new.positions.into_tensor_arg(),
        scores.into_tensor_arg(),
        attention.into_tensor_arg(),
        drawn.into_tensor_arg(),
        new.offsets.into_tensor_arg(),
        limits.into_tensor_arg(),
        call.channels,
        sinks,
        recent,
        takes_free,
        window,
        new.is_ragged,
        differ,
        has_free_slots,
        call.types,
    );
    (values, new_values)
}

pub(super) fn launch_merging(
    changed: Changed,
    counted: CubeTensor,
    scores: CubeTensor,
    new: NewRows<CubeBackend>,
    limits: Limits<CubeBackend>,
    before: Before<CubeBackend>,
    beta: f32,
) -> (Changed, CubeTensor) {
    let call = Call::new(&changed.keys, &changed.positions, &scores);
    let shape = scores.shape();
    let (batch, heads) = (shape[0], shape[1]);
    let empty = |shape: [usize; 3], dtype| {
        let (client, device) = (call.client.clone(), scores.device.clone());
        empty_device_dtype(client, device, Shape::from(shape), dtype)
    };
    let new = New::of(new, &scores);
    let ([sinks, recent, takes_free], limits, differ) = limits_of(limits, &scores);
    let parts = parts(shape[2], batch * heads, &call.client);
    let places = empty([batch, heads, 1 + 2 * parts], changed.positions.dtype);
    let similarity = empty([batch, heads, parts], DType::F32);
    // Vectors are not read from a tensor that may be smaller than one.
    let new_keys = if new.is_ragged { new.keys.clone() } else { changed.keys.clone() };
    let vector = vector_size([&changed.keys, &new_keys]);
    kernel::find::launch(
        &call.client,
        cube_count(batch * heads * parts),
        call.units,
        vector,
        changed.keys.clone().into_tensor_arg(),
        changed.positions.clone().into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        new.offsets.clone().into_tensor_arg(),
        new_keys.into_tensor_arg(),
        new.positions.clone().into_tensor_arg(),
        limits.into_tensor_arg(),
        changed.statistics.clone().into_tensor_arg(),
        counted.into_tensor_arg(),
        places.clone().into_tensor_arg(),
        similarity.clone().into_tensor_arg(),
        sinks,
        recent,
        takes_free,
        parts,
        call.channels / vector,
        vector,
        new.is_ragged,
        changed.is_tracked,
        differ,
        changed.has_free_slots,
        call.types,
    );
    let threshold = empty_device_dtype(
        call.client.clone(),
        scores.device.clone(),
        Shape::from([batch, 1]),
        DType::F32,
    );
    let (before, follows) = match before {
        Before::Nothing => (scores.clone(), false),
        Before::Threshold { of_rows } => (of_rows, true),
    };
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
        new.offsets.into_tensor_arg(),
        new.keys.into_tensor_arg(),
        new.values.into_tensor_arg(),
        new.positions.into_tensor_arg(),
        scores.into_tensor_arg(),
        call.channels,
        beta,
        follows,
        new.is_ragged,
        call.types,
    );
    (changed, threshold)
}
