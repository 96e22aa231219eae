use burn::tensor::{DType, Device, Tensor};

use crate::constant::constant_ints;

/// A statistic of the attention that entries receive: one number per entry and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Statistic {
    /// Sum of the weights that the entry has received.
    Sums,
    /// Sum of the squares of these weights.
    Squares,
    /// Sum of the weights from the queries of the previous window.
    LocalPast,
    /// Sum of the weights from the queries of the current window so far.
    LocalCurrent,
    /// Sum of the weights from the queries of the entry's own chunk of tokens, without a mask.
    Chunk,
    /// Score of the entry at the end of a prompt, while other layers of it are still to come.
    Scores,
}

/// Attention statistics of entries, each `[batch, heads, entries]`, f32, in one tensor, so that one
/// operation moves all of them with their entries.
#[derive(Clone, Debug, Default)]
pub struct AttentionStatistics {
    kinds: Vec<Statistic>,
    /// Statistics one after another, `[kinds · batch, heads, entries]`; `None` if there are none.
    stacked: Option<Tensor<3>>,
}

impl AttentionStatistics {
    /// Stacks statistics, each `[batch, heads, entries]`, all of one shape; each kind once.
    pub fn new(statistics: impl IntoIterator<Item = (Statistic, Tensor<3>)>) -> Self {
        let (kinds, numbers): (Vec<_>, Vec<_>) = statistics.into_iter().unzip();
        let stacked = stacked(numbers);
        Self { kinds, stacked }
    }

    /// Returns statistics of these kinds that are zero, `[batch, heads, entries]` each.
    pub fn zeros(kinds: &[Statistic], dims: [usize; 3], device: &Device) -> Self {
        let [batch, heads, entries] = dims;
        let zeros = || Tensor::zeros([kinds.len() * batch, heads, entries], (device, DType::F32));
        Self { kinds: kinds.to_vec(), stacked: (!kinds.is_empty()).then(zeros) }
    }

    /// Returns the tensor of all statistics, one after another, to be changed in place,
    /// `[kinds · batch, heads, entries]`; `None` if there are none.
    pub fn stacked_mut(&mut self) -> Option<&mut Tensor<3>> {
        self.stacked.as_mut()
    }

    /// Returns one statistic, `[batch, heads, entries]`, if it is there.
    pub fn get(&self, statistic: Statistic) -> Option<Tensor<3>> {
        let place = self.kinds.iter().position(|kind| *kind == statistic)?;
        self.at(place)
    }

    fn at(&self, place: usize) -> Option<Tensor<3>> {
        let stacked = self.stacked.clone()?;
        if self.kinds.len() == 1 {
            return Some(stacked);
        }
        let batch = stacked.dims()[0] / self.kinds.len();
        Some(stacked.narrow(0, place * batch, batch))
    }

    /// Iterates over the statistics and their kinds.
    pub fn iter(&self) -> impl Iterator<Item = (Statistic, Tensor<3>)> {
        let one = |(place, &kind)| Some((kind, self.at(place)?));
        self.kinds.iter().enumerate().filter_map(one)
    }

    /// Adds one statistic, `[batch, heads, entries]`. If it has fewer heads than the others, each
    /// of its heads is repeated for as many adjacent heads of theirs, as query heads share a kv
    /// head.
    pub fn with(self, statistic: Statistic, numbers: Tensor<3>) -> Self {
        let numbers = match &self.stacked {
            None => numbers,
            Some(stacked) => repeated(numbers, stacked.dims()[1]),
        };
        Self::new(self.iter().chain([(statistic, numbers)]))
    }

    /// Takes one statistic out: returns the others, in a buffer of their own, and a view of that
    /// one if it is there.
    pub fn without(self, statistic: Statistic) -> (Self, Option<Tensor<3>>) {
        let Some(taken) = self.get(statistic) else { return (self, None) };
        let [batch, _, _] = taken.dims();
        let places = (0..self.kinds.len()).filter(|&place| self.kinds[place] != statistic);
        let rows: Vec<i64> = places
            .flat_map(|place| place * batch..(place + 1) * batch)
            .map(|row| row as i64)
            .collect();
        let count = rows.len();
        // Copied: a view would hold the buffer of all of them.
        let copied = |stacked: Tensor<3>| {
            let rows = constant_ints("statistics", rows, [count], &stacked.device());
            stacked.select(0, rows)
        };
        let stacked = self.stacked.filter(|_| count > 0).map(copied);
        let kinds = self.kinds.into_iter().filter(|kind| *kind != statistic).collect();
        (Self { kinds, stacked }, Some(taken))
    }

    /// Whether there are no statistics.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Number of statistics.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns the tensor of all statistics, one after another, `[kinds · batch, heads, entries]`;
    /// `None` if there are none.
    pub fn stacked(&self) -> Option<&Tensor<3>> {
        self.stacked.as_ref()
    }

    /// Adds `numbers` to the statistics of their kinds, each `[batch, heads, entries]`; kinds that
    /// are not there are ignored.
    pub fn add(&mut self, numbers: &[(Statistic, Tensor<3>)]) {
        let of =
            |kind: Statistic| numbers.iter().find(|(to, _)| *to == kind).map(|(_, x)| x.clone());
        let all: Option<Vec<Tensor<3>>> = self.kinds.iter().map(|&kind| of(kind)).collect();
        if let Some(all) = all {
            if let (Some(stacked), Some(all)) = (&mut self.stacked, stacked(all)) {
                stacked.inplace(|stacked| stacked + all);
            }
        } else if self.kinds.iter().any(|&kind| of(kind).is_some()) {
            *self = Self::new(self.iter().map(|(kind, current)| match of(kind) {
                Some(new) => (kind, current + new),
                None => (kind, current),
            }));
        }
    }

