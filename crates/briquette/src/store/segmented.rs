use std::sync::OnceLock;

use burn::tensor::{Int, Tensor};

use super::{
    DenseStore, Eviction, SlotStore, Store, StoreOptions, StoreQuery, dense::write_statistics,
    interface::attend_entries, join::append_entries, layout::Layout, replay::ReplayStore,
    slots::misfit, tokens::Tokens,
};
use crate::{
    Result,
    columns::longest,
    ops::{
        AttentionOutput, AttentionStatistics, Clustering, Entries, Selection, Tail, bucketed_width,
        gather_positions, gather_scalars,
    },
    prefix::Parts,
    state::StateVisitor,
};

/// Entries in a layout of their own, which change only when all of them are replaced. [`Segmented`]
/// completes them to a store.
pub(super) trait Body: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Whether several tokens share an entry.
    const CLUSTERED: bool;

    /// Whether [`attend`](Self::attend) takes a tail that the device counts.
    const COUNTS_TAIL: bool;

    /// Its tokens, and the layout of its rows.
    fn tokens(&self) -> &Tokens;

    fn tokens_mut(&mut self) -> &mut Tokens;

    /// Keys and values of all its entries, `[total, head_dim]` and `[total, value_dim]`.
    fn rows(&self) -> [&Tensor<2>; 2];

    /// Whether a token appended to heads that hold `held` tokens can take an entry's place.
    fn can_evict(&self, held: &[usize]) -> bool {
        held == self.tokens().layout.counts
    }

    /// Number of columns for the tokens of a head, where tokens share entries.
    fn token_columns(&self) -> Option<usize> {
        None
    }

    /// Number of entries of each head, when heads hold `held` tokens.
    fn entry_counts(&self, _held: &[usize]) -> Vec<usize> {
        self.tokens().layout.counts.clone()
    }

    /// Number of its rows without an entry, when heads hold `held` tokens.
    fn free_rows(&self, held: &[usize]) -> usize {
        self.tokens().layout.total().saturating_sub(held.iter().sum())
    }

    /// Gives each head rows, of which those behind its entries are free, and columns of tokens: see
    /// [`SlotStore::add_rows`].
    fn add_rows(&mut self, _rows: &[usize], _columns: usize, _options: &StoreOptions) -> bool {
        false
    }

    /// Counts a token: see [`SlotStore::count_token`].
    fn count_token(&mut self, _takes_free: &[bool], _held: &[usize]) {}

    /// Evicts the weakest entry of each head, which may be the new `token`; otherwise the token
    /// takes its place. See [`SlotStore::evict`].
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation); nothing is changed then.
    fn evict(
        &mut self,
        token: Entries,
        eviction: &Eviction,
        counted: AttentionStatistics,
        options: &StoreOptions,
    ) -> Result<Option<Tensor<2>>>;

    /// The same entries, laid out by position.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation).
    fn ordered(&self, options: &StoreOptions) -> Result<Self>;

    /// Packs entries, of which each batch row and head holds the last `counts`; gives them back if
    /// packing gains nothing. `before` is the last layout.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation).
    fn pack(
        entries: Entries,
        counts: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Result<Packing<Self>>;

    /// Lays out keys and values of all its entries and of a tail; heads that hold fewer are padded
    /// at the left. Tokens that share an entry have one row.
    fn pad(&self, tail: Tail, options: &StoreOptions) -> Result<[Tensor<4>; 2]> {
        self.tokens().layout.pad(self.rows().map(Tensor::clone), tail, options.ops.as_ref())
    }

    /// The clusters of tokens that share entries, if there are any.
    fn clustering(&self) -> Option<Clustering> {
        None
    }

    /// Computes attention of one query per head over these entries and a tail without padding, in
    /// this layout; `None` if no kernel supports it. The device may count the entries of the tail,
    /// `[batch · kv_heads]`. With `has_free_slots`, entries at position −1 are not attended to.
    fn attend(
        &self,
        tail: (Tail, Option<Tensor<1, Int>>),
        input: &StoreQuery<'_>,
        has_free_slots: bool,
    ) -> Result<Option<AttentionOutput>>;

    /// Visits its tensors, see [`Replay::visit_state`](crate::state::Replay::visit_state).
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor);

    fn bytes(&self) -> usize;

    /// The parts of a file.
    fn save(&self) -> Result<Parts>;

    /// Restores the body that [`save`](Self::save) wrote.
    fn restore(parts: Parts, options: &StoreOptions) -> Result<Self>;

    /// Returns the body of these rows; `options` are those of its store.
    fn select_rows(&self, rows: &[usize], options: &StoreOptions) -> Self;

    /// Bytes of a body and a tail that hold `entries` entries and `columns` columns per head
    /// together, in rectangles as wide as `width` says of the rows of the longest head.
    fn bytes_of(
        options: &StoreOptions,
        entries: usize,
        columns: usize,
        width: fn(usize) -> usize,
    ) -> usize;
}

