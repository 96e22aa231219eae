use burn::tensor::{Int, Tensor, TensorData};

use super::{LayOutInput, PackInput};
use crate::cache::sharing::counted;

/// By a row of the list for each place, and a copy.
pub(super) fn lay_out(input: LayOutInput) -> [Tensor<4>; 2] {
    let LayOutInput { keys, values, offsets, width, tail_keys, tail_values, tail } = input;
    let [batch, heads, _, channels] = tail_keys.dims();
    let device = keys.device();
    let rows = offsets.map(|offsets| {
        let ends = offsets.narrow(0, 1, batch * heads).reshape([batch, heads, 1]);
        let rectangle = [batch, heads, width];
        let last = keys.dims()[0] as i64 - 1;
        let rows = counted(rectangle, &device) + (ends - width as i64).expand(rectangle);
        rows.clamp(0, last).reshape([batch * heads * width])
    });
    [(keys, tail_keys), (values, tail_values)].map(|(list, behind)| {
        let list = match &rows {
            None => list,
            Some(rows) => list.select(0, rows.clone()),
        };
        let rectangle = list.reshape([batch, heads, width, channels]);
        match tail {
            0 => rectangle,
            _ => Tensor::cat(vec![rectangle, behind.narrow(2, 0, tail)], 2),
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
    let data = TensorData::new(places, [counts.iter().sum::<usize>()]);
    let places = Tensor::<1, Int>::from_data(data, &keys.device());
    [keys, values].map(|x| x.reshape([batch * heads * columns, channels]).select(0, places.clone()))
}
