use burn::tensor::{DType, FloatDType, Tensor};
use rayon::{
    iter::{IndexedParallelIterator, ParallelIterator},
    slice::ParallelSlice,
};
use serde::{Deserialize, Serialize};

use super::{Reduced, Reducer, host};
use crate::{
    Error, LayerView, Result,
    budget::{Budget, Protect, Recent},
    check,
    ops::{AccumulateInput, Ops, Selection, gather_rows, select_entries, unit},
    stage::is_default,
};

/// Merges neighbours with similar keys, weighted by a Gaussian around the most attended of them:
/// KVMerger (Wang et al., 2024, Algorithms 1 and 2, Eq. 5 to 8).
///
/// The last tokens and those with the highest scores stay as they are. The others are cut into runs
/// of neighbours with a similarity (cosine of their keys) above a threshold. Each run becomes one
/// entry at the place of its pivot, the member with the highest score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GaussianMerge {
    /// Share of the budget for the tokens with the highest scores, which are not merged.
    pub protect: f64,
    /// Similarity above which neighbours are merged; the budget then only says how many tokens are
    /// protected. If absent, each layer has the threshold that meets its budget exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Width of the Gaussian.
    pub sigma: Sigma,
    /// Whether a merged value is multiplied by the number of its members, as the paper prints it
    /// (Eq. 7).
    #[serde(default)]
    pub scale_values: bool,
    /// Member that becomes the pivot of a run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pivot: Pivot,
}

impl Default for GaussianMerge {
    /// Settings of the paper at half of the context: 12 of its 50 % protected, σ = 5 (Table 3).
    fn default() -> Self {
        Self {
            protect: 0.24,
            threshold: None,
            sigma: Sigma::Fixed(5.0),
            scale_values: false,
            pivot: Pivot::default(),
        }
    }
}

/// Pivot of a run: the member at whose place the run becomes one entry, and the center of the
/// Gaussian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pivot {
    /// Member with the highest score (Eq. 8).
    #[default]
    Score,
    /// Last member (section 4.2, the paper's first attempt).
    Last,
    /// Random member, a function of this seed, layer, head and position (Table 4).
    Random(u32),
}

/// Width of the Gaussian around a pivot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Sigma {
    /// Same width for every run.
    Fixed(f64),
    /// Mean distance of a run's other members to its pivot, over √2.
    Adaptive,
    /// Mean over a run of its members' own weights g, over √2 (Eq. 6). The weights are defined by
    /// σ, so σ is the largest number for which this holds: between 0 and 1/√2.
    FixedPoint,
    /// Infinite width: all members weigh the same (Figure 3c).
    Average,
}

/// Number of steps to the fixed point of Eq. 6, from above. Steps get small where a set is about to
/// have no fixed point but its pivot's own: of 4 000 random sets the slowest was 7e-7 off after
/// this many, where 32 steps left σ at 0.40 instead of 0.08.
const STEPS: usize = 256;

impl GaussianMerge {
    fn heavy(&self, budget: usize) -> usize {
        (budget as f64 * self.protect) as usize
    }

    /// Number of entries of a head when all mergeable ones are merged: each heavy token may
    /// separate two runs.
    fn reachable(&self, sinks: usize, recent: usize, budget: usize) -> usize {
        sinks + recent + 2 * self.heavy(budget) + 1
    }
}

impl Reducer for GaussianMerge {
    fn name(&self) -> &str {
        "gaussian-merge"
    }

    fn summary(&self) -> String {
        let sigma = match self.sigma {
            Sigma::Fixed(sigma) => sigma.to_string(),
            Sigma::Adaptive => "adaptive".to_owned(),
            Sigma::FixedPoint => "by Eq. 6".to_owned(),
            Sigma::Average => return format!("{}, average", self.name()),
        };
        format!("{}, σ {sigma}", self.name())
    }

    fn check(&self) -> Result<()> {
        check::share("reduce.protect", self.protect)?;
        if let Some(threshold) = self.threshold.filter(|x| !(-1.0..=1.0).contains(x)) {
            return check::refuse("reduce.threshold", threshold, "between -1 and 1");
        }
        match self.sigma {
            Sigma::Fixed(sigma) => check::positive("reduce.sigma.fixed", sigma),
            Sigma::Adaptive | Sigma::FixedPoint | Sigma::Average => Ok(()),
        }
    }

