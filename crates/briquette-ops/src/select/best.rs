use burn::tensor::Tensor;

use crate::{
    entries::{Selection, Split},
    error::{OpError, Result},
};

/// The scores of entries, and how many of them stay. Slices hold one number a batch row and kv
/// head, rows first.
#[derive(Clone, Debug)]
pub struct SelectInput<'a> {
    /// `[batch, kv_heads, entries]`, f32; what stands at padding does not matter.
    pub scores: &'a Tensor<3>,
    /// Entries held: the last columns. Before them stands padding.
    pub held: &'a [usize],
    /// Entries to keep; a head that holds fewer keeps all.
    pub keep: &'a [usize],
    /// The first so many entries are kept whatever their scores.
    pub sinks: usize,
    /// The last so many entries are kept whatever their scores.
    pub recent: &'a [usize],
    /// Whether NaN is looked for among the scores of the entries held. Where selection runs on the
    /// device, that reads one list of counts back from it; without it a NaN is the lowest score. On
    /// the host it is always looked for.
    pub check: bool,
}

/// Selection on the host: one read of the scores, one write of the indices.
///
/// Burn's own `topk` holds k values in registers and its `sort` reads the tensor back anyway; on
/// the host the order of equal scores is the same for every backend. NaN is always looked for: here
/// it costs no read.
pub(super) fn select(input: SelectInput<'_>) -> Result<Selection> {
    let (heads, device) = (input.scores.dims()[1], input.scores.device());
    Ok(Selection::of_heads(&lists(input)?, heads, &device))
}

/// The same, and what is left of the entries held.
pub(super) fn split(input: SelectInput<'_>) -> Result<Split> {
    let [_, heads, entries] = input.scores.dims();
    let (held, device) = (input.held.to_vec(), input.scores.device());
    let kept = lists(input)?;
    let rest = |(kept, held): (&Vec<usize>, usize)| -> Vec<usize> {
        (entries - held..entries).filter(|entry| kept.binary_search(entry).is_err()).collect()
    };
    let rest: Vec<Vec<usize>> = kept.iter().zip(held).map(rest).collect();
    let selection = |lists: &[Vec<usize>]| Selection::of_heads(lists, heads, &device);
    Ok(Split { kept: selection(&kept), rest: selection(&rest) })
}

/// The entries kept of each batch row and head.
fn lists(input: SelectInput<'_>) -> Result<Vec<Vec<usize>>> {
    let SelectInput { scores, held, keep, sinks, recent, check: _ } = input;
    let entries = scores.dims()[2];
    let scores = scores.clone().try_into_vec_as::<f32>();
    let scores: Vec<f32> = scores.map_err(|error| OpError::failed("select", error))?;
    let mut lists: Vec<Vec<usize>> = Vec::with_capacity(held.len());
    for (head, scores) in scores.chunks(entries).enumerate() {
        let held: Vec<usize> = (entries - held[head]..entries).collect();
        let count = held.iter().filter(|&&entry| scores[entry].is_nan()).count();
        if count > 0 {
            return Err(OpError::NotANumber { operation: "select", count });
        }
        lists.push(best(&held, scores, keep[head], sinks, recent[head]));
    }
    Ok(lists)
}

/// The first `sinks` and last `recent` of `held`, then the highest of `scores`, `keep` in all,
/// ascending.
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
