use burn::tensor::Tensor;

use crate::{
    entries::{Selection, Split},
    error::{OpError, Result},
    host::HostInput,
};

/// Scores of entries, and how many entries to keep. Slices have one number per batch row and kv
/// head, rows first.
#[derive(Clone, Debug)]
pub struct SelectInput<'a> {
    /// Score of each entry, `[batch, kv_heads, entries]`, f32; scores at padding do not matter.
    pub scores: &'a Tensor<3>,
    /// Number of entries of each head: its last columns. The columns before them are padding.
    pub lengths: &'a [usize],
    /// Number of entries to keep per head; a head with fewer keeps all of them.
    pub keep: &'a [usize],
    /// Number of first entries of each head that are kept whatever their scores, up to `keep`.
    pub sinks: usize,
    /// Number of last entries of each head that are kept whatever their scores, after the first, up
    /// to `keep`.
    pub recent: &'a [usize],
    /// Whether a NaN among the scores of entries is an error. Where selection runs on the device,
    /// the check reads one list of counts back from it; without it a NaN is the lowest score.
    /// Selection on the host always checks.
    pub check: bool,
}

/// Selection on the host: one read of the scores, one write of the indices.
///
/// Burn's own `topk` holds k values in registers and its `sort` reads the tensor back anyway; on
/// the host the order of equal scores is the same for every backend. NaN is always an error:
/// finding it costs no read here.
pub(super) fn select(input: SelectInput<'_>) -> Result<Selection> {
    let (heads, device) = (input.scores.dims()[1], input.scores.device());
    Ok(Selection::of_heads(&lists(input)?, heads, &device))
}

/// Selection on the host, with the entries of each head that are not kept.
pub(super) fn split(input: SelectInput<'_>) -> Result<Split> {
    let [_, heads, entries] = input.scores.dims();
    let (lengths, device) = (input.lengths.to_vec(), input.scores.device());
    let kept = lists(input)?;
    let rest = |(kept, length): (&Vec<usize>, usize)| -> Vec<usize> {
        (entries - length..entries).filter(|entry| kept.binary_search(entry).is_err()).collect()
    };
    let rest: Vec<Vec<usize>> = kept.iter().zip(lengths).map(rest).collect();
    let selection = |lists: &[Vec<usize>]| Selection::of_heads(lists, heads, &device);
    Ok(Split { kept: selection(&kept), rest: selection(&rest) })
}

/// Columns of the entries that each batch row and kv head keeps.
fn lists(input: SelectInput<'_>) -> Result<Vec<Vec<usize>>> {
    let SelectInput { scores, lengths, keep, sinks, recent, check: _ } = input;
    let entries = scores.dims()[2];
    let scores = HostInput("select").floats(scores)?;
    let mut lists: Vec<Vec<usize>> = Vec::with_capacity(lengths.len());
    for (head, scores) in scores.chunks(entries).enumerate() {
        let columns: Vec<usize> = (entries - lengths[head]..entries).collect();
        let count = columns.iter().filter(|&&entry| scores[entry].is_nan()).count();
        if count > 0 {
            return Err(OpError::NotANumber { operation: "select", count });
        }
        lists.push(best(&columns, scores, keep[head], sinks, recent[head]));
    }
    Ok(lists)
}

/// The first `sinks` and last `recent` of `columns`, then those of the highest `scores`, `keep` in
/// all, ascending.
fn best(columns: &[usize], scores: &[f32], keep: usize, sinks: usize, recent: usize) -> Vec<usize> {
    if columns.len() <= keep {
        return columns.to_vec();
    }
    let sinks = sinks.min(keep);
    let recent = recent.min(keep - sinks);
    let (first, rest) = columns.split_at(sinks);
    let (middle, last) = rest.split_at(rest.len() - recent);
    let count = keep - sinks - recent;
    let mut middle = middle.to_vec();
    if count < middle.len() && count > 0 {
        middle.select_nth_unstable_by(count - 1, |&a, &b| {
            scores[b].total_cmp(&scores[a]).then(a.cmp(&b))
        });
    }
    middle.truncate(count);
    middle.sort_unstable();
    [first, &middle, last].concat()
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn keeps_the_protected_then_the_best_then_the_older() {
        let scores = [0.0, 5.0, 1.0, 5.0, 9.0, 5.0, 0.0];
        let columns: Vec<usize> = (0..7).collect();
        assert_eq!(best(&columns, &scores, 4, 1, 1), [0, 1, 4, 6]);
        assert_eq!(best(&columns, &scores, 4, 0, 0), [1, 3, 4, 5]);
        assert_eq!(best(&columns, &scores, 3, 0, 0), [1, 3, 4]);
        assert_eq!(best(&columns, &scores, 7, 2, 2), columns);
        assert_eq!(best(&[2, 3, 5, 6], &scores, 2, 1, 0), [2, 3]);
        assert_eq!(best(&columns, &scores, 2, 1, 1), [0, 6]);
    }
}
