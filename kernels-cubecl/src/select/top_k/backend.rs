use cubecl::ir::{ElemType, Type, UIntKind, features::AtomicUsage};

use super::kernel;
use crate::common::backend::*;

/// Selection as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SelectBackend: Backend {
    /// See [`super::select`]. `rows` are the numbers of each row of scores, `[rows, 4]`, and
    /// `parts` cubes share one. Returns the columns that are kept, those that are not, and how many
    /// scores are NaN in each part of each row.
    #[fusion(meta = |scores, rows, width, others, parts| {
        let shapes = output_shapes(&scores.shape, *width, *others, *parts);
        let [indices, rest, nan] = shapes.map(|shape| TensorSpec::new(shape, rows.dtype));
        (indices, rest, nan)
    })]
    fn select_columns(
        scores: FloatTensor<Self>,
        rows: IntTensor<Self>,
        width: usize,
        others: usize,
        parts: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

/// Shapes of the outputs; of the columns that are not kept one number, if there are none.
fn output_shapes(scores: &Shape, width: usize, others: usize, parts: usize) -> [Shape; 3] {
    let (batch, heads) = (scores[0], scores[1]);
    let rest = if others == 0 { [1, 1, 1] } else { [batch, heads, others] };
    [Shape::from([batch, heads, width]), Shape::from(rest), Shape::from([batch * heads, parts])]
}

/// Units of a cube for rows of so many columns on this device; `None` if it cannot count in shared
/// memory. Short rows get few: more of them run at a time.
pub(super) fn units(client: &Client, columns: usize) -> Option<usize> {
    const SHORT: usize = 2048;
    let properties = client.properties();
    let atomic = Type::atomic(ElemType::UInt(UIntKind::U32));
    let usage = properties.atomic_type_usage(atomic);
    if !usage.contains(AtomicUsage::Add) || !usage.contains(AtomicUsage::LoadStore) {
        return None;
    }
    let hardware = &properties.hardware;
    let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
    // Bins, two numbers per unit and a few more, 4 bytes each.
    let bytes = |units: usize| 4 * (kernel::BINS + 2 * units + 16);
    let offered = if columns <= SHORT { &[256][..] } else { &[1024, 512, 256] };
    let fits = |units: &usize| *units <= most && bytes(*units) <= hardware.max_shared_memory_size;
    offered.iter().copied().find(fits)
}

/// Columns that one cube goes through; longer rows are shared.
const SHARED: usize = 1 << 16;
/// Columns of a part of a shared row, at least.
const PART: usize = 1 << 14;
/// Parts of a row, at most: each reads the counts of all.
const MOST_PARTS: usize = 32;

/// Number of cubes that share a row: as many as fill the device.
pub(super) fn parts(client: &Client, rows: usize, columns: usize) -> usize {
    if columns <= SHARED {
        return 1;
    }
    let hardware = &client.properties().hardware;
    // Nine tensors of a pass, and one of their shapes.
    if hardware.max_bindings < 10 {
        return 1;
    }
    let processors = hardware.num_streaming_multiprocessors.unwrap_or(64);
    columns.div_ceil(PART).min(processors as usize / rows).clamp(1, MOST_PARTS)
}

impl SelectBackend for CubeBackend {
    fn select_columns(
        scores: FloatTensor<Self>,
        rows: IntTensor<Self>,
        width: usize,
        others: usize,
        parts: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let shape = scores.shape();
        let [lists, columns] = [shape[0] * shape[1], shape[2]];
        let client = scores.client.clone();
        let outputs = output_shapes(&shape, width, others, parts);
        let [indices, rest, nan] = outputs.map(|shape| empty(&scores, shape, rows.dtype));
        // Checked before.
        let units = units(&client, columns).unwrap_or(256);
        let cubes = || CubeCount::Static(lists as u32, parts as u32, 1);
        let int = dtype_to_storage_type(rows.dtype);
        if parts == 1 {
            kernel::select::launch(
                &client,
                cubes(),
                CubeDim::new_1d(units as u32),
                scores.into_tensor_arg(),
                rows.into_tensor_arg(),
                indices.clone().into_tensor_arg(),
                rest.clone().into_tensor_arg(),
                nan.clone().into_tensor_arg(),
                others > 0,
                units,
                int,
            );
            return (indices, rest, nan);
        }
        let new_counts = || empty(&scores, [lists, parts, kernel::BINS], DType::U32);
        let new_state = || empty(&scores, [lists, parts, 3], DType::U32);
        // The first pass reads none, the last writes none.
        let (mut counts, mut state) = (new_counts(), new_state());
        for pass in 0..=kernel::PASSES {
            let (next_counts, next_state) = (new_counts(), new_state());
            kernel::select_pass::launch(
                &client,
                cubes(),
                CubeDim::new_1d(units as u32),
                scores.clone().into_tensor_arg(),
                rows.clone().into_tensor_arg(),
                counts.into_tensor_arg(),
                state.into_tensor_arg(),
                next_counts.clone().into_tensor_arg(),
                next_state.clone().into_tensor_arg(),
                indices.clone().into_tensor_arg(),
                rest.clone().into_tensor_arg(),
                nan.clone().into_tensor_arg(),
                columns.div_ceil(parts),
                pass,
                others > 0,
                units,
                int,
            );
            (counts, state) = (next_counts, next_state);
        }
        (indices, rest, nan)
    }
}
