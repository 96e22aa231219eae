use std::sync::Arc;

use briquette_ops::{
    AccumulateInput, AppendInput, AssignClustersInput, AssignClustersOutput, AttentionInput,
    AttentionOps, AttentionOutput, AttentionStatistics, ClusterOps, ClusterOrder, CountInput,
    DecodeInput, DecodeOutput, EmaInput, EmaOutput, Entries, EntryOps, EvictClusterInput,
    EvictInput, EvictMergeInput, EvictSpreadInput, ExtendInput, ExtendOutput, Fallback, Fallbacks,
    GatedInput, GlobalLocalInput, KvLayout, LinearInput, MergeInput, MergeOps, ModelOps,
    MomentsInput, MomentsOutput, NearestInput, NearestOutput, OpError, Ops, PackInput,
    PackedGroups, PackedVectors, PadInput, QuantizeInput, QuantizedLinearInput, Reference,
    ReorderTokensInput, ReorderTokensOutput, Result, RmsNormInput, RmsNormOutput, RobustInput,
    RotaryTables, RowWeightsInput, SelectInput, SelectOps, Selection, SparseAttentionInput, Split,
    WindowInput, is_host,
};
#[cfg(cubecl_0_12)]
use briquette_ops::{GatedLinearInput, gated_linear_apart};
use burn::tensor::{DType, Device, Int, Tensor};

#[cfg(cubecl_0_12)]
use crate::model::{gated_linear, takes_gated};
use crate::{
    attention::{
        FEW_QUERIES, attention, column_scores, decode, rotate, rotate_both, sparse_attention,
        window_moments, window_weights,
    },
    cluster::{
        assign_clusters, check_evict_cluster, evict_cluster_checked, extend, global_local,
        reorder_tokens, row_weights, sort_by_cluster,
    },
    common::memory::allocate_apart,
    entries::{append_checked, check_append, count, quantize, quantize_fp8, ranks},
    merge::{
        accumulate, check_evict, check_evict_merging, check_evict_spreading, check_merge,
        ema_weights, evict_checked, evict_merging_checked, evict_spreading_checked, merge_checked,
        nearest,
    },
    model::{
        dequantize, gated, is_worthwhile, linear, prefers_k_major, quantized_linear, rms_norm,
        takes_quantized,
    },
    select::{SelectOutput, compact, pack, pad, robust_scores, select},
};

/// Operations by kernels where the device runs them and can launch so much at once, by tensor
/// operations elsewhere. Calls of the latter kind are counted: see [`Ops::fallbacks`]. A copy
/// counts with the one it was made of.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    fallbacks: Arc<Fallbacks>,
}

impl Kernels {
    /// Computes what a check lets through; the input is moved, so that what nobody else holds is
    /// changed in place.
    fn checked<I, T>(
        &self,
        input: I,
        check: impl FnOnce(&I) -> Result<()>,
        kernels: impl FnOnce(I) -> T,
        reference: impl FnOnce(I) -> Result<T>,
    ) -> Result<T> {
        match check(&input) {
            Ok(()) => Ok(kernels(input)),
            Err(error) => self.fallbacks.or(Err(error), || reference(input)),
        }
    }
}

impl Ops for Kernels {
    fn fallbacks(&self) -> Vec<Fallback> {
        self.fallbacks.list()
    }
}

impl AttentionOps for Kernels {
    fn attention(&self, input: AttentionInput) -> Result<AttentionOutput> {
        let found = match input.queries.dims()[2] <= FEW_QUERIES {
            true => attention_of_few(&input),
            false => attention_of_prompt(&input),
        };
        self.fallbacks.or(found, || Reference.attention(input))
    }

    /// Runs tensor operations where column sums are wanted, and where there are fewer entries than
    /// queries because padding has made way.
    fn sparse_attention(&self, input: SparseAttentionInput) -> Result<AttentionOutput> {
        let of_columns = input.attention.column_sums || input.attention.column_squares;
        if of_columns || input.attention.keys.dims()[2] < input.attention.queries.dims()[2] {
            return Reference.sparse_attention(input);
        }
        self.fallbacks.or(sparse_attention(&input), || Reference.sparse_attention(input))
    }

