//! How query-key products become weights, as kernels read it: what a call does not have costs
//! nothing, as it is decided when the kernel is compiled.

use briquette_ops::Scoring;
use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};
use cubecl::prelude::*;

use crate::common::backend::*;

/// What scores have beside their scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ScoreKinds {
    pub(crate) softcap: bool,
    pub(crate) sinks: bool,
    pub(crate) slopes: bool,
    pub(crate) window: bool,
}

impl ScoreKinds {
    /// Whether scores are more than scaled products, whatever is hidden.
    pub(crate) const fn change_scores(self) -> bool {
        self.softcap || self.slopes
    }

    /// Whether scores change with the distance of the entry, or are hidden by it.
    pub(crate) const fn reads_distances(self) -> bool {
        self.slopes || self.window
    }
}

/// Numbers of [`Scoring`] that are the same for all heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreNumbers {
    pub(crate) scale: f32,
    softcap: f32,
    window: i32,
    pub(crate) kinds: ScoreKinds,
}

/// [`Scoring`] as an operand.
#[derive(Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Scores<B: Backend> {
    Alike {
        numbers: ScoreNumbers,
    },
    /// `of_heads` are sinks and slopes, zero where there are none, f32, `[2, query_heads]`.
    OfHeads {
        numbers: ScoreNumbers,
        of_heads: FloatTensor<B>,
    },
}

impl From<Scoring> for Scores<Dispatch> {
    fn from(scoring: Scoring) -> Self {
        let Scoring { scale, softcap, sinks, slopes, window } = scoring;
        let numbers = ScoreNumbers {
            scale: scale as f32,
            softcap: softcap.unwrap_or(1.0) as f32,
            window: window.unwrap_or(0).min(i32::MAX as usize) as i32,
            kinds: ScoreKinds {
                softcap: softcap.is_some(),
                sinks: sinks.is_some(),
                slopes: slopes.is_some(),
                window: window.is_some(),
            },
        };
        let [sinks, slopes] = [sinks, slopes].map(|x| x.map(|x| x.cast(DType::F32)));
        let both = match (sinks, slopes) {
            (None, None) => return Self::Alike { numbers },
            (Some(sinks), Some(slopes)) => [sinks, slopes],
            (Some(sinks), None) => [sinks.clone(), sinks.zeros_like()],
            (None, Some(slopes)) => [slopes.zeros_like(), slopes],
        };
        let of_heads: Tensor<2> = Tensor::stack(both.to_vec(), 0);
        Self::OfHeads { numbers, of_heads: of_heads.into_dispatch() }
    }
}

impl Scores<CubeBackend> {
    pub(crate) fn numbers(&self) -> ScoreNumbers {
        match self {
            Self::Alike { numbers } | Self::OfHeads { numbers, .. } => *numbers,
        }
    }

    /// The argument of a kernel, and what it is compiled for.
    pub(crate) fn into_arg(self) -> (ScoreArgsLaunch, ScoreKinds) {
        let (numbers, of_heads) = match self {
            Self::Alike { numbers } => (numbers, None),
            Self::OfHeads { numbers, of_heads } => (numbers, Some(of_heads.into_tensor_arg())),
        };
        let ScoreNumbers { scale, softcap, window, kinds } = numbers;
        (ScoreArgsLaunch::new(scale, softcap, window, of_heads.into()), kinds)
    }
}

/// [`Scores`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ScoreArgs {
    pub(crate) scale: f32,
    softcap: f32,
    window: i32,
    of_heads: ComptimeOption<OwnedTensor<f32>>,
}

#[cube]
impl ScoreArgs {
    /// The score of a scaled product. `distance` is the entry's position less the query's.
    pub(crate) fn score(
        &self,
        product: f32,
        query_head: usize,
        distance: i32,
        #[comptime] kinds: ScoreKinds,
    ) -> f32 {
        let mut score = product;
        if comptime!(kinds.softcap) {
            score = (score / self.softcap).tanh() * self.softcap;
        }
        if comptime!(kinds.slopes) {
            let of_heads = self.of_heads.as_ref().unwrap();
            let slope = of_heads[of_heads.stride(0) + query_head * of_heads.stride(1)];
            score += slope * f32::cast_from(distance);
        }
        score
    }

    /// The score of a product, for kernels that scale last: the score is this times
    /// [`late_scale`](Self::late_scale).
    pub(crate) fn late_score(
        &self,
        product: f32,
        query_head: usize,
        distance: i32,
        #[comptime] kinds: ScoreKinds,
    ) -> f32 {
        if comptime!(kinds.change_scores()) {
            self.score(product * self.scale, query_head, distance, kinds)
        } else {
            product
        }
    }

    /// The factor of what [`late_score`](Self::late_score) gives.
    pub(crate) fn late_scale(&self, #[comptime] kinds: ScoreKinds) -> f32 {
        if comptime!(kinds.change_scores()) { f32::new(1.0) } else { self.scale }
    }

    /// Whether an entry lies before the window of a query that it is so far from.
    pub(crate) fn hides(&self, distance: i32, #[comptime] kinds: ScoreKinds) -> bool {
        let mut hides = false.runtime();
        if comptime!(kinds.window) {
            hides = distance <= -self.window;
        }
        hides
    }

    /// The logit that takes part in the sum of a query head's weights. There must be sinks.
    pub(crate) fn sink(&self, query_head: usize) -> f32 {
        let of_heads = self.of_heads.as_ref().unwrap();
        of_heads[query_head * of_heads.stride(1)]
    }

    /// Takes the sink of a query head into the highest score of a row, and into the sum of
    /// exponentials relative to it. Returns both, and the factor of what is relative to the score
    /// before. There must be sinks.
    pub(crate) fn with_sink(&self, highest: f32, total: f32, query_head: usize) -> (f32, f32, f32) {
        let sink = self.sink(query_head);
        let high = highest.max(sink);
        let kept = (highest - high).exp();
        (high, total * kept + (sink - high).exp(), kept)
    }

    /// The first position that a query at this one sees. There must be a window.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        let end = position + 1;
        end - (self.window as usize).min(end)
    }

    /// The first position whose query does not see an entry at this one any more. There must be a
    /// window.
    pub(crate) fn end_of_sight(&self, position: usize) -> usize {
        position + self.window as usize
    }
}
