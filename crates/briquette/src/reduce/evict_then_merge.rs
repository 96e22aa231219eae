use burn::tensor::{DType, Device, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reduced, Reducer, host};
use crate::{
    Result,
    cache::{Entries, Sharing, Tracks},
    check,
    ops::{AccumulateInput, Nearest, NearestInput, Ops, Selection, few_widths, norm, unit},
    policy::Protect,
};

/// Evicts what matters least and merges what matters a little into what matters most: EMS.
///
/// Of `B` entries the last tokens keep one each; the others are centers, those with the highest scores. The next
/// (`gamma` − 1) · B are merged into the center they are most redundant with, R = cos(keys) · cos(values), and the rest
/// is evicted. Where R is at most `tau` the token goes to the zero class, which is eviction too. Keys are merged as
/// unit vectors, weighted by score, and each token keeps the norm of its own key and its own position; values are
/// merged as they are.
///
/// In decoding the tokens that leave the window become centers, and the centers that matter least are merged
/// with all their tokens. No more than (`gamma` − 1) · B tokens besides the centers are remembered: those that matter
/// least are forgotten first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictThenMerge {
    /// Tokens remembered, in budgets: 1 merges nothing.
    pub gamma: f64,
    /// The redundancy above which a token is merged: 1 merges nothing.
    pub tau: f64,
    /// At which position merged keys are encoded, if the policy holds keys before encoding.
    #[serde(default)]
    pub rotate: Rotate,
}

/// At which position the key of a merged token is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotate {
    /// Its own.
    #[default]
    Own,
    /// That of its center.
    Center,
}

impl EvictThenMerge {
    /// Tokens besides the centers that are remembered beside `entries` entries.
    fn others(&self, entries: usize) -> usize {
        ((self.gamma - 1.0) * entries as f64) as usize
    }
}

impl Reducer for EvictThenMerge {
    fn name(&self) -> &str {
        "evict-then-merge"
    }

    fn summary(&self) -> String {
        format!("{}, γ {}, τ {}", self.name(), self.gamma, self.tau)
    }

    fn check(&self) -> Result<()> {
        check::factor("reduce.gamma", self.gamma)?;
        check::share("reduce.tau", self.tau)
    }

    fn makes_shared_entries(&self) -> bool {
        true
    }

    fn columns(&self, entries: usize) -> usize {
        entries + self.others(entries)
    }

    fn encodes_at_center(&self) -> bool {
        self.rotate == Rotate::Center
    }

    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced> {
        let device = input.entries.keys.device();
        let heads = input.shape.kv_heads;
        let ops = input.ops;
        let scores = host::Columns::read(input.scores.clone())?;
        host::check_scores(&scores, &input)?;
        // A head decides for itself.
        let known = input.entries.sharing.as_ref().map(|sharing| &sharing.centers[..]);
        let (held, keep, protect) = (input.held, input.keep, input.protect);
        let classes: Vec<Classes> = (0..held.len())
            .into_par_iter()
            .map(|head| {
                let known = known.map_or(&[][..], |known| &known[head][..]);
                Classes::new(self, protect, known, scores.of(head, held[head]), keep[head])
            })
            .collect();

        let lists = |of: fn(&Classes) -> &Vec<usize>| {
            let lists: Vec<Vec<usize>> =
                classes.iter().map(|classes| of(classes).clone()).collect();
            Selection::of_heads(&host::columns(&lists, &input), heads, &device)
        };
        let centers = lists(|classes| &classes.centers);
        let merging = lists(|classes| &classes.merging);
        let width = centers.width();
        let rows = |selection| {
            let entries = Entries { tracks: Tracks::default(), ..input.entries.clone() };
            entries.select(selection, ops)
        };
        let (rows, merged) = if merging.width() == 0 || width == 0 {
            (None, None)
        } else {
            let (centers_rows, merging_rows) = (rows(&centers), rows(&merging));
            let nearest = ops.nearest(NearestInput {
                pairs: vec![
                    (merging_rows.keys.clone(), centers_rows.keys.clone()),
                    (merging_rows.values.clone(), centers_rows.values.clone()),
                ],
                fillers: centers.counts.iter().map(|&count| width - count).collect(),
            });
            let merged = Destinations::read(nearest, self.tau)?;
            (Some((centers_rows, merging_rows)), Some(merged))
        };

        let outcomes: Vec<Outcome> = classes
            .par_iter()
            .enumerate()
            .map(|(head, classes)| {
                let into = |place: usize| {
                    let merged = merged.as_ref()?;
                    let column = merged.of(head, place, classes.merging.len())?;
                    Some(column + classes.centers.len() - width)
                };
                classes.merge(self.others(keep[head]), scores.of(head, held[head]), into)
            })
            .collect();

        let ReduceInput { entries, held, rounds, .. } = input;
        let columns = entries.columns();
        let kept: Vec<Vec<usize>> = outcomes
            .iter()
            .zip(held)
            .map(|(outcome, held)| {
                outcome.kept.iter().map(|entry| columns - held + entry).collect()
            })
            .collect();
        let counts: Vec<usize> = kept.iter().map(Vec::len).collect();
        let longest = counts.iter().copied().max().unwrap_or(0);
        let columns = if rounds { few_widths(&counts) } else { longest };
        let kept = Selection::of_heads_in(&kept, columns, heads, &device);
        let sharing =
            Sharing { centers: outcomes.iter().map(|outcome| outcome.center_of.clone()).collect() };
        let mut entries = entries.select(&kept, ops);
        entries.keys = entries.keys.cast(DType::F32);
        let goes = |outcome: &Outcome| outcome.destinations.iter().any(Option::is_some);
        if let Some((centers, merging)) = rows.filter(|_| outcomes.iter().any(goes)) {
            let merge = Merge {
                ops,
                heads,
                device,
                classes: &classes,
                outcomes: &outcomes,
                centers,
                merging,
            };
            (entries.keys, entries.values) = merge.keys_and_values(entries.keys, entries.values);
        }
        entries.sharing = Some(sharing);
        Ok(Reduced { entries, counts, state: None })
    }
}

