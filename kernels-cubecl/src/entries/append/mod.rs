mod backend;
mod kernel;

use briquette_ops::{AppendColumn, AppendInput, Result, constant_floats, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::{AppendBackend, Buffers, Column, New};
use crate::common::{check::Check, rows::cubes_of_rows, statistics};

/// Writes a new token per head behind the entries of a layer: its key, its value, its position, and
/// zeros for its statistics. Where the device counts columns, it counts on, or down.
///
/// Tensors that nobody else holds are changed in place, others copied before. A cube of 64 units a
/// head, in one launch; it reads and writes 2 · head_dim numbers.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, or the device has no kernels
/// or cannot launch so much. Nothing is changed then.
pub fn append(input: AppendInput<'_>) -> Result<()> {
    check_append(&input)?;
    append_checked(input);
    Ok(())
}

/// As [`append`], of an input that [`check_append`] has let through.
pub(crate) fn append_checked(input: AppendInput<'_>) {
    let AppendInput { keys, values, positions, statistics, new_keys, new_values, .. } = input;
    let is_tracked = !statistics.is_empty();
    let device = new_keys.device();
    // What is not looked at: another tensor stands in.
    let mut none = constant_floats("no statistics", vec![0.0], [1, 1, 1], &device);
    let stacked = match statistics.stacked_mut() {
        Some(statistics) => statistics,
        None => &mut none,
    };
    let mut nowhere = constant_ints("no column", vec![0], [1], &device);
    let (counted, column) = match input.column {
        AppendColumn::At(column) => (&mut nowhere, Column::At(column)),
        AppendColumn::Counted(counted) => (counted, Column::Counted),
        AppendColumn::CountedDown(counted) => (counted, Column::CountedDown),
    };
    let new = New {
        keys: new_keys.into_dispatch(),
        values: new_values.into_dispatch(),
        positions: input.new_positions.cast(positions.dtype()).into_dispatch(),
    };
    let buffers = Buffers {
        keys: keys.extract().into_dispatch(),
        values: values.extract().into_dispatch(),
        positions: positions.extract().into_dispatch(),
        statistics: stacked.extract().into_dispatch(),
        counted: counted.extract().into_dispatch(),
    };
    let buffers = Dispatch::append(buffers, new, column, is_tracked);
    *keys = Tensor::from_dispatch(buffers.keys);
    *values = Tensor::from_dispatch(buffers.values);
    *positions = Tensor::from_dispatch(buffers.positions);
    *stacked = Tensor::from_dispatch(buffers.statistics);
    *counted = Tensor::from_dispatch(buffers.counted);
}

/// Refuses what [`append`] does.
pub(crate) fn check_append(input: &AppendInput<'_>) -> Result<()> {
    let check = Check::new("append", &input.new_keys.device())?;
    let AppendInput { keys, values, positions, statistics, new_keys, new_values, .. } = input;
    let [batch, heads, capacity, channels] = keys.dims();
    let lists = batch * heads;
    check.some([("batch", batch), ("heads", heads), ("channels", channels)])?;
    check.values("values", values.dims(), keys.dims())?;
    check.same_type("values", values.dtype(), keys.dtype())?;
    check.shape("positions", positions.dims(), [batch, heads, capacity])?;
    statistics::check(&check, statistics, [batch, heads, capacity])?;
    let new = [batch, heads, 1, channels];
    check.shape("new_keys", new_keys.dims(), new)?;
    check.shape("new_values", new_values.dims(), new)?;
    check.shape("new_positions", input.new_positions.dims(), [batch, heads, 1])?;
    check.same_type("new_keys", new_keys.dtype(), keys.dtype())?;
    check.same_type("new_values", new_values.dtype(), keys.dtype())?;
    match &input.column {
        AppendColumn::At(column) => {
            let fits = *column < capacity;
            check.value("column", *column, fits, format!("below {capacity}, the capacity"))?;
        }
        AppendColumn::Counted(counted) | AppendColumn::CountedDown(counted) => {
            check.shape("counted", counted.dims(), [lists])?;
            check.same_type("counted", counted.dtype(), positions.dtype())?;
        }
    }
    check.countable("keys", &keys.dims())?;
    check.tensors(8)?;
    check.cubes(cubes_of_rows(lists))
}
