mod backend;
mod kernel;

use briquette_ops::{Entries, Result, Selection, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{CompactBackend, EntryTensors};
use crate::common::{
    check::Check,
    copy_rows::{UNITS, rows_of_cube},
    statistics,
};

/// The selected entries with all that is known of them, in one launch: the end of every eviction.
/// Before those of a head that keeps fewer than the widest stand padding columns, which get
/// position −1 and zeros in the statistics, and the key and value they point at.
///
/// Keys and values are copied by the widest vectors that device, alignment and strides allow, 16
/// bytes on a GPU, one per unit and tensor; the rows of a cube lie side by side where it writes.
/// Positions and statistics are copied by other cubes of the same launch, one column per unit.
///
/// It reads and writes kept · head_dim · (bytes of a key and of a value) a batch row and kv head,
/// twice that in all, and 8 bytes for each index and position and number of a track. It computes
/// nothing.
///
/// It does not work in place, though ascending indices would allow it: a cache takes the result of
/// a call in only when nothing of the call can fail any more, so the entries must stay as they are
/// until then, and tensors that are shared with a copy of the cache for good.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, if nothing is kept, or if the device
/// has no kernels or cannot launch so much.
pub fn compact(entries: Entries, selection: &Selection) -> Result<Entries> {
    check(&entries, selection)?;
    let Entries { keys, values, positions, statistics, .. } = entries;
    let Selection { indices, counts } = selection.clone();
    let kept = indices.dims()[2];
    let filled = counts.iter().any(|&count| count != kept);
    let padding = if filled {
        let padding: Vec<i64> = counts.iter().map(|count| (kept - count) as i64).collect();
        let padding = constant_ints("compact", padding, [counts.len()], &keys.device());
        padding.cast(indices.dtype()).into_dispatch()
    } else {
        indices.clone().into_dispatch()
    };
    let keys = keys.into_dispatch();
    let entries = EntryTensors {
        values: values.into_dispatch(),
        positions: positions.into_dispatch(),
        // Another tensor stands in for statistics that are not there.
        statistics: statistics
            .stacked()
            .map_or_else(|| keys.clone(), |statistics| statistics.clone().into_dispatch()),
        is_counted: !statistics.is_empty(),
        keys,
    };
    let kept = Dispatch::compact_entries(entries, indices.into_dispatch(), padding, filled);
    Ok(Entries {
        keys: Tensor::from_dispatch(kept.keys),
        values: Tensor::from_dispatch(kept.values),
        positions: Tensor::from_dispatch(kept.positions),
        statistics: statistics.map(|_| Tensor::from_dispatch(kept.statistics)),
        clustering: None,
    })
}

fn check(entries: &Entries, selection: &Selection) -> Result<()> {
    let Entries { keys, values, positions, statistics, clustering } = entries;
    let Selection { indices, counts } = selection;
    let check = Check::new("compact", &keys.device())?;
    let [batch, kv_heads, columns, head_dim] = keys.dims();
    let kept = indices.dims()[2];
    let rows = batch * kv_heads;
    check.value("clustering", 1, clustering.is_none(), "none: every token has a row of its own")?;
    check.values("values", values.dims(), keys.dims())?;
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
    check.equal("the length of counts", counts.len(), rows)?;
    for &count in counts {
        check.value("counts", count, count <= kept, format!("at most {kept}"))?;
    }
    let planes = 1 + statistics::check(&check, statistics, [batch, kv_heads, columns])?;
    check.countable("keys", &keys.dims())?;
    check.countable("the keys kept", &[rows, kept, head_dim])?;
    // What is copied a number at a time takes most cubes.
    let cubes = kept.div_ceil(rows_of_cube(head_dim)) + planes * kept.div_ceil(UNITS);
    check.cubes([rows, cubes, 1])?;
    let hardware = &check.client().properties().hardware;
    // With what the kernel is told of their shapes.
    check.tensors(if statistics.is_empty() { 8 } else { 10 })?;
    check.at_most("units of a cube", UNITS, hardware.max_units_per_cube as usize)
}
