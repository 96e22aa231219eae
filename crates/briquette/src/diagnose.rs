//! Sparsity and redundancy of the heads of a cache before it is compressed: the two rates that
//! motivate EMS (Li et al., 2024, section 4.1).

use burn::tensor::{Int, Tensor};

use crate::{
    Result,
    ops::{ClusterOps, Entries, GlobalLocalInput, Reference, Statistic, unit},
};

/// Returns the sparsity rate `p_m` of each head, `[batch][kv_head]`, in 0..=1: 1 − `N_k` / N, where
/// `N_k` is the fewest of its N tokens whose Global-Local scores (Eq. 2, not pooled) sum to the
/// share `zeta` of all of them (EMS, Eq. 3). Near 1, few tokens matter. The paper plots it with ζ =
/// 0.95.
///
/// `None` if the policy does not observe the statistics of
/// [`Ems`](crate::score::Ems).
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) if the device failed.
pub fn sparsity(entries: &Entries, zeta: f64) -> Result<Option<Vec<Vec<f64>>>> {
    let [_, heads, columns] = entries.positions.dims();
    let of = |statistic| entries.statistics.get(statistic);
    let all = (of(Statistic::Sums), of(Statistic::LocalPast), of(Statistic::LocalCurrent));
    let (Some(sums), Some(past), Some(current)) = all else { return Ok(None) };
    let scores = Reference.global_local(GlobalLocalInput {
        sums,
        past,
        current,
        kv_heads: heads,
        window: 0,
        pool: None,
    })?;
    let scores = scores.try_into_vec_as::<f32>()?;
    let held = held(entries)?;
    let rate = |(scores, &held): (&[f32], &usize)| {
        let mut scores: Vec<f64> =
            scores[columns - held..].iter().map(|&score| f64::from(score)).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        let wanted = zeta * scores.iter().sum::<f64>();
        let mut gathered = 0.0;
        let needed = scores.iter().take_while(|&score| {
            let missing = gathered < wanted;
            gathered += score;
            missing
        });
        1.0 - needed.count() as f64 / held.max(1) as f64
    };
    let rates: Vec<f64> = scores.chunks(columns).zip(&held).map(rate).collect();
    Ok(Some(rates.chunks(heads).map(<[f64]>::to_vec).collect()))
}

/// Returns the redundancy rate `r_m` of each head, `[batch][kv_head]`, in 0..=1: the share of its
/// redundant tokens (EMS, Eq. 4). A token is redundant if its redundancy with an earlier one,
/// cos(keys) · cos(values), is at least `tau`. Near 1, most tokens can be merged with little loss.
/// The paper plots it with τ = 0.6, of keys before position encoding: entries hold those under
/// [`PositionMode::Deferred`](crate::policy::PositionMode::Deferred).
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) if the device failed.
pub fn redundancy(entries: &Entries, tau: f64) -> Result<Vec<Vec<f64>>> {
    /// Number of tokens compared with all others at a time.
    const BLOCK: usize = 256;
    let [batch, heads, columns] = entries.positions.dims();
    let device = entries.positions.device();
    let held = held(entries)?;
    let (keys, values) = (unit(entries.keys.clone()), unit(entries.values.clone()));
    let place = Tensor::<1, Int>::arange(0..columns as i64, &device);
    let padding = entries.positions.clone().lower_scalar(0).unsqueeze_dim::<4>(2);
    let mut nearest = Vec::new();
    for start in (0..columns).step_by(BLOCK) {
        let rows = BLOCK.min(columns - start);
        let shape = [batch, heads, rows, columns];
        let cosines =
            |x: &Tensor<4>| x.clone().narrow(2, start, rows).matmul(x.clone().swap_dims(2, 3));
        let own = place.clone().narrow(0, start, rows).reshape([1, 1, rows, 1]).expand(shape);
        let not_before = place.clone().reshape([1, 1, 1, columns]).expand(shape).greater_equal(own);
        let hidden = not_before.bool_or(padding.clone().expand(shape));
        // Below any product of cosines: the first token has none before it.
        let similarity = (cosines(&keys) * cosines(&values)).mask_fill(hidden, -2.0);
        nearest.push(similarity.max_dim(3).reshape([batch, heads, rows]));
    }
    let nearest = Tensor::cat(nearest, 2).try_into_vec_as::<f32>()?;
    let rate = |(nearest, &held): (&[f32], &usize)| {
        let own = &nearest[columns - held..];
        own.iter().filter(|&&x| f64::from(x) >= tau).count() as f64 / held.max(1) as f64
    };
    let rates: Vec<f64> = nearest.chunks(columns).zip(&held).map(rate).collect();
    Ok(rates.chunks(heads).map(<[f64]>::to_vec).collect())
}

