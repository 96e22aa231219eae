use std::ops::Range;

use burn::tensor::{Int, Tensor, kind::Basic};
use serde::{Deserialize, Serialize};

use super::{
    Eviction, SlotStore, Store, StoreBuilder, StoreOptions, StoreQuery,
    buffer::zeros,
    interface::{attend_entries, sees_all},
    join::append_entries,
    replay::ReplayStore,
};
use crate::{
    Result,
    columns::longest,
    ops::{
        AppendColumn, AppendInput, AttentionOutput, AttentionStatistics, DenseKv, Entries,
        KvLayout, Selection, SlotRows, Visibility, constant_ints, gather_entries, gather_positions,
        gather_scalars,
    },
    position::Encode,
    prefix::{Parts, PrefixError},
    rows::select_rows,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_statistics},
};

/// Holds keys and values in one buffer each, with all heads of the same length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {}

impl StoreBuilder for Dense {
    fn name(&self) -> &str {
        "dense"
    }

    fn holds_value_dims(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(DenseStore::new(options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(DenseStore::restore(options, parts)?)))
    }
}

/// The store of [`Dense`]: buffers with room for more columns than they hold, written in place.
#[derive(Clone, Debug)]
pub struct DenseStore {
    options: StoreOptions,
    /// Buffers as wide as the capacity.
    buffers: Option<Entries>,
    columns: usize,
    /// The index of the next column, where the device counts it.
    next: Option<DeviceIndex>,
    /// Whether columns are not in the order of their positions, since entries are evicted in place.
    unordered: bool,
    /// Whether columns may be free slots, at position −1.
    has_free_slots: bool,
}

/// Index of the next column, counted by the device.
#[derive(Clone, Debug)]
struct DeviceIndex {
    /// The index, for each head, `[batch · kv_heads]`.
    next: Tensor<1, Int>,
    /// Number of columns that are attended to: those held, and those with room.
    end: usize,
}

impl DenseStore {
    pub(super) fn new(options: StoreOptions) -> Self {
        Self {
            options,
            buffers: None,
            columns: 0,
            next: None,
            unordered: false,
            has_free_slots: false,
        }
    }

    /// Creates buffers of `columns` columns without entries.
    pub(super) fn empty(&self, columns: usize) -> Entries {
        let StoreOptions { shape, value_dim, batch, dtype, observes, .. } = self.options;
        let (device, ops) = (&self.options.device, self.options.ops.as_ref());
        let rows = |channels| {
            let shape = [batch, shape.kv_heads, columns, channels];
            zeros(shape, dtype, device, ops)
        };
        Entries {
            keys: rows(shape.head_dim),
            values: rows(value_dim),
            positions: Tensor::full([batch, shape.kv_heads, columns], -1, device),
            statistics: statistics::zeros(observes, shape, batch, columns, device),
            clustering: None,
        }
    }

    /// Restores a store from its [`parts`](Self::parts).
    pub(super) fn restore(options: StoreOptions, mut parts: Parts) -> Result<Self> {
        let (columns, capacity) = (parts.take_number("columns")?, parts.take_number("capacity")?);
        if columns > capacity {
            let reason = format!("are {columns}, more than the {capacity} there is room for");
            return Err(PrefixError::contents("columns", reason).into());
        }
        let mut store = Self::new(options);
        store.reserve(capacity);
        if columns > 0 {
            let device = store.options.device.clone();
            let none = store.empty(columns);
            let entries = Entries {
                keys: parts.take_float("keys", none.keys.dims(), &device)?,
                values: parts.take_float("values", none.values.dims(), &device)?,
                positions: parts.take_int("positions", none.positions.dims(), None, &device)?,
                statistics: statistics::restore(none.statistics, &mut parts, &device)?,
                clustering: None,
            };
            store.write(entries, 0);
        }
        store.unordered = parts.take_number("unordered")? == 1;
        parts.finish()?;
        Ok(store)
    }

    /// The parts of a file: the columns held, and the capacity.
    pub(super) fn parts(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put_numbers("columns", [self.columns]);
        parts.put_numbers("capacity", [self.capacity()]);
        parts.put_numbers("unordered", [usize::from(self.unordered)]);
        if self.columns > 0 {
            let Entries { keys, values, positions, statistics, .. } = self.as_they_lie();
            parts.put("keys", &keys)?;
            parts.put("values", &values)?;
            parts.put("positions", &positions)?;
            statistics::save(&statistics, &mut parts)?;
        }
        Ok(parts)
    }

