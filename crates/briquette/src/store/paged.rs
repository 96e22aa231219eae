use std::{any::Any, ops::Range, sync::OnceLock};

use burn::tensor::{DType, Int, Tensor, kind::Basic};

use super::{
    Store, StoreOptions, StoreQuery,
    channels::Channels,
    codec::Codec,
    interface::attend_entries,
    page_table::{PageIndex, PageTable},
    page_tail::PageTail,
    pages::{Pages, side_by_side, upload},
    replay::ReplayStore,
};
use crate::{
    Result,
    ops::{
        AttentionOutput, AttentionStatistics, Entries, KvLayout, QuantizedKv, Selection,
        gather_positions, gather_rows, gather_scalars, padding_mask,
    },
    prefix::{Parts, PrefixError},
    stage::statistics,
    state::StateVisitor,
};

/// Pages of tokens of each head, packed by a codec, and behind them the last tokens unpacked.
#[derive(Clone, Debug)]
pub(super) struct PagedStore<C> {
    codec: C,
    options: StoreOptions,
    pages: Option<Pages>,
    table: PageTable,
    tail: PageTail,
    /// Whether a kernel reads packed pages, known once a query has attended to them.
    reads_pages: OnceLock<bool>,
    /// Number of columns that still have room, where the device counts tokens.
    open: Option<usize>,
    /// The channels of keys that pages hold, where they hold fewer than there are.
    channels: Option<Channels>,
}

impl<C: Codec> PagedStore<C> {
    pub(super) fn new(codec: C, options: StoreOptions) -> Self {
        let heads = options.batch * options.shape.kv_heads;
        Self {
            codec,
            tail: PageTail::new(options.clone()),
            options,
            pages: None,
            table: PageTable::new(vec![Vec::new(); heads]),
            reads_pages: OnceLock::new(),
            open: None,
            channels: None,
        }
    }

    /// Restores the store that [`save`](Store::save) wrote.
    pub(super) fn restore(codec: C, options: StoreOptions, mut parts: Parts) -> Result<Self> {
        let mut store = Self::new(codec, options.clone());
        let heads = store.table.lists.len();
        store.tail = PageTail::restore(options.clone(), &mut parts)?;
        let lengths = parts.take_list("table.lengths", heads)?;
        let pages = parts.take_number("pages")?;
        let table = parts.take_list("table", lengths.iter().sum())?;
        if table.iter().any(|&page| page >= pages) {
            return Err(PrefixError::contents("table", "names pages that are not there").into());
        }
        let mut table = table.into_iter();
        let lists = lengths.iter().map(|&length| table.by_ref().take(length).collect());
        store.table = PageTable::new(lists.collect());
        if pages > 0 {
            store.pages =
                Some(Pages::restore(&store.codec, &options, pages, parts.take_parts("page"))?);
        }
        let kept = store.codec.key_channels(options.shape.head_dim);
        if let Some(kept) = kept.filter(|_| parts.holds("channels.of-heads")) {
            let channels = parts.take_parts("channels");
            store.channels = Some(Channels::restore(channels, kept, &options)?);
        }
        parts.finish()?;
        Ok(store)
    }

    /// Entries of each batch row and kv head.
    fn counts(&self) -> impl Iterator<Item = usize> {
        let heads = self.table.lists.iter().zip(&self.tail.counts);
        heads.map(|(list, tail)| list.len() * self.codec.group() + tail)
    }

    /// Whether pages and tail are side by side without padding between them.
    fn aligned(&self) -> bool {
        let (pages, tail) = (self.table.most(), self.tail.columns());
        pages == 0
            || (self.table.lists.iter().all(|list| list.len() == pages)
                && self.tail.counts.iter().all(|&count| count == tail))
    }

    /// Columns of pages side by side with a tail, as lists of those that are not padding.
    fn columns_of_heads(&self) -> Vec<Vec<usize>> {
        let pages = self.table.most() * self.codec.group();
        let columns = pages + self.tail.columns();
        let of_head = |(list, &tail): (&Vec<usize>, &usize)| {
            let own = list.len() * self.codec.group();
            (pages - own..pages).chain(columns - tail..columns).collect()
        };
        self.table.lists.iter().zip(&self.tail.counts).map(of_head).collect()
    }

