mod backend;
mod kernel;
mod operands;
mod spread;

use briquette_ops::{
    EvictInput, EvictLimits, EvictMergeInput, EvictSpreadInput, Result, SlotRows, constant_floats,
};
use burn::{
    backend::{Dispatch, tensor::FloatTensor},
    tensor::Tensor,
};

use self::{
    backend::EvictBackend,
    operands::{Changed, Heads, Limits, NewRows},
};
use crate::common::{
    check::Check,
    eviction::{limits::check_limits, weakest::UNITS},
    optional::Optional,
    rows::cubes_of_rows,
    statistics,
};

/// Evicts the weakest entry of each head and puts a new token in its place: its key, its value, its
/// position, and the statistics of all. Nothing else moves, so a decode step at a budget needs no
/// copy of keys and values. The entry is the one that [`select`](crate::select) would not keep,
/// whichever order entries lie in: scores are ordered as by `f32::total_cmp`, except that NaN is
/// the lowest; of equal scores the newest goes. Where a head takes free slots and has some, the
/// token takes the last of these, and nothing goes.
///
/// Tensors that nobody else holds are changed in place, others copied before. A cube of 256 units a
/// head, in one launch: it reads columns · 8 bytes of positions and scores and finds the lowest of
/// those that may go, reads and writes one row of keys and values, and reads and writes the
/// statistics. Where the first or last tokens have gaps between their positions it counts the rank
/// of each token, columns² / 256 comparisons a unit.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, or the device has no kernels
/// or cannot launch so much. Nothing is changed then.
pub fn evict(input: EvictInput<'_>) -> Result<()> {
    check_evict(&input)?;
    evict_checked(input);
    Ok(())
}

/// Evicts as [`evict`] does, after the evicted entry has been merged into the one with the most
/// similar key, if it is similar enough: D2O (Wan et al., 2024, Eq. 9 to 12). Returns the
/// thresholds, `[batch, 1]`, f32.
///
/// Two launches: a cube a head, or several where heads are few, finds the entry that goes and reads
/// all keys once, four rows a unit at a time, for the most similar; then a cube a head takes the
/// mean of the similarities of its batch row, always in one order, and merges and moves three rows
/// at most.
///
/// # Errors
/// As [`evict`].
pub fn evict_merging(input: EvictInput<'_>, merge: EvictMergeInput) -> Result<Tensor<2>> {
    check_evict_merging(&input, &merge)?;
    Ok(evict_merging_checked(input, merge))
}

/// Evicts as [`evict`] does, after the value of the evicted entry has been added to those of the
/// tokens behind it: CaM (Zhang et al., 2024). See [`EvictSpreadInput`].
///
/// Two launches: a cube a head finds the entry that goes and compares the positions behind it with
/// all, columns² / 256 comparisons a unit at most, and reads and writes `window` values; then
/// [`evict`].
///
/// # Errors
/// As [`evict`], and if the window is zero or its columns do not fit into shared memory.
pub fn evict_spreading(input: EvictInput<'_>, spread: EvictSpreadInput) -> Result<()> {
    check_evict_spreading(&input, &spread)?;
    evict_spreading_checked(input, spread);
    Ok(())
}

/// As [`evict`], of an input that [`check_evict`] has let through.
pub(crate) fn evict_checked(input: EvictInput<'_>) {
    run(input, |changed, heads, counted| (Dispatch::evict(changed, heads, counted), ()));
}

/// As [`evict_merging`], of an input that [`check_evict`] has let through.
pub(crate) fn evict_merging_checked(input: EvictInput<'_>, merge: EvictMergeInput) -> Tensor<2> {
    let (before, beta) = (Optional::of(merge.before), merge.beta as f32);
    Tensor::from_dispatch(run(input, |changed, heads, counted| {
        Dispatch::evict_merging(changed, heads, counted, before, beta)
    }))
}

