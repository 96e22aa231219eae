use burn::tensor::{Device, Int, Tensor, TensorData, kind::Basic};

use crate::{
    cache::sharing::counted,
    device::{Rows, buffer_bytes},
    ops::few_widths,
};

/// Where the rows of each batch row and head lie in one list of all of them, without padding.
///
/// In a rectangle heads that hold fewer than it is wide begin with fillers; the list has none. Where heads differ,
/// rectangles are in [one of few widths](few_widths).
#[derive(Clone, Debug)]
pub(super) struct Layout {
    batch: usize,
    heads: usize,
    counts: Vec<usize>,
    width: usize,
    /// The row of the list that the first place of each head would be, were its fillers rows too, `[batch, heads, 1]`;
    /// `None` if the list is the rectangle.
    first: Option<Tensor<3, Int>>,
}

impl Layout {
    /// The layout of `batch × heads` lists of these lengths.
    pub(super) fn new(batch: usize, heads: usize, counts: &[usize], device: &Device) -> Self {
        let width = few_widths(counts);
        let ragged = counts.iter().any(|&count| count != width);
        let first = ragged.then(|| {
            let mut end = 0;
            let firsts = counts.iter().map(|&count| {
                end += count as i64;
                end - width as i64
            });
            let data = TensorData::new(firsts.collect::<Vec<i64>>(), [batch, heads, 1]);
            Tensor::from_data(data, device)
        });
        Self { batch, heads, counts: counts.to_vec(), width, first }
    }

    /// At most so many places a head for lists that are at most `longest`.
    pub(super) fn most_width(longest: usize) -> usize {
        longest + longest / 8
    }

    /// Whether the list and a rectangle are the same.
    pub(super) fn is_rectangle(&self) -> bool {
        self.first.is_none()
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
        self.first.as_ref().map_or(0, |first| buffer_bytes(first, rows))
    }

    /// Takes the rows of rectangles `columns` wide, of which each head has its last.
    pub(super) fn packing(&self, columns: usize, device: &Device) -> Packing {
        let whole = self.counts.iter().all(|&count| count == columns);
        let places = (!whole).then(|| {
            let mut places = Vec::with_capacity(self.total());
            for (head, &count) in self.counts.iter().enumerate() {
                let end = ((head + 1) * columns) as i64;
                places.extend(end - count as i64..end);
            }
            let total = places.len();
            Tensor::from_data(TensorData::new(places, [total]), device)
        });
        Packing { places }
    }

    /// `[total, channels]` becomes `[batch, heads, width, channels]`; what stands at fillers does not matter.
    pub(super) fn unpack<K: Basic>(&self, x: Tensor<2, K>) -> Tensor<4, K> {
        let rows = self.rows(&x.device());
        self.laid_out(x, rows.as_ref())
    }

    /// [`unpack`](Self::unpack) for two at once.
    pub(super) fn unpack_both(&self, [a, b]: [Tensor<2>; 2]) -> [Tensor<4>; 2] {
        let rows = self.rows(&a.device());
        [a, b].map(|x| self.laid_out(x, rows.as_ref()))
    }

    /// For each place of the rectangle a row of the list; `None` if they are the same.
    fn rows(&self, device: &Device) -> Option<Tensor<1, Int>> {
        let Self { batch, heads, width, .. } = *self;
        let first = self.first.as_ref()?;
        let rectangle = [batch, heads, width];
        let last = self.total().max(1) as i64 - 1;
        let rows = (counted(rectangle, device) + first.clone().expand(rectangle)).clamp(0, last);
        Some(rows.reshape([batch * heads * width]))
    }

    fn laid_out<K: Basic>(&self, x: Tensor<2, K>, rows: Option<&Tensor<1, Int>>) -> Tensor<4, K> {
        let Self { batch, heads, width, .. } = *self;
        let channels = x.dims()[1];
        let list = match rows {
            None => x,
            Some(rows) => x.select(0, rows.clone()),
        };
        list.reshape([batch, heads, width, channels])
    }

    /// [`unpack`](Self::unpack) for one number a head: `[total, per]` becomes `[batch, heads · per, width]`.
    pub(super) fn unpack_scalars<K: Basic>(&self, x: Tensor<2, K>) -> Tensor<3, K> {
        let per = x.dims()[1];
        self.unpack(x).swap_dims(2, 3).reshape([self.batch, self.heads * per, self.width])
    }
}

/// What takes rows out of rectangles.
pub(super) struct Packing {
    /// For each row of the list its place in a rectangle, `[total]`; `None` if that is the list.
    places: Option<Tensor<1, Int>>,
}

impl Packing {
    /// `[batch, heads, columns, channels]` becomes `[total, channels]`.
    pub(super) fn pack<K: Basic>(&self, x: Tensor<4, K>) -> Tensor<2, K> {
        let [batch, heads, columns, channels] = x.dims();
        let list = x.reshape([batch * heads * columns, channels]);
        match &self.places {
            None => list,
            Some(places) => list.select(0, places.clone()),
        }
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
        let list = layout.packing(3, &device).pack(x);
        let numbers = list.clone().try_into_vec_as::<i64>().unwrap();
        assert_eq!(numbers, [2, 3, 4, 5, 12, 13, 14, 15, 16, 17]);
        let back = layout.unpack(list).try_into_vec_as::<i64>().unwrap();
        assert_eq!(back[2..6], [2, 3, 4, 5]);
        assert_eq!(back[12..], [12, 13, 14, 15, 16, 17]);
    }

    #[test]
    fn rectangles_are_wider_where_heads_differ() {
        let device = Device::flex();
        let width = |counts: &[usize]| Layout::new(1, counts.len(), counts, &device).width();
        assert_eq!(width(&[261, 261]), 261);
        assert_eq!(width(&[261, 17]), 288);
        for longest in 1..3000 {
            let width = width(&[longest, 0]);
            assert!((longest..=Layout::most_width(longest)).contains(&width), "{longest}: {width}");
        }
        let layout = Layout::new(1, 2, &[17, 20], &device);
        assert_eq!(layout.width(), 20);
        let layout = Layout::new(1, 2, &[17, 1], &device);
        assert_eq!(layout.width(), 18);
        let numbers = TensorData::new((0..34).collect::<Vec<i64>>(), [1, 2, 17, 1]);
        let x = Tensor::<4, Int>::from_data(numbers, &device);
        let list = layout.packing(17, &device).pack(x);
        let back = layout.unpack_scalars(list).try_into_vec_as::<i64>().unwrap();
        assert_eq!(back[1..18], (0..17).collect::<Vec<i64>>());
        assert_eq!(back[35], 33);
    }
}
