//! A method: four stages, and what they never touch.

use super::allocate::{Allocate, ErrorAware, Share};
use super::cache::Entry;
use super::profile::HeadScore;
use super::quantize::Store;
use super::reduce::{Reduce, Rotate};
use super::score::{From, Heads, Inner, Pick, Pool, Score, Window};

/// A method. Its paper's choices are what the functions of its name give; `Method { sinks: 2,
/// ..Method::roco() }` is another choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// Its paper's name, for people.
    pub name: &'static str,
    /// The scores of entries.
    pub score: Score,
    /// First entries that are kept whatever their score.
    pub sinks: usize,
    /// Last entries that are kept whatever their score.
    pub recent: Recent,
    /// Numbers of entries that each layer and head may keep.
    pub allocate: Allocate,
    /// The fate of the others.
    pub reduce: Reduce,
    /// Storage of entries.
    pub store: Store,
    /// Positions at which keys are encoded.
    pub positions: Positions,
}

/// Number of last tokens that are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recent {
    /// So many.
    Tokens(usize),
    /// So large a share of what is kept, rounded down.
    Share(f64),
    /// Parts of the budget that the first entries leave, heavy ones to recent ones; the recent ones
    /// rounded down.
    HeavyToRecent(usize, usize),
}

impl Recent {
    /// Tokens, if `keep` entries are kept, `sinks` of them the first.
    pub fn of(&self, keep: usize, sinks: usize) -> usize {
        match *self {
            Self::Tokens(tokens) => tokens,
            Self::Share(share) => (keep as f64 * share).floor() as usize,
            Self::HeavyToRecent(heavy, recent) => {
                (keep.max(sinks) - sinks) * recent / (heavy + recent)
            }
        }
    }
}

/// Positions at which keys are encoded, and the time of encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Where a token was written, once and for all.
    Written,
    /// At its rank among the entries held, in every call.
    InCache,
    /// Where a token was written, in every call: what is held has no position.
    Deferred,
}

impl Method {
    /// Keeps everything.
    pub fn full() -> Self {
        Self {
            name: "full",
            score: Score::Recency,
            sinks: 0,
            recent: Recent::Tokens(0),
            allocate: Allocate::All,
            reduce: Reduce::Evict,
            store: Store::Plain,
            positions: Positions::Written,
        }
    }

    /// Keeps the last tokens.
    pub fn local_window() -> Self {
        Self { name: "local-window", allocate: Allocate::Uniform, ..Self::full() }
    }

    /// Keeps the first tokens and the last ones, and counts positions anew inside the cache.
    pub fn streaming_llm() -> Self {
        let positions = Positions::InCache;
        Self { name: "streaming-llm", sinks: 4, positions, ..Self::local_window() }
    }

    /// Half of the budget for the last tokens, half for those that received most attention so far.
    pub fn h2o() -> Self {
        let score = Score::Accumulated { mean: false };
        Self { name: "h2o", score, recent: Recent::Share(0.5), ..Self::local_window() }
    }

    /// Keeps what the last query attends to, one set for all heads.
    pub fn tova() -> Self {
        let window = Window { window: 1, pool: None, heads: Heads::Layer };
        Self::of_window("tova", window)
    }

    /// Keeps what the window attends to, smoothed along the tokens.
    pub fn snapkv() -> Self {
        let pool = Some(Pool::Average(5));
        Self::of_window("snapkv", Window { window: 32, pool, heads: Heads::Group })
    }

    /// Another window for a method that has one; its own tokens are always kept.
    pub fn with_window(self, window: usize) -> Self {
        let score = match self.score {
            Score::Window(score) => Score::Window(Window { window, ..score }),
            Score::Question { .. } => Score::Question { window },
            Score::Variance { gamma, pool, .. } => Score::Variance { window, gamma, pool },
            Score::GlobalLocal { pool, from, pool_window, .. } => {
                Score::GlobalLocal { window, pool, from, pool_window }
            }
            other => other,
        };
        let allocate = match self.allocate {
            Allocate::Preference { tau1, tau2, .. } => Allocate::Preference { window, tau1, tau2 },
            Allocate::HeadAdaptive { floor, by: Some(by), layers } => {
                Allocate::HeadAdaptive { floor, by: Some(Window { window, ..by }), layers }
            }
            other => other,
        };
        Self { score, allocate, recent: Recent::Tokens(window), ..self }
    }