    fn decode(&self, input: &DecodeInput) -> Result<Option<DecodeOutput>> {
        let few = input.queries.dims()[2] <= FEW_QUERIES;
        if matches!(input.kv, KvLayout::Dense(_)) && !few {
            return Ok(None);
        }
        self.fallbacks.or(decode(input).map(Some), || Reference.decode(input))
    }

    fn rotate(&self, x: Tensor<4>, rotary: RotaryTables) -> Result<Tensor<4>> {
        self.fallbacks.or(rotate(x.clone(), rotary.clone()), || Reference.rotate(x, rotary))
    }

    fn rotate_both(
        &self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        rotary: RotaryTables,
    ) -> Result<(Tensor<4>, Tensor<4>)> {
        let found = rotate_both(queries.clone(), keys.clone(), rotary.clone());
        self.fallbacks.or(found, || Reference.rotate_both(queries, keys, rotary))
    }

    fn window_weights(&self, input: WindowInput) -> Result<Tensor<4>> {
        self.fallbacks.or(window_weights(input.clone()), || Reference.window_weights(input))
    }

    fn window_moments(&self, input: MomentsInput) -> Result<MomentsOutput> {
        self.fallbacks.or(window_moments(input.clone()), || Reference.window_moments(input))
    }
}

impl EntryOps for Kernels {
    fn allocate_apart(&self, device: &Device, allocate: &mut (dyn FnMut() + Send)) {
        allocate_apart(device, allocate);
    }

    fn append(&self, input: AppendInput<'_>) -> Result<()> {
        self.checked(input, check_append, append_checked, |input| Reference.append(input))
    }

    fn count(&self, input: CountInput<'_>) -> Result<AttentionStatistics> {
        self.fallbacks.or(count(input.clone()), || Reference.count(input))
    }

    fn ranks(&self, positions: Tensor<3, Int>, sinks: usize) -> Result<Tensor<3, Int>> {
        let found = ranks(positions.clone(), sinks);
        self.fallbacks.or(found, || Reference.ranks(positions, sinks))
    }

    fn quantize(&self, input: QuantizeInput) -> Result<PackedGroups> {
        self.fallbacks.or(quantize(input.clone()), || Reference.quantize(input))
    }

    fn quantize_fp8(&self, x: Tensor<3>, dtype: DType) -> Result<PackedVectors> {
        self.fallbacks.or(quantize_fp8(x.clone(), dtype), || Reference.quantize_fp8(x, dtype))
    }
}

impl SelectOps for Kernels {
    /// Selects on the device; reads nothing back but the counts of NaN, if they are asked for.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        let found = if keeps_nothing(&input) { None } else { Some(select(&input, false)) };
        let Some(found) = found else { return Reference.select(input) };
        let found = found.and_then(|found| {
            check_nan(&found, &input)?;
            Ok(Selection { indices: found.indices, counts: found.counts })
        });
        self.fallbacks.or(found, || Reference.select(input))
    }

    fn split(&self, input: SelectInput<'_>) -> Result<Split> {
        if keeps_nothing(&input) {
            return Reference.split(input);
        }
        let found = select(&input, true).and_then(|found| {
            check_nan(&found, &input)?;
            Ok(in_two(found))
        });
        self.fallbacks.or(found, || Reference.split(input))
    }

    fn compact(&self, entries: Entries, selection: &Selection) -> Result<Entries> {
        if selection.width() == 0 {
            return Reference.compact(entries, selection);
        }
        let found = compact(entries.clone(), selection);
        self.fallbacks.or(found, || Reference.compact(entries, selection))
    }

    fn pad(&self, input: PadInput) -> Result<[Tensor<4>; 2]> {
        self.fallbacks.or(pad(input.clone()), || Reference.pad(input))
    }

    fn pack(&self, input: PackInput<'_>) -> Result<[Tensor<2>; 2]> {
        self.fallbacks.or(pack(input.clone()), || Reference.pack(input))
    }

    fn robust_scores(&self, input: RobustInput<'_>) -> Result<Tensor<3>> {
        self.fallbacks.or(robust_scores(input.clone()), || Reference.robust_scores(input))
    }
}

