use burn::tensor::{Bool, DType, IndexingUpdateOp, Int, Tensor};

use super::{ClassifyInput, MergedInput, RegroupInput, Regrouped, fillers};
use crate::cache::sharing::{counted, moved};

/// Where `[batch, heads, width]` holds nothing, if heads hold so many; `None` if all hold as many as there are.
fn nothing_at(counts: &[usize], like: &Tensor<3, Int>) -> Option<Tensor<3, Bool>> {
    let width = like.dims()[2];
    let differ = counts.iter().any(|&count| count != width);
    differ.then(|| fillers(counts.iter().map(|count| width - count), like.dims(), &like.device()))
}

/// The entry each row is in now, counted from 1; 0 where it is in none. `[batch, kv_heads, rows]`
fn entry_of_rows(input: &ClassifyInput<'_>) -> Tensor<3, Int> {
    let ClassifyInput { rows, height, left, entries, merged, .. } = input;
    let [batch, heads, width] = left.dims();
    let device = rows.device();
    // No two go to one place, and fillers count nothing.
    let add = IndexingUpdateOp::Add;
    let first: Vec<i64> = entries.iter().map(|&count| 1 + count as i64 - width as i64).collect();
    let number = moved(counted([batch, heads, width], &device), &first).clamp_min(0);
    let entry = Tensor::<3, Int>::zeros([batch, heads, *height], &device);
    let entry = entry.scatter(2, left.clone(), number, add);
    let Some(merged) = merged else { return entry };
    let MergedInput { rows, counts, nearest, first, similarity, threshold } = merged;
    let first: Vec<i64> = first.iter().map(|&first| 1 - first as i64).collect();
    let stays = similarity.clone().greater_scalar(*threshold).bool_not();
    let stays = match nothing_at(counts, rows) {
        None => stays,
        Some(fillers) => stays.bool_or(fillers),
    };
    let number = moved(nearest.clone(), &first).mask_fill(stays, 0);
    entry.scatter(2, rows.clone(), number, add)
}

/// By a mark at each center.
pub(super) fn classify(input: ClassifyInput<'_>) -> (Tensor<3, Int>, Tensor<3>) {
    let entry = entry_of_rows(&input);
    let ClassifyInput { rows, entries, centers, positions, scores, .. } = input;
    let dims = rows.dims();
    let nothing = positions.lower_scalar(0);
    let classes = entry.gather(2, rows).mask_fill(nothing, 0).sub_scalar(1);
    let device = classes.device();
    let one = Tensor::ones(centers.dims(), &device);
    let (centers, one) = match nothing_at(entries, &centers) {
        None => (centers, one),
        Some(fillers) => (centers.mask_fill(fillers.clone(), 0), one.mask_fill(fillers, 0)),
    };
    let is_center = Tensor::<3, Int>::zeros(dims, &device);
    let is_center = is_center.scatter(2, centers, one, IndexingUpdateOp::Add);
    let ranks = scores.mask_fill(is_center.greater_scalar(0), f32::MAX);
    let ranks = ranks.mask_fill(classes.clone().lower_scalar(0), f32::MIN);
    (classes, ranks)
}

/// By one gather after another.
pub(super) fn regroup(input: RegroupInput<'_>) -> Regrouped {
    let RegroupInput { columns, classes, order, counts, centers, entries, .. } = input;
    let RegroupInput { rows, norms, lengths, positions, tracks, .. } = input;
    let [batch, heads, width] = columns.dims();
    let device = columns.device();
    let entry = classes.gather(2, order.clone());
    let columns = columns.gather(2, order);
    let nothing = entry.clone().lower_scalar(0);
    let norms = norms * lengths.gather(2, rows.clone());
    let norms = norms.gather(2, columns.clone()).mask_fill(nothing.clone(), 0.0);
    let tracks = tracks.map(|track| {
        let of_heads = [batch, heads, track.dims()[1] / heads, width];
        let all = [batch, track.dims()[1], width];
        let columns = columns.clone().unsqueeze_dim::<4>(2).expand(of_heads).reshape(all);
        let nothing = nothing.clone().unsqueeze_dim::<4>(2).expand(of_heads).reshape(all);
        track.gather(2, columns).mask_fill(nothing, 0.0)
    });

    // Where the columns of centers have gone.
    let place = counted([batch, heads, width], &device).mask_fill(nothing.clone(), 0);
    let gone = Tensor::<3, Int>::zeros(rows.dims(), &device);
    let gone = gone.scatter(2, columns.clone(), place, IndexingUpdateOp::Add);
    let fillers = nothing_at(entries, &centers);
    let back: Vec<i64> = counts.iter().map(|&count| count as i64 - width as i64).collect();
    let centers = gone.gather(2, centers.clamp(0, rows.dims()[2] as i64 - 1));
    let centers = moved(centers, &back).clamp_min(0);
    let centers = match fillers {
        None => centers,
        Some(fillers) => centers.mask_fill(fillers, 0),
    };
    Regrouped {
        positions: positions.gather(2, columns).mask_fill(nothing, -1),
        entry: entry.clamp_min(0),
        centers,
        norms: norms.cast(DType::F32),
        tracks,
    }
}
