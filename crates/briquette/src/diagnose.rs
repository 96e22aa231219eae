//! What can be known of a cache before it is compressed: how few tokens hold the attention, and how alike the others
//! are. The two quantities EMS is motivated by (its Eq. 3 and 4).

use burn::tensor::{DType, Int, Tensor};

use crate::{
    Result,
    ops::unit,
    ops::{Entries, Track},
};

/// The share of a head's tokens that it takes, the most attended first, to gather the share `zeta` of the weight
/// they have received: `[batch][kv_head]`, in 0..=1. Small means that few tokens matter. EMS plots it with ζ = 0.95.
///
/// `None` if the policy does not observe column sums.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) if the device failed.
pub fn sparsity(entries: &Entries, zeta: f64) -> Result<Option<Vec<Vec<f64>>>> {
    let Some(sums) = entries.tracks.get(Track::Sums) else { return Ok(None) };
    let [batch, heads, columns] = entries.positions.dims();
    let group = sums.dims()[1] / heads;
    let sums = sums.reshape([batch, heads, group, columns]).mean_dim(2);
    let sums = sums.cast(DType::F32).try_into_vec_as::<f32>()?;
    let held = held(entries)?;
    let share = |(sums, &held): (&[f32], &usize)| {
        let mut sums: Vec<f64> = sums[columns - held..].iter().map(|&x| f64::from(x)).collect();
        sums.sort_by(|a, b| b.total_cmp(a));
        let wanted = zeta * sums.iter().sum::<f64>();
        let mut gathered = 0.0;
        let needed = sums.iter().take_while(|&sum| {
            let missing = gathered < wanted;
            gathered += sum;
            missing
        });
        needed.count() as f64 / held.max(1) as f64
    };
    let shares: Vec<f64> = sums.chunks(columns).zip(&held).map(share).collect();
    Ok(Some(shares.chunks(heads).map(<[f64]>::to_vec).collect()))
}

/// The mean over a head's tokens of the redundancy with the token they are most redundant with, cos(keys) ·
/// cos(values): `[batch][kv_head]`. Near 1 means that tokens can be merged with little loss. Keys are compared as they are
/// held.
///
/// # Errors
/// [`Error::Execution`](crate::Error::Execution) if the device failed.
pub fn redundancy(entries: &Entries) -> Result<Vec<Vec<f64>>> {
    /// Tokens compared with all others at a time.
    const BLOCK: usize = 256;
    let [batch, heads, columns] = entries.positions.dims();
    let device = entries.positions.device();
    let held = held(entries)?;
    let (keys, values) = (unit(entries.keys.clone()), unit(entries.values.clone()));
    let place = Tensor::<1, Int>::arange(0..columns as i64, &device);
    let filler = entries.positions.clone().lower_scalar(0).unsqueeze_dim::<4>(2);
    let mut nearest = Vec::new();
    for start in (0..columns).step_by(BLOCK) {
        let rows = BLOCK.min(columns - start);
        let shape = [batch, heads, rows, columns];
        let cosines =
            |x: &Tensor<4>| x.clone().narrow(2, start, rows).matmul(x.clone().swap_dims(2, 3));
        let own = place.clone().narrow(0, start, rows).reshape([1, 1, rows, 1]).expand(shape);
        let itself = place.clone().reshape([1, 1, 1, columns]).expand(shape).equal(own);
        let hidden = itself.bool_or(filler.clone().expand(shape));
        let similarity = (cosines(&keys) * cosines(&values)).mask_fill(hidden, -1.0);
        nearest.push(similarity.max_dim(3).reshape([batch, heads, rows]));
    }
    let nearest = Tensor::cat(nearest, 2).try_into_vec_as::<f32>()?;
    let mean = |(nearest, &held): (&[f32], &usize)| {
        let sum: f64 = nearest[columns - held..].iter().map(|&x| f64::from(x)).sum();
        // A token that is alone is redundant with nothing.
        if held > 1 { sum / held as f64 } else { 0.0 }
    };
    let means: Vec<f64> = nearest.chunks(columns).zip(&held).map(mean).collect();
    Ok(means.chunks(heads).map(<[f64]>::to_vec).collect())
}

/// Tokens of each batch row and kv head.
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
    use crate::ops::Tracks;

    fn entries(keys: [[f32; 2]; 4], values: [[f32; 2]; 4], sums: [f32; 4]) -> Entries {
        let device = Device::flex();
        let rows = |x: [[f32; 2]; 4]| Tensor::<2>::from_data(x, &device).reshape([1, 1, 4, 2]);
        let sums = Tensor::<1>::from_data(sums, &device).reshape([1, 1, 4]);
        Entries {
            keys: rows(keys),
            values: rows(values),
            positions: Tensor::<1, Int>::from_data([-1, 0, 1, 2], &device).reshape([1, 1, 4]),
            tracks: Tracks::new([(Track::Sums, sums)]),
            sharing: None,
        }
    }

    #[test]
    fn by_hand() {
        // A filler, two equal tokens, and one at right angles to them.
        let entries = entries(
            [[9.0, 9.0], [1.0, 0.0], [2.0, 0.0], [0.0, 3.0]],
            [[9.0, 9.0], [0.0, 1.0], [0.0, 5.0], [0.0, 1.0]],
            [0.0, 0.2, 2.0, 0.8],
        );
        // The best of the three has 2 of 3, which is two thirds; two have 2.8.
        assert_eq!(sparsity(&entries, 0.6).unwrap().unwrap(), [[1.0 / 3.0]]);
        assert_eq!(sparsity(&entries, 0.9).unwrap().unwrap(), [[2.0 / 3.0]]);
        assert_eq!(sparsity(&entries, 0.95).unwrap().unwrap(), [[1.0]]);
        // The first two are each other's copy, the third is like nothing.
        assert!((redundancy(&entries).unwrap()[0][0] - 2.0 / 3.0).abs() < 1e-6);
    }
}