    /// Replaces the statistics of the kinds of `numbers`, each `[batch, heads, entries]`; kinds
    /// that are not there are ignored.
    pub fn set(&mut self, numbers: &[(Statistic, Tensor<3>)]) {
        let new = |kind| numbers.iter().find(|(to, _)| *to == kind).map(|(_, x)| x.clone());
        *self = Self::new(self.iter().map(|(kind, current)| (kind, new(kind).unwrap_or(current))));
    }

    /// Applies `f` to the tensor of all statistics: it takes and returns
    /// `[kinds · batch, heads, entries]`, and may change only the number of heads and entries.
    pub fn map(self, f: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Self {
        Self { kinds: self.kinds, stacked: self.stacked.map(f) }
    }

    /// Combines the tensors of two sets of statistics of the same kinds with `f`.
    pub fn zip(self, other: Self, f: impl FnOnce(Tensor<3>, Tensor<3>) -> Tensor<3>) -> Self {
        let stacked = self.stacked.zip(other.stacked).map(|(a, b)| f(a, b));
        Self { kinds: self.kinds, stacked }
    }

    /// Appends zeros for `entries` more entries.
    pub fn widened(self, entries: usize) -> Self {
        self.map(|statistics| {
            let [rows, heads, _] = statistics.dims();
            let none =
                Tensor::zeros([rows, heads, entries], (&statistics.device(), statistics.dtype()));
            Tensor::cat(vec![statistics, none], 2)
        })
    }

    /// Groups the statistics by kv head, `[batch, kv_heads, numbers, entries]`: the numbers of a kv
    /// head are those of its heads, one kind after another; `None` if there are none.
    pub fn by_head(&self, kv_heads: usize) -> Option<Tensor<4>> {
        let stacked = self.stacked.clone()?;
        let [rows, heads, entries] = stacked.dims();
        let (batch, group) = (rows / self.kinds.len(), heads / kv_heads);
        let all = stacked.reshape([self.kinds.len(), batch, kv_heads, group, entries]);
        Some(all.permute([1, 2, 0, 3, 4]).reshape([
            batch,
            kv_heads,
            self.kinds.len() * group,
            entries,
        ]))
    }

    /// Returns statistics of the same kinds from `numbers` in the order of
    /// [`by_head`](Self::by_head).
    pub fn of_by_head(&self, numbers: Tensor<4>) -> Self {
        let [batch, kv_heads, all, entries] = numbers.dims();
        let kinds = self.kinds.len();
        let stacked = (kinds > 0).then(|| {
            let group = all / kinds;
            let numbers: Tensor<5> = numbers.reshape([batch, kv_heads, kinds, group, entries]);
            numbers.permute([2, 0, 1, 3, 4]).reshape([kinds * batch, kv_heads * group, entries])
        });
        Self { kinds: self.kinds.clone(), stacked }
    }
}

/// Concatenates statistics; `None` if there are none.
fn stacked(mut numbers: Vec<Tensor<3>>) -> Option<Tensor<3>> {
    match numbers.len() {
        0 | 1 => numbers.pop(),
        _ => Some(Tensor::cat(numbers, 0)),
    }
}

/// Repeats each head so that there are `heads` heads.
fn repeated(numbers: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, own, entries] = numbers.dims();
    if own == heads {
        return numbers;
    }
    let all = numbers.unsqueeze_dim::<4>(2).expand([batch, own, heads / own, entries]);
    all.reshape([batch, heads, entries])
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    #[test]
    fn a_statistic_that_is_taken_out_leaves_the_others() {
        use Statistic::{Scores, Squares, Sums};
        let device = Device::flex();
        let numbers = |first: i64| {
            let numbers = (first..first + 4).map(|number| number as f32).collect();
            Tensor::<3>::from_data(TensorData::new::<f32, _>(numbers, [2, 1, 2]), &device)
        };
        let of = |x: Tensor<3>| x.try_into_vec_as::<f32>().unwrap();
        let all = [(Sums, numbers(0)), (Squares, numbers(10)), (Scores, numbers(20))];
        for (statistic, first) in [(Sums, 0), (Squares, 10), (Scores, 20)] {
            let (others, taken) = AttentionStatistics::new(all.clone()).without(statistic);
            assert_eq!(of(taken.unwrap()), of(numbers(first)));
            let expected = all.iter().filter(|(kind, _)| *kind != statistic);
            let found: Vec<_> = others.iter().map(|(kind, x)| (kind, of(x))).collect();
            assert_eq!(found, expected.map(|(kind, x)| (*kind, of(x.clone()))).collect::<Vec<_>>());
        }
        let (none, taken) = AttentionStatistics::new([(Sums, numbers(5))]).without(Sums);
        assert!(none.is_empty() && none.stacked().is_none());
        assert_eq!(of(taken.unwrap()), of(numbers(5)));
        let (same, taken) = AttentionStatistics::new([(Sums, numbers(5))]).without(Scores);
        assert!(taken.is_none());
        assert_eq!(of(same.get(Sums).unwrap()), of(numbers(5)));
    }
}
