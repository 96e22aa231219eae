use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{ReduceInput, Reduced, Reducer, host};
use crate::{
    Result,
    cache::{Entries, Sharing},
    check,
    ops::{AccumulateInput, Nearest, NearestInput, Ops, Selection, norm, unit},
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
        let classes: Vec<Classes> =
            (0..input.held.len()).map(|head| Classes::new(self, &input, &scores, head)).collect();

        let lists = |of: fn(&Classes) -> &Vec<usize>| {
            let lists: Vec<Vec<usize>> =
                classes.iter().map(|classes| of(classes).clone()).collect();
            Selection::of_heads(&host::columns(&lists, &input), heads, &device)
        };
        let centers = lists(|classes| &classes.centers);
        let merging = lists(|classes| &classes.merging);
        let entries = &input.entries;
        let merged = if merging.width() == 0 || centers.width() == 0 {
            None
        } else {
            let rows = |x: &Tensor<4>, selection| ops.compact(x.clone(), selection);
            let nearest = ops.nearest(NearestInput {
                pairs: vec![
                    (rows(&entries.keys, &merging), rows(&entries.keys, &centers)),
                    (rows(&entries.values, &merging), rows(&entries.values, &centers)),
                ],
                fillers: centers.counts.iter().map(|&count| centers.width() - count).collect(),
            });
            Some(Destinations::read(nearest, self.tau)?)
        };

        let outcomes: Vec<Outcome> = classes
            .iter()
            .enumerate()
            .map(|(head, classes)| {
                let centers_width = centers.width();
                let into = |place: usize| {
                    let merged = merged.as_ref()?;
                    let column = merged.of(head, place, classes.merging.len())?;
                    Some(column + classes.centers.len() - centers_width)
                };
                classes.merge(
                    self.others(input.keep[head]),
                    scores.of(head, input.held[head]),
                    into,
                )
            })
            .collect();

        let ReduceInput { entries, held, .. } = input;
        let width = entries.columns();
        let kept: Vec<Vec<usize>> = outcomes
            .iter()
            .zip(held)
            .map(|(outcome, held)| outcome.kept.iter().map(|entry| width - held + entry).collect())
            .collect();
        let kept = Selection::of_heads(&kept, heads, &device);
        let counts = kept.counts.clone();
        let sharing =
            Sharing { centers: outcomes.iter().map(|outcome| outcome.center_of.clone()).collect() };
        let merge = Merge {
            ops,
            heads,
            device,
            centers: &centers,
            merging: &merging,
            classes: &classes,
            outcomes: &outcomes,
        };
        let (keys, values) = merge.keys_and_values(&entries, &kept);
        let mut entries = entries.select(&kept, ops);
        (entries.keys, entries.values) = (keys, values);
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
    fn new(
        reducer: &EvictThenMerge,
        input: &ReduceInput<'_>,
        scores: &host::Columns,
        head: usize,
    ) -> Self {
        let (held, keep) = (input.held[head], input.keep[head]);
        let scores = scores.of(head, held);
        let known = input.entries.sharing.as_ref().map(|sharing| &sharing.centers[head]);
        let center_of: Vec<usize> = (0..held)
            .map(|token| known.and_then(|known| known.get(token)).copied().unwrap_or(token))
            .collect();
        let entries: Vec<usize> = (0..held).filter(|&token| center_of[token] == token).collect();
        let mut classes = Self {
            held,
            center_of,
            centers: Vec::new(),
            merging: Vec::new(),
            evicted: vec![false; held],
        };
        // The last tokens are entries of their own.
        let recent = input.protect.recent.tokens(keep).min(keep).min(entries.len());
        let (older, _) = entries.split_at(entries.len() - recent);
        let wanted = keep - recent;
        if older.len() <= wanted {
            return classes;
        }
        let (sinks, rest) = older.split_at(input.protect.sinks.min(wanted));
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
        let similarity = nearest.similarity.try_into_vec_as::<f32>()?;
        let goes = similarity.into_iter().map(|similarity| f64::from(similarity) > tau).collect();
        Ok(Self { index: nearest.index.try_into_vec_as::<i64>()?, goes, width })
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
    centers: &'a Selection,
    merging: &'a Selection,
    classes: &'a [Classes],
    outcomes: &'a [Outcome],
}

impl Merge<'_> {
    /// Keys and values of the tokens that are left.
    fn keys_and_values(&self, entries: &Entries, kept: &Selection) -> (Tensor<4>, Tensor<4>) {
        let (ops, heads) = (self.ops, self.heads);
        let keys = ops.compact(entries.keys.clone(), kept).cast(DType::F32);
        let values = ops.compact(entries.values.clone(), kept);
        if self.outcomes.iter().all(|outcome| outcome.destinations.iter().all(Option::is_none)) {
            return (keys, values);
        }
        let both = self.classes.iter().zip(self.outcomes);
        let width = self.centers.width();
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
        let sum = |x: &dyn Fn(&Selection) -> Tensor<4>| {
            let merged = ops.accumulate(AccumulateInput {
                x: x(self.merging),
                weights: weight_of_merging.clone(),
                slot: slot.clone(),
                span: 1,
                slots: width,
            });
            merged + x(self.centers) * weight_of_centers.clone()
        };
        let directions = sum(&|of| unit(ops.compact(entries.keys.clone(), of)));
        let directions = unit(directions);
        let ones = sum(&|of| {
            let [batch, heads, width] = of.indices.dims();
            Tensor::ones([batch, heads, width, 1], (&self.device, DType::F32))
        });
        let means = sum(&|of| ops.compact(entries.values.clone(), of).cast(DType::F32));
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
        let places = Selection::of_heads(&places, heads, &self.device);
        let changed = self.outcomes.iter().map(|outcome| {
            outcome.changed.iter().map(|&changed| f32::from(u8::from(changed))).collect()
        });
        let changed = numbers(changed.collect()).unsqueeze_dim::<4>(3).greater_scalar(0.5);
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