    /// Whether one decoded token of every row attends.
    fn decodes(&self, input: &StoreQuery<'_>) -> bool {
        input.queries.dims()[2] == 1 && self.tail.has_one_more()
    }

    /// Computes attention of one query per head over packed pages; `None` if no kernel supports it,
    /// or if keys are encoded in every call.
    fn attend_packed(&self, input: &StoreQuery<'_>) -> Result<Option<AttentionOutput>> {
        if self.table.most() == 0 || input.encode.is_some() || !self.decodes(input) {
            return Ok(None);
        }
        let (Some(pages), Some((tail, tail_padding))) = (&self.pages, self.tail.operands()) else {
            return Ok(None);
        };
        let group = self.codec.group();
        let most_pages = self.table.most_in_place();
        let columns = match self.open {
            Some(_) => most_pages * group + tail.entries,
            None => self.columns(),
        };
        let found = match self.codec.numbers(&pages.packed) {
            None => None,
            Some(numbers) => {
                let PageIndex { pages, offsets } = self.table.index(&self.options.device).clone();
                input.decode(KvLayout::Quantized(QuantizedKv {
                    numbers,
                    group,
                    pages,
                    offsets,
                    most_pages,
                    tail,
                    tail_padding,
                    columns,
                }))?
            }
        };
        self.reads_pages.get_or_init(|| found.is_some());
        Ok(found)
    }

    /// Keys and values of pages side by side, each
    /// `[batch, kv_heads, most pages · group, head_dim]`.
    fn page_rows(&self, pages: &Pages) -> [Tensor<4>; 2] {
        let StoreOptions { batch, shape, .. } = self.options;
        let (group, most) = (self.codec.group(), self.table.most());
        let index = self.table.rectangle(&self.options.device);
        let picked: Vec<_> = pages.packed.iter().map(|packed| packed.select(&index)).collect();
        let both = self.codec.unpack(&picked, shape.head_dim);
        both.map(|x| x.reshape([batch, shape.kv_heads, most * group, shape.head_dim]))
    }

    /// The positions of pages side by side, −1 at padding, `[batch, kv_heads, most pages · group]`.
    fn page_positions(&self, pages: &Pages) -> Tensor<3, Int> {
        let StoreOptions { batch, shape, ref device, .. } = self.options;
        let (group, most) = (self.codec.group(), self.table.most());
        let index = self.table.rectangle(device);
        let positions = side_by_side(pages.positions.clone(), &index, batch, shape.kv_heads);
        let missing = |list: &Vec<usize>| (most - list.len()) * group;
        let lists = &self.table.lists;
        if lists.iter().all(|list| missing(list) == 0) {
            return positions;
        }
        let padding = padding_mask(lists.iter().map(missing), positions.dims(), device);
        positions.mask_fill(padding, -1)
    }

    /// The statistics of pages side by side.
    fn page_statistics(&self, pages: &Pages) -> AttentionStatistics {
        let StoreOptions { batch, shape, ref device, .. } = self.options;
        let none = self.tail.statistics();
        let Some(numbers) = pages.statistics.clone() else { return none };
        let index = self.table.rectangle(device);
        let [_, per, _] = numbers.dims();
        let all = side_by_side(numbers, &index, batch, shape.kv_heads);
        let [_, _, columns] = all.dims();
        none.of_by_head(all.reshape([batch, shape.kv_heads, per, columns]))
    }

    /// Selection of the entries' columns among those of pages and tail side by side; `None` if they
    /// are the same.
    fn selection(&self) -> Option<Selection> {
        if self.aligned() {
            return None;
        }
        let lists = self.columns_of_heads();
        Some(Selection::of_heads(&lists, self.options.shape.kv_heads, &self.options.device))
    }