    /// Returns a store of these rows, each with its last `columns` columns and the room behind
    /// them. The only row of a store is repeated as a view, until a row is written to.
    pub(super) fn of_rows(&self, rows: &[usize], columns: usize) -> Self {
        // Where columns are in no order, none of them is padding of all rows.
        let first = if self.unordered { 0 } else { self.columns.saturating_sub(columns) };
        let selected = |x: Tensor<4>| match x.dims() {
            [1, heads, columns, channels] => x.expand([rows.len(), heads, columns, channels]),
            _ => select_rows(x, rows),
        };
        let capacity = self.capacity();
        let buffers = self.buffers.as_ref().filter(|_| first < capacity).map(|buffers| {
            let held = if first > 0 { part(buffers, first..capacity) } else { buffers.clone() };
            Entries {
                keys: selected(held.keys),
                values: selected(held.values),
                positions: select_rows(held.positions, rows),
                statistics: statistics::select_rows(held.statistics, rows),
                clustering: None,
            }
        });
        let Self { columns, unordered, has_free_slots, .. } = *self;
        Self {
            options: self.options.with_batch(rows.len()),
            buffers,
            columns: columns - first,
            next: None,
            unordered,
            has_free_slots,
        }
    }

    /// The entries held, by position.
    pub(super) fn held(&self) -> Entries {
        let lie = self.as_they_lie();
        match self.by_position() {
            Some(order) => gather_entries(lie, &order),
            None => lie,
        }
    }

    /// The entries held, in storage order.
    pub(super) fn as_they_lie(&self) -> Entries {
        match &self.buffers {
            Some(buffers) if self.columns > 0 => first(buffers, self.columns),
            _ => self.empty(0),
        }
    }

    /// The positions of the entries held, in storage order.
    pub(super) fn positions_as_they_lie(&self) -> Tensor<3, Int> {
        match &self.buffers {
            Some(buffers) if self.columns > 0 => {
                buffers.positions.clone().narrow(2, 0, self.columns)
            }
            _ => self.empty(0).positions,
        }
    }

    /// The statistics of the entries held, in storage order.
    pub(super) fn statistics_as_they_lie(&self) -> AttentionStatistics {
        match &self.buffers {
            Some(buffers) if self.columns > 0 => {
                buffers.statistics.clone().map(|statistics| statistics.narrow(2, 0, self.columns))
            }
            _ => self.empty(0).statistics,
        }
    }

    /// The columns of the entries held, by position; `None` if they are in that order.
    fn by_position(&self) -> Option<Selection> {
        self.unordered.then(|| Selection::by_position(self.positions_as_they_lie()))
    }

    /// Replaces all entries, with room for at most `capacity` columns.
    pub(super) fn hold(&mut self, entries: Entries, capacity: usize) {
        (self.unordered, self.has_free_slots) = (false, false);
        // The device would count on from where it has come to.
        self.next = None;
        let columns = entries.columns();
        // Buffers that are large enough and not too large are kept.
        let capacity = capacity.max(columns);
        if !(columns..=capacity).contains(&self.capacity()) {
            self.buffers = None;
            self.columns = 0;
            self.reserve(capacity);
        }
        self.write(entries, 0);
    }

    /// Keys and values with all spare room, `[batch, kv_heads, capacity, head_dim]`.
    pub(super) fn buffers(&self) -> Option<(Tensor<4>, Tensor<4>)> {
        self.buffers.as_ref().map(|buffers| (buffers.keys.clone(), buffers.values.clone()))
    }

    /// Number of columns of each head, `[batch · kv_heads]`, and the most there may be; `None`
    /// unless the device counts them.
    pub(super) fn counted(&self) -> Option<(Tensor<1, Int>, usize)> {
        self.next.as_ref().map(|index| (index.next.clone(), index.end))
    }