impl MergeOps for Kernels {
    fn nearest(&self, input: NearestInput) -> Result<NearestOutput> {
        self.fallbacks.or(nearest(input.clone()), || Reference.nearest(input))
    }

    fn accumulate(&self, input: AccumulateInput) -> Result<Tensor<4>> {
        self.fallbacks.or(accumulate(input.clone()), || Reference.accumulate(input))
    }

    /// Merges few rows by a kernel in which each looks through those that go beside it, and many by
    /// [`accumulate`](MergeOps::accumulate), which sorts them first.
    fn merge(&self, input: MergeInput) -> Result<(Tensor<4>, Tensor<4>)> {
        const MOST_OTHERS: usize = 1024;
        if !(1..=MOST_OTHERS).contains(&input.weights.dims()[2]) {
            return briquette_ops::merge(input, |input| self.accumulate(input));
        }
        self.checked(input, check_merge, merge_checked, |input| Reference.merge(input))
    }

    fn ema_weights(&self, input: EmaInput<'_>) -> Result<EmaOutput> {
        self.fallbacks.or(ema_weights(input.clone()), || Reference.ema_weights(input))
    }

    fn evict(&self, input: EvictInput<'_>) -> Result<()> {
        self.checked(input, check_evict, evict_checked, |input| Reference.evict(input))
    }

    fn evict_merging(&self, input: EvictInput<'_>, merge: EvictMergeInput) -> Result<Tensor<2>> {
        self.checked(
            (input, merge),
            |(input, merge)| check_evict_merging(input, merge),
            |(input, merge)| evict_merging_checked(input, merge),
            |(input, merge)| Reference.evict_merging(input, merge),
        )
    }

    fn evict_spreading(&self, input: EvictInput<'_>, spread: EvictSpreadInput) -> Result<()> {
        self.checked(
            (input, spread),
            |(input, spread)| check_evict_spreading(input, spread),
            |(input, spread)| evict_spreading_checked(input, spread),
            |(input, spread)| Reference.evict_spreading(input, spread),
        )
    }
}

impl ModelOps for Kernels {
    /// Runs Burn's product where that is known to be faster.
    fn linear(&self, input: LinearInput) -> Result<Tensor<2>> {
        if input.x.dims()[0] == 0 || !is_worthwhile(&input) {
            return Reference.linear(input);
        }
        self.fallbacks.or(linear(input.clone()), || Reference.linear(input))
    }

    fn prefers_k_major(&self, weight: &Tensor<2>) -> bool {
        prefers_k_major(weight)
    }

    /// The host has a way of its own; for more rows than the kernel is faster for weights are
    /// expanded.
    fn quantized_linear(&self, input: QuantizedLinearInput) -> Result<Tensor<2>> {
        let rows = input.x.dims()[0];
        if rows == 0 || is_host(&input.x.device()) {
            return Reference.quantized_linear(input);
        }
        if takes_quantized(rows, &input.x.device(), input.x.dtype()) {
            let reference = || Reference.quantized_linear(input.clone());
            return self.fallbacks.or(quantized_linear(input.clone()), reference);
        }
        input.check()?;
        match dequantize(&input.weight, input.x.dtype()) {
            Ok(weight) => self.linear(LinearInput { x: input.x, weight, bias: input.bias }),
            Err(error) => self.fallbacks.or(Err(error), || Reference.quantized_linear(input)),
        }
    }

    fn rms_norm(&self, input: RmsNormInput) -> Result<RmsNormOutput> {
        self.fallbacks.or(rms_norm(input.clone()), || Reference.rms_norm(input))
    }

    fn gated(&self, input: GatedInput) -> Result<Tensor<2>> {
        self.fallbacks.or(gated(input.clone()), || Reference.gated(input))
    }

