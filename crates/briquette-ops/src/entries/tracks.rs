use burn::tensor::{DType, Device, Tensor};

/// What is counted of each entry while queries attend to it: one number an entry and head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Track {
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

/// The tracks of some entries, each `[batch, heads, entries]`, f32.
#[derive(Clone, Debug, Default)]
pub struct Tracks(Vec<(Track, Tensor<3>)>);

impl Tracks {
    /// Zeros of these kinds, `[batch, heads, entries]` each.
    pub fn zeros(kinds: &[Track], dims: [usize; 3], device: &Device) -> Self {
        let zeros = |&kind| (kind, Tensor::zeros(dims, (device, DType::F32)));
        Self(kinds.iter().map(zeros).collect())
    }

    /// One of them, `[batch, heads, entries]`.
    pub fn get(&self, track: Track) -> Option<&Tensor<3>> {
        self.0.iter().find(|(kind, _)| *kind == track).map(|(_, tensor)| tensor)
    }

    /// One of them, to be changed.
    pub fn get_mut(&mut self, track: Track) -> Option<&mut Tensor<3>> {
        self.0.iter_mut().find(|(kind, _)| *kind == track).map(|(_, tensor)| tensor)
    }

    /// These and one more.
    pub fn with(mut self, track: Track, tensor: Tensor<3>) -> Self {
        self.0.push((track, tensor));
        self
    }

    /// These without one of them, and that one.
    pub fn without(mut self, track: Track) -> (Self, Option<Tensor<3>>) {
        let place = self.0.iter().position(|(kind, _)| *kind == track);
        let taken = place.map(|place| self.0.remove(place).1);
        (self, taken)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each of them changed by `f`.
    pub fn map(self, mut f: impl FnMut(Tensor<3>) -> Tensor<3>) -> Self {
        Self(self.0.into_iter().map(|(kind, tensor)| (kind, f(tensor))).collect())
    }

    /// Each of them with its counterpart.
    pub fn zip(self, other: Self, mut f: impl FnMut(Tensor<3>, Tensor<3>) -> Tensor<3>) -> Self {
        let pairs = self.0.into_iter().zip(other.0);
        Self(pairs.map(|((kind, a), (_, b))| (kind, f(a, b))).collect())
    }

    /// Zeros behind them for `entries` more.
    pub fn widened(self, entries: usize) -> Self {
        self.map(|track| {
            let [batch, heads, _] = track.dims();
            let none = Tensor::zeros([batch, heads, entries], (&track.device(), track.dtype()));
            Tensor::cat(vec![track, none], 2)
        })
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor<3>> {
        self.0.iter().map(|(_, tensor)| tensor)
    }

    /// Each of them, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor<3>> {
        self.0.iter_mut().map(|(_, tensor)| tensor)
    }
}

impl IntoIterator for Tracks {
    type Item = Tensor<3>;
    type IntoIter = std::vec::IntoIter<Tensor<3>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>().into_iter()
    }
}
