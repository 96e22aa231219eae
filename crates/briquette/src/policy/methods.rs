//! The named methods: one table, readable as the papers' table.

use super::{Policy, PositionMode, PrefillCompression, Schedule};
use crate::{
    Error, HeadScoreKind, Result,
    allocate::{ErrorAware, HeadAdaptive, HeadProfile, Preference, Pyramid, Share, VarianceShare},
    budget::{Budget, Protect, Recent},
    reduce::{EmaMerge, EvictThenMerge, GaussianMerge, ValueMerge},
    score::{
        AccumulatedAttention, GlobalLocal, HeadMean, Pool, Recency, RetrievalHeads,
        RobustAttention, WindowAttention, WindowVariance,
    },
    store::Quantized,
};

struct Method {
    name: &'static str,
    title: &'static str,
    paper: &'static str,
    build: fn(Budget) -> Policy,
}

const METHODS: &[Method] = &[
    Method { name: "full", title: "Full cache", paper: "-", build: |_| Policy::full() },
    Method {
        name: "local-window",
        title: "Local window",
        paper: "Beltagy et al., 2020 (Longformer)",
        build: Policy::local_window,
    },
    Method {
        name: "streaming-llm",
        title: "StreamingLLM",
        paper: "Xiao et al., 2023",
        build: Policy::streaming_llm,
    },
    Method { name: "h2o", title: "H2O", paper: "Zhang et al., 2023", build: Policy::h2o },
    Method { name: "tova", title: "TOVA", paper: "Oren et al., 2024", build: Policy::tova },
    Method { name: "roco", title: "RoCo", paper: "Ren and Zhu, 2024", build: Policy::roco },
    Method { name: "snapkv", title: "SnapKV", paper: "Li et al., 2024", build: Policy::snapkv },
    Method {
        name: "pyramidkv",
        title: "PyramidKV",
        paper: "Cai et al., 2024",
        build: Policy::pyramidkv,
    },
    Method { name: "cake", title: "CAKE", paper: "Qin et al., 2025", build: Policy::cake },
    Method { name: "adakv", title: "AdaKV", paper: "Feng et al., 2024", build: Policy::adakv },
    Method { name: "headkv", title: "HeadKV", paper: "Fu et al., 2024", build: Policy::headkv },
    Method { name: "cam", title: "CaM", paper: "Zhang et al., 2024", build: Policy::cam },
    Method {
        name: "kvmerger",
        title: "KVMerger",
        paper: "Wang et al., 2024",
        build: Policy::kvmerger,
    },
    Method { name: "d2o", title: "D2O", paper: "Wan et al., 2024", build: Policy::d2o },
    Method { name: "ems", title: "EMS", paper: "Li et al., 2024", build: Policy::ems },
    Method {
        name: "compresskv",
        title: "CompressKV",
        paper: "Lin et al., 2025",
        build: Policy::compresskv,
    },
    Method { name: "kivi", title: "KIVI", paper: "Liu et al., 2024", build: |_| Policy::kivi(2) },
    Method {
        name: "compresskv-adakv",
        title: "CompressKV + AdaKV",
        paper: "Lin et al., 2025",
        build: Policy::compresskv_adakv,
    },
    Method {
        name: "compresskv-headkv",
        title: "CompressKV + HeadKV",
        paper: "Lin et al., 2025",
        build: Policy::compresskv_headkv,
    },
    Method {
        name: "compresskv-kivi",
        title: "CompressKV + KIVI",
        paper: "Lin et al., 2025",
        build: |budget| Policy::compresskv(budget).with_name("compresskv-kivi").with_kivi(2),
    },
    Method {
        name: "ems-pyramidkv",
        title: "EMS + PyramidKV",
        paper: "Li et al., 2024",
        build: |budget| {
            Policy::ems(budget).with_name("ems-pyramidkv").with_allocate(Pyramid { beta: 20.0 })
        },
    },
    Method { name: "random", title: "Random", paper: "-", build: Policy::random },
    Method { name: "knorm", title: "Knorm", paper: "Devoto et al., 2024", build: Policy::knorm },
    Method {
        name: "keydiff",
        title: "KeyDiff",
        paper: "Park et al., 2025",
        build: Policy::keydiff,
    },
    Method {
        name: "keydiff-adakv",
        title: "KeyDiff + AdaKV",
        paper: "-",
        build: Policy::keydiff_adakv,
    },
    Method { name: "lagkv", title: "LagKV", paper: "Liang et al., 2025", build: Policy::lagkv },
    Method { name: "cur", title: "CurDKV", paper: "Sengupta et al., 2025", build: Policy::cur },
    Method {
        name: "leverage",
        title: "Leverage",
        paper: "Chari and Van Durme, 2025",
        build: Policy::leverage,
    },
    Method {
        name: "chunk-attention",
        title: "Non-causal attention",
        paper: "Chari and Van Durme, 2025",
        build: Policy::chunk_attention,
    },
    Method {
        name: "compactor",
        title: "Compactor",
        paper: "Chari and Van Durme, 2025",
        build: Policy::compactor,
    },
    Method {
        name: "expected-attention",
        title: "Expected Attention",
        paper: "Devoto et al., 2025",
        build: Policy::expected_attention,
    },
    Method {
        name: "expected-attention-adakv",
        title: "Expected Attention + AdaKV",
        paper: "Devoto et al., 2025",
        build: Policy::expected_attention_adakv,
    },
    Method { name: "capkv", title: "CapKV", paper: "arXiv 2604.25975", build: Policy::capkv },
    Method { name: "chunkkv", title: "ChunkKV", paper: "Liu et al., 2025", build: Policy::chunkkv },
    Method {
        name: "finch",
        title: "FINCH",
        paper: "Corallo and Papotti, 2024",
        build: Policy::finch,
    },
    Method { name: "r-kv", title: "R-KV", paper: "Cai et al., 2025", build: Policy::rkv },
    Method {
        name: "kvmerger-50",
        title: "KVMerger-50",
        paper: "Wang et al., 2024",
        build: Policy::kvmerger_50,
    },
    Method {
        name: "kvmerger-35",
        title: "KVMerger-35",
        paper: "Wang et al., 2024",
        build: Policy::kvmerger_35,
    },
    Method {
        name: "ems-needle",
        title: "EMS for needles",
        paper: "Li et al., 2024",
        build: Policy::ems_needle,
    },
    Method { name: "kvzip", title: "KVzip", paper: "Kim et al., 2025", build: Policy::kvzip },
    Method {
        name: "kvzip-plus",
        title: "KVzip+",
        paper: "Kim et al., 2025",
        build: Policy::kvzip_plus,
    },
    Method {
        name: "kvcompose",
        title: "KVCompose",
        paper: "Akulov et al., 2025",
        build: Policy::kvcompose,
    },
    Method { name: "dropkv", title: "DropKV", paper: "OpenReview, 2026", build: Policy::dropkv },
    Method {
        name: "q-filter",
        title: "Q-Filter",
        paper: "Godey et al., 2025",
        build: Policy::q_filter,
    },
    Method {
        name: "triattention",
        title: "TriAttention",
        paper: "Mao et al., 2026",
        build: Policy::triattention,
    },
    Method {
        name: "simlayerkv",
        title: "SimLayerKV",
        paper: "Zhang et al., 2024",
        build: Policy::simlayerkv,
    },
    Method {
        name: "duoattention",
        title: "DuoAttention",
        paper: "Xiao et al., 2024",
        build: Policy::duoattention,
    },
];

