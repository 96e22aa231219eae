use burn::tensor::{Int, Tensor};

use crate::constant::constant_ints;
use crate::{attention::Tail, entries::iota};

/// Ragged entries to be padded to a rectangle, and a tail of dense entries behind them.
#[derive(Clone, Debug)]
pub struct PadInput {
    /// Keys of all heads one after another, `[total, head_dim]`, where `total` is at least 1.
    pub keys: Tensor<2>,
    /// Values, `[total, value_dim]`.
    pub values: Tensor<2>,
    /// Offset of the first entry of each batch row and kv head, and `total` at the end,
    /// `[batch · kv_heads + 1]`; `None` if each head has `width` entries.
    pub offsets: Option<Tensor<1, Int>>,
    /// Number of columns of the rectangle, at least the entries of the longest head. Heads with
    /// fewer entries begin with padding.
    pub width: usize,
    /// Entries behind the ragged ones.
    pub tail: Tail,
}

/// Padded entries to be packed one after another without padding.
#[derive(Clone, Debug)]
pub struct PackInput<'a> {
    /// Keys, `[batch, kv_heads, columns, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, columns, value_dim]`.
    pub values: Tensor<4>,
    /// Number of entries of each batch row and kv head, its last columns; rows first.
    pub counts: &'a [usize],
    /// Offset of the first entry of each batch row and kv head in the result, and the total at the
    /// end, `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
}

/// Pads by the index of a ragged row for each column, and copies.
pub(super) fn pad(input: PadInput) -> [Tensor<4>; 2] {
    let PadInput { keys, values, offsets, width, tail } = input;
    let [batch, heads, ..] = tail.keys.dims();
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
        let channels = list.dims()[1];
        let rectangle = list.reshape([batch, heads, width, channels]);
        match entries {
            0 => rectangle,
            _ => Tensor::cat(vec![rectangle, behind.narrow(2, 0, entries)], 2),
        }
    })
}

/// Packs by the index of the padded row of each entry.
pub(super) fn pack(input: PackInput<'_>) -> [Tensor<2>; 2] {
    let PackInput { keys, values, counts, .. } = input;
    let [batch, heads, columns, _] = keys.dims();
    let mut places = Vec::new();
    for (head, &count) in counts.iter().enumerate() {
        let end = ((head + 1) * columns) as i64;
        places.extend(end - count as i64..end);
    }
    let places = constant_ints("packed", places, [counts.iter().sum()], &keys.device());
    [keys, values].map(|x| {
        let channels = x.dims()[3];
        x.reshape([batch * heads * columns, channels]).select(0, places.clone())
    })
}
