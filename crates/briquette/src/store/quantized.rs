use std::sync::OnceLock;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, kind::Basic};
use serde::{Deserialize, Serialize};

use super::{DenseStore, Store, StoreBuilder, StoreOptions, StoreQuery, dense::attend_entries};
use crate::{
    CacheShape, Result, check,
    device::{Rows, buffer_bytes},
    ops::{
        AttentionOutput, Entries, KvLayout, PackedGroups, QuantizedKv, Selection, Tail, Tracks,
        fillers, gather_entries, gather_positions, gather_rows, gather_scalars,
    },
    tracks,
};

/// Entries quantized to 1, 2, 4 or 8 bits and packed, the last ones in full precision (KIVI; Liu et al., 2024).
///
/// Keys are quantized a channel, over groups of tokens; values a token, over groups of channels; both between
/// the minimum and the maximum of their group (section 4). Burn's own quantized tensors are symmetric, which
/// KIVI is not, so the numbers are packed here, into 32-bit words.
///
/// A head's entries turn into numbers a group at a time, oldest first, while at least `residual` stay as they
/// are. When entries are dropped, what is left is quantized anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantized {
    /// Bits a number: 1, 2, 4 or 8. No device has a kernel for 1: pages are made numbers again in every call.
    pub bits: u8,
    /// Tokens a group of keys, and channels a group of values (at most `head_dim`).
    #[serde(default = "Quantized::default_group")]
    pub group: usize,
    /// The last so many tokens at least stay in full precision.
    #[serde(default = "Quantized::default_residual")]
    pub residual: usize,
}

impl Quantized {
    /// KIVI's own parameters: groups of 32, a residual of 128 tokens.
    pub fn kivi(bits: u8) -> Self {
        Self { bits, group: Self::default_group(), residual: Self::default_residual() }
    }

    fn default_group() -> usize {
        32
    }

    fn default_residual() -> usize {
        128
    }

    fn values_a_word(&self) -> usize {
        32 / usize::from(self.bits)
    }

    fn value_group(&self, head_dim: usize) -> usize {
        self.group.min(head_dim)
    }

    /// Of so many entries those that stay in full precision.
    fn kept_full(&self, entries: usize) -> usize {
        match entries.checked_sub(self.residual) {
            Some(older) => self.residual + older % self.group,
            None => entries,
        }
    }
}

impl StoreBuilder for Quantized {
    fn name(&self) -> &str {
        "quantized"
    }

    fn summary(&self) -> String {
        format!("{} to {} bits, last {} full", self.name(), self.bits, self.residual)
    }

    fn check(&self) -> Result<()> {
        if ![1, 2, 4, 8].contains(&self.bits) {
            return check::refuse("store.bits", self.bits, "1, 2, 4 or 8");
        }
        check::columns("store.residual", self.residual)?;
        check::columns("store.group", self.group)?;
        let word = self.values_a_word();
        if self.group == 0 || !self.group.is_multiple_of(word) {
            let must_be =
                format!("a multiple of {word}, the numbers of {} bits in a word", self.bits);
            return check::refuse("store.group", self.group, must_be);
        }
        Ok(())
    }

    fn check_shape(&self, shape: CacheShape) -> Result<()> {
        let group = self.value_group(shape.head_dim);
        if shape.head_dim.is_multiple_of(group) {
            return Ok(());
        }
        let must_be = format!("a divisor of the {} channels of a head, or more", shape.head_dim);
        check::refuse("store.group", self.group, must_be)
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        let heads = options.batch * options.shape.kv_heads;
        Box::new(QuantizedStore {
            codec: *self,
            tail: DenseStore::new(options.clone()),
            options,
            pages: None,
            table: vec![Vec::new(); heads],
            tail_counts: vec![0; heads],
            before_append: vec![0; heads],
            places: OnceLock::new(),
        })
    }
}

/// The store of [`Quantized`].
#[derive(Clone, Debug)]
struct QuantizedStore {
    codec: Quantized,
    options: StoreOptions,
    pages: Option<Pages>,
    /// The pages of each batch row and kv head, oldest first.
    table: Vec<Vec<usize>>,
    tail: DenseStore,
    /// Entries in the tail, a batch row and kv head; fillers stand before them.
    tail_counts: Vec<usize>,
    /// The same before the last append.
    before_append: Vec<usize>,
    /// Known once a query has been attended that reads pages as they are.
    places: OnceLock<Places>,
}

