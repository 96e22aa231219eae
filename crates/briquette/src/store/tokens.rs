use burn::tensor::{Int, Tensor};

use super::{StoreOptions, layout::Layout};
use crate::{
    Result,
    columns::behind_zeros,
    device::{Rows, buffer_bytes},
    ops::{AttentionStatistics, counting},
    prefix::Parts,
    rows::select_rows,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_statistics},
};

/// Positions and statistics of tokens in rectangles, one row per head, and the layout of the lists
/// of their keys and values.
///
/// Unlike keys and values, they are looked at in every step: in lists they would have to be laid
/// out each time.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    pub(super) layout: Layout,
    /// `[batch, kv_heads, width]`, −1 at padding.
    pub(super) positions: Tensor<3, Int>,
    /// Each `[batch, heads, width]`, 0 at padding.
    pub(super) statistics: AttentionStatistics,
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
        let width = layout.width;
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

    /// Puts positions and statistics among the parts of a file.
    pub(super) fn put(&self, parts: &mut Parts) -> Result<()> {
        parts.put("positions", &self.positions)?;
        statistics::save(&self.statistics, parts)
    }

    /// Takes what [`put`](Self::put) has put, in `width` columns.
    pub(super) fn take(
        layout: Layout,
        width: usize,
        parts: &mut Parts,
        options: &StoreOptions,
    ) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = *options;
        let positions =
            parts.take_int("positions", [batch, shape.kv_heads, width], None, device)?;
        let none = statistics::zeros(observes, shape, batch, width, device);
        let statistics = statistics::restore(none, parts, device)?;
        Ok(Self { layout, positions, statistics })
    }

    /// Returns the tokens of these batch rows, and the places of their rows in the lists.
    pub(super) fn select_rows(&self, rows: &[usize]) -> (Self, Tensor<1, Int>) {
        let (layout, places) = self.layout.select_rows(rows);
        let positions = select_rows(self.positions.clone(), rows);
        let statistics = statistics::select_rows(self.statistics.clone(), rows);
        (Self { layout, positions, statistics }, places)
    }

    /// Columns of the longest head.
    pub(super) fn width(&self) -> usize {
        self.positions.dims()[2]
    }

    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        self.layout.visit_state(visitor);
        visitor.tensor(StateTensor::Int3(&mut self.positions));
        visit_statistics(&mut self.statistics, visitor);
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let statistics =
            self.statistics.stacked().map_or(0, |statistics| buffer_bytes(statistics, rows));
        self.layout.bytes(rows) + buffer_bytes(&self.positions, rows) + statistics
    }

    /// Maximum bytes of tokens in rectangles of this width, some here and some elsewhere.
    pub(super) fn bytes_of(options: &StoreOptions, width: usize) -> usize {
        let scalars = options.scalar_row_bytes(width);
        scalars + options.most_padding() + options.offset_bytes()
    }
}