    /// Packs all entries of every head but those that stay in full precision.
    fn pack(&mut self, capacity: usize) {
        let (entries, columns) = self.tail.as_they_lie();
        let width = entries.columns();
        let mut rows = Vec::new();
        let mut next = self.pages.as_ref().map_or(0, |pages| pages.count);
        let (mut new, mut full) = (Vec::new(), Vec::new());
        for (head, columns) in columns.iter().enumerate() {
            let stay = self.codec.kept_full(columns.len());
            let packed = columns.len() - stay;
            rows.extend(columns[..packed].iter().map(|column| head * width + column));
            let pages = packed / self.codec.group();
            new.push(Range { start: next, end: next + pages });
            next += pages;
            full.push(stay);
        }
        let channels = self.channels.as_ref();
        let pages = Pages::of(&entries, &rows, &self.codec, channels, &self.options);
        // Nobody else holds the tail's buffers when it writes to them.
        drop(entries);
        match &mut self.pages {
            None => self.pages = Some(pages),
            Some(held) => held.append(pages, self.options.ops.as_ref()),
        }
        self.table.push(new);
        self.tail.keep_last(full, capacity);
    }

    /// The sums of the squares of each channel over the keys of a head,
    /// `[batch, kv_heads, head_dim]`.
    fn key_squares(&self) -> Option<Tensor<3>> {
        let sum = |keys: Tensor<4>, positions: Tensor<3, Int>| {
            let held = positions.greater_equal_scalar(0).float().cast(DType::F32);
            let squares = keys.cast(DType::F32).square() * held.unsqueeze_dim::<4>(3);
            squares.sum_dim(2).squeeze_dim::<3>(2)
        };
        let pages = self.pages.as_ref().map(|pages| {
            let [keys, _] = self.page_rows(pages);
            sum(keys, self.page_positions(pages))
        });
        let tail = (self.tail.columns() > 0).then(|| {
            let held = self.tail.by_position();
            sum(held.keys, held.positions)
        });
        match (pages, tail) {
            (Some(pages), Some(tail)) => Some(pages + tail),
            (pages, tail) => pages.or(tail),
        }
    }

    /// Number of tokens in a tail from which on some of them are packed.
    fn most_in_tail(&self) -> usize {
        self.codec.residual() + self.codec.group()
    }

    /// Maximum room of a tail beside its tokens, whatever capacity is asked for.
    fn room(&self) -> usize {
        self.codec.residual() + 2 * self.codec.group()
    }

    /// Bytes of heads that hold so many columns in full precision, and so many in pages.
    fn bytes_apart(&self, full: usize, quantized: usize) -> usize {
        let StoreOptions { shape, batch, dtype, rows, .. } = self.options;
        let group = self.codec.group();
        let heads = batch * shape.kv_heads;
        let widths = self.codec.widths(shape.head_dim);
        let packed = widths.iter().map(|widths| widths.bytes(rows, dtype));
        let kept = self.codec.key_channels(shape.head_dim);
        let channels = kept.map_or(0, |kept| heads * rows.bytes(kept, self.options.int_bytes()));
        let full = full * self.options.pair_bytes() + self.options.scalar_row_bytes(full);
        let positions = rows.bytes(group, self.options.int_bytes());
        let statistics = statistics::rows(self.options.observes, shape) / shape.kv_heads
            * rows.bytes(group, DType::F32.size());
        let page = packed.sum::<usize>() + positions + statistics;
        let places = heads * (quantized / group + 2) + 1;
        let pages = heads.saturating_mul(quantized).saturating_mul(page).div_ceil(group);
        full.saturating_add(pages).saturating_add(places * self.options.int_bytes() + channels)
    }
}

/// Entries and those behind them, if there are any.
fn followed_by<const D: usize, K: Basic>(
    held: Tensor<D, K>,
    tail: Option<Tensor<D, K>>,
) -> Tensor<D, K> {
    match tail {
        None => held,
        Some(tail) => Tensor::cat(vec![held, tail], 2),
    }
}

