//! Pages of tokens of a paged store.

use burn::tensor::{Device, Int, Tensor, TensorData, kind::Basic};

use super::{
    StoreOptions,
    channels::Channels,
    codec::Codec,
    packed::{Packed, first_rows, with_room, write_rows},
};
use crate::{
    Result,
    device::{Rows, buffer_bytes},
    ops::{Entries, Ops, send},
    prefix::Parts,
    stage::statistics,
    state::{StateTensor, StateVisitor},
};

/// The names of the packed parts of pages in a file.
const PACKED: [&str; 2] = ["keys", "values"];

/// Groups of tokens, packed, in buffers that may have room for more.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// Keys and values, or both in one.
    pub(super) packed: Vec<Packed>,
    /// `[pages, 1, group]`
    pub(super) positions: Tensor<3, Int>,
    /// `[pages, numbers, group]`, the [numbers](crate::ops::AttentionStatistics::by_head) of a kv
    /// head.
    pub(super) statistics: Option<Tensor<3>>,
    pub(super) count: usize,
}

impl Pages {
    /// Packs the entries at `rows` of the rectangle, the rows of one page after another.
    pub(super) fn of(
        entries: &Entries,
        rows: &[usize],
        codec: &impl Codec,
        channels: Option<&Channels>,
        options: &StoreOptions,
    ) -> Self {
        let StoreOptions { dtype, ref ops, .. } = *options;
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
            packed: codec.pack(
                pick(&entries.keys),
                pick(&entries.values),
                channels,
                dtype,
                ops.as_ref(),
            ),
            positions: positions.select(0, index.clone()).reshape([pages, 1, group]),
            statistics: entries.statistics.by_head(heads).map(|numbers| {
                let per = numbers.dims()[2];
                let list = numbers.swap_dims(2, 3).reshape([batch * heads * width, per]);
                let list = list.select(0, index.clone());
                list.reshape([pages, group, per]).swap_dims(1, 2)
            }),
            count: pages,
        }
    }

    /// Number of pages that the buffers have room for.
    fn capacity(&self) -> usize {
        self.positions.dims()[0]
    }

    /// Makes room for `capacity` pages in all, if there is less.
    pub(super) fn reserve(&mut self, capacity: usize, ops: &dyn Ops) {
        if capacity > self.capacity() {
            let Self { packed, positions, statistics, count } = self;
            for packed in packed {
                *packed = packed.with_room(*count, capacity, ops);
            }
            *positions = with_room(positions, *count, capacity, ops);
            *statistics =
                statistics.as_ref().map(|statistics| with_room(statistics, *count, capacity, ops));
        }
    }

    /// Appends pages, in place if there is room.
    pub(super) fn append(&mut self, new: Self, ops: &dyn Ops) {
        let (start, all) = (self.count, self.count + new.count);
        self.reserve(all, ops);
        for (held, new) in self.packed.iter_mut().zip(new.packed) {
            held.write(start, new);
        }
        write_rows(&mut self.positions, start, new.positions);
        if let (Some(statistics), Some(new)) = (&mut self.statistics, new.statistics) {
            write_rows(statistics, start, new);
        }
        self.count = all;
    }

    /// Returns the pages without spare room.
    pub(super) fn trimmed(&self) -> Self {
        let Self { packed, positions, statistics, count } = self;
        Self {
            packed: packed.iter().map(|packed| packed.first(*count)).collect(),
            positions: first_rows(positions, *count),
            statistics: statistics.as_ref().map(|statistics| first_rows(statistics, *count)),
            count: *count,
        }
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let Self { packed, positions, statistics, .. } = self.trimmed();
        let mut parts = Parts::default();
        for (name, packed) in PACKED.into_iter().zip(&packed) {
            parts.put_parts(name, packed.save()?);
        }
        parts.put("positions", &positions)?;
        if let Some(statistics) = &statistics {
            parts.put("statistics", statistics)?;
        }
        Ok(parts)
    }

    pub(super) fn restore(
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
        let statistics = || parts.take_float("statistics", [pages, numbers, group], device);
        let statistics = (numbers > 0).then(statistics).transpose()?;
        let positions = parts.take_int("positions", [pages, 1, group], None, device)?;
        parts.finish()?;
        Ok(Self { packed, positions, statistics, count: pages })
    }

    /// Returns copies of these pages.
    pub(super) fn select(&self, pages: &[usize]) -> Self {
        let list = pages.iter().map(|&page| page as i64).collect();
        let index = upload(list, &self.positions.device());
        Self {
            packed: self.packed.iter().map(|packed| packed.select(&index)).collect(),
            positions: self.positions.clone().select(0, index.clone()),
            statistics: self.statistics.clone().map(|statistics| statistics.select(0, index)),
            count: pages.len(),
        }
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        self.packed.iter().map(|packed| packed.bytes(rows)).sum::<usize>()
            + buffer_bytes(&self.positions, rows)
            + self.statistics.as_ref().map_or(0, |statistics| buffer_bytes(statistics, rows))
    }

    pub(super) fn spare_bytes(&self, rows: Rows) -> usize {
        let capacity = self.capacity();
        self.bytes(rows) / capacity.max(1) * (capacity - self.count)
    }

    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        for packed in &mut self.packed {
            packed.visit_state(visitor);
        }
        visitor.tensor(StateTensor::Int3(&mut self.positions));
        if let Some(statistics) = &mut self.statistics {
            visitor.tensor(StateTensor::Float3(statistics));
        }
    }
}

/// Sends a list to the device.
pub(super) fn upload(list: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let length = list.len();
    send("places of pages", TensorData::new(list, [length]), device)
}

/// Lays pages, `[pages, per, group]`, side by side: `[batch, heads · per, most pages · group]`.
pub(super) fn side_by_side<K: Basic>(
    x: Tensor<3, K>,
    index: &Tensor<1, Int>,
    batch: usize,
    heads: usize,
) -> Tensor<3, K> {
    let [_, per, group] = x.dims();
    let most = index.dims()[0] / (batch * heads);
    let pages = x.select(0, index.clone()).reshape([batch * heads, most, per, group]);
    pages.swap_dims(1, 2).reshape([batch, heads * per, most * group])
}