    /// Computes attention of one query over as many entries as the device counts. Without a kernel
    /// it covers all the room, and positions mark the columns where nothing is written.
    fn attend_device_indexed(
        &self,
        buffers: &Entries,
        index: &DeviceIndex,
        mut input: StoreQuery<'_>,
    ) -> Result<AttentionOutput> {
        let DeviceIndex { ref next, end } = *index;
        // All the room there is: the columns held are counted by the host.
        let encode = input.encode.take();
        let encode = encode.map(|encode| Encode { positions: buffers.positions.clone(), ..encode });
        let keys = Encode::keys(encode.as_ref(), buffers.keys.clone(), input.ops)?;
        let keys = keys.cast(buffers.values.dtype());
        let found = input.decode(KvLayout::Dense(DenseKv {
            keys: keys.clone(),
            values: buffers.values.clone(),
            entries: end,
            counts: Some(next.clone()),
            visibility: match &input.visibility {
                Visibility::Causal => Visibility::Causal,
                Visibility::Positions { queries, .. } if input.scoring.reads_positions() => {
                    let queries = queries.clone();
                    Visibility::Positions { queries, entries: buffers.positions.clone() }
                }
                Visibility::Positions { .. } => sees_all(1, buffers.positions.clone()),
            },
        }))?;
        match found {
            Some(output) => Ok(output),
            None => {
                let visibility = match input.scoring.reads_positions() {
                    true => input.visibility,
                    false => sees_all(1, buffers.positions.clone().narrow(2, 0, end)),
                };
                let entries = Entries { keys, ..buffers.clone() };
                attend_entries(first(&entries, end), StoreQuery { visibility, ..input })
            }
        }
    }

    /// Writes an entry behind the others, at the device's index if the device counts them. There
    /// must be room.
    fn append_token(&mut self, token: Entries) -> Result<()> {
        let Some(buffers) = &mut self.buffers else { return Ok(()) };
        let column = match &mut self.next {
            Some(DeviceIndex { next, .. }) => AppendColumn::Counted(next),
            None => AppendColumn::At(self.columns),
        };
        append_token(buffers, token, column, &self.options)?;
        self.columns += 1;
        Ok(())
    }

    /// Writes `entries` at `start`; there must be room.
    fn write(&mut self, entries: Entries, start: usize) {
        let end = start + entries.columns();
        let Some(buffers) = &mut self.buffers else { return };
        write(&mut buffers.keys, entries.keys.cast(self.options.dtype), start);
        write(&mut buffers.values, entries.values.cast(self.options.dtype), start);
        write(&mut buffers.positions, entries.positions, start);
        if entries.statistics.is_empty() {
            buffers.statistics = std::mem::take(&mut buffers.statistics).map(|statistics| {
                let [rows, heads, _] = statistics.dims();
                let zeros = Tensor::zeros(
                    [rows, heads, end - start],
                    (&statistics.device(), statistics.dtype()),
                );
                statistics.slice_assign([0..rows, 0..heads, start..end], zeros)
            });
        } else {
            write_statistics(&mut buffers.statistics, entries.statistics, start);
        }
        self.columns = end;
    }
}

/// Writes a token of each head, without statistics, into a column of `buffers`.
///
/// # Errors
/// [`Error::Operation`](crate::Error::Operation); nothing is written then.
pub(super) fn append_token(
    buffers: &mut Entries,
    token: Entries,
    column: AppendColumn<'_>,
    options: &StoreOptions,
) -> Result<()> {
    let StoreOptions { dtype, ref ops, .. } = *options;
    let Entries { keys, values, positions, statistics, .. } = buffers;
    ops.append(AppendInput {
        keys,
        values,
        positions,
        statistics,
        new_keys: token.keys.cast(dtype),
        new_values: token.values.cast(dtype),
        new_positions: token.positions,
        column,
    })?;
    Ok(())
}

/// Writes `statistics` behind the first `start` columns of their buffers.
pub(super) fn write_statistics(
    buffers: &mut AttentionStatistics,
    statistics: AttentionStatistics,
    start: usize,
) {
    *buffers = std::mem::take(buffers).zip(statistics, |mut buffer, statistic| {
        write(&mut buffer, statistic, start);
        buffer
    });
}

/// Writes `values` into `buffer` behind the first `start` columns (dimension 2). The buffer is
/// moved out and back, so a backend that owns it alone writes in place.
pub(super) fn write<const D: usize, K: Basic>(
    buffer: &mut Tensor<D, K>,
    values: Tensor<D, K>,
    start: usize,
) {
    let mut ranges = buffer.dims().map(|size| 0..size);
    ranges[2] = start..start + values.dims()[2];
    buffer.inplace(|buffer| buffer.slice_assign(ranges, values));
}

/// The first `columns` of `buffers`.
fn first(buffers: &Entries, columns: usize) -> Entries {
    part(buffers, 0..columns)
}

