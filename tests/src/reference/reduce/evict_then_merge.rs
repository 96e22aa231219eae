//! EMS: the irrelevant are evicted, the redundant merged into representatives; every member keeps
//! its own length and position.

use std::collections::BTreeMap;

use super::ema_merge::cosine;
use crate::reference::Entry;
use crate::reference::margin::{Margin, absolute, border, largest, relative};
use crate::reference::score::knorm::length;

/// Positions at which the keys of members are encoded, if they are held without position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotate {
    /// At their own positions.
    Own,
    /// At their representative's.
    Center,
}

/// The similarity that makes two tokens redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redundancy {
    /// The product of both cosines.
    Both,
    /// The cosine of their keys.
    Keys,
    /// The cosine of their values.
    Values,
}

/// See [`Reduce::EvictThenMerge`](super::Reduce::EvictThenMerge).
#[derive(Clone, Copy, Debug)]
pub struct EvictThenMerge {
    /// Members and entries, in budgets.
    pub gamma: f64,
    /// The redundancy that is not enough.
    pub tau: f64,
    /// The similarity that makes two tokens redundant.
    pub redundancy: Redundancy,
    /// Whether members weigh what attention they received, rather than their scores.
    pub by_attention: bool,
    /// The position at which the window of last tokens begins.
    pub first_recent: usize,
}

impl EvictThenMerge {
    /// Members that remain of a head with at most `keep` shared entries. A shared entry is a
    /// direction and a value, named by its representative's position.
    pub fn apply(
        &self,
        members: &[Entry],
        scores: &[f64],
        keep: usize,
        margin: &mut Margin,
    ) -> Vec<Entry> {
        // Which members each representative has, itself included, in the order of positions.
        let mut clusters: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            clusters.entry(member.representative).or_default().push(index);
        }
        if clusters.len() <= keep {
            return members.to_vec();
        }
        let of_position = |position: usize| {
            let index = members.iter().position(|member| member.position == position);
            index.expect("a representative is a member of its own")
        };

        // Representatives by score; those in the window all stay.
        let (inside, mut outside): (Vec<usize>, Vec<usize>) =
            clusters.keys().partition(|representative| **representative >= self.first_recent);
        let score = |representative: &usize| scores[of_position(*representative)];
        outside.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
        let falling: Vec<f64> = outside.iter().map(score).collect();
        let stay = keep - inside.len();
        let to_merge = ((self.gamma - 1.0) * keep as f64).floor() as usize;
        let both = stay.saturating_add(to_merge).min(outside.len());
        margin.score(border(&falling[..stay], &falling[stay..], relative));
        margin.score(border(&falling[..both], &falling[both..], relative));
        let mut representatives = outside[..stay].to_vec();
        representatives.sort();

        // Each entry to be merged finds its representative, or is dropped.
        let mut joining: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for demoted in &outside[stay..both] {
            let own = &members[of_position(*demoted)];
            let redundancy = |representative: &usize| {
                let other = &members[of_position(*representative)];
                let (keys, values) =
                    (cosine(&own.key, &other.key), cosine(&own.value, &other.value));
                let redundancy = match self.redundancy {
                    Redundancy::Both => keys * values,
                    Redundancy::Keys => keys,
                    Redundancy::Values => values,
                };
                redundancy.min(1.0)
            };
            let redundancies: Vec<f64> = representatives.iter().map(redundancy).collect();
            if redundancies.is_empty() {
                continue;
            }
            let (best, gap) = largest(&redundancies, absolute);
            if self.tau < 1.0 {
                margin.cosine((redundancies[best] - self.tau).abs());
            }
            if redundancies[best] > self.tau {
                margin.cosine(gap);
                joining.entry(representatives[best]).or_default().push(*demoted);
            }
        }

        let mut left: Vec<Entry> = Vec::new();
        for representative in inside {
            left.extend(clusters[&representative].iter().map(|index| members[*index].clone()));
        }
        for representative in &representatives {
            let joining = joining.get(representative).map_or(&[][..], Vec::as_slice);
            left.extend(self.join(members, scores, &clusters, *representative, joining));
        }