    fn check_budget(&self, budget: Budget, protect: Protect) -> Result<()> {
        if self.threshold.is_some() {
            return Ok(());
        }
        let fails = |target: usize| {
            let recent = protect.recent_tokens(target);
            let reachable = self.reachable(protect.sinks, recent, target);
            (reachable > target).then(|| Error::MergeBudget {
                budget,
                target,
                sinks: protect.sinks,
                recent,
                heavy: self.heavy(target),
                reachable,
            })
        };
        match (budget, protect.recent) {
            (Budget::Tokens(tokens), _) => fails(tokens).map_or(Ok(()), Err),
            // Shares that leave nothing to merge into fail at every size.
            (_, Recent::Share(_) | Recent::HeavyToRecent(..)) => fails(1 << 20).map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    fn makes_ragged_heads(&self) -> bool {
        true
    }

    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced> {
        let device = view.entries.keys.device();
        let heads = view.shape.kv_heads;
        let sets = self.sets(view, keep)?;
        let of_sets = |lists: &[Vec<usize>]| host::columns(lists, view);
        let pivots = Selection::of_heads(&of_sets(&sets.pivot), heads, &device);
        // For each entry: its own column, the column of its pivot, and the slot of its set.
        let all: Vec<Vec<usize>> = view.lengths.iter().map(|&held| (0..held).collect()).collect();
        let own = Selection::of_heads(&of_sets(&all), heads, &device);
        let of_entries = |of: &dyn Fn(&[usize], usize) -> usize| -> Vec<Vec<usize>> {
            let all = sets.set_of.iter().zip(&sets.pivot);
            all.map(|(set_of, pivot)| set_of.iter().map(|&set| of(pivot, set)).collect()).collect()
        };
        let pivot_of = of_entries(&|pivot, set| pivot[set]);
        let pivot_of = Selection::of_heads(&of_sets(&pivot_of), heads, &device);
        let width = pivots.width();
        let slots = of_entries(&|pivot, set| width - pivot.len() + set);
        let slot = Selection::of_heads(&slots, heads, &device).indices;
        let present: Vec<Vec<f32>> = view.lengths.iter().map(|&held| vec![1.0; held]).collect();
        let present = host::scalars(&present, heads, &device);
        let members: Vec<Vec<f32>> = sets.sizes();
        let members = host::scalars(&members, heads, &device).unsqueeze_dim::<4>(3);

        let LayerView { entries, ops, .. } = *view;
        let (keys, values) = (entries.keys.clone(), entries.values.clone());
        let entries_of = |x: &Tensor<4>| gather_rows(x.clone(), &own).cast(DType::F32);
        let (all_keys, all_values) = (entries_of(&keys), entries_of(&values));
        let pivot_keys = gather_rows(keys, &pivot_of).cast(DType::F32);
        let mut entries = select_entries(entries.clone(), &pivots, ops)?;

        let segments = Segments { ops, slot, slots: width };
        let squared = (all_keys.clone() - pivot_keys).square().sum_dim(3);
        let exponent = match self.sigma {
            Sigma::Fixed(sigma) => squared / (2.0 * sigma * sigma),
            Sigma::Adaptive => {
                // With σ² half the square of the mean distance, 2σ² is that square.
                let others = (members.clone() - 1.0).clamp_min(1.0);
                let distance = segments.sum(squared.clone().sqrt(), present.clone())? / others;
                let square = segments.of_entries(distance).square();
                let zero = square.clone().equal_scalar(0.0);
                (squared / square.mask_fill(zero.clone(), 1.0)).mask_fill(zero, 0.0)
            }
            Sigma::FixedPoint => {
                // With σ = m / √2 and m the mean of g, 2σ² is m². The mean of g grows with σ, so
                // steps from the largest m, 1, fall to the largest fixed point; m is never below
                // one member's share, its pivot's own.
                let sizes = members.clone().clamp_min(1.0);
                let mut mean = Tensor::ones_like(&members);
                for _ in 0..STEPS {
                    let square = segments.of_entries(mean).square();
                    let weights = (-(squared.clone() / square)).exp();
                    // Slots of no set must not divide by zero.
                    let sum = segments.sum(weights, present.clone())?;
                    mean = (sum / sizes.clone()).clamp_min(1e-8);
                }
                squared / segments.of_entries(mean).square()
            }
            Sigma::Average => squared.zeros_like(),
        };
        let [batch, _, count, _] = exponent.dims();
        let weights = (-exponent).exp().reshape([batch, heads, count]) * present;
        let ones = Tensor::ones_like(&weights).unsqueeze_dim(3);
        let total = segments.sum(ones, weights.clone())?;
        let total = total.clamp_min(f32::MIN_POSITIVE);
        // A set of one stays as it is, to the bit.
        let alone = members.clone().lower_equal_scalar(1.0);
        let merge =
            |x: Tensor<4>, kept: Tensor<4>, scale: Option<Tensor<4>>| -> Result<Tensor<4>> {
                let dtype = kept.dtype();
                let mut merged = segments.sum(x, weights.clone())? / total.clone();
                if let Some(scale) = scale {
                    merged = merged * scale;
                }
                let alone = alone.clone().expand(kept.dims());
                Ok(merged.cast(dtype).mask_where(alone, kept))
            };
        entries.keys = merge(all_keys, entries.keys, None)?;
        entries.values = merge(all_values, entries.values, self.scale_values.then_some(members))?;
        Ok(Reduced::new(entries, pivots.counts))
    }
}

/// Runs of entries that become one, per batch row and kv head; entries count from the first of
/// their head.
struct Sets {
    /// Index of the set of each entry, counted from 0, ascending.
    set_of: Vec<Vec<usize>>,
    /// Pivot of each set.
    pivot: Vec<Vec<usize>>,
}

impl Sets {
    /// Number of members of each set.
    fn sizes(&self) -> Vec<Vec<f32>> {
        let size = |(set_of, pivot): (&Vec<usize>, &Vec<usize>)| {
            let mut sizes = vec![0.0; pivot.len()];
            set_of.iter().for_each(|&set| sizes[set] += 1.0);
            sizes
        };
        self.set_of.iter().zip(&self.pivot).map(size).collect()
    }
}

impl GaussianMerge {
    /// Cuts the entries of each head into sets, each batch row by itself.
    fn sets(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Sets> {
        let scores = host::Columns::read(view.scores(self.name())?.clone())?;
        host::check_scores(&scores, view)?;
        let links = host::Columns::read(neighbours(view.entries.keys.clone()))?;
        let positions = match self.pivot {
            Pivot::Random(_) => {
                Some(host::Columns::read(view.positions().clone().cast(FloatDType::F32))?)
            }
            Pivot::Score | Pivot::Last => None,
        };
        let &LayerView { layer, protect, lengths: held, .. } = view;
        let heads = view.shape.kv_heads;
        let of_row = |(row, (held, keep))| {
            let (first, positions) = (row * heads, positions.as_ref());
            let row = Row { layer, protect, first, held, keep, scores: &scores, links: &links };
            let joined = row.joined(self)?;
            Ok(row.sets(self.pivot, positions, &joined))
        };
        let rows = held.par_chunks(heads).zip(keep.par_chunks(heads)).enumerate().map(of_row);
        let mut sets = Sets { set_of: Vec::new(), pivot: Vec::new() };
        // The error of the first row that has one.
        for row in rows.collect::<Vec<Result<Sets>>>() {
            let Sets { set_of, pivot } = row?;
            sets.set_of.extend(set_of);
            sets.pivot.extend(pivot);
        }
        Ok(sets)
    }
}

/// The heads of a batch row.
struct Row<'a> {
    layer: usize,
    protect: Protect,
    /// Index of its first head among the heads of all rows.
    first: usize,
    /// Entries of each head.
    held: &'a [usize],
    /// Entries that each head may keep.
    keep: &'a [usize],
    scores: &'a host::Columns,
    /// The similarity of each entry and the one before it.
    links: &'a host::Columns,
}

impl Row<'_> {
    /// The numbers of the entries of a head.
    fn of<'b>(&self, columns: &'b host::Columns, head: usize) -> &'b [f32] {
        columns.of(self.first + head, self.held[head])
    }

    /// The entries of a head that are not merged.
    fn protected(&self, merge: &GaussianMerge, head: usize) -> Vec<bool> {
        let (held, kept) = (self.held[head], self.keep[head]);
        let recent = self.protect.recent_tokens(kept).min(held);
        let scores = self.of(self.scores, head);
        let mut others: Vec<usize> = (0..held - recent).collect();
        let heavy = merge.heavy(kept).min(others.len());
        if heavy < others.len() {
            let first = |&a: &usize, &b: &usize| scores[b].total_cmp(&scores[a]).then(a.cmp(&b));
            others.select_nth_unstable_by(heavy, first);
        }
        let mut is_protected = vec![false; held];
        let heavy = others.into_iter().take(heavy);
        heavy.chain(held - recent..held).for_each(|entry| is_protected[entry] = true);
        is_protected.iter_mut().take(self.protect.sinks).for_each(|x| *x = true);
        is_protected
    }

    /// Whether each entry of each head is merged with the one before it.
    fn joined(&self, merge: &GaussianMerge) -> Result<Vec<Vec<bool>>> {
        let mut joined: Vec<Vec<bool>> = self.held.iter().map(|&held| vec![false; held]).collect();
        let (held, target) = (self.held.iter().sum::<usize>(), self.keep.iter().sum::<usize>());
        // A row within its budget is left alone, whatever the others of its batch hold.
        if held <= target {
            return Ok(joined);
        }
        let mut candidates: Vec<(f32, usize, usize)> = Vec::new();
        for (head, &held) in self.held.iter().enumerate() {
            let is_protected = self.protected(merge, head);
            // The link at an entry leads to the one before it.
            let links = self.of(self.links, head);
            let is_free = |entry: &usize| !is_protected[entry - 1] && !is_protected[*entry];
            let entries = (1..held).filter(is_free).map(|entry| (links[entry], head, entry));
            candidates.extend(entries);
        }
        let count = match merge.threshold {
            Some(threshold) => {
                candidates.retain(|(similarity, ..)| f64::from(*similarity) > threshold);
                candidates.len()
            }
            None => held - target,
        };
        if count > candidates.len() {
            let kept = target / self.held.len();
            return Err(Error::MergeBudget {
                budget: Budget::Tokens(kept),
                target,
                sinks: self.protect.sinks,
                recent: self.protect.recent_tokens(kept),
                heavy: merge.heavy(kept),
                reachable: held - candidates.len(),
            });
        }
        if count < candidates.len() {
            candidates.select_nth_unstable_by(count, |a, b| {
                b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
            });
        }
        candidates[..count].iter().for_each(|&(_, head, entry)| joined[head][entry] = true);
        Ok(joined)
    }

    /// The sets of each head, by the entries that are merged with the one before.
    fn sets(
        &self,
        pivot_is: Pivot,
        positions: Option<&host::Columns>,
        joined: &[Vec<bool>],
    ) -> Sets {
        let mut sets = Sets { set_of: Vec::new(), pivot: Vec::new() };
        for (head, joined) in joined.iter().enumerate() {
            let scores = self.of(self.scores, head);
            let positions = positions.map(|positions| self.of(positions, head));
            let rank = |entry: usize| match (pivot_is, positions) {
                (Pivot::Random(seed), Some(positions)) => {
                    drawn(seed, self.layer, head, positions[entry] as u32) as f32
                }
                (Pivot::Last, _) => entry as f32,
                _ => scores[entry],
            };
            let (mut set_of, mut pivot) = (Vec::new(), Vec::<usize>::new());
            for (entry, &joins) in joined.iter().enumerate() {
                match pivot.last_mut() {
                    Some(pivot) if joins => {
                        if rank(entry) > rank(*pivot) {
                            *pivot = entry;
                        }
                    }
                    _ => pivot.push(entry),
                }
                set_of.push(pivot.len() - 1);
            }
            sets.set_of.push(set_of);
            sets.pivot.push(pivot);
        }
        sets
    }
}