/// Number of tokens of each batch row and kv head.
fn held(entries: &Entries) -> Result<Vec<usize>> {
    let columns = entries.columns();
    let positions = entries.positions.clone().try_into_vec_as::<i64>()?;
    let of_head = |head: &[i64]| head.iter().filter(|&&position| position >= 0).count();
    Ok(positions.chunks(columns).map(of_head).collect())
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::ops::AttentionStatistics;

    fn entries(keys: [[f32; 2]; 5], values: [[f32; 2]; 5]) -> Entries {
        let device = Device::flex();
        let rows = |x: [[f32; 2]; 5]| Tensor::<2>::from_data(x, &device).reshape([1, 1, 5, 2]);
        Entries {
            keys: rows(keys),
            values: rows(values),
            positions: Tensor::<1, Int>::from_data([-1, 0, 1, 2, 3], &device).reshape([1, 1, 5]),
            statistics: AttentionStatistics::default(),
            clustering: None,
        }
    }

    #[test]
    fn few_tokens_gather_most_of_the_score() {
        let mut entries = entries([[1.0, 0.0]; 5], [[1.0, 0.0]; 5]);
        assert_eq!(sparsity(&entries, 0.95).unwrap(), None);
        let statistic =
            |numbers: [f32; 5]| Tensor::<1>::from_data(numbers, &Device::flex()).reshape([1, 1, 5]);
        // Padding; sums of 8 and of 2, so the factor is a quarter: 1, 0.5, 0.25 and 0.25 against
        // 0.25, 0.25, 1.25, 0.25.
        entries.statistics = AttentionStatistics::default()
            .with(Statistic::Sums, statistic([0.0, 4.0, 2.0, 1.0, 1.0]))
            .with(Statistic::LocalPast, statistic([0.0, 0.25, 0.25, 1.0, 0.25]))
            .with(Statistic::LocalCurrent, statistic([0.0, 0.0, 0.0, 0.25, 0.0]));
        // The larger ones are 1, 0.5, 1.25 and 0.25, of 3 in all.
        for (zeta, rate) in [(0.4, 0.75), (0.75, 0.5), (0.9, 0.25), (0.95, 0.0)] {
            assert_eq!(sparsity(&entries, zeta).unwrap().unwrap(), [[rate]], "ζ = {zeta}");
        }
    }

    #[test]
    fn tokens_with_a_like_one_before_them() {
        // Padding, two equal tokens, one at right angles to them, and one whose key is theirs and
        // whose value is halfway.
        let entries = entries(
            [[9.0, 9.0], [1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [4.0, 0.0]],
            [[9.0, 9.0], [0.0, 1.0], [0.0, 5.0], [0.0, 1.0], [2.0, 2.0]],
        );
        // The first has nothing before it; of the others the second is a copy, and the last has
        // 0.71.
        for (tau, rate) in [(0.6, 0.5), (0.8, 0.25), (0.0, 0.75)] {
            assert_eq!(redundancy(&entries, tau).unwrap(), [[rate]], "τ = {tau}");
        }
    }
}
