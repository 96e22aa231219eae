//! Rows of numbers.

/// Numbers that are multiplied together.
const LANES: usize = 8;

/// The product of two rows, as eight sums that are added up in order.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Adds a row times `weight`.
#[inline(always)]
pub(super) fn add(sum: &mut [f32], weight: f32, row: &[f32]) {
    let ((sum, rest), (row, rest_of_row)) =
        (sum.as_chunks_mut::<LANES>(), row.as_chunks::<LANES>());
    for (sum, row) in sum.iter_mut().zip(row) {
        for lane in 0..LANES {
            sum[lane] += weight * row[lane];
        }
    }
    for (sum, number) in rest.iter_mut().zip(rest_of_row) {
        *sum += weight * number;
    }
}

/// Numbers whose sums stay in registers.
const BLOCK: usize = 16;

/// Adds rows that are as wide as `sum`, one after another in `rows`, each times its factor.
#[inline(always)]
pub(super) fn add_all(sum: &mut [f32], factors: &[f32], rows: &[f32]) {
    let width = sum.len();
    let (blocks, rest) = sum.as_chunks_mut::<BLOCK>();
    let end = blocks.len() * BLOCK;
    for (number, block) in blocks.iter_mut().enumerate() {
        let mut own = *block;
        for (factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
            let row = &row[number * BLOCK..][..BLOCK];
            for lane in 0..BLOCK {
                own[lane] += factor * row[lane];
            }
        }
        *block = own;
    }
    if !rest.is_empty() {
        for (factor, row) in factors.iter().zip(rows.chunks_exact(width)) {
            add(rest, *factor, &row[end..]);
        }
    }
}

/// Turns scores into weights that add up to one, with that of a sink if there is one; of none it
/// makes none.
pub(super) fn softmax(scores: &mut [f32], sink: Option<f32>) {
    let highest = scores.iter().copied().fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
    let mut total = sink.map_or(0.0, |sink| (sink - highest).exp());
    for score in &mut *scores {
        *score = (*score - highest).exp();
        total += *score;
    }
    scores.iter_mut().for_each(|weight| *weight /= total);
}
