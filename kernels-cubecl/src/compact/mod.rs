mod extension;
mod kernel;

use briquette_ops::{Entries, Result, Selection, constant_ints};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::CompactBackend;
use crate::{
    check::Check,
    copy::{UNITS, rows_of_cube, vector_size},
    tracks,
};

/// The selected entries with all that is known of them, in one launch: the end of every eviction. Before those of a head that
/// keeps fewer than the widest stand fillers, which get position −1 and zeros in the tracks, and the key and value they
/// point at.
///
/// Keys and values are copied by the widest vectors that device, alignment and strides allow, 16 bytes on a GPU, one a
/// unit and tensor; the rows of a cube lie side by side where it writes. Positions and tracks are copied by other cubes
/// of the same launch, a column a unit.
///
/// It reads and writes kept · head_dim · (bytes of a key and of a value) a batch row and kv head, twice that in all, and
/// 8 bytes for each index and position and number of a track. It computes nothing.
///
/// It does not work in place, though ascending indices would allow it: a cache takes the result of a call in only when
/// nothing of the call can fail any more, so the entries must stay as they are until then, and tensors that are shared
/// with a copy of the cache for good.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, if nothing is kept, or if the device has no kernels or
/// cannot launch so much.
pub fn compact(entries: Entries, selection: &Selection) -> Result<Entries> {
    check(&entries, selection)?;
    let Entries { keys, values, positions, tracks, .. } = entries;
    let Selection { indices, counts } = selection.clone();
    let kept = indices.dims()[2];
    let filled = counts.iter().any(|&count| count != kept);
    let fillers = if filled {
        let fillers: Vec<i64> = counts.iter().map(|count| (kept - count) as i64).collect();
        let fillers = constant_ints("compact", fillers, [counts.len()], &keys.device());
        fillers.cast(indices.dtype()).into_dispatch()
    } else {
        indices.clone().into_dispatch()
    };
    let indices = indices.into_dispatch();
    let keys = keys.into_dispatch();
    // Another tensor stands in for tracks that are not there.
    let counted = !tracks.is_empty();
    let of_tracks =
        tracks.stacked().map_or_else(|| keys.clone(), |tracks| tracks.clone().into_dispatch());
    let (keys, values, positions, of_tracks) = Dispatch::compact_entries(
        keys,
        values.into_dispatch(),
        positions.into_dispatch(),
        of_tracks,
        indices,
        fillers,
        counted,
        filled,
    );
    Ok(Entries {
        keys: Tensor::from_dispatch(keys),
        values: Tensor::from_dispatch(values),
        positions: Tensor::from_dispatch(positions),
        tracks: tracks.map(|_| Tensor::from_dispatch(of_tracks)),
        sharing: None,
    })
}

fn check(entries: &Entries, selection: &Selection) -> Result<()> {
    let Entries { keys, values, positions, tracks, sharing } = entries;
    let Selection { indices, counts } = selection;
    let check = Check::new("compact", &keys.device())?;
    let [batch, kv_heads, columns, head_dim] = keys.dims();
    let kept = indices.dims()[2];
    let rows = batch * kv_heads;
    check.value("sharing", 1, sharing.is_none(), "none: every token has a row of its own")?;
    check.shape("values", values.dims(), keys.dims())?;
    check.shape("positions", positions.dims(), [batch, kv_heads, columns])?;
    check.shape("indices", indices.dims(), [batch, kv_heads, kept])?;
    let (of_positions, of_indices) = (positions.dtype(), indices.dtype());
    check.value(
        "bytes of an index",
        of_indices.size(),
        of_indices == of_positions,
        format!("{}, as those of a position", of_positions.size()),
    )?;
    check.value("head_dim", head_dim, head_dim > 0, "at least 1")?;
    check.value("the most entries kept", kept, kept > 0, "at least 1")?;
    check.value("the length of counts", counts.len(), counts.len() == rows, rows.to_string())?;
    for &count in counts {
        check.value("counts", count, count <= kept, format!("at most {kept}"))?;
    }
    let planes = 1 + tracks::check(&check, tracks, [batch, kv_heads, columns])?;
    check.countable("keys", &keys.dims())?;
    check.countable("the keys kept", &[rows, kept, head_dim])?;
    // What is copied a number at a time takes most cubes.
    let cubes = kept.div_ceil(rows_of_cube(head_dim)) + planes * kept.div_ceil(UNITS);
    check.cubes([rows, cubes, 1])?;
    let hardware = &check.client().properties().hardware;
    // With what the kernel is told of their shapes.
    check.tensors(if tracks.is_empty() { 8 } else { 10 })?;
    check.at_most("units of a cube", UNITS, hardware.max_units_per_cube as usize)
}

/// This shape with so many columns, the third dimension.
fn with_columns(shape: &Shape, columns: usize) -> Shape {
    let mut shape = shape.clone();
    shape[2] = columns;
    shape
}

/// The shape of tracks that are not there: a buffer of nothing is not one.
fn no_tracks() -> Shape {
    Shape::from([1, 1, 1])
}

/// Returns keys, values, positions and tracks.
fn launch(
    [keys, values]: [CubeTensor; 2],
    positions: CubeTensor,
    tracks: Option<CubeTensor>,
    indices: CubeTensor,
    fillers: Option<CubeTensor>,
) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    let (client, device) = (keys.client.clone(), keys.device.clone());
    let [rows, kept] = {
        let shape = indices.shape();
        [shape[0] * shape[1], shape[2]]
    };
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let like = |x: &CubeTensor| empty(with_columns(&x.shape(), kept), x.dtype);
    let (kept_keys, kept_values, kept_positions) = (like(&keys), like(&values), like(&positions));
    let kept_tracks = tracks.as_ref().map_or_else(|| empty(no_tracks(), DType::F32), like);

    let vector = vector_size([&keys, &values, &kept_keys, &kept_values]);
    let vectors = keys.shape()[3] / vector;
    let row_cubes = kept.div_ceil(rows_of_cube(vectors));
    let column_cubes = kept.div_ceil(UNITS);
    let numbers = |tracks: &CubeTensor| tracks.shape()[0] * tracks.shape()[1];
    let planes = 1 + tracks.as_ref().map_or(0, |tracks| numbers(tracks) / rows);
    let types = [keys.dtype, values.dtype, indices.dtype].map(dtype_to_storage_type);
    let (counted, filled) = (tracks.is_some(), fillers.is_some());
    kernel::compact::launch(
        &client,
        CubeCount::Static(rows as u32, (row_cubes + planes * column_cubes) as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        vector,
        keys.clone().into_tensor_arg(),
        values.into_tensor_arg(),
        positions.into_tensor_arg(),
        tracks.unwrap_or(keys).into_tensor_arg(),
        indices.clone().into_tensor_arg(),
        fillers.unwrap_or(indices).into_tensor_arg(),
        kept_keys.clone().into_tensor_arg(),
        kept_values.clone().into_tensor_arg(),
        kept_positions.clone().into_tensor_arg(),
        kept_tracks.clone().into_tensor_arg(),
        row_cubes,
        column_cubes,
        vectors,
        counted,
        filled,
        types,
    );
    (kept_keys, kept_values, kept_positions, kept_tracks)
}
