//! CubeCL kernels as the hot operations. Each takes its call to the kernel; what comes back as an error, because the
//! device has no kernels or cannot launch so much, goes to the tensor operations.

mod attention;
mod compressed;
mod linear;
mod lists;
mod merge;
mod regroup;
mod rotate;
mod scores;
mod selection;
mod window;

use burn::tensor::{Int, Tensor};

use super::{
    AccumulateInput, AttentionInput, AttentionOutput, ClassifyInput, DecodeInput, DecodeOutput,
    EmaInput, ExtendInput, Extended, GlobalLocalInput, Groups, LayOutInput, MergeInput, Moments,
    MomentsInput, Nearest, NearestInput, Ops, PackInput, QuantizedInput, RaggedInput, Reference,
    RegroupInput, Regrouped, RotaryInput, SelectInput, Selection, SharedInput, Split, WeightsInput,
    WindowInput, group, merge as merged, row_weights, select,
};
use crate::{
    Result,
    cache::{Entries, Tracks},
};

/// CubeCL kernels where the device runs them and can launch so much at once, Burn's tensor operations elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels;

impl Ops for Kernels {
    fn attention(&self, input: AttentionInput) -> AttentionOutput {
        attention::attention(&input).unwrap_or_else(|_| Reference.attention(input))
    }

    fn decode_attention(&self, input: &DecodeInput) -> Option<AttentionOutput> {
        attention::decode(input)?.ok()
    }

    fn ragged_attention(&self, input: &RaggedInput) -> Option<DecodeOutput> {
        attention::ragged(input).ok()
    }

    fn shared_attention(&self, input: &SharedInput) -> Option<DecodeOutput> {
        compressed::shared(input).ok()
    }

    fn quantized_attention(&self, input: &QuantizedInput) -> Option<DecodeOutput> {
        compressed::quantized(input).ok()
    }

    fn rotate(&self, x: Tensor<4>, rotary: RotaryInput) -> Tensor<4> {
        rotate::rotate(x.clone(), rotary.clone()).unwrap_or_else(|_| Reference.rotate(x, rotary))
    }

    fn linear(&self, x: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
        linear::linear(&x, &weight, &bias).unwrap_or_else(|| Reference.linear(x, weight, bias))
    }

    fn window_weights(&self, input: WindowInput) -> Tensor<4> {
        window::weights(input.clone()).unwrap_or_else(|_| Reference.window_weights(input))
    }

    fn window_moments(&self, input: MomentsInput) -> Moments {
        window::moments(input.clone()).unwrap_or_else(|_| Reference.window_moments(input))
    }

    /// On the device, with nothing read back but the counts of NaN that are asked for. On the host where there is no
    /// kernel, for more than one takes, and where nothing is to be kept.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        let Ok(found) = selection::select(input.clone(), false) else {
            return select::select(input);
        };
        selection::check(&found, &input)?;
        Ok(Selection { indices: found.indices, counts: found.counts })
    }

    fn split(&self, input: SelectInput<'_>) -> Result<Split> {
        let Ok(found) = selection::select(input.clone(), true) else {
            return select::split(input);
        };
        selection::check(&found, &input)?;
        Ok(selection::split(found))
    }

    fn group(&self, classes: Tensor<3, Int>, number: usize) -> Result<Groups> {
        match selection::group(classes.clone(), number) {
            Ok(found) => Ok(found),
            Err(_) => group::group(classes),
        }
    }

    fn extend(&self, input: ExtendInput<'_>) -> Extended {
        regroup::extend(input.clone()).unwrap_or_else(|_| Reference.extend(input))
    }

    fn classify(&self, input: ClassifyInput<'_>) -> (Tensor<3, Int>, Tensor<3>) {
        regroup::classify(input.clone()).unwrap_or_else(|_| Reference.classify(input))
    }

    fn regroup(&self, input: RegroupInput<'_>) -> Regrouped {
        regroup::regroup(&input).unwrap_or_else(|_| Reference.regroup(input))
    }

    fn row_weights(&self, input: WeightsInput) -> Tensor<3> {
        scores::row_weights(input.clone())
            .unwrap_or_else(|_| row_weights::row_weights(input, |input| self.accumulate(input)))
    }

    fn global_local(&self, input: GlobalLocalInput) -> Tensor<3> {
        scores::global_local(input.clone()).unwrap_or_else(|_| Reference.global_local(input))
    }

    fn ema_weights(&self, input: EmaInput<'_>) -> (Tensor<3>, Tensor<2>) {
        scores::ema_weights(input.clone()).unwrap_or_else(|_| Reference.ema_weights(input))
    }

    fn lay_out(&self, input: LayOutInput) -> [Tensor<4>; 2] {
        lists::lay_out(input.clone()).unwrap_or_else(|_| Reference.lay_out(input))
    }

    fn pack(&self, input: PackInput<'_>) -> [Tensor<2>; 2] {
        lists::pack(input.clone()).unwrap_or_else(|_| Reference.pack(input))
    }

    fn join(
        &self,
        positions: [Tensor<3, Int>; 2],
        tracks: Tracks,
        more: Tracks,
    ) -> (Tensor<3, Int>, Tracks) {
        match lists::join(positions.clone(), &tracks, &more) {
            Ok(all) => all,
            Err(_) => Reference.join(positions, tracks, more),
        }
    }

    fn nearest(&self, input: NearestInput) -> Nearest {
        merge::nearest(input.clone()).unwrap_or_else(|_| Reference.nearest(input))
    }

    fn accumulate(&self, input: AccumulateInput) -> Tensor<4> {
        merge::accumulate(input.clone()).unwrap_or_else(|_| Reference.accumulate(input))
    }

    fn merge(&self, input: MergeInput) -> (Tensor<4>, Tensor<4>) {
        merge::merge(&input).unwrap_or_else(|| merged::merge(input, |input| self.accumulate(input)))
    }

    /// In one launch. By tensor operations where there is no kernel, for more than one takes, and where nothing is kept.
    fn compact_entries(&self, entries: Entries, selection: &Selection) -> Entries {
        match selection::compact(&entries, selection) {
            Ok(found) => found,
            Err(_) => Reference.compact_entries(entries, selection),
        }
    }
}
