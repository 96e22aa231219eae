use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{
    Result,
    device::{Rows, buffer_bytes},
    ops::{Ops, PackInput, PadInput, Tail, bucketed_widths, send},
    prefix::PrefixError,
    rows::select_list,
    state::StateVisitor,
};

/// Layout of the rows of all batch rows and heads in one list, without padding.
///
/// Heads that hold fewer rows than a rectangle is wide begin with padding in it; the list has none.
/// Where heads differ, rectangles are in [one of few widths](bucketed_widths).
#[derive(Clone, Debug)]
pub(super) struct Layout {
    batch: usize,
    heads: usize,
    /// Number of rows per batch row and head.
    pub(super) counts: Vec<usize>,
    /// Columns of the rectangle.
    pub(super) width: usize,
    /// Offsets of each head's first row in the list, and the end of the last,
    /// `[batch · heads + 1]`.
    offsets: Tensor<1, Int>,
}

impl Layout {
    /// Creates the layout of `batch × heads` lists of these lengths. Returns `before` if its
    /// lengths are the same, so that nothing is sent to the device again.
    pub(super) fn new(
        batch: usize,
        heads: usize,
        counts: &[usize],
        before: Option<Self>,
        device: &Device,
    ) -> Self {
        if let Some(before) = before.filter(|before| before.counts == counts) {
            return before;
        }
        let mut offsets = vec![0];
        for &count in counts {
            offsets.push(offsets[offsets.len() - 1] + count as i64);
        }
        let data = TensorData::new(offsets, [counts.len() + 1]);
        Self {
            batch,
            heads,
            counts: counts.to_vec(),
            width: bucketed_widths(counts),
            offsets: send("offsets of heads", data, device),
        }
    }

    /// Maximum number of columns per head for lists of at most `longest` rows.
    pub(super) fn most_width(longest: usize) -> usize {
        longest + longest / 8
    }

    /// See [`Replay::visit_state`](crate::state::Replay::visit_state). The offsets are sent to the
    /// device when counts change.
    pub(super) fn visit_state(&self, visitor: &mut dyn StateVisitor) {
        visitor.number(self.width);
        visitor.numbers(&self.counts);
    }

    fn is_rectangle(&self) -> bool {
        self.counts.iter().all(|&count| count == self.width)
    }

    /// Returns the layout of these batch rows, as wide as this one, and the places of their rows in
    /// the list.
    pub(super) fn select_rows(&self, rows: &[usize]) -> (Self, Tensor<1, Int>) {
        let Self { batch, heads, width, .. } = *self;
        let device = self.offsets.device();
        let counts = select_list(&self.counts, batch, rows);
        let mut places = Vec::new();
        for &row in rows {
            let first: usize = self.counts[..row * heads].iter().sum();
            let own: usize = self.counts[row * heads..][..heads].iter().sum();
            places.extend((first..first + own).map(|place| place as i64));
        }
        let places = TensorData::new(places, [counts.iter().sum::<usize>()]);
        let layout = Self::new(rows.len(), heads, &counts, None, &device);
        (Self { width, ..layout }, send("rows of heads", places, &device))
    }

    /// Returns the layout with a rectangle of this width.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if a list is longer.
    pub(super) fn of_width(self, width: usize) -> Result<Self> {
        match self.counts.iter().find(|&&count| count > width) {
            Some(count) => {
                let reason = format!("is {width}, and a head has {count} rows");
                Err(PrefixError::contents("width", reason).into())
            }
            None => Ok(Self { width, ..self }),
        }
    }