    /// Mean attention; what was attended to most unsteadily is kept too.
    pub fn roco() -> Self {
        let score = Score::Robust { std_share: 0.25 };
        let recent = Recent::Tokens(10);
        Self { name: "roco", score, sinks: 4, recent, ..Self::local_window() }
    }

    /// SnapKV with fewer entries the deeper the layer.
    pub fn pyramidkv() -> Self {
        Self { name: "pyramidkv", allocate: Allocate::Pyramid { beta: 20.0 }, ..Self::snapkv() }
    }

    /// Mean and variance of the window's attention; more for layers whose attention is spread and
    /// moves.
    pub fn cake() -> Self {
        let pool = Some(Pool::Average(5));
        let score = Score::Variance { window: 32, gamma: 200.0, pool };
        let allocate = Allocate::Preference { window: 32, tau1: 1.0, tau2: 1.0 };
        let recent = Recent::Tokens(32);
        Self { name: "cake", score, recent, allocate, ..Self::local_window() }
    }

    /// SnapKV with entries shared out over the heads of a layer.
    pub fn adakv() -> Self {
        let allocate = Allocate::HeadAdaptive { floor: 0.2, by: None, layers: None };
        Self { name: "adakv", allocate, ..Self::snapkv() }
    }

    /// SnapKV with entries shared out over all heads by a profile.
    pub fn headkv() -> Self {
        let allocate = Allocate::HeadProfile { beta: 1.2, scores: HeadScore::HeadKv };
        Self { name: "headkv", allocate, ..Self::snapkv() }
    }

    /// Keeps the tokens that the retrieval heads of a layer attend to; more for layers that suffer
    /// from a small cache.
    pub fn compresskv() -> Self {
        let heads = Heads::Retrieval { scores: HeadScore::Semantic, pick: Pick::Top(4) };
        let window = Window { window: 8, pool: Some(Pool::Average(5)), heads };
        let allocate = Allocate::ErrorAware(ErrorAware { least: 32, most: 3.0 });
        Self { allocate, ..Self::of_window("compresskv", window) }
    }

    /// CompressKV's tokens and layers, as many per head as AdaKV gives it of its layer by the
    /// head's own scores.
    pub fn compresskv_adakv() -> Self {
        let by = Window { window: 8, pool: Some(Pool::Average(5)), heads: Heads::Group };
        let layers = Some(ErrorAware { least: 32, most: 3.0 });
        let allocate = Allocate::HeadAdaptive { floor: 0.2, by: Some(by), layers };
        Self { name: "compresskv-adakv", allocate, ..Self::compresskv() }
    }

    /// CompressKV's tokens, as many per head as HeadKV gives it.
    pub fn compresskv_headkv() -> Self {
        let allocate = Self::headkv().allocate;
        Self { name: "compresskv-headkv", allocate, ..Self::compresskv() }
    }

    /// CompressKV, whose kept tokens are stored in a few bits.
    pub fn compresskv_kivi() -> Self {
        Self { name: "compresskv-kivi", store: Self::kivi(2).store, ..Self::compresskv() }
    }

    /// EMS with fewer entries the deeper the layer.
    pub fn ems_pyramidkv() -> Self {
        Self { name: "ems-pyramidkv", allocate: Self::pyramidkv().allocate, ..Self::ems() }
    }

    /// H2O that adds evicted values to the next kept ones.
    pub fn cam() -> Self {
        let reduce = Reduce::ValueMerge { window: 32, seed: 0, prompts: false };
        Self { name: "cam", reduce, ..Self::h2o() }
    }

    /// Merges neighbours with similar keys.
    pub fn kvmerger() -> Self {
        let reduce = Reduce::kvmerger(0.24);
        Self { name: "kvmerger", recent: Recent::Share(0.34), reduce, ..Self::h2o() }
    }

    /// The same as the paper runs it at 35 % of the context: of what is kept, 8 of 35 are recent
    /// and 2 of 35 heavy.
    pub fn kvmerger_35() -> Self {
        let reduce = Reduce::kvmerger(2.0 / 35.0);
        let recent = Recent::Share(8.0 / 35.0);
        Self { name: "kvmerger-35", recent, reduce, ..Self::kvmerger() }
    }

