use burn::tensor::{Bool, Int, Tensor, TensorData};

use super::StoreOptions;
use crate::{
    Result,
    device::{Rows, buffer_bytes},
    ops::iota,
    prefix::Parts,
    rows::{append_int_rows, select_list, select_rows},
};

/// The channels of keys that each head keeps.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    /// Their numbers, ascending, `[batch · kv_heads, kept]`.
    of_heads: Tensor<2, Int>,
}

impl Channels {
    /// Picks the `kept` channels with the highest `scores`, `[batch, kv_heads, head_dim]`; of equal
    /// ones the first. Rows in which nothing has `arrived` keep the channels they had.
    pub(super) fn highest(
        scores: Tensor<3>,
        kept: usize,
        arrived: &[usize],
        before: Option<Self>,
    ) -> Self {
        let [batch, heads, channels] = scores.dims();
        let device = scores.device();
        let rows = batch * heads;
        let square = [rows, channels, channels];
        let (of, other) = (scores.clone().reshape([rows, channels, 1]), scores);
        let (of, other) = (of.expand(square), other.reshape([rows, 1, channels]).expand(square));
        let number = iota([1, channels, channels], &device);
        let earlier = number.clone().lower(number.clone().swap_dims(1, 2));
        let better = other.clone().greater(of.clone());
        let better = better.bool_or(other.equal(of).bool_and(earlier.clone().expand(square)));
        let stays = better.int().sum_dim(2).lower_scalar(kept as i64);
        // How many stay before a channel is its place among those that do.
        let before_it = stays.clone().int().swap_dims(1, 2).expand(square);
        let place = before_it.mask_fill(earlier.expand(square).bool_not(), 0).sum_dim(2);
        let slots = [rows, channels, kept];
        let here = place.expand(slots).equal(iota([1, 1, kept], &device).expand(slots));
        let here = here.bool_and(stays.expand(slots));
        let number = number.narrow(1, 0, 1).swap_dims(1, 2).expand(slots);
        let found = number.mask_fill(here.bool_not(), 0).sum_dim(1).reshape([rows, kept]);
        let Some(before) = before.filter(|_| arrived.contains(&0)) else {
            return Self { of_heads: found };
        };
        let of_rows = arrived.iter().flat_map(|&tokens| std::iter::repeat_n(tokens > 0, heads));
        let data = TensorData::new(of_rows.collect::<Vec<_>>(), [rows, 1]);
        let new = Tensor::<2, Bool>::from_bool(data, &device).expand([rows, kept]);
        Self { of_heads: before.of_heads.mask_where(new, found) }
    }

    /// The channels of some heads, rows first, `[heads, kept]`.
    pub(super) fn of_heads(&self, heads: Tensor<1, Int>) -> Tensor<2, Int> {
        self.of_heads.clone().select(0, heads)
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.of_heads, rows)
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put("of-heads", &self.of_heads)?;
        Ok(parts)
    }

    pub(super) fn restore(mut parts: Parts, kept: usize, options: &StoreOptions) -> Result<Self> {
        let heads = options.batch * options.shape.kv_heads;
        let of_heads = parts.take_int("of-heads", [heads, kept], None, &options.device)?;
        parts.finish()?;
        // A number beyond the channels of a head would be looked up nowhere.
        let of_heads = of_heads.clamp(0, options.shape.head_dim as i64 - 1);
        Ok(Self { of_heads })
    }

    /// Returns the channels of these of `batch` rows.
    pub(super) fn select_rows(&self, batch: usize, rows: &[usize]) -> Self {
        let heads: Vec<usize> = (0..self.of_heads.dims()[0]).collect();
        let heads = select_list(&heads, batch, rows);
        Self { of_heads: select_rows(self.of_heads.clone(), &heads) }
    }

    pub(super) fn append_rows(&self, more: &Self) -> Self {
        Self { of_heads: append_int_rows(self.of_heads.clone(), more.of_heads.clone()) }
    }
}