impl<C: Codec> Store for PagedStore<C> {
    fn columns(&self) -> usize {
        if self.aligned() {
            return self.table.most() * self.codec.group() + self.tail.columns();
        }
        self.counts().max().unwrap_or(0)
    }

    fn capacity(&self) -> usize {
        self.columns() - self.tail.columns().min(self.columns()) + self.tail.capacity()
    }

    fn bytes(&self) -> usize {
        let rows = self.options.rows;
        self.pages.as_ref().map_or(0, |pages| pages.bytes(rows))
            + self.tail.bytes()
            + self.channels.as_ref().map_or(0, |channels| channels.bytes(rows))
            + self.table.integers().0 * self.options.int_bytes()
    }

    fn spare_bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.spare_bytes(self.options.rows))
            + self.tail.spare_bytes()
            + self.table.integers().1 * self.options.int_bytes()
    }

    fn packed_counts(&self) -> Option<Vec<usize>> {
        let group = self.codec.group();
        Some(self.table.lists.iter().map(|list| list.len() * group).collect())
    }

    fn bytes_of(&self, _entries: usize, columns: usize) -> usize {
        let quantized = columns.saturating_sub(self.codec.residual());
        self.bytes_apart(columns.min(self.room()), quantized)
    }

    fn bytes_of_prompt(&self, _entries: usize, columns: usize) -> usize {
        let full = match columns >= self.most_in_tail() {
            true => self.codec.kept_full(columns),
            false => columns,
        };
        self.bytes_apart(full, columns.saturating_sub(full))
    }

    fn reserve(&mut self, capacity: usize) {
        let pages = self.columns() - self.tail.columns().min(self.columns());
        let most = self.tail.columns() + self.room();
        self.tail.reserve(capacity.saturating_sub(pages).min(most));
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        let is_token = entries.columns() == 1 && counts.iter().all(|&count| count == 1);
        if self.open.is_some_and(|open| !is_token || open == 0) {
            self.end_device_indexing();
        }
        self.tail.append(entries, counts)?;
        self.open = self.open.map(|open| open - 1);
        Ok(())
    }

    fn moves_padding(&self) -> bool {
        true
    }

    fn truncate(&mut self, columns: usize) {
        let dropped = self.columns().saturating_sub(columns);
        if dropped > 0 {
            self.open = None;
            self.table.end_in_place();
            self.tail.truncate(self.tail.columns().saturating_sub(dropped));
        }
    }

    fn packed_columns(&self) -> usize {
        self.columns() - self.tail.columns()
    }

    fn entries(&self) -> Result<Entries> {
        let Some(pages) = &self.pages else { return Ok(self.tail.by_position()) };
        let tail = (self.tail.columns() > 0).then(|| self.tail.by_position());
        let (tail_keys, tail_values) = tail.map(|tail| (tail.keys, tail.values)).unzip();
        let [keys, values] = self.page_rows(pages);
        let rows = |held: Tensor<4>, tail: Option<Tensor<4>>| {
            let all = followed_by(held, tail.map(|tail| tail.cast(DType::F32)));
            match self.selection() {
                None => all,
                Some(selection) => gather_rows(all, &selection),
            }
        };
        Ok(Entries {
            keys: rows(keys, tail_keys),
            values: rows(values, tail_values),
            positions: self.positions(),
            statistics: self.statistics(),
            clustering: None,
        })
    }

    fn positions(&self) -> Tensor<3, Int> {
        let Some(pages) = &self.pages else { return self.tail.positions() };
        let tail = (self.tail.columns() > 0).then(|| self.tail.positions());
        let all = followed_by(self.page_positions(pages), tail);
        match self.selection() {
            None => all,
            Some(selection) => gather_positions(all, &selection),
        }
    }

    fn statistics(&self) -> AttentionStatistics {
        let Some(pages) = &self.pages else { return self.tail.statistics() };
        let held = self.page_statistics(pages);
        let all = if self.tail.columns() == 0 {
            held
        } else {
            held.zip(self.tail.statistics(), |held, tail| Tensor::cat(vec![held, tail], 2))
        };
        if all.is_empty() {
            return all;
        }
        match self.selection() {
            None => all,
            Some(selection) => all.map(|one| gather_scalars(one, &selection)),
        }
    }

    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        if let Some(output) = self.attend_packed(&input)? {
            return Ok(output);
        }
        let entries = self.entries()?;
        let columns = self.columns();
        let input = match self.decodes(&input) && self.counts().any(|count| count != columns) {
            true => input.told_of(&entries),
            false => input,
        };
        attend_entries(entries, input)
    }

    fn knows_padding(&self) -> bool {
        true
    }

    fn set_statistics(&mut self, statistics: AttentionStatistics) {
        let columns = self.columns();
        let (group, most, tail) = (self.codec.group(), self.table.most(), self.tail.columns());
        let (heads, device) = (self.options.shape.kv_heads, self.options.device.clone());
        // From the columns of all entries to those of pages and of the tail.
        let part = |lists: Vec<Vec<usize>>, narrow: (usize, usize)| {
            if self.aligned() {
                return statistics.clone().map(|one| one.narrow(2, narrow.0, narrow.1));
            }
            let selection = Selection::of_heads(&lists, heads, &device);
            statistics.clone().map(|one| gather_scalars(one, &selection))
        };
        let lists = &self.table.lists;
        let old = self.counts().zip(&self.tail.counts);
        let old = old.map(|(count, &tail)| (columns - count..columns - tail).collect()).collect();
        let tails = self.tail.counts.iter();
        let new = tails.map(|&tail| (columns - tail..columns).collect()).collect();
        let of_pages = (most > 0).then(|| part(old, (0, most * group)));
        let of_tail = (tail > 0).then(|| part(new, (columns - tail, tail)));

        if let (Some(statistics), Some(pages)) = (of_pages, &mut self.pages) {
            let total = pages.count;
            let mut place = vec![0; total];
            for (head, list) in lists.iter().enumerate() {
                let missing = most - list.len();
                for (index, &page) in list.iter().enumerate() {
                    place[page] = (head * most + missing + index) as i64;
                }
            }
            let place = upload(place, &device);
            pages.statistics = statistics.by_head(heads).map(|numbers| {
                let [batch, _, per, _] = numbers.dims();
                let numbers: Tensor<4> = numbers.reshape([batch * heads, per, most, group]);
                let pages: Tensor<3> =
                    numbers.swap_dims(1, 2).reshape([batch * heads * most, per, group]);
                pages.select(0, place)
            });
        }
        if let Some(statistics) = of_tail {
            self.tail.set_statistics(statistics);
        }
    }

    /// Holds the entries in the tail until they [`settle`](Store::settle).
    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()> {
        self.pages = None;
        self.table.clear();
        self.open = None;
        let most = entries.columns() + self.room();
        self.tail.hold(entries, counts, capacity.min(most));
        Ok(())
    }

    fn settle(&mut self) {
        let due = |&count: &usize| count >= self.most_in_tail();
        if self.tail.counts.iter().any(due) {
            self.pack(self.room().min(self.tail.capacity()));
        }
    }

    fn replay(&mut self) -> Option<&mut dyn ReplayStore> {
        Some(self)
    }

    fn observe_queries(&mut self, squares: Tensor<3>, arrived: &[usize]) {
        let StoreOptions { shape, .. } = self.options;
        let Some(kept) = self.codec.key_channels(shape.head_dim) else { return };
        let Some(keys) = self.key_squares() else { return };
        self.channels =
            Some(Channels::highest(squares * keys, kept, arrived, self.channels.take()));
    }

    fn save(&self) -> Result<Option<Parts>> {
        let mut parts = Parts::default();
        if let Some(channels) = &self.channels {
            parts.put_parts("channels", channels.save()?);
        }
        self.tail.save(&mut parts)?;
        let lists = &self.table.lists;
        parts.put_numbers("table.lengths", lists.iter().map(Vec::len).collect::<Vec<_>>());
        parts.put_numbers("table", lists.concat());
        parts.put_numbers("pages", [self.pages.as_ref().map_or(0, |pages| pages.count)]);
        if let Some(pages) = &self.pages {
            parts.put_parts("page", pages.save()?);
        }
        Ok(Some(parts))
    }

    /// Rows share pages without statistics: these are never written to.
    fn select_rows(&self, rows: &[usize], _: &[usize]) -> Option<Box<dyn Store>> {
        let batch = self.options.batch;
        let pages = self.pages.as_ref();
        let shares = pages.is_none_or(|pages| pages.statistics.is_none());
        let count = pages.map_or(0, |pages| pages.count);
        let (table, kept) = self.table.select_rows((batch, rows), count, shares);
        let pages = match kept {
            None => pages.cloned(),
            Some(kept) => pages.filter(|_| !kept.is_empty()).map(|pages| pages.select(&kept)),
        };
        Some(Box::new(Self {
            pages,
            table,
            tail: self.tail.select_rows(rows),
            channels: self.channels.as_ref().map(|channels| channels.select_rows(batch, rows)),
            ..Self::new(self.codec.clone(), self.options.with_batch(rows.len()))
        }))
    }

    /// Pages stay as they are packed.
    fn append_rows(&self, more: &dyn Store, _: [&[usize]; 2]) -> Result<Option<Box<dyn Store>>> {
        let more: &dyn Any = more;
        let Some(more) = more.downcast_ref::<Self>() else { return Ok(None) };
        let options = self.options.with_batch(self.options.batch + more.options.batch);
        let first = self.pages.as_ref().map_or(0, |pages| pages.count);
        let pages = match (self.pages.clone(), &more.pages) {
            (Some(mut own), Some(more)) => {
                own.append(more.trimmed(), options.ops.as_ref());
                Some(own)
            }
            (own, more) => own.or_else(|| more.clone()),
        };
        let channels = self.channels.as_ref().zip(more.channels.as_ref());
        Ok(Some(Box::new(Self {
            pages,
            table: self.table.append_rows(&more.table, first),
            tail: self.tail.append_rows(&more.tail),
            channels: channels.map(|(own, more)| own.append_rows(more)),
            ..Self::new(self.codec.clone(), options)
        })))
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}