/// A view of these columns of `buffers`.
fn part(buffers: &Entries, columns: Range<usize>) -> Entries {
    let (start, length) = (columns.start, columns.len());
    let Entries { keys, values, positions, statistics, .. } = buffers.clone();
    Entries {
        keys: keys.narrow(2, start, length),
        values: values.narrow(2, start, length),
        positions: positions.narrow(2, start, length),
        statistics: statistics.map(|statistic| statistic.narrow(2, start, length)),
        clustering: None,
    }
}

impl Store for DenseStore {
    fn columns(&self) -> usize {
        self.columns
    }

    fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, Entries::columns)
    }

    fn bytes(&self) -> usize {
        let capacity = self.capacity();
        self.bytes_of(capacity, capacity)
    }

    fn spare_bytes(&self) -> usize {
        self.bytes().saturating_sub(self.bytes_of(self.columns, self.columns))
    }

    fn free_slot_bytes(&self, held: &[usize]) -> usize {
        let most = held.iter().copied().max().unwrap_or(0);
        let free = self.columns.saturating_sub(most);
        if self.has_free_slots { self.bytes_of(free, free) } else { 0 }
    }

    fn bytes_of(&self, _entries: usize, columns: usize) -> usize {
        let pairs = columns.saturating_mul(self.options.pair_bytes());
        pairs.saturating_add(self.options.scalar_row_bytes(columns))
    }

    fn least_bytes(&self, capacity: usize) -> usize {
        let capacity = capacity.max(self.capacity());
        self.bytes_of(capacity, capacity)
    }

    fn reserve(&mut self, capacity: usize) {
        if capacity <= self.capacity() {
            return;
        }
        let held = (self.columns > 0).then(|| self.as_they_lie());
        self.buffers = Some(self.empty(capacity));
        if let Some(held) = held {
            self.write(held, 0);
        }
    }

    fn append(&mut self, entries: Entries, _counts: &[usize]) -> Result<()> {
        let fits = |index: &DeviceIndex| entries.columns() == 1 && self.columns < index.end;
        self.next = self.next.take().filter(fits);
        self.reserve(self.columns + entries.columns());
        if entries.columns() == 1 && entries.statistics.is_empty() {
            return self.append_token(entries);
        }
        self.write(entries, self.columns);
        Ok(())
    }

    fn truncate(&mut self, columns: usize) {
        self.columns = self.columns.min(columns);
        self.unordered &= self.columns > 0;
        self.has_free_slots &= self.columns > 0;
        // The device would count on from where it has come to.
        self.next = None;
    }

    fn entries(&self) -> Result<Entries> {
        Ok(self.held())
    }

    fn positions(&self) -> Tensor<3, Int> {
        let positions = self.positions_as_they_lie();
        match self.by_position() {
            Some(order) => gather_positions(positions, &order),
            None => positions,
        }
    }

    fn statistics(&self) -> AttentionStatistics {
        let statistics = self.statistics_as_they_lie();
        match self.by_position() {
            Some(order) => statistics.map(|statistics| gather_scalars(statistics, &order)),
            None => statistics,
        }
    }

    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        if let (Some(index), Some(buffers), 1) =
            (&self.next, &self.buffers, input.queries.dims()[2])
        {
            return self.attend_device_indexed(buffers, index, input);
        }
        if let (None, Some(buffers)) = (&input.encode, &self.buffers) {
            let kv = KvLayout::Dense(DenseKv {
                keys: buffers.keys.clone(),
                values: buffers.values.clone(),
                entries: self.columns,
                counts: None,
                visibility: input.visibility.clone(),
            });
            if let Some(output) = input.decode(kv)? {
                return Ok(output);
            }
        }
        // The queries' own columns are the last, and see all the others in whatever order.
        attend_entries(self.as_they_lie(), input)
    }

    fn set_statistics(&mut self, statistics: AttentionStatistics) {
        if let Some(buffers) = &mut self.buffers {
            write_statistics(&mut buffers.statistics, statistics, 0);
        }
    }

    fn replace(&mut self, entries: Entries, _: &[usize], capacity: usize) -> Result<()> {
        self.hold(entries, capacity);
        Ok(())
    }

    fn replay(&mut self) -> Option<&mut dyn ReplayStore> {
        Some(self)
    }

    fn in_place(&mut self) -> Option<&mut dyn SlotStore> {
        Some(self)
    }

    fn save(&self) -> Result<Option<Parts>> {
        self.parts().map(Some)
    }

    fn select_rows(&self, rows: &[usize], counts: &[usize]) -> Option<Box<dyn Store>> {
        Some(Box::new(self.of_rows(rows, longest(counts))))
    }

    fn append_rows(
        &self,
        more: &dyn Store,
        counts: [&[usize]; 2],
    ) -> Result<Option<Box<dyn Store>>> {
        append_entries([self, more], counts, &self.options, Self::new)
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}