/// Random number of a token, the same on every device and in every batch: the mixing steps of
/// MurmurHash3, folded over seed, layer, head and position. 24 bits, which f32 holds.
fn drawn(seed: u32, layer: usize, head: usize, position: u32) -> u32 {
    let mixed = [seed, layer as u32, head as u32, position].into_iter().fold(0, |x: u32, part| {
        let x = (x ^ part).wrapping_add(0x9e37_79b9);
        let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
        let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
        x ^ (x >> 16)
    });
    mixed >> 8
}

/// Cosine of each key and the one before it, `[batch, kv_heads, entries]`; 0 for the first.
fn neighbours(keys: Tensor<4>) -> Tensor<3> {
    let [batch, heads, entries, _] = keys.dims();
    let unit = unit(keys);
    let first = Tensor::zeros([batch, heads, 1], (&unit.device(), DType::F32));
    if entries == 1 {
        return first;
    }
    let before = unit.clone().narrow(2, 0, entries - 1);
    let cosines = (before * unit.narrow(2, 1, entries - 1)).sum_dim(3);
    Tensor::cat(vec![first, cosines.reshape([batch, heads, entries - 1])], 2)
}

struct Segments<'a> {
    ops: &'a dyn Ops,
    /// Slot of each entry's set, `[batch, kv_heads, entries]`.
    slot: Tensor<3, burn::tensor::Int>,
    slots: usize,
}

impl Segments<'_> {
    /// Sums rows over sets: `[batch, kv_heads, entries, channels]` becomes `[batch, kv_heads,
    /// slots, channels]`.
    fn sum(&self, x: Tensor<4>, weights: Tensor<3>) -> Result<Tensor<4>> {
        Ok(self.ops.accumulate(AccumulateInput {
            x,
            weights,
            slot: self.slot.clone(),
            span: 1,
            slots: self.slots,
        })?)
    }

    /// Looks up the number of each entry's set: `[batch, kv_heads, slots, 1]` becomes `[batch,
    /// kv_heads, entries, 1]`.
    fn of_entries(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, heads, slots, _] = x.dims();
        x.reshape([batch, heads, slots]).gather(2, self.slot.clone()).unsqueeze_dim(3)
    }
}