/// The entries of one head by what becomes of them; tokens count from the head's first.
struct Classes {
    /// Tokens held.
    held: usize,
    /// The center of each token before.
    center_of: Vec<usize>,
    /// Centers that stay and may be merged into, ascending.
    centers: Vec<usize>,
    /// Centers that are to be merged, ascending.
    merging: Vec<usize>,
    /// Whether the class of a center is evicted.
    evicted: Vec<bool>,
}

impl Classes {
    /// `known` are the centers of the first tokens; the others are their own. A score a token.
    fn new(
        reducer: &EvictThenMerge,
        protect: Protect,
        known: &[usize],
        scores: &[f32],
        keep: usize,
    ) -> Self {
        let held = scores.len();
        let known = &known[..known.len().min(held)];
        let center_of: Vec<usize> = known.iter().copied().chain(known.len()..held).collect();
        let entries: Vec<usize> = (0..held).filter(|&token| center_of[token] == token).collect();
        let mut classes = Self {
            held,
            center_of,
            centers: Vec::new(),
            merging: Vec::new(),
            evicted: vec![false; held],
        };
        // The last tokens are entries of their own.
        let recent = protect.recent.tokens(keep).min(keep).min(entries.len());
        let (older, _) = entries.split_at(entries.len() - recent);
        let wanted = keep - recent;
        if older.len() <= wanted {
            return classes;
        }
        let (sinks, rest) = older.split_at(protect.sinks.min(wanted));
        let (best, demoted) = host::split_best(rest.to_vec(), wanted - sinks.len(), scores);
        classes.centers = [sinks, &best].concat();
        let (merging, evicted) = host::split_best(demoted, reducer.others(keep), scores);
        evicted.iter().for_each(|&center| classes.evicted[center] = true);
        classes.merging = merging;
        classes
    }

    /// Sends each class that is to be merged where `into` says (the place of a center among the centers), evicts it
    /// if that is nowhere, and forgets tokens beyond `others`.
    fn merge(
        &self,
        others: usize,
        scores: &[f32],
        into: impl Fn(usize) -> Option<usize>,
    ) -> Outcome {
        // Where the class of each center goes.
        let mut goes_to: Vec<Option<usize>> =
            (0..self.held).map(|center| (!self.evicted[center]).then_some(center)).collect();
        let mut weight = vec![0.0; self.held];
        for (token, &center) in self.center_of.iter().enumerate() {
            weight[center] += scores[token].max(LEAST_WEIGHT);
        }
        let mut changed = vec![false; self.held];
        let mut destinations = Vec::with_capacity(self.merging.len());
        for (place, &center) in self.merging.iter().enumerate() {
            let destination = into(place);
            let new = destination.map(|place| self.centers[place]);
            if let Some(new) = new {
                changed[new] = true;
            }
            goes_to[center] = new;
            destinations.push(destination);
        }
        let mut center_of: Vec<Option<usize>> =
            self.center_of.iter().map(|&center| goes_to[center]).collect();
        let extra = (0..self.held)
            .filter(|&token| center_of[token].is_some_and(|center| center != token))
            .collect();
        let (_, forgotten) = host::split_best(extra, others, scores);
        forgotten.into_iter().for_each(|token| center_of[token] = None);
        let kept: Vec<usize> = (0..self.held).filter(|&token| center_of[token].is_some()).collect();
        let mut place = vec![0; self.held];
        kept.iter().enumerate().for_each(|(new, &old)| place[old] = new);
        let old_center: Vec<usize> = kept.iter().filter_map(|&token| center_of[token]).collect();
        Outcome {
            center_of: old_center.iter().map(|&center| place[center]).collect(),
            changed: old_center.iter().map(|&center| changed[center]).collect(),
            old_center,
            kept,
            destinations,
            weight,
        }
    }
}

/// The smallest weight of a token: one of no score must not make a class of weight zero.
const LEAST_WEIGHT: f32 = 1e-12;

