//! The last tokens of the heads of a paged store, which are in no page yet.

use std::sync::OnceLock;

use burn::tensor::{Int, Tensor};

use super::{
    DenseStore, Store, StoreOptions,
    dense::{append_token, write},
    join::joined_tokens,
    packed::write_rows,
    pages::upload,
};
use crate::{
    Result,
    columns::{behind_zeros, longest},
    ops::{AppendColumn, AttentionStatistics, Entries, Selection, Tail, gather_entries},
    prefix::{Parts, PrefixError},
    rows::select_list,
    state::{StateTensor, StateVisitor},
};

/// The last tokens of each head.
#[derive(Clone, Debug)]
pub(super) struct PageTail {
    options: StoreOptions,
    /// The tokens by position, padding before them; none while the device counts them.
    tokens: DenseStore,
    countdown: Option<Countdown>,
    /// Tokens per batch row and kv head.
    pub(super) counts: Vec<usize>,
    /// Tokens before the last append.
    before_append: Vec<usize>,
    /// Padding before the tokens of each head, `[batch · kv_heads]`, made when first needed.
    padding: OnceLock<Tensor<1, Int>>,
}

/// Tokens at the end of their buffers, the newest first, which the device counts. One more token
/// changes only where they begin.
#[derive(Clone, Debug)]
struct Countdown {
    buffers: Entries,
    /// The column of the newest token of each head, `[batch · kv_heads]`.
    first: Tensor<1, Int>,
    /// Whether the device still counts tokens that were taken back.
    is_ahead: bool,
}

impl Countdown {
    fn width(&self) -> usize {
        self.buffers.columns()
    }
}

impl PageTail {
    pub(super) fn new(options: StoreOptions) -> Self {
        let heads = options.batch * options.shape.kv_heads;
        Self {
            tokens: DenseStore::new(options.clone()),
            options,
            countdown: None,
            counts: vec![0; heads],
            before_append: vec![0; heads],
            padding: OnceLock::new(),
        }
    }

    fn heads(&self) -> usize {
        self.options.shape.kv_heads
    }

    /// Whether the last append brought one token to each head.
    pub(super) fn has_one_more(&self) -> bool {
        self.before_append.iter().zip(&self.counts).all(|(old, new)| old + 1 == *new)
    }

