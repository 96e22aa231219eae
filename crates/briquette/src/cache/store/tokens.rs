use burn::tensor::{Int, Tensor};

use super::{StoreOptions, layout::Layout};
use crate::cache::Tracks;

/// Positions and counts of tokens, heads of different lengths one after another.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    pub(super) layout: Layout,
    /// `[total, 1]`
    positions: Tensor<2, Int>,
    /// Each `[1, heads of the track a kv head, total]`.
    tracks: Tracks,
}

impl Tokens {
    /// Takes those of which each batch row and kv head holds the last `counts`: positions
    /// `[batch, kv_heads, columns]`, and what is counted of them.
    pub(super) fn pack(
        positions: Tensor<3, Int>,
        tracks: Tracks,
        counts: &[usize],
        options: &StoreOptions,
    ) -> Self {
        let StoreOptions { shape, batch, ref device, .. } = *options;
        let layout = Layout::new(batch, shape.kv_heads, counts, device);
        let positions = layout.pack_scalars(positions);
        Self { tracks: pack_tracks(&layout, tracks), layout, positions }
    }

    /// `[batch, kv_heads, width]`, −1 at fillers.
    pub(super) fn positions(&self) -> Tensor<3, Int> {
        self.layout.unpack_filled(self.positions.clone(), -1)
    }

    /// Each `[batch, heads, width]`, 0 at fillers.
    pub(super) fn tracks(&self) -> Tracks {
        self.tracks
            .clone()
            .map(|track| self.layout.unpack_filled(track.squeeze_dim::<2>(0).swap_dims(0, 1), 0))
    }

    pub(super) fn set_tracks(&mut self, tracks: Tracks) {
        self.tracks = pack_tracks(&self.layout, tracks);
    }
}

/// `[batch, heads, width]` each becomes `[1, heads a kv head, total]`.
fn pack_tracks(layout: &Layout, tracks: Tracks) -> Tracks {
    tracks.map(|track| layout.pack_scalars(track).swap_dims(0, 1).unsqueeze_dim(0))
}