/// Packed entries, or the entries given back.
pub(super) enum Packing<B> {
    /// In the layout of the body.
    Packed(B),
    /// The body gains nothing by holding them.
    AsTheyAre(Box<Entries>),
}

/// A tail of no entries.
pub(super) fn no_tail(options: &StoreOptions) -> Tail {
    let StoreOptions { shape, value_dim, batch, dtype, ref device, .. } = *options;
    let row = |channels| Tensor::empty([batch, shape.kv_heads, 1, channels], (device, dtype));
    Tail { keys: row(shape.head_dim), values: row(value_dim), entries: 0 }
}

/// A body, and behind it a tail of newer entries in buffers that are written in place.
#[derive(Clone, Debug)]
pub(super) struct Segmented<B> {
    options: StoreOptions,
    body: Option<B>,
    tail: DenseStore,
    /// Whether a column of the tail is padding in some row.
    padded: bool,
    /// Whether the columns of the body are not in the order of their positions.
    unordered: bool,
    /// Whether the body may have free slots.
    has_free_slots: bool,
    /// Whether a kernel attends to the body in its own layout, known once a query has attended to
    /// it.
    reads_body: OnceLock<bool>,
}

impl<B: Body> Segmented<B> {
    pub(super) fn new(options: StoreOptions) -> Self {
        let tail = DenseStore::new(options.clone());
        Self {
            tail,
            options,
            body: None,
            padded: false,
            unordered: false,
            has_free_slots: false,
            reads_body: OnceLock::new(),
        }
    }

    /// Restores the store that [`save`](Store::save) wrote.
    pub(super) fn restore(options: StoreOptions, mut parts: Parts) -> Result<Self> {
        let padded = parts.take_number("padded")? == 1;
        let packed = parts.take_number("packed")? == 1;
        let unordered = parts.take_number("unordered")? == 1;
        let tail = DenseStore::restore(options.clone(), parts.take_parts("tail"))?;
        let body = || B::restore(parts.take_parts("body"), &options);
        let body = packed.then(body).transpose()?;
        parts.finish()?;
        Ok(Self { body, tail, padded, unordered, ..Self::new(options) })
    }

    fn tail(&self) -> Tail {
        let columns = self.tail.columns();
        match self.tail.buffers() {
            Some((keys, values)) => Tail { keys, values, entries: columns },
            None => no_tail(&self.options),
        }
    }

    /// Returns the entries in storage order; without `with_rows`, keys and values are those of one
    /// token.
    fn as_they_lie(&self, with_rows: bool) -> Result<Entries> {
        let Some(body) = &self.body else { return Ok(self.tail.as_they_lie()) };
        let (positions, statistics) = self.scalars_as_they_lie();
        let tail = self.tail();
        let clustering = body.clustering().map(|clustering| clustering.followed_by(tail.entries));
        let [keys, values] = match with_rows {
            true => body.pad(tail, &self.options)?,
            false => [tail.keys, tail.values].map(|rows| rows.narrow(2, 0, 1)),
        };
        Ok(Entries { keys, values, positions, statistics, clustering })
    }