/// Where the entries of each batch row and kv head lie, on the device.
#[derive(Clone, Debug)]
struct Places {
    /// The pages of all heads one after another, `[all pages]`.
    pages: Tensor<1, Int>,
    /// Where those of each head begin, and where the last end, `[batch · kv_heads + 1]`.
    offsets: Tensor<1, Int>,
    /// Fillers at the beginning of the tail, `[batch · kv_heads]`.
    tail_fillers: Tensor<1, Int>,
}

/// Groups of tokens, quantized.
#[derive(Clone, Debug)]
struct Pages {
    keys: Packed,
    values: Packed,
    /// `[pages, 1, group]`
    positions: Tensor<3, Int>,
    /// `[pages, numbers, group]`, the [numbers](Tracks::by_head) of a kv head.
    tracks: Option<Tensor<3>>,
}

/// Numbers of a few bits, in words, with the line each group of them lies on.
///
/// What belongs to a page is one row, since devices may pad rows: CUDA pads short ones to 16 bytes.
#[derive(Clone, Debug)]
struct Packed {
    /// 32-bit integers, `[pages, rows · words]`.
    words: Tensor<2, Int>,
    /// `[pages, rows · groups]`, in the cache's type.
    scale: Tensor<2>,
    /// `[pages, rows · groups]`, in the cache's type.
    min: Tensor<2>,
}

impl Packed {
    /// Quantizes `x`, `[pages, rows, numbers]`, in groups of `group` numbers of a row.
    fn quantize(x: Tensor<3>, group: usize, bits: u8, dtype: DType) -> Self {
        let [pages, rows, numbers] = x.dims();
        let groups = numbers / group;
        let top = f64::from((1_u32 << bits) - 1);
        let x = x.cast(DType::F32).reshape([pages, rows, groups, group]);
        let low = x.clone().min_dim(3);
        let scale = (x.clone().max_dim(3) - low.clone()) / top;
        // What is held is what the numbers are measured by.
        let held = |x: Tensor<4>| x.cast(dtype).cast(DType::F32);
        let (low, scale) = (held(low), held(scale));
        let flat = scale.clone().equal_scalar(0.0);
        let step = scale.clone().mask_fill(flat, 1.0);
        let levels = ((x - low.clone()) / step).round().clamp(0.0, top);

        let a_word = 32 / usize::from(bits);
        let words = numbers.div_ceil(a_word);
        let mut levels = levels.reshape([pages, rows, numbers]).int().cast(DType::I32);
        if words * a_word > numbers {
            let rest = [pages, rows, words * a_word - numbers];
            let rest = Tensor::<3, Int>::zeros(rest, (&levels.device(), DType::I32));
            levels = Tensor::cat(vec![levels, rest], 2);
        }
        let levels = levels.reshape([pages, rows, words, a_word]);
        let mut packed = levels.clone().narrow(3, 0, 1);
        for place in 1..a_word {
            let shift = (place * usize::from(bits)) as i32;
            let level = levels.clone().narrow(3, place, 1).bitwise_left_shift_scalar(shift);
            packed = packed.bitwise_or(level);
        }
        Self {
            words: packed.reshape([pages, rows * words]),
            scale: scale.reshape([pages, rows * groups]).cast(dtype),
            min: low.reshape([pages, rows * groups]).cast(dtype),
        }
    }

