//! KVMerger: runs of similar neighbours become one entry each.

use super::ema_merge::cosine;
use crate::reference::Entry;
use crate::reference::margin::{Margin, absolute, border, largest, relative};

/// The width of the kernel that weighs the members of a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sigma {
    /// Always this.
    Fixed(f64),
    /// The mean distance of a set's members from its pivot, over √2.
    Adaptive,
    /// The mean of the members' own kernels, over √2: the largest number for which that holds.
    FixedPoint,
    /// So wide that all weigh the same.
    Average,
}

/// The member that a set becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pivot {
    /// The one that received the most attention.
    Score,
    /// The last.
    Last,
    /// The one with the highest draw under this seed.
    Random(u32),
}

/// A number from 0 to 2²⁴ − 1 that depends on all of these and on nothing else.
fn drawn(seed: u32, layer: u32, head: u32, position: u32) -> u32 {
    let mut mixed = 0_u32;
    for part in [seed, layer, head, position] {
        mixed = (mixed ^ part).wrapping_add(0x9e37_79b9);
        mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
        mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
        mixed ^= mixed >> 16;
    }
    mixed >> 8
}

/// The entries of a head that are never merged.
#[derive(Clone, Copy, Debug)]
pub struct Protected {
    /// First ones.
    pub sinks: usize,
    /// Last ones.
    pub recent: usize,
    /// The others that received the most attention.
    pub heavy: usize,
}

/// See [`Reduce::GaussianMerge`](super::Reduce::GaussianMerge).
#[derive(Clone, Copy, Debug)]
pub struct GaussianMerge {
    /// The similarity above which neighbours are joined, if it is fixed.
    pub threshold: Option<f64>,
    /// The width of the kernel.
    pub sigma: Sigma,
    /// Whether a value is multiplied by the size of its set.
    pub scale_values: bool,
    /// The member that a set becomes.
    pub pivot: Pivot,
}

/// Two neighbours of a head that may be joined.
struct Link {
    head: usize,
    first: usize,
    similarity: f64,
}

impl GaussianMerge {
    /// Reduces the heads of a layer to `total` entries, as far as there are neighbours to join.
    pub fn apply(
        &self,
        heads: &mut [Vec<Entry>],
        total: usize,
        protected: &[Protected],
        layer: usize,
        margin: &mut Margin,
    ) {
        let held: usize = heads.iter().map(Vec::len).sum();
        if held <= total {
            return;
        }
        let mut links: Vec<Link> = Vec::new();
        for (head, entries) in heads.iter().enumerate() {
            let free = free(entries, protected[head], margin);
            for first in 0..entries.len() - 1 {
                if free[first] && free[first + 1] {
                    let similarity = cosine(&entries[first].key, &entries[first + 1].key);
                    links.push(Link { head, first, similarity });
                }
            }
        }
        let falling = |a: &Link, b: &Link| b.similarity.total_cmp(&a.similarity);
        links.sort_by(|a, b| falling(a, b).then((a.head, a.first).cmp(&(b.head, b.first))));
        let similarities: Vec<f64> = links.iter().map(|link| link.similarity).collect();
        let joined = match self.threshold {
            None => {
                let joined = (held - total).min(links.len());
                margin.cosine(border(&similarities[..joined], &similarities[joined..], absolute));
                joined
            }
            Some(threshold) => {
                similarities.iter().for_each(|s| margin.cosine((s - threshold).abs()));
                similarities.iter().filter(|similarity| **similarity > threshold).count()
            }
        };

        for (head, entries) in heads.iter_mut().enumerate() {
            let mut merged = Vec::new();
            let mut set: Vec<Entry> = Vec::new();
            for (index, entry) in entries.iter().enumerate() {
                set.push(entry.clone());
                let mut joined = links[..joined].iter();
                if !joined.any(|link| (link.head, link.first) == (head, index)) {
                    merged.push(self.merge(&set, [layer, head], margin));
                    set.clear();
                }
            }
            *entries = merged;
        }
    }