/// Bounds of CompressKV's layer budgets (appendix C.1).
const COMPRESSKV_LAYERS: ErrorAware = ErrorAware { least: 32, most: 3.0 };

impl Policy {
    /// The named method with this budget.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`], which lists the names; or the method's own check of the budget.
    pub fn named(name: &str, budget: Budget) -> Result<Self> {
        let policy = build(name, budget)?;
        policy.check()?;
        Ok(policy)
    }

    /// Keeps everything.
    pub fn full() -> Self {
        let mut policy = Self::local_window(Budget::Ratio(1.0)).with_name("full");
        policy.budget = None;
        policy.schedule = Schedule::never();
        policy
    }

    /// Local window: the last tokens of the budget.
    pub fn local_window(budget: Budget) -> Self {
        Self::custom("local-window", budget, Recency {})
    }

    /// StreamingLLM (Xiao et al., 2023): the first 4 tokens and the last ones; positions are re-counted inside
    /// the cache (section 3.2). A prompt that comes in chunks is compressed after each of them, so that it may be longer
    /// than the model's context.
    pub fn streaming_llm(budget: Budget) -> Self {
        Self::local_window(budget)
            .with_name("streaming-llm")
            .with_sinks(4)
            .with_positions(PositionMode::InCache)
            .with_schedule(Schedule {
                prefill: PrefillCompression::EveryChunk,
                ..Schedule::always(1)
            })
    }