/// As [`evict_spreading`], of an input that [`check_evict_spreading`] has let through.
pub(crate) fn evict_spreading_checked(mut input: EvictInput<'_>, spread: EvictSpreadInput) {
    let EvictSpreadInput { attention, drawn, window } = spread;
    let (limits, has_free_slots) = (limits(&input), input.has_free_slots());
    let EvictInput { rows, positions, scores, .. } = &mut input;
    let (new, mut values, new_values) = match rows {
        SlotRows::Dense { values, .. } => (NewRows::Behind, Rows::Dense(values), None),
        SlotRows::Ragged { values, offsets, new_keys, new_values, new_positions, .. } => {
            let new = NewRows::Beside {
                offsets: offsets.clone().cast(positions.dtype()).into_dispatch(),
                keys: new_keys.clone().into_dispatch(),
                values: new_values.extract().into_dispatch(),
                positions: new_positions.clone().into_dispatch(),
            };
            (new, Rows::Ragged(values), Some(new_values))
        }
    };
    let (of_values, of_new) = Dispatch::spread(
        values.take(),
        positions.clone().into_dispatch(),
        Heads { scores: scores.clone().into_dispatch(), new, limits, has_free_slots },
        attention.into_dispatch(),
        drawn.into_dispatch(),
        window,
    );
    values.put(of_values);
    if let Some(new_values) = new_values {
        *new_values = Tensor::from_dispatch(of_new);
    }
    evict_checked(input);
}

/// A tensor of any kind in any backend.
type AnyTensor = FloatTensor<Dispatch>;

/// Moves what is changed into a call, so that it is changed in place where nobody else holds it,
/// and back.
fn run<T>(
    input: EvictInput<'_>,
    call: impl FnOnce(Changed<Dispatch>, Heads<Dispatch>, AnyTensor) -> (Changed<Dispatch>, T),
) -> T {
    let (limits, has_free_slots) = (limits(&input), input.has_free_slots());
    let EvictInput { rows, positions, statistics, counted, scores, .. } = input;
    let is_tracked = !statistics.is_empty();
    // What is not looked at: another tensor stands in.
    let mut none = constant_floats("no statistics", vec![0.0], [1, 1, 1], &scores.device());
    let of_statistics = statistics.stacked_mut().unwrap_or(&mut none);
    let counted = counted.stacked().unwrap_or(&scores).clone().into_dispatch();
    let (new, mut keys, mut values) = match rows {
        SlotRows::Dense { keys, values } => {
            (NewRows::Behind, Rows::Dense(keys), Rows::Dense(values))
        }
        SlotRows::Ragged { keys, values, offsets, new_keys, new_values, new_positions, .. } => {
            let new = NewRows::Beside {
                offsets: offsets.cast(positions.dtype()).into_dispatch(),
                keys: new_keys.into_dispatch(),
                values: new_values.into_dispatch(),
                positions: new_positions.into_dispatch(),
            };
            (new, Rows::Ragged(keys), Rows::Ragged(values))
        }
    };
    let changed = Changed::<Dispatch> {
        keys: keys.take(),
        values: values.take(),
        positions: positions.extract().into_dispatch(),
        statistics: of_statistics.extract().into_dispatch(),
        is_tracked,
    };
    let heads = Heads { scores: scores.into_dispatch(), new, limits, has_free_slots };
    let (changed, found) = call(changed, heads, counted);
    keys.put(changed.keys);
    values.put(changed.values);
    *positions = Tensor::from_dispatch(changed.positions);
    *of_statistics = Tensor::from_dispatch(changed.statistics);
    found
}

/// Rows in a rectangle or in a list.
enum Rows<'a> {
    Dense(&'a mut Tensor<4>),
    Ragged(&'a mut Tensor<2>),
}

impl Rows<'_> {
    fn take(&mut self) -> AnyTensor {
        match self {
            Self::Dense(rows) => rows.extract().into_dispatch(),
            Self::Ragged(rows) => rows.extract().into_dispatch(),
        }
    }

    fn put(&mut self, tensor: AnyTensor) {
        match self {
            Self::Dense(rows) => **rows = Tensor::from_dispatch(tensor),
            Self::Ragged(rows) => **rows = Tensor::from_dispatch(tensor),
        }
    }
}

/// Numbers of first and last that stay, and whether the new token takes a free slot.
fn limits(input: &EvictInput<'_>) -> Limits<Dispatch> {
    let [batch, heads, _] = input.scores.dims();
    let lists = batch * heads;
    let of_table = |limits: &EvictLimits| {
        let table = limits.table().cast(input.positions.dtype());
        Limits::Differ { table: table.into_dispatch() }
    };
    if let Some(limits) = input.limits {
        return of_table(limits);
    }
    let of_head = |head| (input.protected(head), input.takes_free(head));
    let first = of_head(0);
    if (1..lists).all(|head| of_head(head) == first) {
        let ((sinks, recent), takes_free) = first;
        return Limits::Alike { sinks, recent, takes_free };
    }
    let (protected, takes_free): (Vec<_>, Vec<_>) = (0..lists).map(of_head).unzip();
    let (sinks, recent): (Vec<usize>, Vec<usize>) = protected.into_iter().unzip();
    let numbers = recent.into_iter().zip(takes_free);
    let token = numbers.map(|(recent, takes_free)| [recent, usize::from(takes_free)]).collect();
    of_table(&EvictLimits::new(&vec![0; lists], &sinks, &[token], &input.scores.device()))
}