/// What is left of one head.
struct Outcome {
    /// The tokens that are left, as they were counted before, ascending.
    kept: Vec<usize>,
    /// The center of each, as they are counted now.
    center_of: Vec<usize>,
    /// The center of each, as they were counted before.
    old_center: Vec<usize>,
    /// Whether the center of each has changed.
    changed: Vec<bool>,
    /// For each center that was to be merged the place among the centers it went to.
    destinations: Vec<Option<usize>>,
    /// The weight of the class of each center before.
    weight: Vec<f32>,
}

/// Where classes go, on the host.
struct Destinations {
    index: Vec<i64>,
    goes: Vec<bool>,
    width: usize,
}

impl Destinations {
    fn read(nearest: Nearest, tau: f64) -> Result<Self> {
        let width = nearest.index.dims()[2];
        let (similarity, index) = host::read(nearest.similarity, nearest.index)?;
        let goes = similarity.into_iter().map(|similarity| f64::from(similarity) > tau).collect();
        Ok(Self { index, goes, width })
    }

    /// The column of the center that the class at `place` of `count` goes to.
    fn of(&self, head: usize, place: usize, count: usize) -> Option<usize> {
        let at = (head + 1) * self.width - count + place;
        self.goes[at].then(|| self.index[at] as usize)
    }
}

/// The weighted means of classes.
struct Merge<'a> {
    ops: &'a dyn Ops,
    heads: usize,
    device: Device,
    classes: &'a [Classes],
    outcomes: &'a [Outcome],
    /// The entries that are merged into.
    centers: Entries,
    /// Those that are merged.
    merging: Entries,
}

impl Merge<'_> {
    /// Keys and values of the tokens that are left, from what they were.
    fn keys_and_values(&self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let (ops, heads) = (self.ops, self.heads);
        let both = self.classes.iter().zip(self.outcomes);
        let width = self.centers.columns();
        let numbers = |lists: Vec<Vec<f32>>| host::scalars(&lists, heads, &self.device);
        let weight_of_centers = numbers(
            both.clone()
                .map(|(classes, outcome)| {
                    classes.centers.iter().map(|&center| outcome.weight[center]).collect()
                })
                .collect(),
        );
        let weight_of_merging = numbers(
            both.clone()
                .map(|(classes, outcome)| {
                    let places = classes.merging.iter().zip(&outcome.destinations);
                    places.map(|(&c, to)| to.map_or(0.0, |_| outcome.weight[c])).collect()
                })
                .collect(),
        );
        let slots: Vec<Vec<usize>> = both
            .clone()
            .map(|(classes, outcome)| {
                let first = width - classes.centers.len();
                outcome.destinations.iter().map(|to| to.map_or(0, |to| first + to)).collect()
            })
            .collect();
        let slot = Selection::of_heads(&slots, heads, &self.device).indices;
        let weight_of_centers = weight_of_centers.unsqueeze_dim::<4>(3);
        let sum = |x: &dyn Fn(&Entries) -> Tensor<4>| {
            let merged = ops.accumulate(AccumulateInput {
                x: x(&self.merging),
                weights: weight_of_merging.clone(),
                slot: slot.clone(),
                span: 1,
                slots: width,
            });
            merged + x(&self.centers) * weight_of_centers.clone()
        };
        let directions = unit(sum(&|of| unit(of.keys.clone())));
        let ones = sum(&|of| {
            let [batch, heads, width] = of.positions.dims();
            Tensor::ones([batch, heads, width, 1], (&self.device, DType::F32))
        });
        let means = sum(&|of| of.values.clone().cast(DType::F32));
        let means = means / ones.clamp_min(f32::MIN_POSITIVE);

        // For each token that is left the place of its center, where that has changed.
        let places: Vec<Vec<usize>> = both
            .map(|(classes, outcome)| {
                let first = width - classes.centers.len();
                let place = |(&center, &changed): (&usize, &bool)| {
                    let place = || classes.centers.binary_search(&center).unwrap_or(0);
                    if changed { first + place() } else { 0 }
                };
                outcome.old_center.iter().zip(&outcome.changed).map(place).collect()
            })
            .collect();
        let columns = keys.dims()[2];
        let places = Selection::of_heads_in(&places, columns, heads, &self.device);
        let changed = self.outcomes.iter().map(|outcome| {
            outcome.changed.iter().map(|&changed| f32::from(u8::from(changed))).collect()
        });
        let changed: Vec<Vec<f32>> = changed.collect();
        let changed = host::scalars_in(&changed, columns, heads, &self.device);
        let changed = changed.unsqueeze_dim::<4>(3).greater_scalar(0.5);
        let norms = norm(keys.clone());
        let new_keys = ops.compact(directions, &places) * norms;
        let new_values = ops.compact(means, &places).cast(values.dtype());
        let (key_shape, value_shape) = (keys.dims(), values.dims());
        (
            keys.mask_where(changed.clone().expand(key_shape), new_keys),
            values.mask_where(changed.expand(value_shape), new_values),
        )
    }
}
