use std::sync::OnceLock;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, kind::Basic};

use super::{
    DenseStore, Store, StoreOptions, StoreQuery, channels::Channels, codec::Codec,
    interface::attend_entries, packed::Packed,
};
use crate::{
    Result,
    columns::behind_zeros,
    device::{Rows, buffer_bytes},
    ops::{
        AttentionOutput, AttentionStatistics, Entries, KvLayout, QuantizedKv, Selection, Tail,
        gather_entries, gather_positions, gather_rows, gather_scalars, padding_mask,
    },
    prefix::{Parts, PrefixError},
    stage::statistics,
};

/// The names of the packed parts of pages in a file.
const PACKED: [&str; 2] = ["keys", "values"];

/// Pages of tokens of a head, each packed by a codec; behind them the last tokens as they are.
#[derive(Clone, Debug)]
pub(super) struct PagedStore<C> {
    codec: C,
    options: StoreOptions,
    pages: Option<Pages>,
    /// The pages of each batch row and kv head, oldest first.
    table: Vec<Vec<usize>>,
    tail: DenseStore,
    /// Entries in the tail per batch row and kv head; padding stands before them.
    tail_counts: Vec<usize>,
    /// Entries in the tail before the last append, per batch row and kv head.
    before_append: Vec<usize>,
    /// Known once a query has been attended that reads pages as they are.
    places: OnceLock<Places>,
    /// The channels of keys that pages hold, where they hold fewer than there are.
    channels: Option<Channels>,
}

/// Indices of the entries of each batch row and kv head, on the device.
#[derive(Clone, Debug)]
struct Places {
    /// The pages of all heads one after another, `[all pages]`.
    pages: Tensor<1, Int>,
    /// The first of each head's pages in the list, and the end of the last,
    /// `[batch · kv_heads + 1]`.
    offsets: Tensor<1, Int>,
    /// Fillers at the beginning of the tail, `[batch · kv_heads]`.
    tail_padding: Tensor<1, Int>,
}

/// Groups of tokens, packed.
#[derive(Clone, Debug)]
struct Pages {
    /// Keys and values, or both in one.
    packed: Vec<Packed>,
    /// `[pages, 1, group]`
    positions: Tensor<3, Int>,
    /// `[pages, numbers, group]`, the [numbers](AttentionStatistics::by_head) of a kv head.
    tracks: Option<Tensor<3>>,
}

impl Pages {
    /// Quantizes the entries at `rows` of the rectangle: for each page the rows of its tokens.
    fn of(
        entries: &Entries,
        rows: &[usize],
        codec: &impl Codec,
        channels: Option<&Channels>,
        dtype: DType,
    ) -> Self {
        let [batch, heads, width, head_dim] = entries.keys.dims();
        let group = codec.group();
        let pages = rows.len() / group;
        let device = entries.keys.device();
        let index = upload(rows.iter().map(|&row| row as i64).collect(), &device);
        let pick = |x: &Tensor<4>| {
            let list = x.clone().reshape([batch * heads * width, head_dim]);
            list.select(0, index.clone()).reshape([pages, group, head_dim])
        };
        let positions = entries.positions.clone().reshape([batch * heads * width]);
        let channels = channels.map(|channels| {
            let heads = rows.chunks(group).map(|rows| (rows[0] / width) as i64).collect();
            channels.of_heads(upload(heads, &device))
        });
        Self {
            packed: codec.pack(pick(&entries.keys), pick(&entries.values), channels, dtype),
            positions: positions.select(0, index.clone()).reshape([pages, 1, group]),
            tracks: entries.tracks.by_head(heads).map(|numbers| {
                let per = numbers.dims()[2];
                let list = numbers.swap_dims(2, 3).reshape([batch * heads * width, per]);
                let list = list.select(0, index.clone());
                list.reshape([pages, group, per]).swap_dims(1, 2)
            }),
        }
    }

    fn count(&self) -> usize {
        self.positions.dims()[0]
    }

    fn followed_by(self, new: Self) -> Self {
        let packed = self.packed.into_iter().zip(new.packed);
        Self {
            packed: packed.map(|(held, new)| held.followed_by(new)).collect(),
            positions: Tensor::cat(vec![self.positions, new.positions], 0),
            tracks: self.tracks.zip(new.tracks).map(|(held, new)| Tensor::cat(vec![held, new], 0)),
        }
    }

    fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        for (name, packed) in PACKED.into_iter().zip(&self.packed) {
            parts.put_parts(name, packed.save()?);
        }
        parts.put("positions", &self.positions)?;
        if let Some(tracks) = &self.tracks {
            parts.put("tracks", tracks)?;
        }
        Ok(parts)
    }

    fn restore(
        codec: &impl Codec,
        options: &StoreOptions,
        pages: usize,
        mut parts: Parts,
    ) -> Result<Self> {
        let StoreOptions { shape, observes, ref device, .. } = *options;
        let group = codec.group();
        let widths = codec.widths(shape.head_dim);
        let packed = PACKED
            .into_iter()
            .zip(&widths)
            .map(|(name, widths)| Packed::restore(parts.take_parts(name), pages, widths, options));
        let packed = packed.collect::<Result<_>>()?;
        let numbers = statistics::rows(observes, shape) / shape.kv_heads;
        let tracks = || parts.take_float("tracks", [pages, numbers, group], device);
        let tracks = (numbers > 0).then(tracks).transpose()?;
        let positions = parts.take_int("positions", [pages, 1, group], None, device)?;
        parts.finish()?;
        Ok(Self { packed, positions, tracks })
    }

    fn repeated(&self, times: usize) -> Self {
        Self {
            packed: self.packed.iter().map(|packed| packed.repeated(times)).collect(),
            positions: self.positions.clone().repeat_dim(0, times),
            tracks: self.tracks.clone().map(|tracks| tracks.repeat_dim(0, times)),
        }
    }

    fn bytes(&self, rows: Rows) -> usize {
        self.packed.iter().map(|packed| packed.bytes(rows)).sum::<usize>()
            + buffer_bytes(&self.positions, rows)
            + self.tracks.as_ref().map_or(0, |tracks| buffer_bytes(tracks, rows))
    }
}

fn upload(list: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let length = list.len();
    Tensor::from_data(TensorData::new(list, [length]), device)
}

impl<C: Codec> PagedStore<C> {
    pub(super) fn new(codec: C, options: StoreOptions) -> Self {
        let heads = options.batch * options.shape.kv_heads;
        Self {
            codec,
            tail: DenseStore::new(options.clone()),
            options,
            pages: None,
            table: vec![Vec::new(); heads],
            tail_counts: vec![0; heads],
            before_append: vec![0; heads],
            places: OnceLock::new(),
            channels: None,
        }
    }

