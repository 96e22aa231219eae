//! How query-key products become weights, as kernels read it: what a call does not have costs
//! nothing, as it is decided when the kernel is compiled.

use briquette_ops::{Scoring, Window};
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
    /// Whether windows are chunks.
    pub(crate) chunks: bool,
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
    /// `of_heads` are sinks, and behind them slopes, f32, `[1 or 2, query_heads]`.
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
            window: window.map_or(1, |window| window.size().clamp(1, i32::MAX as usize) as i32),
            kinds: ScoreKinds {
                softcap: softcap.is_some(),
                sinks: sinks.is_some(),
                slopes: slopes.is_some(),
                window: window.is_some(),
                chunks: matches!(window, Some(Window::Chunk(_))),
            },
        };
        let [sinks, slopes]: [Option<Tensor<2>>; 2] =
            [sinks, slopes].map(|x| x.map(|x| x.cast(DType::F32).unsqueeze()));
        let of_heads = match (sinks, slopes) {
            (None, None) => return Self::Alike { numbers },
            (Some(sinks), Some(slopes)) => Tensor::cat(vec![sinks, slopes], 0),
            (Some(one), None) | (None, Some(one)) => one,
        };
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
        match self {
            Self::Alike { numbers } => (numbers.arg(None), numbers.kinds),
            Self::OfHeads { numbers, of_heads } => (numbers.arg(Some(of_heads)), numbers.kinds),
        }
    }

    /// The argument of a kernel that only caps scores.
    pub(crate) fn arg_without_heads(&self) -> ScoreArgsLaunch {
        self.numbers().arg(None)
    }
}

impl ScoreNumbers {
    fn arg(self, of_heads: Option<CubeTensor>) -> ScoreArgsLaunch {
        let Self { scale, softcap, window, kinds } = self;
        let softcap = kinds.softcap.then_some(softcap);
        let of_heads = of_heads.map(CubeTensor::into_tensor_arg);
        ScoreArgsLaunch::new(scale, softcap.into(), window, of_heads.into())
    }
}

/// [`Scores`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ScoreArgs {
    pub(crate) scale: f32,
    softcap: ComptimeOption<f32>,
    window: i32,
    of_heads: ComptimeOption<OwnedTensor<f32>>,
}

#[cube]
impl ScoreArgs {
    /// A scaled product, capped if scores are.
    pub(crate) fn capped(&self, product: f32) -> f32 {
        let mut score = product;
        if comptime!(self.softcap.is_some()) {
            let cap = self.softcap.unwrap();
            score = (score / cap).tanh() * cap;
        }
        score
    }

    /// The score of a scaled product. `distance` is the entry's position less the query's.
    pub(crate) fn score(
        &self,
        product: f32,
        query_head: usize,
        distance: i32,
        #[comptime] kinds: ScoreKinds,
    ) -> f32 {
        let mut score = self.capped(product);
        if comptime!(kinds.slopes) {
            let of_heads = self.of_heads.as_ref().unwrap();
            let mut place = query_head * of_heads.stride(1);
            if comptime!(kinds.sinks) {
                place += of_heads.stride(0);
            }
            let slope = of_heads[place];
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

    /// Whether an entry lies before the window of the query at `position`. `distance` is as in
    /// [`score`](Self::score). There must be a window.
    pub(crate) fn hides(
        &self,
        distance: i32,
        position: i32,
        #[comptime] kinds: ScoreKinds,
    ) -> bool {
        if comptime!(kinds.chunks) {
            distance < -(position % self.window)
        } else {
            distance <= -self.window
        }
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
    pub(crate) fn first_seen(&self, position: usize, #[comptime] kinds: ScoreKinds) -> usize {
        let window = self.window as usize;
        if comptime!(kinds.chunks) {
            position / window * window
        } else {
            let end = position + 1;
            end - window.min(end)
        }
    }

    /// The first position whose query does not see an entry at this one any more. There must be a
    /// window.
    pub(crate) fn end_of_sight(&self, position: usize, #[comptime] kinds: ScoreKinds) -> usize {
        let window = self.window as usize;
        if comptime!(kinds.chunks) { (position / window + 1) * window } else { position + window }
    }
}
