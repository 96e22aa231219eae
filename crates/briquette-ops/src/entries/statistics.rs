use burn::tensor::{DType, Device, Tensor};

/// A statistic of the attention that entries receive: one number per entry and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Statistic {
    /// The sum of the weights it has received.
    Sums,
    /// The sum of their squares.
    Squares,
    /// The sum of the weights from the queries of the window before this one.
    LocalPast,
    /// The sum of the weights from the queries of this window so far.
    LocalCurrent,
    /// The sum of the weights from the queries of its own chunk of tokens, without a mask.
    Chunk,
    /// The scores at the end of a prompt, while layers of it are still to come.
    Scores,
}

/// The tracks of some entries, each `[batch, heads, entries]`, f32, in one tensor: what becomes of
/// entries becomes of all of their tracks at once.
#[derive(Clone, Debug, Default)]
pub struct AttentionStatistics {
    kinds: Vec<Statistic>,
    /// One kind after the other, `[kinds · batch, heads, entries]`; `None` if there are no kinds.
    stacked: Option<Tensor<3>>,
}

impl AttentionStatistics {
    /// These, each `[batch, heads, entries]`, all of one shape; each kind once.
    pub fn new(tracks: impl IntoIterator<Item = (Statistic, Tensor<3>)>) -> Self {
        let (kinds, numbers): (Vec<_>, Vec<_>) = tracks.into_iter().unzip();
        let stacked = stacked(numbers);
        Self { kinds, stacked }
    }

    /// Zeros of these kinds, `[batch, heads, entries]` each.
    pub fn zeros(kinds: &[Statistic], dims: [usize; 3], device: &Device) -> Self {
        let [batch, heads, entries] = dims;
        let zeros = || Tensor::zeros([kinds.len() * batch, heads, entries], (device, DType::F32));
        Self { kinds: kinds.to_vec(), stacked: (!kinds.is_empty()).then(zeros) }
    }

    /// All of them where they lie, `[kinds · batch, heads, entries]`; `None` if there are no kinds.
    pub fn stacked_mut(&mut self) -> Option<&mut Tensor<3>> {
        self.stacked.as_mut()
    }

    /// One of them, `[batch, heads, entries]`.
    pub fn get(&self, track: Statistic) -> Option<Tensor<3>> {
        let place = self.kinds.iter().position(|kind| *kind == track)?;
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

    /// Each of them and its kind.
    pub fn iter(&self) -> impl Iterator<Item = (Statistic, Tensor<3>)> {
        let one = |(place, &kind)| Some((kind, self.at(place)?));
        self.kinds.iter().enumerate().filter_map(one)
    }

    /// These and one more, `[batch, heads, entries]`. Of fewer heads than these have, each stands
    /// for as many of theirs, one behind the other, as query heads lie behind the kv head they
    /// share.
    pub fn with(self, track: Statistic, numbers: Tensor<3>) -> Self {
        let numbers = match &self.stacked {
            None => numbers,
            Some(stacked) => repeated(numbers, stacked.dims()[1]),
        };
        Self::new(self.iter().chain([(track, numbers)]))
    }

    /// These without one of them, and that one.
    pub fn without(self, track: Statistic) -> (Self, Option<Tensor<3>>) {
        let taken = self.get(track);
        if taken.is_none() {
            return (self, None);
        }
        (Self::new(self.iter().filter(|(kind, _)| *kind != track)), taken)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// All of them, one kind after the other, `[kinds · batch, heads, entries]`; `None` if there
    /// are none.
    pub fn stacked(&self) -> Option<&Tensor<3>> {
        self.stacked.as_ref()
    }

    /// Adds to some of them what is given, each `[batch, heads, entries]`.
    pub fn add(&mut self, given: &[(Statistic, Tensor<3>)]) {
        let of = |kind: Statistic| given.iter().find(|(to, _)| *to == kind).map(|(_, x)| x.clone());
        let all: Option<Vec<Tensor<3>>> = self.kinds.iter().map(|&kind| of(kind)).collect();
        if let Some(all) = all {
            if let (Some(stacked), Some(all)) = (&mut self.stacked, stacked(all)) {
                stacked.inplace(|stacked| stacked + all);
            }
        } else if self.kinds.iter().any(|&kind| of(kind).is_some()) {
            *self = Self::new(self.iter().map(|(kind, held)| match of(kind) {
                Some(new) => (kind, held + new),
                None => (kind, held),
            }));
        }
    }

    /// Puts what is given, each `[batch, heads, entries]`, in the place of those of its kind.
    pub fn set(&mut self, given: &[(Statistic, Tensor<3>)]) {
        let new = |kind| given.iter().find(|(to, _)| *to == kind).map(|(_, x)| x.clone());
        *self = Self::new(self.iter().map(|(kind, held)| (kind, new(kind).unwrap_or(held))));
    }

    /// All of them changed by `f`, which is given and returns `[kinds · batch, heads, entries]`;
    /// only the number of heads and entries may change.
    pub fn map(self, f: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Self {
        Self { kinds: self.kinds, stacked: self.stacked.map(f) }
    }

    /// All of them with their counterparts, of the same kinds.
    pub fn zip(self, other: Self, f: impl FnOnce(Tensor<3>, Tensor<3>) -> Tensor<3>) -> Self {
        let stacked = self.stacked.zip(other.stacked).map(|(a, b)| f(a, b));
        Self { kinds: self.kinds, stacked }
    }

    /// Zeros behind them for `entries` more.
    pub fn widened(self, entries: usize) -> Self {
        self.map(|tracks| {
            let [rows, heads, _] = tracks.dims();
            let none = Tensor::zeros([rows, heads, entries], (&tracks.device(), tracks.dtype()));
            Tensor::cat(vec![tracks, none], 2)
        })
    }

    /// All of them head by head, `[batch, kv_heads, numbers, entries]`: the numbers of a kv head
    /// are those of its heads, one kind after the other.
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

    /// The same kinds, of what [`by_head`](Self::by_head) gives.
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

/// One behind the other; `None` if there are none.
fn stacked(mut numbers: Vec<Tensor<3>>) -> Option<Tensor<3>> {
    match numbers.len() {
        0 | 1 => numbers.pop(),
        _ => Some(Tensor::cat(numbers, 0)),
    }
}

/// Each head as often as it takes to be `heads`.
fn repeated(numbers: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, own, entries] = numbers.dims();
    if own == heads {
        return numbers;
    }
    let all = numbers.unsqueeze_dim::<4>(2).expand([batch, own, heads / own, entries]);
    all.reshape([batch, heads, entries])
}