    /// The store that [`save`](Store::save) wrote.
    pub(super) fn restore(codec: C, options: StoreOptions, mut parts: Parts) -> Result<Self> {
        let mut store = Self::new(codec, options.clone());
        let heads = store.table.len();
        store.tail = DenseStore::restore(options.clone(), parts.take_parts("tail"))?;
        store.tail_counts = parts.take_list("tail-counts", heads)?;
        store.before_append = parts.take_list("before-append", heads)?;
        let lengths = parts.take_list("table.lengths", heads)?;
        let pages = parts.take_number("pages")?;
        let table = parts.take_list("table", lengths.iter().sum())?;
        let wide = store.tail_counts.iter().chain(&store.before_append);
        if table.iter().any(|&page| page >= pages)
            || wide.into_iter().any(|&count| count > store.tail.columns())
        {
            return Err(
                PrefixError::contents("table", "names pages or tokens that are not there").into()
            );
        }
        let mut table = table.into_iter();
        store.table = lengths.iter().map(|&length| table.by_ref().take(length).collect()).collect();
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

    fn heads(&self) -> usize {
        self.options.shape.kv_heads
    }

    /// Pages of the head that has most.
    fn most_pages(&self) -> usize {
        self.table.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn count(&self, head: usize) -> usize {
        self.table[head].len() * self.codec.group() + self.tail_counts[head]
    }

    /// Whether pages and tail stand side by side without padding between them.
    fn aligned(&self) -> bool {
        let pages = self.most_pages();
        pages == 0
            || (self.table.iter().all(|list| list.len() == pages)
                && self.tail_counts.iter().all(|&count| count == self.tail.columns()))
    }

    /// Columns of pages side by side with a tail, as lists of those that are not padding.
    fn columns_of_heads(&self) -> Vec<Vec<usize>> {
        let pages = self.most_pages() * self.codec.group();
        let columns = pages + self.tail.columns();
        let of_head = |(list, &tail): (&Vec<usize>, &usize)| {
            let own = list.len() * self.codec.group();
            (pages - own..pages).chain(columns - tail..columns).collect()
        };
        self.table.iter().zip(&self.tail_counts).map(of_head).collect()
    }

    /// Appends entries that have been counted to the tail.
    fn append_to_tail(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        let appended = self.tail.append(entries, counts);
        if appended.is_err() {
            self.tail_counts.clone_from(&self.before_append);
        }
        appended
    }

    fn places(&self) -> &Places {
        self.places.get_or_init(|| {
            let device = &self.options.device;
            let mut pages: Vec<i64> = Vec::new();
            let mut offsets = vec![0];
            for list in &self.table {
                pages.extend(list.iter().map(|&page| page as i64));
                offsets.push(pages.len() as i64);
            }
            let tail = self.tail.columns();
            let padding = self.tail_counts.iter().map(|&count| (tail - count) as i64).collect();
            Places {
                pages: upload(pages, device),
                offsets: upload(offsets, device),
                tail_padding: upload(padding, device),
            }
        })
    }

    /// Attention of one query per head over packed pages; `None` if no kernel takes it, or if keys
    /// are encoded in every call.
    fn attend_packed(&self, input: &StoreQuery<'_>) -> Result<Option<AttentionOutput>> {
        let most_pages = self.most_pages();
        let counts = self.before_append.iter().zip(&self.tail_counts);
        let one = input.queries.dims()[2] == 1 && counts.clone().all(|(old, new)| old + 1 == *new);
        if !one || most_pages == 0 || input.encode.is_some() {
            return Ok(None);
        }
        let (Some(pages), Some((keys, values))) = (&self.pages, self.tail.buffers()) else {
            return Ok(None);
        };
        let Some(numbers) = self.codec.numbers(&pages.packed) else { return Ok(None) };
        let Places { pages: list, offsets, tail_padding } = self.places().clone();
        input.decode(KvLayout::Quantized(QuantizedKv {
            numbers,
            group: self.codec.group(),
            pages: list,
            offsets,
            most_pages,
            tail: Tail { keys, values, entries: self.tail.columns() },
            tail_padding,
            columns: self.columns(),
        }))
    }

    /// The pages of every head side by side, heads that have fewer filled up at the left with any:
    /// `[batch · kv_heads · most pages]`.
    fn page_index(&self) -> Tensor<1, Int> {
        let most = self.most_pages();
        let mut index = Vec::new();
        for list in &self.table {
            index.extend(std::iter::repeat_n(0, most - list.len()));
            index.extend(list.iter().map(|&page| page as i64));
        }
        upload(index, &self.options.device)
    }

    /// Keys and values of pages side by side, each
    /// `[batch, kv_heads, most pages · group, head_dim]`.
    fn page_rows(&self, pages: &Pages) -> [Tensor<4>; 2] {
        let StoreOptions { batch, shape, .. } = self.options;
        let (group, most) = (self.codec.group(), self.most_pages());
        let index = self.page_index();
        let picked: Vec<_> = pages.packed.iter().map(|packed| packed.select(&index)).collect();
        let both = self.codec.unpack(&picked, shape.head_dim);
        both.map(|x| x.reshape([batch, shape.kv_heads, most * group, shape.head_dim]))
    }

    /// The positions of pages side by side, −1 at padding, `[batch, kv_heads, most pages · group]`.
    fn page_positions(&self, pages: &Pages) -> Tensor<3, Int> {
        let StoreOptions { batch, shape, ref device, .. } = self.options;
        let (group, most) = (self.codec.group(), self.most_pages());
        let index = self.page_index();
        let positions = side_by_side(pages.positions.clone(), &index, batch, shape.kv_heads);
        let missing = |list: &Vec<usize>| (most - list.len()) * group;
        if self.table.iter().all(|list| missing(list) == 0) {
            return positions;
        }
        let padding = padding_mask(self.table.iter().map(missing), positions.dims(), device);
        positions.mask_fill(padding, -1)
    }

    /// The statistics of pages side by side.
    fn page_tracks(&self, pages: &Pages) -> AttentionStatistics {
        let StoreOptions { batch, shape, .. } = self.options;
        let index = self.page_index();
        let none = self.tail.tracks();
        let Some(numbers) = pages.tracks.clone() else { return none };
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
        Some(Selection::of_heads(&lists, self.heads(), &self.options.device))
    }

    /// Quantizes all entries of every head but those that stay in full precision; `entries` are the
    /// tail's.
    fn quantize(&mut self, entries: Entries, counts: &[usize], capacity: usize) {
        let width = entries.columns();
        self.places = OnceLock::new();
        let mut rows = Vec::new();
        let mut next = self.pages.as_ref().map_or(0, Pages::count);
        let mut left = Vec::with_capacity(counts.len());
        for (head, &count) in counts.iter().enumerate() {
            let full = self.codec.kept_full(count);
            let first = (head + 1) * width - count;
            rows.extend(first..first + count - full);
            let new = (count - full) / self.codec.group();
            self.table[head].extend(next..next + new);
            next += new;
            left.push(full);
        }
        if rows.is_empty() {
            self.tail.hold(entries, capacity);
        } else {
            let channels = self.channels.as_ref();
            let new = Pages::of(&entries, &rows, &self.codec, channels, self.options.dtype);
            self.pages = Some(match self.pages.take() {
                None => new,
                Some(held) => held.followed_by(new),
            });
            let lists: Vec<Vec<usize>> =
                left.iter().map(|&full| (width - full..width).collect()).collect();
            let selection = Selection::of_heads(&lists, self.heads(), &self.options.device);
            let entries = if selection.width() == 0 {
                None
            } else {
                Some(gather_entries(entries, &selection))
            };
            match entries {
                Some(entries) => self.tail.hold(entries, capacity),
                None => {
                    self.tail = DenseStore::new(self.options.clone());
                    self.tail.reserve(capacity);
                }
            }
        }
        self.before_append.clone_from(&left);
        self.tail_counts = left;
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
            let held = self.tail.held();
            sum(held.keys, held.positions)
        });
        match (pages, tail) {
            (Some(pages), Some(tail)) => Some(pages + tail),
            (pages, tail) => pages.or(tail),
        }
    }