    fn scalars_as_they_lie(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        let of_tail = || (self.tail.positions_as_they_lie(), self.tail.statistics_as_they_lie());
        let Some(body) = &self.body else { return of_tail() };
        let tokens = body.tokens();
        let (positions, statistics) = (tokens.positions.clone(), tokens.statistics.clone());
        if self.tail.columns() == 0 {
            return (positions, statistics);
        }
        let (newer, of_newer) = of_tail();
        let statistics = statistics.zip(of_newer, |one, more| Tensor::cat(vec![one, more], 2));
        (Tensor::cat(vec![positions, newer], 2), statistics)
    }

    fn body_columns(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.tokens().width())
    }
}

impl<B: Body> Store for Segmented<B> {
    fn columns(&self) -> usize {
        self.body_columns() + self.tail.columns()
    }

    fn capacity(&self) -> usize {
        self.body_columns() + self.tail.capacity()
    }

    fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, B::bytes) + self.tail.bytes()
    }

    fn spare_bytes(&self) -> usize {
        self.tail.spare_bytes()
    }

    fn free_slot_bytes(&self, held: &[usize]) -> usize {
        match &self.body {
            Some(body) if self.has_free_slots => {
                let slots = body.tokens().layout.total();
                body.bytes() / slots.max(1) * body.free_rows(held)
            }
            Some(_) => 0,
            None => self.tail.free_slot_bytes(held),
        }
    }

    fn bytes_of(&self, entries: usize, columns: usize) -> usize {
        B::bytes_of(&self.options, entries, columns, Layout::most_width)
    }

    fn bytes_of_prompt(&self, entries: usize, columns: usize) -> usize {
        B::bytes_of(&self.options, entries, columns, bucketed_width)
    }

    fn is_clustered(&self) -> bool {
        B::CLUSTERED && self.body.is_some()
    }

    fn least_bytes(&self, capacity: usize) -> usize {
        if self.columns() == 0 {
            // It may pack all that comes.
            return self.bytes();
        }
        let tail = self.tail.least_bytes(capacity.saturating_sub(self.body_columns()));
        self.body.as_ref().map_or(0, B::bytes) + tail
    }

    fn reserve(&mut self, capacity: usize) {
        self.tail.reserve(capacity.saturating_sub(self.body_columns()));
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        let columns = entries.columns();
        self.tail.append(entries, counts)?;
        self.padded |= counts.iter().any(|&count| count != columns);
        Ok(())
    }

    fn truncate(&mut self, columns: usize) {
        self.tail.truncate(columns.saturating_sub(self.body_columns()));
    }

    fn packed_columns(&self) -> usize {
        self.body_columns()
    }

    fn entries(&self) -> Result<Entries> {
        if self.body.is_none() {
            return Ok(self.tail.held());
        }
        if !self.unordered {
            return self.as_they_lie(true);
        }
        let mut ordered = self.clone();
        ordered.order()?;
        ordered.as_they_lie(true)
    }

    fn entries_at(&self, positions: Tensor<3, Int>) -> Result<Entries> {
        let statistics = AttentionStatistics::default();
        let Some(body) = self.body.as_ref().filter(|_| !self.unordered) else {
            return Ok(Entries { positions, statistics, ..self.entries()? });
        };
        let tail = self.tail();
        let clustering = body.clustering().map(|clustering| clustering.followed_by(tail.entries));
        let [keys, values] = body.pad(tail, &self.options)?;
        Ok(Entries { keys, values, positions, statistics, clustering })
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.scalars().0
    }

    fn statistics(&self) -> AttentionStatistics {
        let of_tail = self.tail.statistics_as_they_lie();
        if of_tail.is_empty() { of_tail } else { self.scalars().1 }
    }

    fn scalars(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        if self.body.is_none() {
            return self.tail.scalars();
        }
        let (positions, statistics) = self.scalars_as_they_lie();
        // Of clusters only rows lie in no order.
        if B::CLUSTERED || !self.unordered {
            return (positions, statistics);
        }
        let order = Selection::by_position(positions.clone());
        let statistics = statistics.map(|statistics| gather_scalars(statistics, &order));
        (gather_positions(positions, &order), statistics)
    }

    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        let one = input.queries.dims()[2] == 1 && !self.padded;
        let Some(body) = &self.body else { return self.tail.attend(input) };
        if let (true, Some((keys, values))) = (one, self.tail.buffers()) {
            let (counts, entries) = match self.tail.counted() {
                Some((counts, end)) => (Some(counts), end),
                None => (None, self.tail.columns()),
            };
            let tail = (Tail { keys, values, entries }, counts);
            let found = body.attend(tail, &input, self.has_free_slots)?;
            self.reads_body.get_or_init(|| found.is_some());
            if let Some(output) = found {
                return Ok(output);
            }
        }
        let entries = self.as_they_lie(true)?;
        let input = match one && self.knows_padding() {
            true => input.told_of(&entries),
            false => input,
        };
        attend_entries(entries, input)
    }

    fn knows_padding(&self) -> bool {
        B::COUNTS_TAIL && self.body.is_some() && !self.padded
    }

    fn set_statistics(&mut self, statistics: AttentionStatistics) {
        let columns = self.body_columns();
        let tail = self.tail.columns();
        if let Some(body) = &mut self.body {
            let own = statistics.clone().map(|one| one.narrow(2, 0, columns));
            write_statistics(&mut body.tokens_mut().statistics, own, 0);
        }
        if tail > 0 {
            self.tail.set_statistics(statistics.map(|one| one.narrow(2, columns, tail)));
        }
    }

    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()> {
        let columns = entries.columns();
        let before = self.body.as_ref().map(|body| body.tokens().layout.clone());
        let packed = B::pack(entries, counts, before, &self.options)?;
        (self.padded, self.unordered, self.has_free_slots) = (false, false, false);
        match packed {
            Packing::Packed(body) => self.body = Some(body),
            Packing::AsTheyAre(entries) => {
                self.body = None;
                self.tail.hold(*entries, capacity);
                return Ok(());
            }
        }
        let room = capacity.saturating_sub(columns);
        self.tail.truncate(0);
        if self.tail.capacity() > room {
            self.tail = DenseStore::new(self.options.clone());
        }
        self.tail.reserve(room);
        Ok(())
    }

    fn replay(&mut self) -> Option<&mut dyn ReplayStore> {
        Some(self)
    }

    fn in_place(&mut self) -> Option<&mut dyn SlotStore> {
        (self.body.is_some() || !B::CLUSTERED).then_some(self)
    }

    fn save(&self) -> Result<Option<Parts>> {
        let mut parts = Parts::default();
        parts.put_numbers("padded", [usize::from(self.padded)]);
        parts.put_numbers("packed", [usize::from(self.body.is_some())]);
        parts.put_numbers("unordered", [usize::from(self.unordered)]);
        parts.put_parts("tail", self.tail.parts()?);
        if let Some(body) = &self.body {
            parts.put_parts("body", body.save()?);
        }
        Ok(Some(parts))
    }

    fn select_rows(&self, rows: &[usize], counts: &[usize]) -> Option<Box<dyn Store>> {
        let options = self.options.with_batch(rows.len());
        // Columns of a tail behind a body are tokens of every row.
        let columns = match self.body {
            Some(_) => self.tail.columns(),
            None => longest(counts),
        };
        Some(Box::new(Self {
            body: self.body.as_ref().map(|body| body.select_rows(rows, &options)),
            tail: self.tail.of_rows(rows, columns),
            padded: self.padded,
            unordered: self.unordered,
            has_free_slots: self.has_free_slots,
            ..Self::new(options)
        }))
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

impl<B: Body> SlotStore for Segmented<B> {
    fn can_evict(&self, held: &[usize]) -> bool {
        match &self.body {
            _ if self.padded => false,
            None => self.tail.can_evict(held),
            Some(body) => self.tail.columns() == 0 && (self.has_free_slots || body.can_evict(held)),
        }
    }

    fn entry_counts(&self, held: &[usize]) -> Vec<usize> {
        match &self.body {
            Some(body) => body.entry_counts(held),
            None => held.to_vec(),
        }
    }

    fn token_columns(&self) -> Option<usize> {
        self.body.as_ref().and_then(B::token_columns)
    }

    fn slots(&self, with_rows: bool) -> Result<Entries> {
        self.as_they_lie(with_rows)
    }

    fn evict(
        &mut self,
        eviction: &Eviction,
        counted: AttentionStatistics,
    ) -> Result<Option<Tensor<2>>> {
        let Some(body) = &mut self.body else { return self.tail.evict(eviction, counted) };
        let token = self.tail.as_they_lie();
        let threshold = body.evict(token, eviction, counted, &self.options)?;
        self.tail.truncate(0);
        self.unordered = true;
        Ok(threshold)
    }

    fn hold_slots(&mut self, entries: Entries, slots: &[usize]) -> Result<()> {
        let capacity = entries.columns() + 1;
        if slots.iter().all(|&slots| slots + 1 == capacity) {
            (self.body, self.padded, self.unordered) = (None, false, false);
            return self.tail.hold_slots(entries, slots);
        }
        self.replace(entries, slots, capacity)?;
        (self.unordered, self.has_free_slots) = (true, true);
        Ok(())
    }

    fn add_rows(&mut self, rows: &[usize], columns: usize) -> Result<()> {
        let is_whole = self.tail.columns() == 0;
        let body = self.body.as_mut().filter(|_| is_whole);
        if !body.is_some_and(|body| body.add_rows(rows, columns, &self.options)) {
            return Err(misfit("has tokens without an entry, or takes no free rows"));
        }
        (self.unordered, self.has_free_slots) = (true, true);
        Ok(())
    }

    fn count_token(&mut self, takes_free: &[bool], held: &[usize]) {
        if let Some(body) = &mut self.body {
            body.count_token(takes_free, held);
        }
    }

    fn slots_with_free(&self) -> Option<Vec<usize>> {
        match &self.body {
            Some(body) => self.has_free_slots.then(|| body.tokens().layout.counts.clone()),
            None => self.tail.slots_with_free(),
        }
    }

    fn fill_slots(&mut self) {
        self.has_free_slots = false;
        self.tail.fill_slots();
    }

    fn is_unordered(&self) -> bool {
        if self.body.is_some() { self.unordered } else { self.tail.is_unordered() }
    }

    fn order(&mut self) -> Result<()> {
        let Some(body) = &self.body else { return self.tail.order() };
        if !self.unordered {
            return Ok(());
        }
        self.body = Some(body.ordered(&self.options)?);
        self.unordered = false;
        Ok(())
    }
}

impl<B: Body> ReplayStore for Segmented<B> {
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        let flags = [self.padded, self.body.is_some(), self.unordered, self.has_free_slots];
        visitor.numbers(&flags.map(usize::from));
        if let Some(body) = &mut self.body {
            body.visit_state(visitor);
        }
        self.tail.visit_state(visitor);
    }

    fn begin_device_indexing(&mut self, more: usize) -> bool {
        self.open_columns().is_some() && self.tail.begin_device_indexing(more)
    }

    fn end_device_indexing(&mut self) {
        self.tail.end_device_indexing();
    }

    fn indexes_on_device(&self) -> bool {
        self.tail.indexes_on_device()
    }

    /// `None` for heads of different lengths until a kernel is known to read their layout. Without
    /// one they are laid out in every call, as wide as they are then.
    fn open_columns(&self) -> Option<usize> {
        let reads = B::COUNTS_TAIL && !self.padded && self.reads_body.get() == Some(&true);
        let can = self.body.is_none() && !B::CLUSTERED || reads && !self.has_free_slots;
        self.tail.open_columns().filter(|_| can)
    }

    fn advance(&mut self) {
        self.tail.advance();
    }
}
