use burn::tensor::{DType, Device, Tensor};

use crate::{
    CacheShape,
    score::{ObservedHeads, Observes},
};

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
    /// The scores at the end of a prompt, while layers of it are still to come.
    Scores,
}

/// The tracks of some entries, each `[batch, heads, entries]`, f32.
#[derive(Clone, Debug, Default)]
pub struct Tracks(Vec<(Track, Tensor<3>)>);

impl Tracks {
    /// The tracks a policy that observes this keeps.
    pub(crate) fn kinds(observes: Observes) -> Vec<Track> {
        let Observes { column_sums, column_squares, local, .. } = observes;
        let mut kinds = Vec::new();
        if column_sums || local > 0 {
            kinds.push(Track::Sums);
        }
        if column_squares {
            kinds.push(Track::Squares);
        }
        if local > 0 {
            kinds.extend([Track::LocalPast, Track::LocalCurrent]);
        }
        kinds
    }

    /// Heads a track has.
    pub(crate) fn heads(observes: Observes, shape: CacheShape) -> usize {
        match observes.heads {
            ObservedHeads::Kv => shape.kv_heads,
            ObservedHeads::Query => shape.query_heads,
        }
    }

    /// Numbers the tracks of one entry are, all heads together, each in a row of its own.
    pub(crate) fn rows(observes: Observes, shape: CacheShape) -> usize {
        Self::kinds(observes).len() * Self::heads(observes, shape)
    }

    /// Zeros.
    pub(crate) fn zeros(
        observes: Observes,
        shape: CacheShape,
        batch: usize,
        entries: usize,
        device: &Device,
    ) -> Self {
        let dims = [batch, Self::heads(observes, shape), entries];
        let zeros = |kind| (kind, Tensor::zeros(dims, (device, DType::F32)));
        Self(Self::kinds(observes).into_iter().map(zeros).collect())
    }

    /// One of them, `[batch, heads, entries]`.
    pub fn get(&self, track: Track) -> Option<&Tensor<3>> {
        self.0.iter().find(|(kind, _)| *kind == track).map(|(_, tensor)| tensor)
    }

    /// One of them, to be changed.
    pub(crate) fn get_mut(&mut self, track: Track) -> Option<&mut Tensor<3>> {
        self.0.iter_mut().find(|(kind, _)| *kind == track).map(|(_, tensor)| tensor)
    }

    /// These and one more.
    pub(crate) fn with(mut self, track: Track, tensor: Tensor<3>) -> Self {
        self.0.push((track, tensor));
        self
    }

    /// These without one of them, and that one.
    pub(crate) fn without(mut self, track: Track) -> (Self, Option<Tensor<3>>) {
        let place = self.0.iter().position(|(kind, _)| *kind == track);
        let taken = place.map(|place| self.0.remove(place).1);
        (self, taken)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them changed by `f`.
    pub fn map(self, mut f: impl FnMut(Tensor<3>) -> Tensor<3>) -> Self {
        Self(self.0.into_iter().map(|(kind, tensor)| (kind, f(tensor))).collect())
    }

    /// Each of them with its counterpart.
    pub(crate) fn zip(
        self,
        other: Self,
        mut f: impl FnMut(Tensor<3>, Tensor<3>) -> Tensor<3>,
    ) -> Self {
        let pairs = self.0.into_iter().zip(other.0);
        Self(pairs.map(|((kind, a), (_, b))| (kind, f(a, b))).collect())
    }

    /// Zeros behind them for `entries` more.
    pub(crate) fn widened(self, entries: usize) -> Self {
        self.map(|track| {
            let [batch, heads, _] = track.dims();
            let none = Tensor::zeros([batch, heads, entries], (&track.device(), track.dtype()));
            Tensor::cat(vec![track, none], 2)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Tensor<3>> {
        self.0.iter().map(|(_, tensor)| tensor)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor<3>> {
        self.0.iter_mut().map(|(_, tensor)| tensor)
    }
}