    /// Elsewhere the default: a product, and a gate behind it.
    #[cfg(cubecl_0_12)]
    fn gated_linear(&self, input: GatedLinearInput) -> Result<Tensor<2>> {
        if !takes_gated(&input) {
            return gated_linear_apart(self, input);
        }
        self.fallbacks.or(gated_linear(input.clone()), || Reference.gated_linear(input))
    }
}

impl ClusterOps for Kernels {
    fn sort_by_cluster(&self, clusters: Tensor<3, Int>, number: usize) -> Result<ClusterOrder> {
        self.fallbacks.or(sort_by_cluster(clusters.clone(), number), || {
            Reference.sort_by_cluster(clusters, number)
        })
    }

    fn extend(&self, input: ExtendInput<'_>) -> Result<ExtendOutput> {
        self.fallbacks.or(extend(input.clone()), || Reference.extend(input))
    }

    fn assign_clusters(&self, input: AssignClustersInput<'_>) -> Result<AssignClustersOutput> {
        self.fallbacks.or(assign_clusters(input.clone()), || Reference.assign_clusters(input))
    }

    fn reorder_tokens(&self, input: ReorderTokensInput<'_>) -> Result<ReorderTokensOutput> {
        self.fallbacks.or(reorder_tokens(input.clone()), || Reference.reorder_tokens(input))
    }

    fn row_weights(&self, input: RowWeightsInput) -> Result<Tensor<3>> {
        let found = row_weights(input.clone());
        self.fallbacks
            .or(found, || briquette_ops::row_weights(input, |input| self.accumulate(input)))
    }

    fn evict_cluster(&self, input: EvictClusterInput<'_>) -> Result<()> {
        self.checked(input, check_evict_cluster, evict_cluster_checked, |input| {
            Reference.evict_cluster(input)
        })
    }

    fn global_local(&self, input: GlobalLocalInput) -> Result<Tensor<3>> {
        self.fallbacks.or(global_local(input.clone()), || Reference.global_local(input))
    }
}

/// Attention of a few queries: their weights are few enough to be written, and sums over columns
/// are computed from them.
fn attention_of_few(input: &AttentionInput) -> Result<AttentionOutput> {
    let found = decode(&DecodeInput::of(input))?;
    Ok(found.with_column_sums(input.column_sums, input.column_squares))
}

/// Attention of many queries; sums over columns are computed from its log-sum-exp.
fn attention_of_prompt(input: &AttentionInput) -> Result<AttentionOutput> {
    let found = attention(input)?;
    if !input.column_sums && !input.column_squares {
        let output = found.output;
        return Ok(AttentionOutput { output, column_sums: None, column_squares: None });
    }
    let columns = column_scores(input, found.log_sum_exp, 0)?;
    Ok(AttentionOutput {
        output: found.output,
        column_sums: input.column_sums.then_some(columns.sums),
        column_squares: columns.squares,
    })
}

fn keeps_nothing(input: &SelectInput<'_>) -> bool {
    input.lengths.iter().zip(input.keep).all(|(&length, &keep)| length.min(keep) == 0)
}

/// Refuses scores that are NaN, if the input asks for it: reads their counts from the device.
fn check_nan(found: &SelectOutput, input: &SelectInput<'_>) -> Result<()> {
    if !input.check {
        return Ok(());
    }
    let counts = found.nan.clone().try_into_vec_as::<i64>();
    let counts = counts.map_err(|error| OpError::failed("select", error))?;
    match counts.iter().find(|&&count| count > 0) {
        Some(&count) => Err(OpError::NotANumber { operation: "select", count: count as usize }),
        None => Ok(()),
    }
}

fn in_two(found: SelectOutput) -> Split {
    let [batch, heads, _] = found.indices.dims();
    let device = found.indices.device();
    let rest = match found.rest {
        Some((indices, counts)) => Selection { indices, counts },
        None => Selection {
            indices: Tensor::empty([batch, heads, 0], &device),
            counts: vec![0; batch * heads],
        },
    };
    Split { kept: Selection { indices: found.indices, counts: found.counts }, rest }
}