impl<C: Codec> ReplayStore for PagedStore<C> {
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        if self.open.is_none() {
            return visitor.number(self.columns());
        }
        visitor.number(self.table.most_in_place());
        if let Some(pages) = &mut self.pages {
            pages.visit_state(visitor);
        }
        self.table.visit_state(visitor);
        self.tail.visit_state(visitor);
    }

    fn begin_device_indexing(&mut self, more: usize) -> bool {
        let (group, width, heads) =
            (self.codec.group(), self.most_in_tail(), self.table.lists.len());
        if self.open_columns().is_none() || !self.tail.begin_device_counting(width) {
            return false;
        }
        let Some(pages) = &mut self.pages else { return false };
        let new = more.div_ceil(group);
        pages.reserve(pages.count + heads * new, self.options.ops.as_ref());
        self.table.begin_in_place(self.table.most() + new);
        // Made now, so that it is part of the state.
        self.table.index(&self.options.device);
        self.open = Some(more);
        true
    }

    fn end_device_indexing(&mut self) {
        if self.open.take().is_some() {
            self.table.end_in_place();
            self.tail.end_device_counting();
        }
    }

    fn indexes_on_device(&self) -> bool {
        self.open.is_some()
    }

    fn open_columns(&self) -> Option<usize> {
        let can = self.reads_pages.get() == Some(&true)
            && self.table.most() > 0
            && self.tail.statistics().is_empty();
        can.then(|| self.open.unwrap_or(0))
    }

    fn advance(&mut self) {
        self.tail.advance();
        self.open = self.open.map(|open| open.saturating_sub(1));
    }

    fn is_next_apart(&self) -> bool {
        let most = self.most_in_tail();
        self.tail.counts.iter().any(|&count| count + 1 >= most)
    }
}
