//! Pages of numbers of a few bits.

use std::sync::LazyLock;

use burn::tensor::{Int, Tensor};
use pulp::Simd;

use super::layer::{HostKv, HostTail};
use crate::{
    attention::decode::{PackedGroups, PackedNumbers, PackedVectors, QuantizedKv},
    e4m3::of_e4m3,
    error::Result,
    host::{
        HostInput, View,
        rows::{add_all, dot},
    },
};

const INPUT: HostInput = HostInput("quantized_attention");

/// The pages of a layer, and what follows them.
pub(super) struct Pages {
    keys: Packed,
    values: Packed,
    /// Whether the rows of a page of keys are channels.
    by_channel: bool,
    /// Tokens of a page.
    group: usize,
    pages: Vec<usize>,
    offsets: Vec<usize>,
    tail: HostTail,
    tail_padding: Vec<usize>,
    columns: usize,
    dims: [usize; 3],
}

/// The numbers that each byte stands for.
enum Table {
    One(&'static [[f32; 1]]),
    Two(&'static [[f32; 2]]),
    Four(&'static [[f32; 4]]),
    Eight(&'static [[f32; 8]]),
}

impl Table {
    /// Numbers of a 32-bit word.
    fn numbers_of_word(&self) -> usize {
        4 * match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Four(_) => 4,
            Self::Eight(_) => 8,
        }
    }
}

/// A table that is made once.
type Once<const N: usize> = LazyLock<Vec<[f32; N]>>;

static E4M3: Once<1> = Once::new(|| table(|byte, _| of_e4m3(byte as u8)));
static BYTES: Once<1> = Once::new(levels);
static HALVES: Once<2> = Once::new(levels);
static QUARTERS: Once<4> = Once::new(levels);
static BITS: Once<8> = Once::new(levels);

/// The table of the numbers of a byte, by their places in it.
fn table<const N: usize>(number: impl Fn(usize, usize) -> f32) -> Vec<[f32; N]> {
    (0..256).map(|byte| std::array::from_fn(|place| number(byte, place))).collect()
}

/// The table of bytes that are so many levels, the first in the lowest bits.
fn levels<const N: usize>() -> Vec<[f32; N]> {
    let bits = 8 / N;
    table(|byte, place| ((byte >> (place * bits)) & ((1 << bits) - 1)) as f32)
}

/// The numbers of some bytes; the last byte may have more than there is room for.
#[inline(always)]
fn look_up<const N: usize>(table: &[[f32; N]], bytes: &[u8], to: &mut [f32]) {
    let (whole, rest) = to.as_chunks_mut::<N>();
    for (to, &byte) in whole.iter_mut().zip(bytes) {
        *to = table[usize::from(byte)];
    }
    if let (false, Some(&byte)) = (rest.is_empty(), bytes.get(whole.len())) {
        rest.copy_from_slice(&table[usize::from(byte)][..rest.len()]);
    }
}

/// Rows of packed numbers, `[pages, rows, bytes]`.
struct Packed {
    bytes: View<u8>,
    bytes_of_row: usize,
    table: Table,
    /// Scale and minimum of each group of a row, `[pages, rows, groups]`; no minimum is zero.
    scale: View<f32>,
    min: Option<View<f32>>,
    groups: usize,
    rows: usize,
    /// Numbers of a row.
    width: usize,
    pages: usize,
}

impl Packed {
    /// Levels of so many bits, in rows of so many numbers.
    fn levels(from: &PackedGroups, rows: usize, width: usize, bits: usize) -> Result<Self> {
        let PackedGroups { words, scale, min } = from;
        let table = match bits {
            1 => Table::Eight(&BITS),
            2 => Table::Four(&QUARTERS),
            4 => Table::Two(&HALVES),
            _ => Table::One(&BYTES),
        };
        Self::of(words, scale, Some(min), table, rows, width)
    }

    /// Vectors of E4M3 bytes.
    fn vectors(from: &PackedVectors, rows: usize, width: usize) -> Result<Self> {
        Self::of(&from.words, &from.scale, None, Table::One(&E4M3), rows, width)
    }

    fn of(
        all: &Tensor<2, Int>,
        scale: &Tensor<2>,
        min: Option<&Tensor<2>>,
        table: Table,
        rows: usize,
        width: usize,
    ) -> Result<Self> {
        let ([pages, words], [_, measures]) = (all.dims(), scale.dims());
        let numbers = table.numbers_of_word();
        let of_row = width.div_ceil(numbers);
        INPUT.shape("words", all.dims(), [pages, rows * of_row])?;
        let groups = measures / rows;
        let even = groups > 0 && width.is_multiple_of(groups);
        INPUT.value("groups of a row", groups, even, format!("a divisor of {width}"))?;
        INPUT.shape("scale", scale.dims(), [pages, rows * groups])?;
        if let Some(min) = min {
            INPUT.shape("min", min.dims(), scale.dims())?;
        }
        Ok(Self {
            bytes: INPUT.bytes(all)?,
            bytes_of_row: words / rows * size_of::<u32>(),
            scale: INPUT.view(scale)?,
            min: min.map(|min| INPUT.view(min)).transpose()?,
            table,
            groups,
            rows,
            width,
            pages,
        })
    }

    /// The rows of all pages.
    fn rows(&self) -> PackedRows<'_> {
        let Self { bytes, scale, min, .. } = self;
        PackedRows { all: self, bytes, scale, min: min.as_deref() }
    }
}

/// The rows of all pages, read where they lie.
#[derive(Clone, Copy)]
struct PackedRows<'a> {
    all: &'a Packed,
    bytes: &'a [u8],
    scale: &'a [f32],
    min: Option<&'a [f32]>,
}

impl PackedRows<'_> {
    /// Levels of a row, without scale and minimum, into `to`.
    #[inline(always)]
    fn unpack(self, page: usize, row: usize, to: &mut [f32]) {
        let Packed { rows, bytes_of_row, table, .. } = self.all;
        let start = (page * rows + row) * bytes_of_row;
        let bytes = &self.bytes[start..start + bytes_of_row];
        match table {
            Table::One(table) => look_up(table, bytes, to),
            Table::Two(table) => look_up(table, bytes, to),
            Table::Four(table) => look_up(table, bytes, to),
            Table::Eight(table) => look_up(table, bytes, to),
        }
    }