/// Refuses what [`evict`] does.
pub(crate) fn check_evict(input: &EvictInput<'_>) -> Result<()> {
    check("evict", input)?.tensors(11)
}

/// Refuses what [`evict_merging`] does.
pub(crate) fn check_evict_merging(input: &EvictInput<'_>, merge: &EvictMergeInput) -> Result<()> {
    let check = check("evict_merging", input)?;
    if let Some(before) = &merge.before {
        check.shape("before", before.dims(), [input.scores.dims()[0], 1])?;
        check.f32("before", before.dtype())?;
    }
    check.tensors(12)
}

/// Refuses what [`evict_spreading`] does.
pub(crate) fn check_evict_spreading(
    input: &EvictInput<'_>,
    spread: &EvictSpreadInput,
) -> Result<()> {
    let check = check("evict_spreading", input)?;
    let EvictSpreadInput { attention, drawn, window } = spread;
    for (what, numbers) in [("attention", attention), ("drawn", drawn)] {
        check.shape(what, numbers.dims(), input.scores.dims())?;
        check.f32(what, numbers.dtype())?;
    }
    check.some([("window", *window)])?;
    // Columns of the window, and what units share.
    check.shared_bytes((window + UNITS) * size_of::<u32>())?;
    check.tensors(11)
}

/// Refuses entries that do not fit each other.
fn check(operation: &'static str, input: &EvictInput<'_>) -> Result<Check> {
    let check = Check::new(operation, &input.scores.device())?;
    let EvictInput { rows, positions, statistics, counted, scores, recent, takes_free, .. } = input;
    let [batch, heads, columns] = scores.dims();
    let lists = batch * heads;
    check.some([("batch", batch), ("heads", heads)])?;
    check.value("columns", columns, columns > 1, "2 or more")?;
    check.f32("scores", scores.dtype())?;
    check.equal("the length of recent", recent.len(), lists)?;
    let (found, fits) = (takes_free.len(), [0, lists].contains(&takes_free.len()));
    check.value("the length of takes_free", found, fits, format!("0 or {lists}"))?;
    if let Some(limits) = input.limits {
        check_limits(&check, limits, lists, kernel::NUMBERS)?;
    }
    let width = match rows {
        SlotRows::Dense { keys, values } => {
            let [_, _, slots, channels] = keys.dims();
            check.some([("channels", channels)])?;
            check.shape("keys", keys.dims(), [batch, heads, slots, channels])?;
            check.value("slots", slots, slots >= columns, format!("at least {columns}"))?;
            check.values("values", values.dims(), keys.dims())?;
            check.same_type("values", values.dtype(), keys.dtype())?;
            check.countable("keys", &keys.dims())?;
            slots
        }
        SlotRows::Ragged { keys, values, offsets, counts, new_keys, new_values, new_positions } => {
            let [total, channels] = keys.dims();
            check.some([("channels", channels)])?;
            check.equal("the length of counts", counts.len(), lists)?;
            for &count in *counts {
                check.value("counts", count, count < columns, format!("below {columns}"))?;
            }
            check.equal("the rows of keys", total, counts.iter().sum())?;
            check.values("values", values.dims(), keys.dims())?;
            check.shape("offsets", offsets.dims(), [lists + 1])?;
            let new = [batch, heads, 1, channels];
            check.shape("new_keys", new_keys.dims(), new)?;
            check.shape("new_values", new_values.dims(), new)?;
            check.shape("new_positions", new_positions.dims(), [batch, heads, 1])?;
            check.same_type("values", values.dtype(), keys.dtype())?;
            check.same_type("new_keys", new_keys.dtype(), keys.dtype())?;
            check.same_type("new_values", new_values.dtype(), keys.dtype())?;
            check.same_type("new_positions", new_positions.dtype(), positions.dtype())?;
            check.countable("keys", &keys.dims())?;
            columns - 1
        }
    };
    check.shape("positions", positions.dims(), [batch, heads, width])?;
    statistics::check_counted(&check, statistics, counted, [batch, heads, width, columns])?;
    check.countable("scores", &[batch, heads, columns])?;
    check.at_most("the number of columns", columns, i32::MAX as usize)?;
    check.cubes(cubes_of_rows(lists))?;
    Ok(check)
}