        // No more members beside the representatives than were to be merged at most.
        let is_representative = |member: &&Entry| member.position == member.representative;
        let score = |member: &Entry| scores[of_position(member.position)];
        let mut others: Vec<Entry> =
            left.iter().filter(|m| !is_representative(m)).cloned().collect();
        others.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.position.cmp(&b.position)));
        let falling: Vec<f64> = others.iter().map(score).collect();
        let most = to_merge.min(others.len());
        margin.score(border(&falling[..most], &falling[most..], relative));
        let mut left: Vec<Entry> = left.iter().filter(is_representative).cloned().collect();
        left.extend_from_slice(&others[..most]);
        left.sort_by_key(|member| member.position);
        left
    }

    /// The members of a representative that others join: all share its new direction and value.
    fn join(
        &self,
        members: &[Entry],
        scores: &[f64],
        clusters: &BTreeMap<usize, Vec<usize>>,
        representative: usize,
        joining: &[usize],
    ) -> Vec<Entry> {
        let unit = |vector: &[f64]| {
            let length = length(vector);
            vector
                .iter()
                .map(|x| if length == 0.0 { 0.0 } else { x / length })
                .collect::<Vec<f64>>()
        };
        let weight = |index: usize| match self.by_attention {
            true => members[index].accumulated().max(1e-12),
            false => scores[index].max(1e-12),
        };
        let mut all: Vec<Entry> = Vec::new();
        let head_dim = members[0].key.len();
        let (mut direction, mut value) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        let mut total = 0.0;
        for cluster in [representative].iter().chain(joining) {
            let indices = &clusters[cluster];
            let weight: f64 = indices.iter().map(|index| weight(*index)).sum();
            total += weight;
            // Its members share one direction and one value.
            let shared = &members[indices[0]];
            for (sum, x) in direction.iter_mut().zip(unit(&shared.key)) {
                *sum += weight * x;
            }
            for (sum, x) in value.iter_mut().zip(&shared.value) {
                *sum += weight * x;
            }
            all.extend(indices.iter().map(|index| members[*index].clone()));
        }
        if joining.is_empty() {
            return all;
        }
        let direction = unit(&direction);
        for member in &mut all {
            let norm = length(&member.key);
            member.key = direction.iter().map(|x| norm * x).collect();
            member.value = value.iter().map(|x| x / total).collect();
            member.representative = representative;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    /// Position, score, key and value; the last one is the window.
    const SIX: [(f64, [f64; 2], [f64; 2]); 6] = [
        (5.0, [2.0, 0.0], [1.0, 0.0]),
        (2.0, [3.0, 0.0], [3.0, 0.0]),
        (6.0, [0.0, 1.0], [0.0, 1.0]),
        (3.0, [0.0, 4.0], [0.0, 4.0]),
        (1.0, [5.0, 5.0], [5.0, 5.0]),
        (0.0, [7.0, 7.0], [7.0, 7.0]),
    ];

    fn members() -> Vec<Entry> {
        let six = SIX.iter().enumerate();
        six.map(|(position, (_, key, value))| entry(position, key, value, 0.0)).collect()
    }

    fn scores() -> Vec<f64> {
        SIX.iter().map(|(score, ..)| *score).collect()
    }

    fn positions(members: &[Entry]) -> Vec<usize> {
        members.iter().map(|member| member.position).collect()
    }

    const MERGE: EvictThenMerge = EvictThenMerge {
        gamma: 4.0,
        tau: 0.6,
        redundancy: Redundancy::Both,
        by_attention: false,
        first_recent: 5,
    };

    #[test]
    fn members_share_a_direction_and_keep_their_length() {
        // Two representatives beside the window: the third and the first. The fourth and second
        // join them; the fifth is at 45° to both: cosines 0.7071, redundancy 0.5, not enough.
        let mut margin = Margin::default();
        let left = MERGE.apply(&members(), &scores(), 3, &mut margin);
        assert_eq!(positions(&left), [0, 1, 2, 3, 5]);
        assert_eq!(left.iter().map(|m| m.representative).collect::<Vec<_>>(), [0, 0, 2, 2, 5]);
        let keys: Vec<&[f64]> = left.iter().map(|member| member.key.as_slice()).collect();
        assert_near(&keys.concat(), &[2.0, 0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 4.0, 7.0, 7.0]);
        // (5·1 + 2·3) / 7 and (6·1 + 3·4) / 9.
        assert_near(&left[1].value, &[11.0 / 7.0, 0.0]);
        assert_near(&left[2].value, &[0.0, 2.0]);
        assert_near(&[margin.cosines], &[0.1]);
        assert_near(&[margin.scores], &[0.4]);
        // Nothing happens while all entries fit.
        let again = MERGE.apply(&left, &[5.0, 2.0, 6.0, 3.0, 0.0], 3, &mut margin);
        assert_eq!(positions(&again), positions(&left));
    }

    #[test]
    fn directions_are_weighted_by_score() {
        let turned = EvictThenMerge { tau: 0.4, ..MERGE };
        let left = turned.apply(&members(), &scores(), 2, &mut Margin::default());
        // One representative, along y; the first two stand at 90°: redundancy 0. The fourth and
        // fifth join.
        assert_eq!(positions(&left), [2, 3, 4, 5]);
        let half = 0.5_f64.sqrt();
        let (x, y) = (half, 6.0 + 3.0 + half);
        let length = x.hypot(y);
        assert_near(&left[0].key, &[x / length, y / length]);
        let norm = 50.0_f64.sqrt();
        assert_near(&left[2].key, &[norm * x / length, norm * y / length]);
        assert_near(&left[1].value, &[0.5, (6.0 + 12.0 + 5.0) / 10.0]);
    }

    #[test]
    fn gamma_bounds_the_members() {
        // (1.34 − 1)·3 = 1.02: one to be merged, the fourth; the others are evicted.
        let few = EvictThenMerge { gamma: 1.34, ..MERGE };
        let left = few.apply(&members(), &scores(), 3, &mut Margin::default());
        assert_eq!(positions(&left), [0, 2, 3, 5]);
        let none = EvictThenMerge { gamma: 1.0, ..MERGE };
        let left = none.apply(&members(), &scores(), 3, &mut Margin::default());
        assert_eq!(positions(&left), [0, 2, 5]);
        let strict = EvictThenMerge { tau: 1.0, ..MERGE };
        let left = strict.apply(&members(), &scores(), 3, &mut Margin::default());
        assert_eq!(positions(&left), [0, 2, 5]);
    }

    #[test]
    fn a_demoted_center_takes_its_members_along() {
        let few = EvictThenMerge { gamma: 2.0, tau: -0.5, ..MERGE };
        let mut members = members();
        // The second belongs to the first.
        members[1].representative = 0;
        // Four entries outside: keep 3, so 2 representatives (third and fifth), and 3 members at
        // most.
        let scores = [5.0, 0.5, 6.0, 3.0, 5.5, 0.0];
        let left = few.apply(&members, &scores, 3, &mut Margin::default());
        // The first is at 45° to the fifth, so both it and the second join; the fourth is nearest
        // to the third.
        let found: Vec<(usize, usize)> =
            left.iter().map(|m| (m.position, m.representative)).collect();
        assert_eq!(found, [(0, 4), (1, 4), (2, 2), (3, 2), (4, 4), (5, 5)]);
        // Weights: the fifth 5.5 at 45°, the first and second together 5.5 at 0°.
        let (x, y) = (1.0 + 0.5_f64.sqrt(), 0.5_f64.sqrt());
        assert_near(&left[1].key, &[3.0 * x / x.hypot(y), 3.0 * y / x.hypot(y)]);

        // One member fewer: the one of the lowest score goes.
        let fewer = EvictThenMerge { gamma: 1.7, ..few };
        let left = fewer.apply(&members, &scores, 3, &mut Margin::default());
        assert_eq!(positions(&left), [0, 2, 3, 4, 5]);
    }
}
