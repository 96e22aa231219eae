use super::{SelectInput, Selection};
use crate::{Error, Result};

/// Selection on the host: one read of the scores, one write of the indices.
///
/// Burn's own `topk` holds k values in registers and its `sort` reads the tensor back anyway; on the host the
/// order of equal scores is the same for every backend.
pub(super) fn select(input: SelectInput<'_>) -> Result<Selection> {
    let SelectInput { layer, scores, positions, keep, sinks, recent } = input;
    let [batch, heads, entries] = scores.dims();
    let device = scores.device();
    let scores: Vec<f32> = scores.clone().try_into_vec_as::<f32>()?;
    let padding: Option<Vec<bool>> = match positions {
        None => None,
        Some(positions) => {
            let positions = positions.clone().try_into_vec_as::<i64>()?;
            Some(positions.into_iter().map(|position| position < 0).collect())
        }
    };

    let mut rows: Vec<Vec<usize>> = Vec::with_capacity(batch * heads);
    for row in 0..batch * heads {
        let range = row * entries..(row + 1) * entries;
        let held: Vec<usize> = match &padding {
            None => (0..entries).collect(),
            Some(padding) => (0..entries).filter(|&entry| !padding[range.start + entry]).collect(),
        };
        let scores = &scores[range];
        let count = held.iter().filter(|&&entry| scores[entry].is_nan()).count();
        if count > 0 {
            return Err(Error::NotFinite { what: "scores", layer, count });
        }
        let row = row / heads;
        rows.push(best(&held, scores, keep[row], sinks, recent[row]));
    }

    // All heads of a batch row hold the same number, and so keep the same number.
    let lists: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
    Ok(Selection::of_heads(&lists, heads, &device))
}

/// The first `sinks` and last `recent` of `held`, then the highest of `scores`, `keep` in all, ascending.
fn best(held: &[usize], scores: &[f32], keep: usize, sinks: usize, recent: usize) -> Vec<usize> {
    if held.len() <= keep {
        return held.to_vec();
    }
    let sinks = sinks.min(keep);
    let recent = recent.min(keep - sinks);
    let (first, rest) = held.split_at(sinks);
    let (middle, last) = rest.split_at(rest.len() - recent);
    let wanted = keep - sinks - recent;
    let mut middle = middle.to_vec();
    if wanted < middle.len() && wanted > 0 {
        middle.select_nth_unstable_by(wanted - 1, |&a, &b| {
            scores[b].total_cmp(&scores[a]).then(a.cmp(&b))
        });
    }
    middle.truncate(wanted);
    middle.sort_unstable();
    [first, &middle, last].concat()
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn keeps_the_protected_then_the_best_then_the_older() {
        let scores = [0.0, 5.0, 1.0, 5.0, 9.0, 5.0, 0.0];
        let held: Vec<usize> = (0..7).collect();
        assert_eq!(best(&held, &scores, 4, 1, 1), [0, 1, 4, 6]);
        assert_eq!(best(&held, &scores, 4, 0, 0), [1, 3, 4, 5]);
        assert_eq!(best(&held, &scores, 3, 0, 0), [1, 3, 4]);
        assert_eq!(best(&held, &scores, 7, 2, 2), held);
        assert_eq!(best(&[2, 3, 5, 6], &scores, 2, 1, 0), [2, 3]);
        assert_eq!(best(&held, &scores, 2, 1, 1), [0, 6]);
    }
}