    /// Scale and minimum of a group of a row.
    #[inline(always)]
    fn measures(self, page: usize, row: usize, group: usize) -> (f32, f32) {
        let place = (page * self.all.rows + row) * self.all.groups + group;
        (self.scale[place], self.min.map_or(0.0, |min| min[place]))
    }

    /// The numbers of a row, into `to`.
    #[inline(always)]
    fn row(self, page: usize, row: usize, to: &mut [f32]) {
        self.unpack(page, row, to);
        for (group, numbers) in to.chunks_mut(self.all.width / self.all.groups).enumerate() {
            let (scale, min) = self.measures(page, row, group);
            numbers.iter_mut().for_each(|number| *number = *number * scale + min);
        }
    }
}

impl Pages {
    pub(super) fn read(kv: &QuantizedKv) -> Result<Self> {
        let [batch, heads, _, head_dim] = kv.tail.keys.dims();
        let (group, lists) = (kv.group, batch * heads);
        INPUT.shape("offsets", kv.offsets.dims(), [lists + 1])?;
        INPUT.shape("tail_padding", kv.tail_padding.dims(), [lists])?;
        INPUT.value("group", group, group > 0 && head_dim > 0, "1 or more, as channels")?;
        let (keys, values, by_channel) = match &kv.numbers {
            PackedNumbers::Levels { keys, values, bits } => {
                let known = [1, 2, 4, 8].contains(bits);
                INPUT.value("bits", *bits, known, "1, 2, 4 or 8")?;
                let keys = Packed::levels(keys, head_dim, group, *bits)?;
                (keys, Packed::levels(values, group, head_dim, *bits)?, true)
            }
            PackedNumbers::Fp8 { keys, values } => {
                let keys = Packed::vectors(keys, group, head_dim)?;
                (keys, Packed::vectors(values, group, head_dim)?, false)
            }
        };
        let all = keys.pages.min(values.pages);
        let last = all.saturating_sub(1);
        let pages = Self {
            keys,
            values,
            by_channel,
            group,
            pages: INPUT.at_most("pages", &kv.pages, last)?,
            offsets: INPUT.ascending("offsets", &kv.offsets, kv.pages.dims()[0])?,
            tail: HostTail::read(INPUT, &kv.tail)?,
            tail_padding: INPUT.at_most("tail_padding", &kv.tail_padding, kv.tail.entries)?,
            columns: kv.columns,
            dims: [batch, heads, head_dim],
        };
        for list in 0..lists {
            let tokens = pages.pages(list).len() * group + pages.tail.entries - pages.skipped(list);
            INPUT.value(
                "columns",
                kv.columns,
                tokens <= kv.columns,
                format!("at least {tokens}"),
            )?;
        }
        Ok(pages)
    }

