use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use super::{ClassifyInput, RegroupInput, Regrouped, fillers};
use crate::cache::sharing::{counted, moved};

/// How far the last of each list is from the end.
fn missing(counts: &[usize], width: usize) -> Vec<i64> {
    counts.iter().map(|&count| width as i64 - count as i64).collect()
}

/// By a mark at each center.
pub(super) fn classify(input: ClassifyInput<'_>) -> (Tensor<3, Int>, Tensor<3>) {
    let ClassifyInput { rows, entry, centers, entries, positions, scores } = input;
    let dims = rows.dims();
    let of_entries = centers.dims();
    let nothing = positions.lower_scalar(0);
    let classes = entry.gather(2, rows).mask_fill(nothing, 0).sub_scalar(1);
    let device = classes.device();
    let mut one = Tensor::ones(of_entries, &device);
    let centers = match entries.iter().any(|&count| count != of_entries[2]) {
        false => centers,
        true => {
            let missing = entries.iter().map(|count| of_entries[2] - count);
            let fillers = fillers(missing, of_entries, &device);
            one = one.mask_fill(fillers.clone(), 0);
            centers.mask_fill(fillers, 0)
        }
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
    let of_entries = centers.dims();
    let back: Vec<i64> = missing(counts, width).into_iter().map(|by| -by).collect();
    let mut centers = moved(gone.gather(2, centers.clamp(0, rows.dims()[2] as i64 - 1)), &back);
    centers = centers.clamp_min(0);
    if entries.iter().any(|&count| count != of_entries[2]) {
        let missing = entries.iter().map(|count| of_entries[2] - count);
        centers = centers.mask_fill(fillers(missing, of_entries, &device), 0);
    }
    Regrouped {
        positions: positions.gather(2, columns).mask_fill(nothing, -1),
        entry: entry.clamp_min(0),
        centers,
        norms: norms.cast(DType::F32),
        tracks,
    }
}