impl SlotStore for DenseStore {
    fn can_evict(&self, held: &[usize]) -> bool {
        let is_full = held.iter().all(|&held| held == self.columns);
        (is_full || self.has_free_slots) && self.columns > 0 && self.next.is_none()
    }

    fn slots(&self, with_rows: bool) -> Result<Entries> {
        let (Some(buffers), false) = (&self.buffers, with_rows) else {
            return Ok(self.as_they_lie());
        };
        let (positions, statistics) = (self.positions_as_they_lie(), self.statistics_as_they_lie());
        Ok(Entries { positions, statistics, ..buffers.clone() })
    }

    fn evict(
        &mut self,
        eviction: &Eviction,
        counted: AttentionStatistics,
    ) -> Result<Option<Tensor<2>>> {
        let Some(buffers) = &mut self.buffers else { return Ok(None) };
        let Entries { keys, values, positions, statistics, .. } = buffers;
        let rows = SlotRows::Dense { keys, values };
        let input = eviction.input(rows, positions, statistics, counted);
        let threshold = eviction.run(input, self.options.ops.as_ref())?;
        self.columns -= 1;
        self.unordered = true;
        Ok(threshold)
    }

    fn hold_slots(&mut self, entries: Entries, _: &[usize]) -> Result<()> {
        let columns = entries.columns();
        self.hold(entries, columns + 1);
        (self.unordered, self.has_free_slots) = (true, true);
        Ok(())
    }

    fn slots_with_free(&self) -> Option<Vec<usize>> {
        let StoreOptions { batch, shape, .. } = self.options;
        self.has_free_slots.then(|| vec![self.columns; batch * shape.kv_heads])
    }

    fn fill_slots(&mut self) {
        self.has_free_slots = false;
    }

    fn is_unordered(&self) -> bool {
        self.unordered
    }

    fn order(&mut self) -> Result<()> {
        if self.unordered {
            let held = self.held();
            self.unordered = false;
            self.write(held, 0);
        }
        Ok(())
    }
}

impl ReplayStore for DenseStore {
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        match &mut self.next {
            // Columns are counted by the device.
            Some(DeviceIndex { next, end }) => {
                visitor.tensor(StateTensor::Int1(next));
                visitor.number(*end);
            }
            None => visitor.number(self.columns),
        }
        visitor.number(self.capacity());
        visitor.numbers(&[self.unordered, self.has_free_slots].map(usize::from));
        if let Some(Entries { keys, values, positions, statistics, .. }) = &mut self.buffers {
            visitor.tensor(StateTensor::Float4(keys));
            visitor.tensor(StateTensor::Float4(values));
            visitor.tensor(StateTensor::Int3(positions));
            visit_statistics(statistics, visitor);
        }
    }

    fn begin_device_indexing(&mut self, more: usize) -> bool {
        let counts = self.options.observes.counts_queries();
        if self.unordered || self.buffers.is_none() || counts {
            return false;
        }
        self.reserve(self.columns + more);
        let StoreOptions { batch, shape, ref device, .. } = self.options;
        let Some(buffers) = &mut self.buffers else { return false };
        let end = self.columns + more;
        let rest = buffers.columns() - self.columns;
        if rest > 0 {
            // What was held before may stand there.
            let nothing = Tensor::full([batch, shape.kv_heads, rest], -1, device);
            write(&mut buffers.positions, nothing, self.columns);
        }
        let heads = batch * shape.kv_heads;
        let next = constant_ints("next", vec![self.columns as i64; heads], [heads], device);
        let next = next.cast(buffers.positions.dtype()).add_scalar(0);
        self.next = Some(DeviceIndex { next, end });
        true
    }

    fn end_device_indexing(&mut self) {
        self.next = None;
    }

    fn indexes_on_device(&self) -> bool {
        self.next.is_some()
    }

    fn encodes_what_it_counts(&self) -> bool {
        true
    }

    fn open_columns(&self) -> Option<usize> {
        let counts = self.buffers.is_none() || self.options.observes.counts_queries();
        let free = |index: &DeviceIndex| index.end.saturating_sub(self.columns);
        (!counts).then(|| self.next.as_ref().map_or(0, free))
    }

    fn advance(&mut self) {
        self.columns += 1;
    }
}
