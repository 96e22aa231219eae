use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions,
    codec::Codec,
    packed::{Packed, Widths},
    paged::PagedStore,
};
use crate::{
    CacheShape, Result, check,
    ops::{Ops, pack_words, unpack_words, words_of},
    prefix::Parts,
};

/// Tokens of a page.
const PAGE: usize = 32;
/// Channels that a byte can number.
const MOST_CHANNELS: usize = 256;

/// Keys without the channels that matter least to queries: ThinK (Xu et al., 2024, [arXiv
/// 2407.21018](https://arxiv.org/abs/2407.21018)).
///
/// When a prompt is complete, each head scores the channels of its keys: the mean square of a
/// channel, times that of the same channel in the last queries. It drops the channels with the
/// lowest scores. Pages of 32 tokens hold the other channels and their numbers, one byte each.
/// Values and the last tokens are held as they came. In attention a dropped channel is 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyChannels {
    /// Share of the channels that is dropped.
    pub drop: f64,
    /// Number of last queries of a prompt by which channels are judged.
    #[serde(default = "KeyChannels::default_window")]
    pub window: usize,
    /// Minimum number of last tokens that keep all channels.
    #[serde(default = "KeyChannels::default_window")]
    pub recent: usize,
}

impl KeyChannels {
    /// Drops the share `drop` of the channels, judged by the last 32 queries; the last 32 tokens
    /// keep all.
    pub fn new(drop: f64) -> Self {
        Self { drop, window: Self::default_window(), recent: Self::default_window() }
    }

    fn default_window() -> usize {
        32
    }

    /// Channels a head keeps.
    fn kept(&self, head_dim: usize) -> usize {
        head_dim - (head_dim as f64 * self.drop) as usize
    }
}

impl StoreBuilder for KeyChannels {
    fn name(&self) -> &str {
        "key-channels"
    }

    fn summary(&self) -> String {
        let Self { drop, recent, .. } = self;
        format!("{}, {drop} dropped, last {recent} whole", self.name())
    }

    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.drop) {
            return check::refuse("store.drop", self.drop, "at least 0 and below 1");
        }
        check::window("store.window", self.window)?;
        check::columns("store.recent", self.recent)
    }

    fn check_shape(&self, shape: CacheShape) -> Result<()> {
        if shape.head_dim <= MOST_CHANNELS {
            return Ok(());
        }
        let must_be =
            format!("dense: heads have {} channels, beyond {MOST_CHANNELS}", shape.head_dim);
        check::refuse("store", self.name(), must_be)
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn repacks_entries(&self) -> bool {
        true
    }

    fn window(&self) -> usize {
        self.window
    }

    fn needs_encoded_keys(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(PagedStore::new(*self, options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(PagedStore::restore(*self, options, parts)?)))
    }
}

impl Codec for KeyChannels {
    fn group(&self) -> usize {
        PAGE
    }

    fn residual(&self) -> usize {
        self.recent
    }

    fn key_channels(&self, head_dim: usize) -> Option<usize> {
        Some(self.kept(head_dim))
    }

    /// A page holds keys and values together, behind the numbers of the channels.
    fn widths(&self, head_dim: usize) -> Vec<Widths> {
        let kept = self.kept(head_dim);
        vec![Widths { words: words_of(kept, 8), measures: vec![PAGE * kept, PAGE * head_dim] }]
    }

    fn pack(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        channels: Option<Tensor<2, Int>>,
        dtype: DType,
        _ops: &dyn Ops,
    ) -> Vec<Packed> {
        let [pages, tokens, head_dim] = keys.dims();
        // Nothing is packed before channels are chosen.
        let Some(channels) = channels else { return Vec::new() };
        let kept = channels.dims()[1];
        let index = channels.reshape([pages, 1, kept]);
        let words = pack_words(index.clone(), 8);
        let width = words.dims()[2];
        let keys = keys.gather(2, index.expand([pages, tokens, kept]));
        vec![Packed {
            words: words.reshape([pages, width]),
            measures: vec![
                keys.reshape([pages, tokens * kept]).cast(dtype),
                values.reshape([pages, tokens * head_dim]).cast(dtype),
            ],
        }]
    }

    fn unpack(&self, pages: &[Packed], head_dim: usize) -> [Tensor<3>; 2] {
        let Packed { words, measures } = &pages[0];
        let [pages, width] = words.dims();
        let kept = self.kept(head_dim);
        let device = words.device();
        let integers: DType = device.settings().int_dtype.into();
        let index = unpack_words(words.clone().reshape([pages, 1, width]), kept, 8).cast(integers);
        let rows =
            |x: &Tensor<2>, channels| x.clone().cast(DType::F32).reshape([pages, PAGE, channels]);
        let none = Tensor::zeros([pages, PAGE, head_dim], (&device, DType::F32));
        let index = index.expand([pages, PAGE, kept]);
        let keys = none.scatter(2, index, rows(&measures[0], kept), IndexingUpdateOp::Add);
        [keys, rows(&measures[1], head_dim)]
    }
}