    fn pages(&self, list: usize) -> &[usize] {
        &self.pages[self.offsets[list]..self.offsets[list + 1]]
    }

    fn skipped(&self, list: usize) -> usize {
        self.tail_padding[list]
    }
}

impl HostKv for Pages {
    fn input(&self) -> HostInput {
        INPUT
    }

    fn dims(&self) -> [usize; 3] {
        self.dims
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn first(&self, list: usize) -> usize {
        let tail = self.tail.entries - self.skipped(list);
        self.columns - self.pages(list).len() * self.group - tail
    }

    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, list: usize, queries: &[f32], scores: &mut [f32]) {
        let keys = self.keys.rows();
        let mut rows = vec![0.0; self.keys.rows * self.keys.width];
        let mut factors = vec![0.0; self.dims[2]];
        let mut column = self.first(list);
        for &page in self.pages(list) {
            // Of channels scale and minimum go to the queries, and the levels stay whole numbers.
            for (row, numbers) in rows.chunks_mut(self.keys.width).enumerate() {
                match self.by_channel {
                    true => keys.unpack(page, row, numbers),
                    false => keys.row(page, row, numbers),
                }
            }
            let lines = queries.chunks(self.dims[2]).zip(scores.chunks_mut(self.columns));
            for (query, scores) in lines {
                let scores = &mut scores[column..column + self.group];
                if !self.by_channel {
                    let rows = rows.chunks_exact(self.dims[2]);
                    scores
                        .iter_mut()
                        .zip(rows)
                        .for_each(|(score, key)| *score = dot(simd, query, key));
                    continue;
                }
                let mut low = 0.0;
                for (channel, (factor, number)) in factors.iter_mut().zip(query).enumerate() {
                    let (scale, min) = keys.measures(page, channel, 0);
                    *factor = number * scale;
                    low += number * min;
                }
                scores.fill(low);
                add_all(simd, scores, &factors, &rows);
            }
            column += self.group;
        }
        self.tail.score(simd, (list, self.skipped(list)), queries, scores, self.columns);
    }

    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, list: usize, weights: &[f32], output: &mut [f32]) {
        let values = self.values.rows();
        let mut rows = vec![0.0; self.group * self.dims[2]];
        let mut column = self.first(list);
        for &page in self.pages(list) {
            for (token, row) in rows.chunks_mut(self.dims[2]).enumerate() {
                values.row(page, token, row);
            }
            let lines = output.chunks_mut(self.dims[2]).zip(weights.chunks(self.columns));
            for (output, weights) in lines {
                add_all(simd, output, &weights[column..column + self.group], &rows);
            }
            column += self.group;
        }
        self.tail.weigh(simd, (list, self.skipped(list)), weights, output, self.columns);
    }
}