    /// The numbers again, f32, `[pages, rows, numbers]`.
    fn dequantize(&self, rows: usize, numbers: usize, bits: u8) -> Tensor<3> {
        let [pages, words] = self.words.dims();
        let words = words / rows;
        let groups = self.scale.dims()[1] / rows;
        let a_word = 32 / usize::from(bits);
        let mask = ((1_u32 << bits) - 1) as i32;
        let levels: Vec<Tensor<4, Int>> = (0..a_word)
            .map(|place| {
                let shift = (place * usize::from(bits)) as i32;
                let level = self.words.clone().bitwise_right_shift_scalar(shift);
                level.bitwise_and_scalar(mask).reshape([pages, rows, words, 1])
            })
            .collect();
        let levels = Tensor::cat(levels, 3).reshape([pages, rows, words * a_word]);
        let levels = levels.narrow(2, 0, numbers).float().cast(DType::F32);
        let levels = levels.reshape([pages, rows, groups, numbers / groups]);
        let line = |x: &Tensor<2>| x.clone().cast(DType::F32).reshape([pages, rows, groups, 1]);
        (levels * line(&self.scale) + line(&self.min)).reshape([pages, rows, numbers])
    }

    fn map(
        self,
        words: impl FnOnce(Tensor<2, Int>) -> Tensor<2, Int>,
        line: impl Fn(Tensor<2>) -> Tensor<2>,
    ) -> Self {
        Self { words: words(self.words), scale: line(self.scale), min: line(self.min) }
    }

    fn followed_by(self, new: Self) -> Self {
        Self {
            words: Tensor::cat(vec![self.words, new.words], 0),
            scale: Tensor::cat(vec![self.scale, new.scale], 0),
            min: Tensor::cat(vec![self.min, new.min], 0),
        }
    }

    fn input(&self) -> PackedGroups {
        let Self { words, scale, min } = self.clone();
        PackedGroups { words, scale, min }
    }

    fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.words, rows) + 2 * buffer_bytes(&self.scale, rows)
    }
}

impl Pages {
    /// Quantizes the entries at `rows` of the rectangle: for each page the rows of its tokens.
    fn of(entries: &Entries, rows: &[usize], codec: Quantized, dtype: DType) -> Self {
        let [batch, heads, width, head_dim] = entries.keys.dims();
        let group = codec.group;
        let pages = rows.len() / group;
        let device = entries.keys.device();
        let index = upload(rows.iter().map(|&row| row as i64).collect(), &device);
        let pick = |x: &Tensor<4>| {
            let list = x.clone().reshape([batch * heads * width, head_dim]);
            list.select(0, index.clone()).reshape([pages, group, head_dim])
        };
        let positions = entries.positions.clone().reshape([batch * heads * width]);
        Self {
            // Rows of keys are channels: their groups are tokens.
            keys: Packed::quantize(pick(&entries.keys).swap_dims(1, 2), group, codec.bits, dtype),
            values: Packed::quantize(
                pick(&entries.values),
                codec.value_group(head_dim),
                codec.bits,
                dtype,
            ),
            positions: positions.select(0, index.clone()).reshape([pages, 1, group]),
            tracks: entries.tracks.by_head(heads).map(|numbers| {
                let per = numbers.dims()[2];
                let list = numbers.swap_dims(2, 3).reshape([batch * heads * width, per]);
                let list = list.select(0, index.clone());
                list.reshape([pages, group, per]).swap_dims(1, 2)
            }),
        }
    }

    fn followed_by(self, new: Self) -> Self {
        Self {
            keys: self.keys.followed_by(new.keys),
            values: self.values.followed_by(new.values),
            positions: Tensor::cat(vec![self.positions, new.positions], 0),
            tracks: self.tracks.zip(new.tracks).map(|(held, new)| Tensor::cat(vec![held, new], 0)),
        }
    }

    fn bytes(&self, rows: Rows) -> usize {
        self.keys.bytes(rows)
            + self.values.bytes(rows)
            + buffer_bytes(&self.positions, rows)
            + self.tracks.as_ref().map_or(0, |tracks| buffer_bytes(tracks, rows))
    }
}

fn upload(list: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let length = list.len();
    Tensor::from_data(TensorData::new(list, [length]), device)
}

impl QuantizedStore {
    fn heads(&self) -> usize {
        self.options.shape.kv_heads
    }

