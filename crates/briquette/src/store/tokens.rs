use burn::tensor::{Int, Tensor};

use super::{StoreOptions, dense::write_statistics, layout::Layout};
use crate::{
    Result,
    columns::behind_zeros,
    device::{Rows, buffer_bytes},
    ops::{AttentionStatistics, counting},
    prefix::Parts,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_statistics},
};

/// Positions and statistics of tokens in rectangles, one row per head, and the layout of their
/// lists.
///
/// Unlike keys and values, they are looked at in every step: in lists they would have to be laid
/// out each time.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    pub(super) layout: Layout,
    /// `[batch, kv_heads, width]`, −1 at padding.
    positions: Tensor<3, Int>,
    /// Each `[batch, heads, width]`, 0 at padding.
    statistics: AttentionStatistics,
}

impl Tokens {
    /// Packs the last `counts` tokens of each batch row and kv head: their positions,
    /// `[batch, kv_heads, columns]`, and their statistics.
    pub(super) fn pack(
        positions: Tensor<3, Int>,
        statistics: AttentionStatistics,
        counts: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Self {
        let StoreOptions { shape, batch, ref device, .. } = *options;
        let layout = Layout::new(batch, shape.kv_heads, counts, before, device);
        let [_, _, columns] = positions.dims();
        let width = layout.width();
        if width > columns {
            let missing = width - columns;
            let padding = Tensor::full([batch, shape.kv_heads, missing], -1, device);
            let positions = Tensor::cat(vec![padding, positions], 2);
            let statistics = statistics.map(|one| behind_zeros(one, missing));
            return Self { layout, positions, statistics };
        }
        if width == columns {
            return Self { layout, positions, statistics };
        }
        // What stands before the longest head is copied away from: a view would hold all of it.
        let last = counting(columns - width..columns, device);
        let positions = positions.select(2, last.clone());
        let statistics = statistics.map(|one| one.select(2, last.clone()));
        Self { layout, positions, statistics }
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put_numbers("counts", self.layout.counts());
        parts.put("positions", &self.positions)?;
        statistics::save(&self.statistics, &mut parts)?;
        Ok(parts)
    }

    pub(super) fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = *options;
        let counts = parts.take_list("counts", batch * shape.kv_heads)?;
        let layout = Layout::new(batch, shape.kv_heads, &counts, None, device);
        let dims = [batch, shape.kv_heads, layout.width()];
        let positions = parts.take_int("positions", dims, None, device)?;
        let none = statistics::zeros(observes, shape, batch, layout.width(), device);
        let statistics = statistics::restore(none, &mut parts, device)?;
        parts.finish()?;
        Ok(Self { layout, positions, statistics })
    }

    /// Repeats its only row `rows` times.
    pub(super) fn repeated(&self, rows: usize) -> Self {
        Self {
            layout: self.layout.repeated(rows),
            positions: self.positions.clone().repeat_dim(0, rows),
            statistics: statistics::repeated(self.statistics.clone(), rows),
        }
    }

    /// `[batch, kv_heads, width]`, −1 at padding.
    pub(super) fn positions(&self) -> Tensor<3, Int> {
        self.positions.clone()
    }

    /// Each `[batch, heads, width]`, 0 at padding.
    pub(super) fn statistics(&self) -> AttentionStatistics {
        self.statistics.clone()
    }

    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        self.layout.visit_state(visitor);
        visitor.tensor(StateTensor::Int3(&mut self.positions));
        visit_statistics(&mut self.statistics, visitor);
    }

    /// The layout, and positions and statistics to be changed in place.
    pub(super) fn parts_mut(&mut self) -> (&Layout, &mut Tensor<3, Int>, &mut AttentionStatistics) {
        (&self.layout, &mut self.positions, &mut self.statistics)
    }

    pub(super) fn set_statistics(&mut self, statistics: AttentionStatistics) {
        write_statistics(&mut self.statistics, statistics, 0);
    }

    /// Bytes it takes on the device.
    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let statistics =
            self.statistics.stacked().map_or(0, |statistics| buffer_bytes(statistics, rows));
        self.layout.bytes(rows) + buffer_bytes(&self.positions, rows) + statistics
    }

    /// Maximum bytes of tokens if heads hold up to `columns` of them, some here and some elsewhere
    /// in rectangles.
    pub(super) fn bytes_of(options: &StoreOptions, columns: usize) -> usize {
        let scalars = options.scalar_row_bytes(Layout::most_width(columns));
        scalars + options.most_padding() + options.offset_bytes()
    }
}