    /// Accumulated attention; evicted entries are merged into the nearest kept one, if it is near
    /// enough.
    pub fn d2o() -> Self {
        Self {
            name: "d2o",
            sinks: 4,
            recent: Recent::HeavyToRecent(3, 1),
            allocate: Allocate::VarianceShare { share: Share::Softmax, normalize: true },
            reduce: Reduce::d2o(),
            ..Self::h2o()
        }
    }

    /// Evicts the irrelevant, merges the redundant, keeps every member's own length and position.
    pub fn ems() -> Self {
        Self {
            name: "ems",
            score: Score::GlobalLocal {
                window: 32,
                pool: Some(Pool::Average(7)),
                from: From::Both,
                pool_window: false,
            },
            recent: Recent::Tokens(32),
            reduce: Reduce::ems(4.0, 0.6, Rotate::Own),
            positions: Positions::Deferred,
            ..Self::local_window()
        }
    }

    /// Keeps everything, the older part in a few bits.
    pub fn kivi(bits: u32) -> Self {
        let store = Store::Quantized { bits, group: 32, residual: 128 };
        Self { name: "kivi", store, ..Self::full() }
    }

    /// Keeps everything, in 8-bit floating point.
    pub fn fp8() -> Self {
        Self { name: "fp8", store: Store::Fp8, ..Self::full() }
    }

    /// Keeps short keys.
    pub fn knorm() -> Self {
        Self { name: "knorm", score: Score::KeyNorm, ..Self::local_window() }
    }

    /// Keeps keys that are unlike the others.
    pub fn keydiff() -> Self {
        Self { name: "keydiff", score: Score::KeyDifference, ..Self::local_window() }
    }

    /// KeyDiff with entries shared out over the heads of a layer.
    pub fn keydiff_adakv() -> Self {
        Self { name: "keydiff-adakv", allocate: Self::adakv().allocate, ..Self::keydiff() }
    }

    /// Keeps any.
    pub fn random() -> Self {
        Self { name: "random", score: Score::Random { seed: 0 }, ..Self::local_window() }
    }

    /// Keeps tokens whose channels differ, compared with the tokens that follow.
    pub fn lagkv() -> Self {
        let score = Score::LagRelative { lag: 128 };
        Self { name: "lagkv", score, sinks: 4, ..Self::local_window() }
    }

    /// Keeps tokens whose key and value are longer than their neighbours'.
    pub fn cur() -> Self {
        Self { name: "curdkv", score: Score::Cur { window: 16 }, sinks: 4, ..Self::local_window() }
    }

    /// Keeps keys that stand out of the space of the others.
    pub fn leverage() -> Self {
        let score = Score::Leverage { ridge: 0.01 };
        Self { name: "leverage", score, ..Self::compactor() }
    }

    /// Keeps what its own chunk attends to, before and after.
    pub fn non_causal() -> Self {
        let score = Score::Chunk { chunk: 256, pool: Some(Pool::Average(3)) };
        let positions = Positions::Written;
        Self { name: "non-causal", score, positions, ..Self::compactor() }
    }

    /// Both.
    pub fn compactor() -> Self {
        let pool = Some(Pool::Average(3));
        let score = Score::Compactor { ridge: 0.01, chunk: 256, pool, blend: None };
        Self {
            name: "compactor",
            score,
            sinks: 8,
            recent: Recent::Tokens(4),
            positions: Positions::Deferred,
            ..Self::local_window()
        }
    }

    /// SnapKV in whole chunks.
    pub fn chunkkv() -> Self {
        let window = Window { window: 32, pool: Some(Pool::Average(5)), heads: Heads::Group };
        let score = Score::Chunks { length: 20, inner: Inner::Window(window) };
        Self { name: "chunkkv", score, ..Self::snapkv() }
    }

    /// Keeps what is attended to, and not what others say already.
    pub fn rkv() -> Self {
        let window = Window { window: 8, pool: Some(Pool::Max(7)), heads: Heads::Group };
        let score = Score::Redundancy { window, lambda: 0.07 };
        Self { name: "r-kv", score, recent: Recent::Tokens(8), ..Self::local_window() }
    }

    /// Keeps what queries like those that came will attend to.
    pub fn expected_attention() -> Self {
        let score = Score::Expected { future: 512, epsilon: 0.0 };
        Self { name: "expected-attention", score, sinks: 4, ..Self::local_window() }
    }