    /// Pages of the head that has most.
    fn most_pages(&self) -> usize {
        self.table.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn count(&self, head: usize) -> usize {
        self.table[head].len() * self.codec.group + self.tail_counts[head]
    }

    /// Whether pages and tail stand side by side without a filler between them.
    fn aligned(&self) -> bool {
        let pages = self.most_pages();
        pages == 0
            || (self.table.iter().all(|list| list.len() == pages)
                && self.tail_counts.iter().all(|&count| count == self.tail.columns()))
    }

    /// Columns of pages side by side with a tail, as lists of those that are no fillers.
    fn columns_of_heads(&self) -> Vec<Vec<usize>> {
        let pages = self.most_pages() * self.codec.group;
        let columns = pages + self.tail.columns();
        let of_head = |(list, &tail): (&Vec<usize>, &usize)| {
            let own = list.len() * self.codec.group;
            (pages - own..pages).chain(columns - tail..columns).collect()
        };
        self.table.iter().zip(&self.tail_counts).map(of_head).collect()
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
            let fillers = self.tail_counts.iter().map(|&count| (tail - count) as i64).collect();
            Places {
                pages: upload(pages, device),
                offsets: upload(offsets, device),
                tail_fillers: upload(fillers, device),
            }
        })
    }

    /// Attention of one query a head over pages as they are packed; `None` if there is no way. Keys that are encoded
    /// in every call are laid out for it.
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
        let Places { pages: list, offsets, tail_fillers } = self.places().clone();
        input.decode(KvLayout::Quantized(QuantizedKv {
            keys: pages.keys.input(),
            values: pages.values.input(),
            bits: usize::from(self.codec.bits),
            group: self.codec.group,
            pages: list,
            offsets,
            most_pages,
            tail: Tail { keys, values, entries: self.tail.columns() },
            tail_fillers,
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

    /// Keys and values of pages side by side, each `[batch, kv_heads, most pages · group, head_dim]`.
    fn page_rows(&self, pages: &Pages) -> [Tensor<4>; 2] {
        let StoreOptions { batch, shape, .. } = self.options;
        let (group, most) = (self.codec.group, self.most_pages());
        let index = self.page_index();
        let pick = |packed: &Packed| {
            let rows = |x: Tensor<2>| x.select(0, index.clone());
            packed.clone().map(|words| words.select(0, index.clone()), rows)
        };
        let (head_dim, bits) = (shape.head_dim, self.codec.bits);
        let keys = pick(&pages.keys).dequantize(head_dim, group, bits).swap_dims(1, 2);
        let values = pick(&pages.values).dequantize(group, head_dim, bits);
        [keys, values].map(|x| x.reshape([batch, shape.kv_heads, most * group, shape.head_dim]))
    }

    /// The positions of pages side by side, −1 at fillers, `[batch, kv_heads, most pages · group]`.
    fn page_positions(&self, pages: &Pages) -> Tensor<3, Int> {
        let StoreOptions { batch, shape, ref device, .. } = self.options;
        let (group, most) = (self.codec.group, self.most_pages());
        let index = self.page_index();
        let positions = side_by_side(pages.positions.clone(), &index, batch, shape.kv_heads);
        let missing = |list: &Vec<usize>| (most - list.len()) * group;
        if self.table.iter().all(|list| missing(list) == 0) {
            return positions;
        }
        let filler = fillers(self.table.iter().map(missing), positions.dims(), device);
        positions.mask_fill(filler, -1)
    }

    /// What is counted of pages side by side.
    fn page_tracks(&self, pages: &Pages) -> Tracks {
        let StoreOptions { batch, shape, .. } = self.options;
        let index = self.page_index();
        let none = self.tail.tracks();
        let Some(numbers) = pages.tracks.clone() else { return none };
        let [_, per, _] = numbers.dims();
        let all = side_by_side(numbers, &index, batch, shape.kv_heads);
        let [_, _, columns] = all.dims();
        none.of_by_head(all.reshape([batch, shape.kv_heads, per, columns]))
    }

    /// From the columns of pages and tail side by side to those of the entries; `None` if they are the same.
    fn selection(&self) -> Option<Selection> {
        if self.aligned() {
            return None;
        }
        let lists = self.columns_of_heads();
        Some(Selection::of_heads(&lists, self.heads(), &self.options.device))
    }

    /// Quantizes of every head all entries but those that stay in full precision; `entries` are the tail's.
    fn quantize(&mut self, entries: Entries, counts: &[usize], capacity: usize) {
        let width = entries.columns();
        self.places = OnceLock::new();
        let mut rows = Vec::new();
        let mut next = self.pages.as_ref().map_or(0, |pages| pages.positions.dims()[0]);
        let mut left = Vec::with_capacity(counts.len());
        for (head, &count) in counts.iter().enumerate() {
            let full = self.codec.kept_full(count);
            let first = (head + 1) * width - count;
            rows.extend(first..first + count - full);
            let new = (count - full) / self.codec.group;
            self.table[head].extend(next..next + new);
            next += new;
            left.push(full);
        }
        if rows.is_empty() {
            self.tail.hold(entries, capacity);
        } else {
            let new = Pages::of(&entries, &rows, self.codec, self.options.dtype);
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

    /// Room for what a tail may hold, whatever is asked for.
    fn room(&self) -> usize {
        self.codec.residual + 2 * self.codec.group
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

impl Store for QuantizedStore {
    fn columns(&self) -> usize {
        if self.aligned() {
            return self.most_pages() * self.codec.group + self.tail.columns();
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
            + places
    }

    fn bytes_of(&self, _entries: usize, columns: usize) -> usize {
        let StoreOptions { shape, batch, dtype, rows, .. } = self.options;
        let Quantized { group, .. } = self.codec;
        let heads = batch * shape.kv_heads;
        let bits = usize::from(self.codec.bits);
        let packed = |lines: usize, numbers: usize, groups: usize| {
            let words = lines * (numbers * bits).div_ceil(32);
            rows.bytes(words, size_of::<u32>()) + 2 * rows.bytes(lines * groups, dtype.size())
        };
        let head_dim = shape.head_dim;
        let keys = packed(head_dim, group, 1);
        let values = packed(group, head_dim, head_dim / self.codec.value_group(head_dim));
        let tail = columns.min(self.room());
        let full = tail * self.options.pair_bytes() + self.options.scalar_row_bytes(tail);
        let quantized = columns.saturating_sub(self.codec.residual);
        let positions = rows.bytes(group, self.options.int_bytes());
        let tracks = tracks::rows(self.options.observes, shape) / shape.kv_heads
            * rows.bytes(group, DType::F32.size());
        let page = keys + values + positions + tracks;
        let places = heads * (quantized / group + 2) + 1;
        let pages = heads.saturating_mul(quantized).saturating_mul(page).div_ceil(group);
        full.saturating_add(pages).saturating_add(places * self.options.int_bytes())
    }

    fn reserve(&mut self, capacity: usize) {
        let pages = self.columns() - self.tail.columns().min(self.columns());
        let most = self.tail.columns() + self.room();
        self.tail.reserve(capacity.saturating_sub(pages).min(most));
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) {
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
            self.tail.append(entries, counts);
            return;
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
            self.tail.append(entries, counts);
            return;
        }
        let selection = Selection::of_heads(&lists, self.heads(), &self.options.device);
        let entries = gather_entries(self.tail.held().followed_by(entries), &selection);
        let capacity = self.tail.capacity().max(entries.columns());
        self.tail.hold(entries, capacity);
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
            sharing: None,
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

    fn tracks(&self) -> Tracks {
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

    fn set_tracks(&mut self, tracks: Tracks) {
        let columns = self.columns();
        let (group, most, tail) = (self.codec.group, self.most_pages(), self.tail.columns());
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
            let total = pages.positions.dims()[0];
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
                tracks.map(|track| {
                    let [batch, heads, _] = track.dims();
                    let none = [batch, heads, tail - width];
                    let none = Tensor::zeros(none, (&track.device(), track.dtype()));
                    Tensor::cat(vec![none, track], 2)
                })
            };
            self.tail.set_tracks(tracks);
        }
    }

    /// As they are, until they [`settle`](Store::settle).
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
        let due = |&count: &usize| count >= self.codec.residual + self.codec.group;
        if !self.tail_counts.iter().any(due) {
            return;
        }
        let entries = self.tail.held();
        let counts = self.tail_counts.clone();
        let capacity = self.room().min(self.tail.capacity());
        self.quantize(entries, &counts, capacity);
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}
