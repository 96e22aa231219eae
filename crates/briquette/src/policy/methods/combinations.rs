//! Named methods that combine two papers.

use super::profiled::COMPRESSKV_LAYERS;
use crate::{
    HeadScoreKind,
    allocate::{HeadAdaptive, HeadProfile, Pyramid},
    budget::Budget,
    policy::Policy,
    score::{ExpectedAttention, HeadMean, Pool, WindowAttention},
};

impl Policy {
    /// CompressKV's tokens and layer budgets; the heads of a layer share its budget by AdaKV's
    /// comparison of their own scores (AdaCompressKV of CompressKV's appendix D).
    pub fn compresskv_adakv(budget: Budget) -> Self {
        let by = WindowAttention { window: 8, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::compresskv(budget).with_name("compresskv-adakv").with_allocator(HeadAdaptive {
            by: Some(by),
            layers: Some(COMPRESSKV_LAYERS),
            ..HeadAdaptive::default()
        })
    }

    /// CompressKV's tokens under HeadKV's head budgets.
    pub fn compresskv_headkv(budget: Budget) -> Self {
        Self::compresskv(budget)
            .with_name("compresskv-headkv")
            .with_allocator(HeadProfile { beta: 1.2, by: HeadScoreKind::Headkv })
    }

    /// CompressKV's tokens in KIVI's 2 bits.
    pub(super) fn compresskv_kivi(budget: Budget) -> Self {
        Self::compresskv(budget).with_name("compresskv-kivi").with_kivi(2)
    }

    /// EMS under PyramidKV's layer budgets.
    pub(super) fn ems_pyramidkv(budget: Budget) -> Self {
        Self::ems(budget).with_name("ems-pyramidkv").with_allocator(Pyramid { beta: 20.0 })
    }

    /// KeyDiff's tokens under AdaKV's head budgets.
    pub fn keydiff_adakv(budget: Budget) -> Self {
        Self::keydiff(budget).with_name("keydiff-adakv").with_allocator(HeadAdaptive::default())
    }

    /// Expected Attention with ε = 0.01 under AdaKV's head budgets.
    pub fn expected_attention_adakv(budget: Budget) -> Self {
        Self::expected_attention(budget)
            .with_name("expected-attention-adakv")
            .with_scorer(ExpectedAttention { future: 512, epsilon: 0.01 })
            .with_allocator(HeadAdaptive::default())
    }
}