    /// H2O (Zhang et al., 2023): half of the budget for the tokens with the most accumulated attention, half
    /// for the last ones.
    pub fn h2o(budget: Budget) -> Self {
        Self::custom("h2o", budget, AccumulatedAttention::default()).with_recent(Recent::Share(0.5))
    }

    /// TOVA (Oren et al., 2024): the tokens the last query attends to, the mean over all heads, one set a
    /// layer. The last token itself is always kept.
    pub fn tova(budget: Budget) -> Self {
        let score = WindowAttention { window: 1, pool: None, heads: HeadMean::Layer };
        Self::custom("tova", budget, score).with_recent(Recent::Tokens(1))
    }

    /// SnapKV (Li et al., 2024): the prompt's tokens that its last 32 queries attend to, mean-pooled over 5
    /// tokens, and the window itself. Decoded tokens are all kept, as in the paper.
    pub fn snapkv(budget: Budget) -> Self {
        let score =
            WindowAttention { window: 32, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::custom("snapkv", budget, score)
            .with_recent(Recent::Tokens(32))
            .with_schedule(Schedule::prefill_only())
    }

    /// RoCo (Ren and Zhu, 2024): the highest mean attention, a quarter of the budget for the tokens whose attention
    /// varies most, the first 4 tokens and the last 10.
    pub fn roco(budget: Budget) -> Self {
        Self::custom("roco", budget, RobustAttention { std_share: 0.25 })
            .with_sinks(4)
            .with_recent(Recent::Tokens(10))
    }

    /// PyramidKV (Cai et al., 2024): SnapKV, with budgets that fall from the first layer to the last.
    pub fn pyramidkv(budget: Budget) -> Self {
        Self::snapkv(budget).with_name("pyramidkv").with_allocate(Pyramid { beta: 20.0 })
    }

    /// CAKE (Qin et al., 2025): mean and variance of the attention of the last 32 queries, budgets by the entropy and
    /// variance of each layer's attention.
    pub fn cake(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("cake")
            .with_score(WindowVariance { window: 32, gamma: 200.0, pool: Some(Pool::avg(5)) })
            .with_allocate(Preference { window: 32, tau1: 1.0, tau2: 1.0 })
    }

    /// AdaKV (Feng et al., 2024): SnapKV, with budgets that go to the heads with the highest scores.
    pub fn adakv(budget: Budget) -> Self {
        Self::snapkv(budget).with_name("adakv").with_allocate(HeadAdaptive::default())
    }

    /// HeadKV (Fu et al., 2024): SnapKV, with budgets that go to the heads that retrieve, by the model's
    /// [profile](Self::with_profile).
    pub fn headkv(budget: Budget) -> Self {
        Self::snapkv(budget)
            .with_name("headkv")
            .with_allocate(HeadProfile { beta: 1.2, by: HeadScoreKind::Headkv })
    }

    /// CaM (Zhang et al., 2024): H2O, with the values of tokens evicted in decoding added to the 32 kept behind them.
    pub fn cam(budget: Budget) -> Self {
        Self::h2o(budget).with_name("cam").with_reduce(ValueMerge {
            window: 32,
            seed: 0,
            prompts: false,
        })
    }

    /// KVMerger (Wang et al., 2024, section 5.1) as the paper runs it at half of the context: of what is kept, 34 % are
    /// the last tokens and 24 % those of most accumulated attention; neighbours among the others are merged.
    pub fn kvmerger(budget: Budget) -> Self {
        Self::kvmerger_with("kvmerger", budget, 0.34, 0.24)
    }

    /// The same: 17 % and 12 % of a context of which 50 % are kept.
    pub fn kvmerger_50(budget: Budget) -> Self {
        Self::kvmerger(budget).with_name("kvmerger-50")
    }

    /// KVMerger as the paper runs it at 35 % of the context: 8 % of it are the last tokens and 2 % those of most
    /// accumulated attention, so 8 / 35 and 2 / 35 of what is kept.
    pub fn kvmerger_35(budget: Budget) -> Self {
        Self::kvmerger_with("kvmerger-35", budget, 8.0 / 35.0, 2.0 / 35.0)
    }

    fn kvmerger_with(name: &str, budget: Budget, recent: f64, protect: f64) -> Self {
        Self::h2o(budget)
            .with_name(name)
            .with_recent(Recent::Share(recent))
            .with_reduce(GaussianMerge { protect, ..GaussianMerge::default() })
            .with_schedule(Schedule::always(64))
    }

    /// D2O (Wan et al., 2024): accumulated attention, 4 sinks, of what they leave one in four for the last tokens,
    /// budgets by the density of each layer's attention, evicted tokens merged into the most similar kept ones.
    pub fn d2o(budget: Budget) -> Self {
        Self::h2o(budget)
            .with_name("d2o")
            .with_sinks(4)
            .with_recent(Recent::HeavyToRecent(3, 1))
            .with_allocate(VarianceShare { share: Share::Softmax, normalize: true })
            .with_reduce(EmaMerge::default())
    }

    /// EMS: the Global-Local score over a window of 32, pooled over 7 tokens; evict-then-merge with γ = 4 and
    /// τ = 0.6, on keys without positions; tokens share the entries.
    pub fn ems(budget: Budget) -> Self {
        Self::custom("ems", budget, GlobalLocal::default())
            .with_recent(Recent::Tokens(32))
            .with_reduce(EvictThenMerge::default())
            .with_positions(PositionMode::Deferred)
    }

    /// EMS as the paper looks for needles: a window of 16. τ is that of its appendix D, 0.6; its section 5.3 says 0.55.
    pub fn ems_needle(budget: Budget) -> Self {
        Self::ems(budget).with_name("ems-needle").with_window(16)
    }

    /// CompressKV: the attention of the last 8 queries of the layer's 4 semantic retrieval heads, mean-pooled over 5
    /// tokens, one set a layer; budgets by how much each layer suffers from a small cache. Both from the model's
    /// [profile](Self::with_profile).
    pub fn compresskv(budget: Budget) -> Self {
        let heads = HeadMean::Retrieval(RetrievalHeads::top(4));
        Self::snapkv(budget)
            .with_name("compresskv")
            .with_score(WindowAttention { window: 8, pool: Some(Pool::avg(5)), heads })
            .with_recent(Recent::Tokens(8))
            .with_allocate(COMPRESSKV_LAYERS)
    }

    /// CompressKV's tokens and layer budgets, which each layer's heads share by AdaKV's comparison of their own scores
    /// (AdaCompressKV of CompressKV's appendix D).
    pub fn compresskv_adakv(budget: Budget) -> Self {
        let by = WindowAttention { window: 8, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::compresskv(budget).with_name("compresskv-adakv").with_allocate(HeadAdaptive {
            by: Some(by),
            layers: Some(COMPRESSKV_LAYERS),
            ..HeadAdaptive::default()
        })
    }

    /// CompressKV's tokens under HeadKV's head budgets.
    pub fn compresskv_headkv(budget: Budget) -> Self {
        Self::compresskv(budget)
            .with_name("compresskv-headkv")
            .with_allocate(HeadProfile { beta: 1.2, by: HeadScoreKind::Headkv })
    }

    /// KIVI (Liu et al., 2024): everything, quantized to `bits` (1, 2, 4 or 8), the last 128 tokens in full precision.
    pub fn kivi(bits: u8) -> Self {
        Self::full().with_name("kivi").with_kivi(bits)
    }

    /// What is kept, quantized as KIVI does.
    pub fn with_kivi(self, bits: u8) -> Self {
        self.with_store(Quantized::kivi(bits))
    }
}

/// A row of the table of methods.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct MethodInfo {
    /// The name [`Policy::named`] takes.
    pub name: String,
    /// The name its paper gives it.
    pub title: String,
    /// Its paper.
    pub paper: String,
    /// Stage one.
    pub score: String,
    /// What is kept whatever the scores.
    pub protect: String,
    /// Stage two.
    pub allocate: String,
    /// Stage three.
    pub reduce: String,
    /// Stage four.
    pub store: String,
    /// When it compresses.
    pub schedule: String,
    /// At which positions entries are encoded.
    pub positions: String,
}

/// Every named method, read off the policies themselves.
pub fn methods() -> Vec<MethodInfo> {
    METHODS.iter().map(describe).collect()
}

fn build(name: &str, budget: Budget) -> Result<Policy> {
    match METHODS.iter().find(|method| method.name == name) {
        Some(method) => Ok((method.build)(budget)),
        None => Err(Error::UnknownMethod {
            name: name.to_owned(),
            known: METHODS.iter().map(|method| method.name).collect::<Vec<_>>().join(", "),
        }),
    }
}

fn describe(method: &Method) -> MethodInfo {
    let policy = (method.build)(Budget::Tokens(1024));
    let keeps_all = policy.budget.is_none();
    let or_dash = |text: String| if keeps_all { "-".to_owned() } else { text };
    let score = policy.scorer().summary();
    let Protect { sinks, recent } = policy.protect;
    let recent = match recent {
        Recent::Tokens(0) => None,
        Recent::Tokens(tokens) => Some(format!("last {tokens}")),
        Recent::Share(share) => Some(format!("last {:.0}% of the budget", share * 100.0)),
        Recent::HeavyToRecent(heavy, recent) => {
            Some(format!("last {recent} of {}", heavy + recent))
        }
    };
    let sinks = (sinks > 0).then(|| format!("first {sinks}"));
    let protect = sinks.into_iter().chain(recent).collect::<Vec<_>>().join(", ");
    let prefill = match policy.schedule.prefill {
        PrefillCompression::Never => None,
        PrefillCompression::AtEnd => Some("prompt".to_owned()),
        PrefillCompression::FirstPrompt => Some("first prompt".to_owned()),
        PrefillCompression::EveryChunk => Some("every chunk".to_owned()),
    };
    let decode = match policy.schedule.decode_every {
        None => None,
        Some(1) => Some("every decoded token".to_owned()),
        Some(every) => Some(format!("every {every} decoded tokens")),
    };
    let schedule = prefill.into_iter().chain(decode).collect::<Vec<_>>().join(", ");
    let dash_if_empty = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    MethodInfo {
        name: method.name.to_owned(),
        title: method.title.to_owned(),
        paper: method.paper.to_owned(),
        score: or_dash(score),
        protect: dash_if_empty(protect),
        allocate: if keeps_all { "all".to_owned() } else { policy.allocator().summary() },
        reduce: or_dash(policy.reducer().summary()),
        store: policy.store().summary(),
        schedule: dash_if_empty(schedule),
        positions: match policy.positions {
            PositionMode::Written => "as written".to_owned(),
            PositionMode::InCache => "re-counted in the cache".to_owned(),
            PositionMode::Deferred => "as written, encoded in every call".to_owned(),
        },
    }
}