    /// Rows of the list.
    pub(super) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    pub(super) fn offsets(&self) -> Tensor<1, Int> {
        self.offsets.clone()
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.offsets, rows)
    }

    /// Packs the last columns of each head in keys and values, `[batch, heads, columns, channels]`,
    /// into lists.
    pub(super) fn pack(
        &self,
        [keys, values]: [Tensor<4>; 2],
        ops: &dyn Ops,
    ) -> Result<[Tensor<2>; 2]> {
        let [batch, heads, columns, _] = keys.dims();
        let (counts, rows) = (&self.counts[..], batch * heads * columns);
        if counts.iter().all(|&count| count == columns) {
            return Ok([keys, values].map(|x| {
                let channels = x.dims()[3];
                x.reshape([rows, channels])
            }));
        }
        Ok(ops.pack(PackInput { keys, values, counts, offsets: self.offsets() })?)
    }

    /// Lays lists of keys and values out in rectangles, `[batch, heads, width, channels]`, with a
    /// tail behind them. Numbers at padding do not matter.
    pub(super) fn pad(
        &self,
        [keys, values]: [Tensor<2>; 2],
        tail: Tail,
        ops: &dyn Ops,
    ) -> Result<[Tensor<4>; 2]> {
        let Self { batch, heads, width, .. } = *self;
        if self.is_rectangle() && tail.entries == 0 {
            return Ok([keys, values].map(|x| {
                let channels = x.dims()[1];
                x.reshape([batch, heads, width, channels])
            }));
        }
        let offsets = (!self.is_rectangle()).then(|| self.offsets());
        Ok(ops.pad(PadInput { keys, values, offsets, width, tail })?)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::ops::Reference;

    fn rectangle(dims: [usize; 4], device: &Device) -> Tensor<4> {
        let data = (0..dims.iter().product()).map(|number: usize| number as f32).collect();
        Tensor::from_data(TensorData::new::<f32, _>(data, dims), device)
    }

    fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
        x.try_into_vec_as().unwrap()
    }

    #[test]
    fn a_list_holds_what_the_rectangle_did() {
        let device = Device::flex();
        let layout = Layout::new(1, 3, &[2, 0, 3], None, &device);
        let x = rectangle([1, 3, 3, 2], &device);
        let [list, twice] = layout.pack([x.clone(), x * 2.0], &Reference).unwrap();
        let kept = [2.0, 3.0, 4.0, 5.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0];
        assert_eq!(numbers(list.clone()), kept);
        let behind = rectangle([1, 3, 2, 2], &device);
        let tail = Tail { keys: behind.clone(), values: behind, entries: 1 };
        let [back, values] = layout.pad([list, twice], tail, &Reference).unwrap();
        assert_eq!(back.dims(), [1, 3, 4, 2]);
        let (back, values) = (numbers(back), numbers(values));
        assert_eq!(back[2..8], [2.0, 3.0, 4.0, 5.0, 0.0, 1.0]);
        assert_eq!(back[14..16], [4.0, 5.0]);
        assert_eq!(back[16..], [12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 8.0, 9.0]);
        assert_eq!(values[16..], [24.0, 26.0, 28.0, 30.0, 32.0, 34.0, 8.0, 9.0]);
    }

    #[test]
    fn rectangles_are_wider_where_heads_differ() {
        let device = Device::flex();
        let width = |counts: &[usize]| Layout::new(1, counts.len(), counts, None, &device).width;
        assert_eq!(width(&[261, 261]), 261);
        assert_eq!(width(&[261, 17]), 288);
        for longest in 1..3000 {
            let width = width(&[longest, 0]);
            assert!((longest..=Layout::most_width(longest)).contains(&width), "{longest}: {width}");
        }
        assert_eq!(width(&[17, 20]), 20);
        assert_eq!(width(&[17, 1]), 18);
        let layout = Layout::new(1, 2, &[17, 1], None, &device);
        let x = rectangle([1, 2, 17, 1], &device);
        let list = layout.pack([x.clone(), x], &Reference).unwrap();
        let nothing = rectangle([1, 2, 1, 1], &device);
        let tail = Tail { keys: nothing.clone(), values: nothing, entries: 0 };
        let [back, _] = layout.pad(list, tail, &Reference).unwrap();
        let back = numbers(back);
        assert_eq!(back[1..18], (0..17).map(|number| number as f32).collect::<Vec<_>>());
        assert_eq!(back[35], 33.0);
    }
}
