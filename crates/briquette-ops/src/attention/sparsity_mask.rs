/// Mask of the weights that one query head of a batch row computes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SparsityMask {
    /// All weights.
    All,
    /// Entries at positions below `first`, and at distances below `recent`.
    Ends { first: usize, recent: usize },
    /// Columns that every query sees, and distances at which every query sees.
    Lines { columns: Vec<bool>, distances: Vec<bool> },
    /// Blocks of `size` by `size` tokens, `[blocks of queries · width]`: the first block of queries
    /// is number `from`, and `width` is the number of blocks of keys.
    Blocks { size: usize, from: usize, width: usize, visible: Vec<bool> },
}

impl SparsityMask {
    /// Columns that every query sees, of entries at the positions `entries`.
    pub(super) fn columns<'a>(
        &'a self,
        entries: &'a [i64],
    ) -> Box<dyn Iterator<Item = usize> + 'a> {
        let below = |end: usize| {
            let there = move |entry: &i64| (0..end as i64).contains(entry);
            (0..entries.len()).filter(move |&column| there(&entries[column]))
        };
        match self {
            Self::All => Box::new(0..entries.len()),
            Self::Ends { first, .. } => Box::new(below(*first)),
            Self::Lines { columns, .. } => Box::new(places(columns)),
            Self::Blocks { .. } => Box::new(std::iter::empty()),
        }
    }

    /// Distances below `end` at which every query sees.
    pub(super) fn distances(&self, end: usize) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Ends { recent, .. } => Box::new(0..end.min(*recent)),
            Self::Lines { distances, .. } => Box::new(places(distances)),
            Self::All | Self::Blocks { .. } => Box::new(std::iter::empty()),
        }
    }

    /// Whether the query at position `query` sees the entry of `column`, at position `entry`.
    pub(super) fn sees(&self, query: i64, column: usize, entry: i64) -> bool {
        if entry < 0 || entry > query {
            return false;
        }
        let (query, entry) = (query as usize, entry as usize);
        match self {
            Self::All => true,
            Self::Ends { first, recent } => entry < *first || query - entry < *recent,
            Self::Lines { columns, distances } => columns[column] || distances[query - entry],
            Self::Blocks { size, from, width, visible } => {
                visible[(query / size - from) * width + entry / size]
            }
        }
    }
}

/// Indices of the elements that are true.
fn places(picked: &[bool]) -> impl Iterator<Item = usize> + '_ {
    picked.iter().enumerate().filter_map(|(place, &picked)| picked.then_some(place))
}

/// Marks the `count` highest scores, of equal ones the first; scores of −∞ are never marked.
pub(super) fn highest(scores: &[f32], count: usize) -> Vec<bool> {
    let mut order: Vec<usize> =
        (0..scores.len()).filter(|&place| scores[place] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut picked = vec![false; scores.len()];
    order.into_iter().take(count).for_each(|place| picked[place] = true);
    picked
}

/// Marks the places `must`, then the highest scores until those marked have `share` of the sum of
/// all. Of the others, scores that are not above zero are never marked.
pub(super) fn covering(scores: &[f32], must: &[usize], share: f64) -> Vec<bool> {
    let target = share * scores.iter().map(|&score| f64::from(score)).sum::<f64>();
    let mut picked = vec![false; scores.len()];
    must.iter().for_each(|&place| picked[place] = true);
    let mut order: Vec<usize> = (0..scores.len()).filter(|&place| !picked[place]).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let of_picked = picked.iter().zip(scores).filter(|(picked, _)| **picked);
    let mut sum: f64 = of_picked.map(|(_, &score)| f64::from(score)).sum();
    for place in order {
        if sum >= target || scores[place] <= 0.0 {
            break;
        }
        picked[place] = true;
        sum += f64::from(scores[place]);
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_blocks_with_the_share_are_picked() {
        let scores = [0.1, 0.4, 0.0, 0.3, 0.2];
        // 0.1 + 0.2 must be; 0.3 of 1 is what they have.
        assert_eq!(covering(&scores, &[0, 4], 0.2), [true, false, false, false, true]);
        assert_eq!(covering(&scores, &[0, 4], 0.6), [true, true, false, false, true]);
        assert_eq!(covering(&scores, &[0, 4], 0.9), [true, true, false, true, true]);
        assert_eq!(covering(&scores, &[0, 4], 1.0), [true, true, false, true, true]);
    }

    #[test]
    fn of_equal_scores_the_first_are_picked() {
        let none = f32::NEG_INFINITY;
        assert_eq!(highest(&[1.0, 2.0, none, 1.0], 2), [true, true, false, false]);
        assert_eq!(highest(&[1.0, none], 2), [true, false]);
    }
}