    /// Room for what a tail may hold, whatever is asked for.
    fn room(&self) -> usize {
        self.codec.residual() + 2 * self.codec.group()
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

/// Pages, `[pages, per, group]`, put side by side: `[batch, heads · per, most pages · group]`.
fn side_by_side<K: Basic>(
    x: Tensor<3, K>,
    index: &Tensor<1, Int>,
    batch: usize,
    heads: usize,
) -> Tensor<3, K> {
    let [_, per, group] = x.dims();
    let most = index.dims()[0] / (batch * heads);
    x.select(0, index.clone()).reshape([batch * heads, most, per, group]).swap_dims(1, 2).reshape([
        batch,
        heads * per,
        most * group,
    ])
}

impl<C: Codec> Store for PagedStore<C> {
    fn columns(&self) -> usize {
        if self.aligned() {
            return self.most_pages() * self.codec.group() + self.tail.columns();
        }
        (0..self.table.len()).map(|head| self.count(head)).max().unwrap_or(0)
    }

    fn capacity(&self) -> usize {
        self.columns() - self.tail.columns().min(self.columns()) + self.tail.capacity()
    }

    fn bytes(&self) -> usize {
        let places = self.places.get().map_or(0, |places| {
            let integers = places.pages.dims()[0] + 2 * self.table.len() + 1;
            integers * self.options.int_bytes()
        });
        self.pages.as_ref().map_or(0, |pages| pages.bytes(self.options.rows))
            + self.tail.bytes()
            + self.channels.as_ref().map_or(0, |channels| channels.bytes(self.options.rows))
            + places
    }

    fn spare_bytes(&self) -> usize {
        self.tail.spare_bytes()
    }

    fn bytes_of(&self, _entries: usize, columns: usize) -> usize {
        let StoreOptions { shape, batch, dtype, rows, .. } = self.options;
        let group = self.codec.group();
        let heads = batch * shape.kv_heads;
        let widths = self.codec.widths(shape.head_dim);
        let packed = widths.iter().map(|widths| widths.bytes(rows, dtype));
        let channels = self
            .codec
            .key_channels(shape.head_dim)
            .map_or(0, |kept| heads * rows.bytes(kept, self.options.int_bytes()));
        let tail = columns.min(self.room());
        let full = tail * self.options.pair_bytes() + self.options.scalar_row_bytes(tail);
        let quantized = columns.saturating_sub(self.codec.residual());
        let positions = rows.bytes(group, self.options.int_bytes());
        let tracks = statistics::rows(self.options.observes, shape) / shape.kv_heads
            * rows.bytes(group, DType::F32.size());
        let page = packed.sum::<usize>() + positions + tracks;
        let places = heads * (quantized / group + 2) + 1;
        let pages = heads.saturating_mul(quantized).saturating_mul(page).div_ceil(group);
        full.saturating_add(pages).saturating_add(places * self.options.int_bytes() + channels)
    }

    fn reserve(&mut self, capacity: usize) {
        let pages = self.columns() - self.tail.columns().min(self.columns());
        let most = self.tail.columns() + self.room();
        self.tail.reserve(capacity.saturating_sub(pages).min(most));
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        self.before_append.clone_from(&self.tail_counts);
        for (held, new) in self.tail_counts.iter_mut().zip(counts) {
            *held += new;
        }
        let (held, new) = (self.tail.columns(), entries.columns());
        let all = counts.iter().all(|&count| count == new);
        if !all {
            self.places = OnceLock::new();
        }
        if held == 0 || all {
            return self.append_to_tail(entries, counts);
        }
        // What is quantized stays where it is: only the tail has to make way for padding.
        let before = self.before_append.iter().zip(counts);
        let lists: Vec<Vec<usize>> = before
            .map(|(&old, &count)| {
                (held - old..held).chain(held + new - count..held + new).collect()
            })
            .collect();
        if lists.iter().all(Vec::is_empty) {
            // Padding behind padding.
            return self.append_to_tail(entries, counts);
        }
        // No fewer entries than queries, if all of these are padding too.
        let selection =
            Selection::of_heads(&lists, self.heads(), &self.options.device).widened(new);
        let entries = gather_entries(self.tail.held().followed_by(entries), &selection);
        let capacity = self.tail.capacity().max(entries.columns());
        self.tail.hold(entries, capacity);
        Ok(())
    }

    fn moves_padding(&self) -> bool {
        true
    }

    fn truncate(&mut self, columns: usize) {
        let dropped = self.columns().saturating_sub(columns);
        if dropped > 0 {
            self.tail.truncate(self.tail.columns().saturating_sub(dropped));
            self.tail_counts.clone_from(&self.before_append);
            self.places = OnceLock::new();
        }
    }

    fn entries(&self) -> Result<Entries> {
        let Some(pages) = &self.pages else { return self.tail.entries() };
        let tail = (self.tail.columns() > 0).then(|| self.tail.held());
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
            tracks: self.tracks(),
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

    fn tracks(&self) -> AttentionStatistics {
        let Some(pages) = &self.pages else { return self.tail.tracks() };
        let held = self.page_tracks(pages);
        let all = if self.tail.columns() == 0 {
            held
        } else {
            held.zip(self.tail.tracks(), |held, tail| Tensor::cat(vec![held, tail], 2))
        };
        match self.selection() {
            None => all,
            Some(selection) => all.map(|track| gather_scalars(track, &selection)),
        }
    }

    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        match self.attend_packed(&input)? {
            Some(output) => Ok(output),
            None => attend_entries(self.entries()?, input),
        }
    }

    fn set_tracks(&mut self, tracks: AttentionStatistics) {
        let columns = self.columns();
        let (group, most, tail) = (self.codec.group(), self.most_pages(), self.tail.columns());
        let heads = self.heads();
        let device = self.options.device.clone();
        // From the columns of all entries to those of pages and of the tail.
        let part = |lists: Vec<Vec<usize>>, narrow: (usize, usize)| {
            if self.aligned() {
                return tracks.clone().map(|track| track.narrow(2, narrow.0, narrow.1));
            }
            let selection = Selection::of_heads(&lists, heads, &device);
            tracks.clone().map(|track| gather_scalars(track, &selection))
        };
        let counts: Vec<usize> = (0..self.table.len()).map(|head| self.count(head)).collect();
        let old = counts.iter().zip(&self.tail_counts);
        let old = old.map(|(&count, &tail)| (columns - count..columns - tail).collect()).collect();
        let new =
            self.tail_counts.iter().map(|&tail| (columns - tail..columns).collect()).collect();
        let of_pages = (most > 0).then(|| part(old, (0, most * group)));
        let of_tail = (tail > 0).then(|| part(new, (columns - tail, tail)));

        if let (Some(tracks), Some(pages)) = (of_pages, &mut self.pages) {
            let total = pages.count();
            let mut place = vec![0; total];
            for (head, list) in self.table.iter().enumerate() {
                let missing = most - list.len();
                for (index, &page) in list.iter().enumerate() {
                    place[page] = (head * most + missing + index) as i64;
                }
            }
            let place = upload(place, &device);
            pages.tracks = tracks.by_head(heads).map(|numbers| {
                let [batch, _, per, _] = numbers.dims();
                let numbers: Tensor<4> = numbers.reshape([batch * heads, per, most, group]);
                let pages: Tensor<3> =
                    numbers.swap_dims(1, 2).reshape([batch * heads * most, per, group]);
                pages.select(0, place)
            });
        }
        if let Some(tracks) = of_tail {
            // Every head's tail is as wide as the widest, or the selection made it so.
            let width = tracks.stacked().map_or(tail, |tracks| tracks.dims()[2]);
            let tracks = if width == tail {
                tracks
            } else {
                tracks.map(|track| behind_zeros(track, tail - width))
            };
            self.tail.set_tracks(tracks);
        }
    }

    /// Holds the entries in the tail until they [`settle`](Store::settle).
    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()> {
        self.pages = None;
        self.places = OnceLock::new();
        self.table.iter_mut().for_each(Vec::clear);
        let most = entries.columns() + self.room();
        self.tail.hold(entries, capacity.min(most));
        self.tail_counts = counts.to_vec();
        self.before_append = counts.to_vec();
        Ok(())
    }

    fn settle(&mut self) {
        let due = |&count: &usize| count >= self.codec.residual() + self.codec.group();
        if !self.tail_counts.iter().any(due) {
            return;
        }
        let entries = self.tail.held();
        let counts = self.tail_counts.clone();
        let capacity = self.room().min(self.tail.capacity());
        self.quantize(entries, &counts, capacity);
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
        parts.put_parts("tail", self.tail.parts()?);
        parts.put_numbers("tail-counts", &self.tail_counts[..]);
        parts.put_numbers("before-append", &self.before_append[..]);
        parts.put_numbers("table.lengths", self.table.iter().map(Vec::len).collect::<Vec<_>>());
        parts.put_numbers("table", self.table.concat());
        parts.put_numbers("pages", [self.pages.as_ref().map_or(0, Pages::count)]);
        if let Some(pages) = &self.pages {
            parts.put_parts("page", pages.save()?);
        }
        Ok(Some(parts))
    }

    /// Rows share pages without statistics: these are never written to.
    fn repeated(&self, rows: usize) -> Option<Box<dyn Store>> {
        let options = StoreOptions { batch: rows, ..self.options.clone() };
        let counted = self.pages.as_ref().is_some_and(|pages| pages.tracks.is_some());
        let (copies, apart) = match &self.pages {
            Some(pages) if counted => (rows, pages.count()),
            _ => (1, 0),
        };
        let of_row = |row: usize| {
            let heads = self.table.iter();
            heads.map(move |list| list.iter().map(|page| page + row * apart).collect::<Vec<_>>())
        };
        let copied =
            |pages: &Pages| if copies > 1 { pages.repeated(copies) } else { pages.clone() };
        Some(Box::new(Self {
            pages: self.pages.as_ref().map(copied),
            table: (0..rows).flat_map(of_row).collect(),
            tail: self.tail.of_rows(rows),
            tail_counts: self.tail_counts.repeat(rows),
            before_append: self.before_append.repeat(rows),
            channels: self.channels.as_ref().map(|channels| channels.repeated(rows)),
            ..Self::new(self.codec.clone(), options)
        }))
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}
