//! The named methods: one table, readable as the papers' table.

use crate::{
    Error, Result,
    allocate::Pyramid,
    budget::{Budget, Protect, Recent},
    policy::{Policy, PositionMode, PrefillCompression},
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