    /// One entry out of a set.
    fn merge(&self, set: &[Entry], [layer, head]: [usize; 2], margin: &mut Margin) -> Entry {
        let rank = |(index, entry): (usize, &Entry)| match self.pivot {
            Pivot::Score => entry.accumulated(),
            Pivot::Last => index as f64,
            Pivot::Random(seed) => {
                f64::from(drawn(seed, layer as u32, head as u32, entry.position as u32))
            }
        };
        let ranks: Vec<f64> = set.iter().enumerate().map(rank).collect();
        let (pivot, gap) = largest(&ranks, relative);
        if self.pivot == Pivot::Score {
            margin.score(gap);
        }
        let mut merged = set[pivot].clone();
        if set.len() == 1 {
            return merged;
        }
        let distance = |entry: &Entry| {
            let squares = entry.key.iter().zip(&set[pivot].key).map(|(a, b)| (a - b).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let sigma = match self.sigma {
            Sigma::Fixed(sigma) => sigma,
            Sigma::Adaptive => {
                let sum: f64 = set.iter().map(distance).sum();
                sum / (set.len() - 1) as f64 / 2.0_f64.sqrt()
            }
            Sigma::FixedPoint => {
                let root = 2.0_f64.sqrt();
                let mut sigma = 1.0 / root;
                for step in 0.. {
                    let kernel =
                        |entry| (-f64::powi(distance(entry), 2) / (2.0 * sigma * sigma)).exp();
                    let next = set.iter().map(kernel).sum::<f64>() / (root * set.len() as f64);
                    let moved = sigma - next;
                    sigma = next;
                    if moved < 1e-12 {
                        break;
                    }
                    // So slow a fall ends somewhere else where a distance is another in its last
                    // digits.
                    if step == 200 && moved > 1e-7 {
                        margin.score(0.0);
                    }
                }
                sigma
            }
            Sigma::Average => f64::INFINITY,
        };
        let kernel = |entry: &Entry| match sigma == 0.0 {
            true => 1.0,
            false => (-distance(entry).powi(2) / (2.0 * sigma * sigma)).exp(),
        };
        let kernels: Vec<f64> = set.iter().map(kernel).collect();
        let total: f64 = kernels.iter().sum();
        let size = if self.scale_values { set.len() as f64 } else { 1.0 };
        for channel in 0..merged.key.len() {
            let (mut key, mut value) = (0.0, 0.0);
            for (entry, kernel) in set.iter().zip(&kernels) {
                key += kernel / total * entry.key[channel];
                value += kernel / total * entry.value[channel];
            }
            merged.key[channel] = key;
            merged.value[channel] = value * size;
        }
        merged
    }
}

/// Whether each entry of a head may be merged.
fn free(entries: &[Entry], protected: Protected, margin: &mut Margin) -> Vec<bool> {
    let last = entries.len().saturating_sub(protected.recent);
    let mut others: Vec<usize> = (protected.sinks..last).collect();
    let received: Vec<f64> = entries.iter().map(Entry::accumulated).collect();
    others.sort_by(|a, b| received[*b].total_cmp(&received[*a]).then(a.cmp(b)));
    let falling: Vec<f64> = others.iter().map(|index| received[*index]).collect();
    let heavy = protected.heavy.min(others.len());
    margin.score(border(&falling[..heavy], &falling[heavy..], relative));
    (0..entries.len()).map(|index| others[heavy..].contains(&index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    const MERGE: GaussianMerge = GaussianMerge {
        threshold: None,
        sigma: Sigma::Fixed(5.0),
        scale_values: false,
        pivot: Pivot::Score,
    };

    /// Six entries of a head; the angles between neighbours are 90°, 0°, 45°, 0° and 45°.
    fn six() -> Vec<Entry> {
        let keys = [[0.0, 1.0], [3.0, 0.0], [6.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.0, 9.0]];
        let received = [0.9, 0.1, 0.3, 0.7, 0.2, 0.0];
        (0..6).map(|i| entry(i, &keys[i], &[i as f64, 1.0], received[i])).collect()
    }

    const LAST_AND_HEAVIEST: Protected = Protected { sinks: 0, recent: 1, heavy: 1 };

    #[test]
    fn the_most_similar_neighbours_are_joined_first() {
        // One entry too many: of the two links of cosine 1 the older.
        let mut heads = [six()];
        let mut margin = Margin::default();
        MERGE.apply(&mut heads, 5, &[LAST_AND_HEAVIEST], 0, &mut margin);
        let positions: Vec<usize> = heads[0].iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [0, 2, 3, 4, 5]);
        // The pivot is the third, 3 away from the second.
        let weight = (-9.0 / 50.0_f64).exp();
        let mean = |a: f64, b: f64| (a * weight + b) / (weight + 1.0);
        assert_near(&heads[0][1].key, &[mean(3.0, 6.0), 0.0]);
        assert_near(&heads[0][1].value, &[mean(1.0, 2.0), 1.0]);
        assert_eq!(heads[0][1].accumulated(), 0.3);
    }

    #[test]
    fn more_than_there_are_neighbours() {
        // The first is the heaviest, the last the latest: the four between become one, its pivot
        // the fourth.
        let mut heads = [six()];
        MERGE.apply(&mut heads, 2, &[LAST_AND_HEAVIEST], 0, &mut Margin::default());
        let positions: Vec<usize> = heads[0].iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [0, 3, 5]);
    }

    #[test]
    fn heads_share_the_budget() {
        // Angles of 45° and 90° in the second head, 0° in the first: both joined there.
        let keys = [[1.0, 0.0], [1.0, 1.0], [-1.0, 1.0]];
        let second = (0..3).map(|i| entry(i, &keys[i], &[0.0, 0.0], i as f64)).collect();
        let mut heads = [six(), second];
        let free = Protected { sinks: 0, recent: 0, heavy: 0 };
        let mut margin = Margin::default();
        MERGE.apply(&mut heads, 7, &[LAST_AND_HEAVIEST, free], 0, &mut margin);
        assert_eq!([heads[0].len(), heads[1].len()], [4, 3]);
        assert_near(&[margin.cosines], &[1.0 - 0.5_f64.sqrt()]);
    }

    #[test]
    fn a_fixed_threshold_joins_whatever_is_above() {
        let fixed = GaussianMerge { threshold: Some(0.7), ..MERGE };
        let mut heads = [six()];
        fixed.apply(&mut heads, 5, &[LAST_AND_HEAVIEST], 0, &mut Margin::default());
        assert_eq!(heads[0].len(), 3);
        // Nothing happens while all fits.
        let mut heads = [six()];
        fixed.apply(&mut heads, 6, &[LAST_AND_HEAVIEST], 0, &mut Margin::default());
        assert_eq!(heads[0].len(), 6);
    }

    #[test]
    fn the_adaptive_width_is_the_mean_distance() {
        let adaptive = GaussianMerge { sigma: Sigma::Adaptive, scale_values: true, ..MERGE };
        // From the pivot 0: 1 and 3 away, so sigma is 2/√2 and 2σ² is 4.
        let set = [
            entry(7, &[1.0], &[10.0], 0.1),
            entry(8, &[0.0], &[20.0], 0.5),
            entry(9, &[3.0], &[30.0], 0.2),
        ];
        let (near, far) = ((-0.25_f64).exp(), (-2.25_f64).exp());
        let total = 1.0 + near + far;
        let merged = adaptive.merge(&set, [0, 0], &mut Margin::default());
        assert_eq!(merged.position, 8);
        assert_near(&merged.key, &[(near + 3.0 * far) / total]);
        assert_near(&merged.value, &[3.0 * (20.0 + 10.0 * near + 30.0 * far) / total]);
        // Three times the same key.
        let same = set.map(|set| Entry { key: vec![4.0], ..set });
        assert_near(&adaptive.merge(&same, [0, 0], &mut Margin::default()).value, &[60.0]);
    }

    #[test]
    fn the_width_that_is_the_mean_of_its_own_kernels() {
        let merge = GaussianMerge { sigma: Sigma::FixedPoint, ..MERGE };
        // Far apart only the pivot is left, near together all weigh the same.
        let two = |distance: f64| {
            let set = [entry(0, &[0.0], &[0.0], 1.0), entry(1, &[distance], &[8.0], 0.0)];
            merge.merge(&set, [0, 0], &mut Margin::default()).value[0]
        };
        assert_near(&[two(0.0), two(9.0)], &[4.0, 0.0]);
        // 0.1 apart: σ = (1 + g) / √8 with g = exp(−0.01 / 2σ²) is 0.7034, and g is 0.9899.
        let g = two(0.1) / (8.0 - two(0.1));
        let sigma = (1.0 + g) / 8.0_f64.sqrt();
        assert!((g - (-0.01 / (2.0 * sigma * sigma)).exp()).abs() < 1e-12, "{g}");
        assert!((g - 0.9899).abs() < 1e-4, "{g}");
        let average = GaussianMerge { sigma: Sigma::Average, pivot: Pivot::Last, ..MERGE };
        let set = [entry(0, &[0.0], &[0.0], 1.0), entry(1, &[9.0], &[8.0], 0.0)];
        let merged = average.merge(&set, [0, 0], &mut Margin::default());
        assert_eq!(merged.position, 1);
        assert_near(&[merged.key[0], merged.value[0]], &[4.5, 4.0]);
    }

    #[test]
    fn any_member_may_be_drawn() {
        let set: Vec<Entry> = (0..3).map(|i| entry(i, &[0.0], &[0.0], 0.0)).collect();
        let mut pivots = [0; 3];
        for seed in 0..300 {
            let merge = GaussianMerge { pivot: Pivot::Random(seed), ..MERGE };
            pivots[merge.merge(&set, [0, 0], &mut Margin::default()).position] += 1;
        }
        assert!(pivots.iter().all(|count| (60..140).contains(count)), "{pivots:?}");
    }
}
