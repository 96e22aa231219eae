use burn::tensor::{Int, Tensor};

use super::{StoreOptions, dense::write_tracks, layout::Layout};
use crate::{
    Result,
    columns::behind_zeros,
    device::{Rows, buffer_bytes},
    ops::{AttentionStatistics, counting},
    prefix::Parts,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_tracks},
};

/// Positions and counts of tokens in rectangles, a row a head, and where the rows of lists belong
/// in them.
///
/// They are looked at in every step, keys and values are not: in lists they would have to be laid
/// out each time.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    pub(super) layout: Layout,
    /// `[batch, kv_heads, width]`, −1 at padding.
    positions: Tensor<3, Int>,
    /// Each `[batch, heads, width]`, 0 at padding.
    tracks: AttentionStatistics,
}

impl Tokens {
    /// Takes those of which each batch row and kv head holds the last `counts`: positions
    /// `[batch, kv_heads, columns]`, and what is counted of them.
    pub(super) fn pack(
        positions: Tensor<3, Int>,
        tracks: AttentionStatistics,
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
            let tracks = tracks.map(|track| behind_zeros(track, missing));
            return Self { layout, positions, tracks };
        }
        if width == columns {
            return Self { layout, positions, tracks };
        }
        // What stands before the longest head is copied away from: a view would hold all of it.
        let last = counting(columns - width..columns, device);
        let positions = positions.select(2, last.clone());
        let tracks = tracks.map(|track| track.select(2, last.clone()));
        Self { layout, positions, tracks }
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put_numbers("counts", self.layout.counts());
        parts.put("positions", &self.positions)?;
        statistics::save(&self.tracks, &mut parts)?;
        Ok(parts)
    }

    pub(super) fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = *options;
        let counts = parts.take_list("counts", batch * shape.kv_heads)?;
        let layout = Layout::new(batch, shape.kv_heads, &counts, None, device);
        let dims = [batch, shape.kv_heads, layout.width()];
        let positions = parts.take_int("positions", dims, None, device)?;
        let none = statistics::zeros(observes, shape, batch, layout.width(), device);
        let tracks = statistics::restore(none, &mut parts, device)?;
        parts.finish()?;
        Ok(Self { layout, positions, tracks })
    }

    /// The tokens of its one row in `rows` rows.
    pub(super) fn repeated(&self, rows: usize) -> Self {
        Self {
            layout: self.layout.repeated(rows),
            positions: self.positions.clone().repeat_dim(0, rows),
            tracks: statistics::repeated(self.tracks.clone(), rows),
        }
    }

    /// `[batch, kv_heads, width]`, −1 at padding.
    pub(super) fn positions(&self) -> Tensor<3, Int> {
        self.positions.clone()
    }

    /// Each `[batch, heads, width]`, 0 at padding.
    pub(super) fn tracks(&self) -> AttentionStatistics {
        self.tracks.clone()
    }

    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        self.layout.visit_state(visitor);
        visitor.tensor(StateTensor::Int3(&mut self.positions));
        visit_tracks(&mut self.tracks, visitor);
    }

    /// The layout, and positions and statistics to be changed in place.
    pub(super) fn parts_mut(&mut self) -> (&Layout, &mut Tensor<3, Int>, &mut AttentionStatistics) {
        (&self.layout, &mut self.positions, &mut self.tracks)
    }

    pub(super) fn set_tracks(&mut self, tracks: AttentionStatistics) {
        write_tracks(&mut self.tracks, tracks, 0);
    }

    /// Bytes it takes on the device.
    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let tracks = self.tracks.stacked().map_or(0, |tracks| buffer_bytes(tracks, rows));
        self.layout.bytes(rows) + buffer_bytes(&self.positions, rows) + tracks
    }

    /// The most bytes of tokens of which heads hold up to `columns`, some here and some elsewhere
    /// in rectangles.
    pub(super) fn bytes_of(options: &StoreOptions, columns: usize) -> usize {
        let scalars = options.scalar_row_bytes(Layout::most_width(columns));
        scalars + options.most_padding() + options.offset_bytes()
    }
}
