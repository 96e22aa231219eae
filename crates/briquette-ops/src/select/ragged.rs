use burn::tensor::{Int, Tensor};

use crate::constant::constant_ints;
use crate::{attention::Tail, entries::iota};

/// Ragged entries, and dense ones behind them, to be padded to a rectangle.
#[derive(Clone, Debug)]
pub struct PadInput {
    /// The keys of all heads one after another, `[total, head_dim]`; one at least.
    pub keys: Tensor<2>,
    /// The values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Offset of the first of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`; `None` if each has `width`.
    pub offsets: Option<Tensor<1, Int>>,
    /// Columns they are laid out in, at least as many as the longest head has. Heads of fewer begin
    /// with fillers.
    pub width: usize,
    /// Entries behind them.
    pub tail: Tail,
}

/// Entries of heads in a rectangle, to be put one after another without padding.
#[derive(Clone, Debug)]
pub struct PackInput<'a> {
    /// `[batch, kv_heads, columns, head_dim]`
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, columns, head_dim]`
    pub values: Tensor<4>,
    /// How many columns of each batch row and kv head are in its list: the last. Rows first.
    pub counts: &'a [usize],
    /// Offset of the first of each among all, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
}

/// By a row of the list for each place, and a copy.
pub(super) fn pad(input: PadInput) -> [Tensor<4>; 2] {
    let PadInput { keys, values, offsets, width, tail } = input;
    let [batch, heads, _, channels] = tail.keys.dims();
    let device = keys.device();
    let rows = offsets.map(|offsets| {
        let ends = offsets.narrow(0, 1, batch * heads).reshape([batch, heads, 1]);
        let rectangle = [batch, heads, width];
        let last = keys.dims()[0] as i64 - 1;
        let rows = iota(rectangle, &device) + (ends - width as i64).expand(rectangle);
        rows.clamp(0, last).reshape([batch * heads * width])
    });
    let entries = tail.entries;
    [(keys, tail.keys), (values, tail.values)].map(|(list, behind)| {
        let list = match &rows {
            None => list,
            Some(rows) => list.select(0, rows.clone()),
        };
        let rectangle = list.reshape([batch, heads, width, channels]);
        match entries {
            0 => rectangle,
            _ => Tensor::cat(vec![rectangle, behind.narrow(2, 0, entries)], 2),
        }
    })
}

/// By the place of each row of the list.
pub(super) fn pack(input: PackInput<'_>) -> [Tensor<2>; 2] {
    let PackInput { keys, values, counts, .. } = input;
    let [batch, heads, columns, channels] = keys.dims();
    let mut places = Vec::new();
    for (head, &count) in counts.iter().enumerate() {
        let end = ((head + 1) * columns) as i64;
        places.extend(end - count as i64..end);
    }
    let places = constant_ints("packed", places, [counts.iter().sum()], &keys.device());
    [keys, values].map(|x| x.reshape([batch * heads * columns, channels]).select(0, places.clone()))
}
