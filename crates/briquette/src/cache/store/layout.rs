use burn::tensor::{Device, Int, Tensor, TensorData, kind::Basic};

use crate::{
    device::{Rows, buffer_bytes},
    ops::fillers,
};

/// Where the rows of each batch row and head lie in one list of all of them, without padding.
///
/// A rectangle has heads that hold fewer begin with fillers; the list has none.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    batch: usize,
    heads: usize,
    counts: Vec<usize>,
    width: usize,
    indices: Option<Indices>,
}

#[derive(Clone, Debug)]
struct Indices {
    /// For each place of a rectangle its row in the list, `[batch, heads, width]`; at fillers any.
    of_rectangle: Tensor<3, Int>,
    /// For each row of the list its place in a rectangle, `[total]`.
    of_list: Tensor<1, Int>,
}

impl Layout {
    /// The layout of `batch × heads` lists of these lengths.
    pub(super) fn new(batch: usize, heads: usize, counts: &[usize], device: &Device) -> Self {
        let width = counts.iter().copied().max().unwrap_or(0);
        let ragged = counts.iter().any(|&count| count != width);
        let indices = ragged.then(|| {
            // The row of the list that the first place of a head would be, were its fillers rows too.
            let mut first = Vec::with_capacity(counts.len());
            let mut of_list = Vec::new();
            for (head, &count) in counts.iter().enumerate() {
                first.push(of_list.len() as i64 - (width - count) as i64);
                of_list.extend(((head + 1) * width - count..(head + 1) * width).map(|i| i as i64));
            }
            let total = of_list.len();
            let rectangle = [batch, heads, width];
            let first = TensorData::new(first, [batch, heads, 1]);
            let first = Tensor::<3, Int>::from_data(first, device).expand(rectangle);
            let place = Tensor::<1, Int>::arange(0..width as i64, device).reshape([1, 1, width]);
            Indices {
                of_rectangle: (place.expand(rectangle) + first).clamp_min(0),
                of_list: Tensor::from_data(TensorData::new(of_list, [total]), device),
            }
        });
        Self { batch, heads, counts: counts.to_vec(), width, indices }
    }

    /// Places of a rectangle a head.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Rows of the list.
    pub(super) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Where the rows of each head begin in the list, and where the last end, `[batch · heads + 1]`.
    pub(super) fn offsets(&self, device: &Device) -> Tensor<1, Int> {
        let mut offsets = vec![0];
        for &count in &self.counts {
            offsets.push(offsets[offsets.len() - 1] + count as i64);
        }
        let length = offsets.len();
        Tensor::from_data(TensorData::new(offsets, [length]), device)
    }

    /// Bytes of what it holds on the device.
    pub(super) fn bytes(&self, rows: Rows) -> usize {
        let Some(indices) = &self.indices else { return 0 };
        buffer_bytes(&indices.of_rectangle, rows) + buffer_bytes(&indices.of_list, rows)
    }

    /// `[batch, heads, width, channels]` becomes `[total, channels]`.
    pub(super) fn pack<K: Basic>(&self, x: Tensor<4, K>) -> Tensor<2, K> {
        let [batch, heads, width, channels] = x.dims();
        let list = x.reshape([batch * heads * width, channels]);
        match &self.indices {
            None => list,
            Some(indices) => list.select(0, indices.of_list.clone()),
        }
    }

    /// `[total, channels]` becomes `[batch, heads, width, channels]`; what stands at fillers does not matter.
    pub(super) fn unpack<K: Basic>(&self, x: Tensor<2, K>) -> Tensor<4, K> {
        let channels = x.dims()[1];
        let list = match &self.indices {
            None => x,
            Some(indices) => {
                let rows = self.batch * self.heads * self.width;
                x.select(0, indices.of_rectangle.clone().reshape([rows]))
            }
        };
        list.reshape([self.batch, self.heads, self.width, channels])
    }

    /// [`pack`](Self::pack) for one number a head: `[batch, heads · per, width]` becomes `[total, per]`.
    pub(super) fn pack_scalars<K: Basic>(&self, x: Tensor<3, K>) -> Tensor<2, K> {
        let [batch, all, width] = x.dims();
        let per = all / self.heads;
        self.pack(x.reshape([batch, self.heads, per, width]).swap_dims(2, 3))
    }

    /// [`unpack`](Self::unpack) for one number a head: `[total, per]` becomes `[batch, heads · per, width]`.
    pub(super) fn unpack_scalars<K: Basic>(&self, x: Tensor<2, K>) -> Tensor<3, K> {
        let per = x.dims()[1];
        self.unpack(x).swap_dims(2, 3).reshape([self.batch, self.heads * per, self.width])
    }

    /// [`unpack_scalars`](Self::unpack_scalars) with `filler` at fillers.
    pub(super) fn unpack_filled<K: Basic>(&self, x: Tensor<2, K>, filler: i64) -> Tensor<3, K> {
        let scalars = self.unpack_scalars(x);
        if self.indices.is_none() {
            return scalars;
        }
        let missing = self.counts.iter().map(|count| self.width - count);
        let heads = [self.batch, self.heads, self.width];
        let fillers = fillers(missing, heads, &scalars.device());
        let [batch, all, width] = scalars.dims();
        let fillers = fillers
            .unsqueeze_dim::<4>(2)
            .expand([batch, self.heads, all / self.heads, width])
            .reshape([batch, all, width]);
        scalars.mask_fill(fillers, filler)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_the_rectangle_did() {
        let device = Device::flex();
        let layout = Layout::new(1, 3, &[2, 0, 3], &device);
        let data = TensorData::new((0..18).collect::<Vec<i64>>(), [1, 3, 3, 2]);
        let x = Tensor::<4, Int>::from_data(data, &device);
        let list = layout.pack(x);
        let numbers = list.clone().try_into_vec_as::<i64>().unwrap();
        assert_eq!(numbers, [2, 3, 4, 5, 12, 13, 14, 15, 16, 17]);
        let back = layout.unpack(list).try_into_vec_as::<i64>().unwrap();
        assert_eq!(back[2..6], [2, 3, 4, 5]);
        assert_eq!(back[12..], [12, 13, 14, 15, 16, 17]);
        let positions = layout
            .unpack_filled(Tensor::<2, Int>::from_data([[7], [8], [1], [2], [3]], &device), -1);
        let positions = positions.try_into_vec_as::<i64>().unwrap();
        assert_eq!(positions, [-1, 7, 8, -1, -1, -1, 1, 2, 3]);
    }
}