    /// Number of columns beside those of pages.
    pub(super) fn columns(&self) -> usize {
        match self.countdown {
            Some(_) => self.counts.iter().copied().max().unwrap_or(0),
            None => self.tokens.columns(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.countdown.as_ref().map_or_else(|| self.tokens.capacity(), Countdown::width)
    }

    pub(super) fn bytes(&self) -> usize {
        let padding = self.padding.get().map_or(0, |_| self.counts.len());
        let first = self.countdown.as_ref().map_or(0, |_| self.counts.len());
        let buffers = self.tokens.bytes_of(self.capacity(), self.capacity());
        buffers + (padding + first) * self.options.int_bytes()
    }

    pub(super) fn spare_bytes(&self) -> usize {
        let of = |columns| self.tokens.bytes_of(columns, columns);
        of(self.capacity()).saturating_sub(of(self.columns()))
    }

    pub(super) fn reserve(&mut self, capacity: usize) {
        if self.countdown.is_none() {
            self.tokens.reserve(capacity);
        }
    }

    /// The tokens by position, those of shorter heads behind padding.
    pub(super) fn by_position(&self) -> Entries {
        if self.countdown.is_none() {
            return self.tokens.held();
        }
        let (entries, columns) = self.as_they_lie();
        self.selected(&entries, &columns).unwrap_or_else(|| self.tokens.held())
    }

    pub(super) fn positions(&self) -> Tensor<3, Int> {
        match self.countdown {
            Some(_) => self.by_position().positions,
            None => self.tokens.positions(),
        }
    }

    /// Statistics of the tokens; none while the device counts them.
    pub(super) fn statistics(&self) -> AttentionStatistics {
        match self.countdown {
            Some(_) => AttentionStatistics::default(),
            None => self.tokens.statistics(),
        }
    }

    /// The entries in these columns of each head; `None` if there are none.
    fn selected(&self, entries: &Entries, columns: &[Vec<usize>]) -> Option<Entries> {
        let selection = Selection::of_heads(columns, self.heads(), &self.options.device);
        (selection.width() > 0).then(|| gather_entries(entries.clone(), &selection))
    }

    /// Returns the buffers, and the columns of each head's tokens in them, oldest first.
    pub(super) fn as_they_lie(&self) -> (Entries, Vec<Vec<usize>>) {
        let all = self.counts.iter();
        match &self.countdown {
            Some(countdown) => {
                let width = countdown.width();
                let of_head = |&count: &usize| (width - count..width).rev().collect();
                (countdown.buffers.clone(), all.map(of_head).collect())
            }
            None => {
                let entries = self.tokens.held();
                let width = entries.columns();
                (entries, all.map(|&count| (width - count..width).collect()).collect())
            }
        }
    }

    /// Drops all but the last tokens of each head.
    pub(super) fn keep_last(&mut self, counts: Vec<usize>, capacity: usize) {
        self.padding = OnceLock::new();
        let (entries, columns) = self.as_they_lie();
        let last = columns.iter().zip(&counts).map(|(columns, &count)| {
            let mut last = columns[columns.len() - count..].to_vec();
            // As they lie: newest first where the device counts.
            last.sort_unstable();
            last
        });
        let kept = self.selected(&entries, &last.collect::<Vec<_>>());
        // Nobody else holds the buffers when they are written to.
        drop(entries);
        self.before_append.clone_from(&counts);
        self.counts = counts;
        if let Some(mut countdown) = self.countdown.take() {
            self.write_last(&mut countdown, kept);
            self.countdown = Some(countdown);
            return;
        }
        match kept {
            Some(entries) => self.tokens.hold(entries, capacity),
            None => {
                self.tokens = DenseStore::new(self.options.clone());
                self.tokens.reserve(capacity);
            }
        }
    }

    /// Writes the `kept` tokens, newest first, to the end of the buffers.
    fn write_last(&self, countdown: &mut Countdown, kept: Option<Entries>) {
        let width = countdown.width();
        let Countdown { buffers, first, is_ahead } = countdown;
        *is_ahead = false;
        if let Some(Entries { keys, values, positions, .. }) = kept {
            let start = width - positions.dims()[2];
            let dtype = self.options.dtype;
            write(&mut buffers.keys, keys.cast(dtype), start);
            write(&mut buffers.values, values.cast(dtype), start);
            write(&mut buffers.positions, positions, start);
        }
        let begins = self.counts.iter().map(|count| (width - count) as i64).collect();
        let begins = upload(begins, &self.options.device).cast(first.dtype());
        write_rows(first, 0, begins);
    }

    /// Appends entries, of which each head has its last `counts`; the columns before them are
    /// padding.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation); nothing is appended then.
    pub(super) fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        let (old, new) = (self.counts.clone(), entries.columns());
        let all = counts.iter().all(|&count| count == new);
        let columns = self.columns();
        let fits = |countdown: &&mut Countdown| !countdown.is_ahead && columns < countdown.width();
        let is_token = all && new == 1 && entries.statistics.is_empty();
        if is_token
            && let Some(Countdown { buffers, first, .. }) = self.countdown.as_mut().filter(fits)
        {
            let column = AppendColumn::CountedDown(first);
            append_token(buffers, entries, column, &self.options)?;
            self.count(old, counts);
            return Ok(());
        }
        self.end_device_counting();
        if !all {
            self.padding = OnceLock::new();
        }
        let held = self.tokens.columns();
        // What is packed stays where it is: only the tail has to make way for padding.
        let moved = (held > 0 && !all).then(|| -> Vec<Vec<usize>> {
            let of_head = |(&old, &count): (&usize, &usize)| {
                (held - old..held).chain(held + new - count..held + new).collect()
            };
            old.iter().zip(counts).map(of_head).collect()
        });
        // Padding behind padding moves nothing.
        match moved.filter(|lists| lists.iter().any(|list| !list.is_empty())) {
            None => self.tokens.append(entries, counts)?,
            Some(lists) => {
                // No fewer entries than queries, if all of these are padding too.
                let selection =
                    Selection::of_heads(&lists, self.heads(), &self.options.device).widened(new);
                let entries = gather_entries(self.tokens.held().followed_by(entries), &selection);
                let capacity = self.tokens.capacity().max(entries.columns());
                self.tokens.hold(entries, capacity);
            }
        }
        self.count(old, counts);
        Ok(())
    }

    fn count(&mut self, old: Vec<usize>, new: &[usize]) {
        self.counts.iter_mut().zip(new).for_each(|(held, new)| *held += new);
        self.before_append = old;
    }

    /// Drops all but the first `columns` columns, which hold a token of every head. Launches
    /// nothing.
    pub(super) fn truncate(&mut self, columns: usize) {
        let dropped = self.columns().saturating_sub(columns);
        match &mut self.countdown {
            Some(countdown) => countdown.is_ahead = true,
            None => self.tokens.truncate(columns),
        }
        self.counts.iter_mut().for_each(|count| *count = count.saturating_sub(dropped));
        self.before_append.clone_from(&self.counts);
        self.padding = OnceLock::new();
    }

    /// Replaces all tokens by these entries, of which each head has its last `counts`.
    pub(super) fn hold(&mut self, entries: Entries, counts: &[usize], capacity: usize) {
        self.countdown = None;
        self.padding = OnceLock::new();
        self.tokens.hold(entries, capacity);
        self.counts = counts.to_vec();
        self.before_append = counts.to_vec();
    }

    /// Keys and values as a kernel reads them, and the padding before those of each head; `None` if
    /// nothing was ever appended.
    pub(super) fn operands(&self) -> Option<(Tail, Tensor<1, Int>)> {
        if let Some(Countdown { buffers, first, .. }) = &self.countdown {
            let Entries { keys, values, .. } = buffers.clone();
            let entries = buffers.columns();
            return Some((Tail { keys, values, entries }, first.clone()));
        }
        let (keys, values) = self.tokens.buffers()?;
        let entries = self.tokens.columns();
        let padding = self.padding.get_or_init(|| {
            let padding = self.counts.iter().map(|&count| (entries - count) as i64).collect();
            upload(padding, &self.options.device)
        });
        Some((Tail { keys, values, entries }, padding.clone()))
    }

    /// Lets the device count tokens, with room for `width` tokens per head. Returns `false` if
    /// there are more, or if they have statistics.
    pub(super) fn begin_device_counting(&mut self, width: usize) -> bool {
        let counts = |countdown: &Countdown| countdown.width() == width && !countdown.is_ahead;
        if self.countdown.as_ref().is_some_and(counts) {
            return true;
        }
        self.end_device_counting();
        if self.columns() > width || !self.statistics().is_empty() {
            return false;
        }
        let buffers = self.tokens.empty(width);
        let first: Tensor<1, Int> = Tensor::zeros([self.counts.len()], &self.options.device);
        let first = first.cast(buffers.positions.dtype());
        let mut countdown = Countdown { buffers, first, is_ahead: false };
        let (held, mut columns) = self.as_they_lie();
        columns.iter_mut().for_each(|columns| columns.reverse());
        let kept = self.selected(&held, &columns);
        self.write_last(&mut countdown, kept);
        self.tokens = DenseStore::new(self.options.clone());
        self.padding = OnceLock::new();
        self.countdown = Some(countdown);
        true
    }

    /// Lays the tokens out by position again, if the device counts them.
    pub(super) fn end_device_counting(&mut self) {
        if self.countdown.is_some() {
            let (held, capacity) = (self.by_position(), self.capacity());
            self.countdown = None;
            self.tokens.hold(held, capacity);
        }
    }

    /// Counts a token of each head that a replayed step has written.
    pub(super) fn advance(&mut self) {
        self.before_append.clone_from(&self.counts);
        self.counts.iter_mut().for_each(|count| *count += 1);
    }

    /// Visits everything that a token changes while the device counts.
    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        if let Some(Countdown { buffers, first, .. }) = &mut self.countdown {
            visitor.number(buffers.columns());
            visitor.tensor(StateTensor::Float4(&mut buffers.keys));
            visitor.tensor(StateTensor::Float4(&mut buffers.values));
            visitor.tensor(StateTensor::Int3(&mut buffers.positions));
            visitor.tensor(StateTensor::Int1(first));
        }
    }