    /// The same with entries shared out over the heads of a layer.
    pub fn expected_attention_adakv() -> Self {
        let score = Score::Expected { future: 512, epsilon: 0.01 };
        let allocate = Self::adakv().allocate;
        Self { name: "expected-attention-adakv", score, allocate, ..Self::expected_attention() }
    }

    /// Keeps values that no other says.
    pub fn capkv() -> Self {
        let score = Score::Capacity { future: 512, tau: 5.0 };
        Self { name: "capkv", score, sinks: 4, ..Self::local_window() }
    }

    /// Keeps what the last queries' outputs would miss most.
    pub fn dropkv() -> Self {
        let score = Score::Drop { window: 32, pool: None };
        Self { name: "dropkv", score, recent: Recent::Tokens(32), ..Self::local_window() }
    }

    /// Keeps keys that point where queries do.
    pub fn q_filter() -> Self {
        Self { name: "q-filter", score: Score::Direction, ..Self::local_window() }
    }

    /// Keeps what the mean query will attend to.
    pub fn triattention() -> Self {
        let score = Score::Trigonometric { future: 65_536 };
        Self { name: "triattention", score, recent: Recent::Share(0.0625), ..Self::local_window() }
    }

    /// Keeps the ends in layers that look nowhere else.
    pub fn simlayerkv() -> Self {
        let allocate = Allocate::LazyLayers { threshold: 0.9, window: 1 };
        Self { name: "simlayerkv", sinks: 4, allocate, ..Self::local_window() }
    }

    /// Keeps the ends in heads that look nowhere else.
    pub fn duoattention() -> Self {
        let allocate = Allocate::StreamingHeads { tokens: 64 };
        Self { name: "duoattention", sinks: 16, allocate, ..Self::local_window() }
    }

    /// Keeps what the model needs to repeat the prompt.
    pub fn kvzip(normalize: bool) -> Self {
        let score = Score::Repeat { tokens: 2048, normalize };
        let name = if normalize { "kvzip-plus" } else { "kvzip" };
        Self { name, score, sinks: 4, allocate: Allocate::OneThreshold, ..Self::local_window() }
    }

    /// Keeps what a second reading attends to, as much in each layer as is worth it.
    pub fn kvcompose() -> Self {
        let score = Score::Reread { tokens: 2048, layer_mean: true };
        Self { name: "kvcompose", score, allocate: Allocate::Composite, ..Self::local_window() }
    }

    /// Keeps what the question attends to.
    pub fn finch() -> Self {
        let (score, positions) = (Score::Question { window: 32 }, Positions::InCache);
        Self { name: "finch", score, positions, ..Self::snapkv() }
    }

    fn of_window(name: &'static str, score: Window) -> Self {
        let recent = Recent::Tokens(score.window);
        Self { name, score: Score::Window(score), recent, ..Self::local_window() }
    }

    /// Entries kept whatever their score, under a budget of `budget`.
    pub fn protected(&self, budget: usize) -> usize {
        self.sinks + self.recent_of(budget)
    }

    /// Last entries kept whatever their score, if `keep` entries are kept.
    pub fn recent_of(&self, keep: usize) -> usize {
        self.recent.of(keep, self.sinks)
    }

    /// The fewest tokens this method can work with.
    pub fn least_budget(&self) -> usize {
        self.protected(0).max(1)
    }

    /// Whether scores are numbers that no rounding can reorder.
    pub fn scores_are_whole_numbers(&self) -> bool {
        let drawn = matches!(self.score, Score::Recency | Score::Random { .. });
        let lazy = matches!(self.allocate, Allocate::LazyLayers { .. });
        self.allocate == Allocate::All || drawn && !lazy
    }

    /// Position at which the next token will be encoded, after so many `seen` and with so many
    /// `held`.
    pub fn next_position(&self, seen: usize, held: usize) -> usize {
        if self.positions == Positions::InCache { held } else { seen }
    }

    /// Where the key of an entry is encoded when it is attended to, the entry being the `rank`-th
    /// of its head; `None` if it is held encoded.
    pub fn encoded_at(&self, entry: &Entry, rank: usize) -> Option<usize> {
        match (self.positions, self.reduce) {
            (Positions::Written, _) => None,
            (Positions::InCache, _) => Some(rank),
            (Positions::Deferred, Reduce::EvictThenMerge { rotate: Rotate::Center, .. }) => {
                Some(entry.representative)
            }
            (Positions::Deferred, _) => Some(entry.position),
        }
    }
}