    pub(super) fn save(&self, parts: &mut Parts) -> Result<()> {
        let mut tail = self.clone();
        tail.end_device_counting();
        parts.put_parts("tail", tail.tokens.parts()?);
        parts.put_numbers("tail-counts", &tail.counts[..]);
        parts.put_numbers("before-append", &tail.before_append[..]);
        Ok(())
    }

    pub(super) fn restore(options: StoreOptions, parts: &mut Parts) -> Result<Self> {
        let mut tail = Self::new(options.clone());
        let heads = tail.counts.len();
        tail.tokens = DenseStore::restore(options, parts.take_parts("tail"))?;
        tail.counts = parts.take_list("tail-counts", heads)?;
        tail.before_append = parts.take_list("before-append", heads)?;
        let mut wide = tail.counts.iter().chain(&tail.before_append);
        if wide.any(|&count| count > tail.tokens.columns()) {
            return Err(
                PrefixError::contents("tail-counts", "name tokens that are not there").into()
            );
        }
        Ok(tail)
    }

    /// Returns the tail of these rows.
    pub(super) fn select_rows(&self, rows: &[usize]) -> Self {
        let mut tail = self.clone();
        tail.end_device_counting();
        let batch = self.options.batch;
        let counts = select_list(&tail.counts, batch, rows);
        Self {
            tokens: tail.tokens.of_rows(rows, longest(&counts)),
            before_append: select_list(&tail.before_append, batch, rows),
            counts,
            ..Self::new(self.options.with_batch(rows.len()))
        }
    }

    /// Returns the tail with the rows of another behind its own.
    pub(super) fn append_rows(&self, more: &Self) -> Self {
        let counts = [&self.counts[..], &more.counts].concat();
        let columns = longest(&counts);
        let mut tail = Self::new(self.options.with_batch(self.options.batch + more.options.batch));
        if columns > 0 {
            let entries = joined_tokens([self.by_position(), more.by_position()], columns);
            tail.hold(entries, &counts, self.capacity().max(more.capacity()));
        }
        tail.before_append = [&self.before_append[..], &more.before_append].concat();
        tail
    }

    /// Replaces the statistics; missing columns before them are padding.
    pub(super) fn set_statistics(&mut self, statistics: AttentionStatistics) {
        // Every head's tail is as wide as the widest, or the selection made it so.
        let columns = self.columns();
        let width = statistics.stacked().map_or(columns, |statistics| statistics.dims()[2]);
        let statistics = match columns - width {
            0 => statistics,
            missing => statistics.map(|one| behind_zeros(one, missing)),
        };
        self.tokens.set_statistics(statistics);
    }
}
