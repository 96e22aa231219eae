//! The rows in their order, with their counterparts and targets.

/// A row of the table.
pub(super) struct Line {
    pub(super) row: &'static str,
    /// The variant of ours.
    pub(super) variant: &'static str,
    /// The row of PyTorch, if it has another name.
    pub(super) peer: Option<&'static str>,
    /// The variants of PyTorch, in the order they are shown.
    pub(super) peers: &'static [&'static str],
    pub(super) targets: &'static [Target],
}

impl Line {
    pub(super) fn peer_row(&self) -> &'static str {
        self.peer.unwrap_or(self.row)
    }
}

/// The target of a row.
pub(super) enum Target {
    /// At most so many times the time of PyTorch.
    OfPeer { factor: f64, variant: &'static str },
    /// So many times faster than PyTorch.
    FasterThanPeer { factor: f64, variant: &'static str },
    /// So many times faster than Burn itself.
    FasterThanBurn { factor: f64 },
    /// At most so many times the time of another row of ours.
    OfOwn { factor: f64, row: &'static str, variant: &'static str },
    /// Bytes moved at so much of the bandwidth of a copy.
    ShareOfCopy { share: f64 },
    /// At most so many seconds.
    Seconds { seconds: f64 },
}

impl Target {
    pub(super) fn text(&self, line: &Line) -> String {
        match *self {
            Self::OfPeer { factor, variant } => format!("≤ {factor} × {variant}"),
            Self::FasterThanPeer { factor, variant } => {
                format!("≥ {factor} × faster than {variant}")
            }
            Self::FasterThanBurn { factor } => format!("≥ {factor} × faster than Burn's own"),
            Self::OfOwn { factor, row, .. } if row == line.row => format!("≤ {factor} × itself"),
            Self::OfOwn { factor, row, .. } => format!("≤ {factor} × {row}"),
            Self::ShareOfCopy { share } => format!("≥ {:.0} % of copy bandwidth", share * 100.0),
            Self::Seconds { seconds } => format!("≤ {seconds} s"),
        }
    }
}

const fn line(
    row: &'static str,
    peers: &'static [&'static str],
    targets: &'static [Target],
) -> Line {
    Line { row, variant: "briquette", peer: None, peers, targets }
}

const SDPA_DECODE: Target = Target::OfPeer { factor: 1.2, variant: "sdpa" };
const OF_FEW_ROWS: Target = Target::OfPeer { factor: 1.05, variant: "linear" };
const OF_PRODUCTS: Target = Target::OfPeer { factor: 1.1, variant: "linear" };
const OF_LAYER: &[Target] = &[
    Target::OfOwn { factor: 0.05, row: "layer-prefill/whole", variant: "briquette" },
    Target::OfOwn { factor: 0.05, row: "layer-prefill", variant: "briquette" },
];

/// Every row.
pub(super) const LINES: &[Line] = &[
    Line { variant: "burn", ..line("copy", &["copy"], &[]) },
    Line { variant: "burn", ..line("matmul", &["matmul"], &[]) },
    line(
        "select/256",
        &["topk", "topk + sort", "topk bf16"],
        &[Target::OfPeer { factor: 1.0, variant: "topk" }],
    ),
    line(
        "select/1024",
        &["topk", "topk + sort", "topk bf16"],
        &[Target::OfPeer { factor: 1.0, variant: "topk" }],
    ),
    line("select/1m", &["topk", "topk + sort"], &[]),
    line("group/1024", &["argsort"], &[]),
    line("group/16384", &["argsort"], &[]),
    line("compact/256", &["gather", "index_select"], &[]),
    line("compact/1024", &["gather", "index_select"], &[]),
    line("compact/8192", &["gather", "index_select"], &[]),
    line("rotate/prompt", &["apply_rotary_pos_emb"], &[]),
    line("rotate/step", &["apply_rotary_pos_emb"], &[]),
    line(
        "column-scores",
        &["eager", "compiled"],
        &[
            Target::FasterThanPeer { factor: 13.0, variant: "eager" },
            Target::FasterThanPeer { factor: 3.0, variant: "compiled" },
        ],
    ),
    Line {
        peer: Some("column-scores"),
        ..line(
            "column-scores/with-attention",
            &["eager", "compiled"],
            &[
                Target::FasterThanPeer { factor: 13.0, variant: "eager" },
                Target::FasterThanPeer { factor: 3.0, variant: "compiled" },
            ],
        )
    },
    line("window-scores", &["eager", "compiled", "eager, keys expanded"], &[]),
    line(
        "prefill",
        &["sdpa"],
        &[Target::OfPeer { factor: 2.0, variant: "sdpa" }, Target::FasterThanBurn { factor: 10.0 }],
    ),
    line("prefill-grouped", &["sdpa"], &[Target::OfPeer { factor: 2.0, variant: "sdpa" }]),
    // Half of the products; lists and masks as well.
    line(
        "prefill-sparse",
        &[],
        &[Target::OfOwn { factor: 0.5, row: "prefill-grouped", variant: "briquette" }],
    ),
    line("decode/4096", &["sdpa"], &[SDPA_DECODE]),
    line("decode/4096-in-cache", &["sdpa"], &[SDPA_DECODE]),
    line("decode/4096-with-weights", &["eager"], &[]),
    line("decode/32768", &["sdpa"], &[SDPA_DECODE, Target::ShareOfCopy { share: 0.6 }]),
    line("decode/32768-with-weights", &["eager"], &[]),
    line("decode/1024-batch-32", &["sdpa"], &[]),
    line("ragged-decode", &["sdpa, padded"], &[]),
    Line {
        peer: Some("decode/1024-batch-32"),
        ..line(
            "shared-decode",
            &["sdpa"],
            &[Target::OfOwn { factor: 0.5, row: "decode/1024-batch-32", variant: "briquette" }],
        )
    },
    Line {
        peer: Some("decode/1024-batch-32"),
        ..line(
            "shared-decode/rotary",
            &["sdpa"],
            &[Target::OfOwn { factor: 0.5, row: "decode/1024-batch-32", variant: "briquette" }],
        )
    },
    Line { peer: Some("decode/32768"), ..line("quantized-decode/2", &["sdpa"], &[]) },
    Line { peer: Some("decode/32768"), ..line("quantized-decode/4", &["sdpa"], &[]) },
    Line { peer: Some("decode/32768"), ..line("quantized-decode/fp8", &["sdpa"], &[]) },
    line("nearest/ems", &["matmul + max"], &[]),
    line("nearest/d2o", &["matmul + max"], &[]),
    line("accumulate/d2o", &["index_add"], &[]),
    line("merge/step", &["index_add"], &[]),
    line("merge/prompt", &["index_add"], &[]),
    line("extend/step", &[], &[]),
    line("classify/step", &[], &[]),
    line("regroup/step", &[], &[]),
    line("row-weights/step", &[], &[]),
    line("global-local/step", &[], &[]),
    line("ema-weights/step", &[], &[]),
    line("lay-out/step", &[], &[]),
    line("pack/step", &[], &[]),
    line("join/step", &[], &[]),
    line("layer-prefill", &["sdpa"], &[]),
    line("layer-prefill/whole", &["layer"], &[]),
    line("sparse/dense", &[], &[]),
    line(
        "sparse/minference",
        &[],
        &[Target::OfOwn { factor: 1.0, row: "sparse/dense", variant: "briquette" }],
    ),
    line(
        "sparse/xattention",
        &[],
        &[Target::OfOwn { factor: 1.0, row: "sparse/dense", variant: "briquette" }],
    ),
    line("compress-step/snapkv", &["eager"], OF_LAYER),
    line("compress-step/h2o", &[], OF_LAYER),
    line("compress-step/ems", &[], OF_LAYER),
    line("linear/1/qkv", &["linear"], &[]),
    line("linear/1/output", &["linear"], &[]),
    line("linear/1/gate-up", &["linear"], &[]),
    line("linear/1/down", &["linear"], &[]),
    line("linear/1/head", &["linear"], &[]),
    line("linear/1/step", &["linear"], &[OF_FEW_ROWS]),
    line("linear/8/qkv", &["linear"], &[]),
    line("linear/8/output", &["linear"], &[]),
    line("linear/8/gate-up", &["linear"], &[]),
    line("linear/8/down", &["linear"], &[]),
    line("linear/8/head", &["linear"], &[]),
    line("linear/8/step", &["linear"], &[]),
    line("linear/16/qkv", &["linear"], &[]),
    line("linear/16/output", &["linear"], &[]),
    line("linear/16/gate-up", &["linear"], &[]),
    line("linear/16/down", &["linear"], &[]),
    line("linear/16/head", &["linear"], &[]),
    line("linear/16/step", &["linear"], &[OF_FEW_ROWS]),
    line("linear/32/qkv", &["linear"], &[]),
    line("linear/32/output", &["linear"], &[]),
    line("linear/32/gate-up", &["linear"], &[]),
    line("linear/32/down", &["linear"], &[]),
    line("linear/32/head", &["linear"], &[]),
    line("linear/32/step", &["linear"], &[]),
    line("linear/64/qkv", &["linear"], &[]),
    line("linear/64/output", &["linear"], &[]),
    line("linear/64/gate-up", &["linear"], &[]),
    line("linear/64/down", &["linear"], &[]),
    line("linear/64/head", &["linear"], &[]),
    line("linear/64/step", &["linear"], &[OF_PRODUCTS]),
    line("linear/256/qkv", &["linear"], &[]),
    line("linear/256/output", &["linear"], &[]),
    line("linear/256/gate-up", &["linear"], &[]),
    line("linear/256/down", &["linear"], &[]),
    line("linear/256/head", &["linear"], &[]),
    line("linear/256/step", &["linear"], &[OF_PRODUCTS]),
    line("linear/1024/qkv", &["linear"], &[]),
    line("linear/1024/output", &["linear"], &[]),
    line("linear/1024/gate-up", &["linear"], &[]),
    line("linear/1024/down", &["linear"], &[]),
    line("linear/1024/head", &["linear"], &[]),
    line("linear/1024/step", &["linear"], &[OF_PRODUCTS]),
    line("linear/32768/qkv", &["linear"], &[OF_PRODUCTS]),
    line("linear/32768/output", &["linear"], &[OF_PRODUCTS]),
    line("linear/32768/gate-up", &["linear"], &[OF_PRODUCTS]),
    line("linear/32768/down", &["linear"], &[OF_PRODUCTS]),
    line("quantized-linear/1/q8_0", &[], &[]),
    line("quantized-linear/8/q8_0", &[], &[]),
    line("quantized-linear/32/q8_0", &[], &[]),
    line("quantized-linear/33/q8_0", &[], &[]),
    line("quantized-linear/1/q4_0", &[], &[]),
    line("quantized-linear/8/q4_0", &[], &[]),
    line("quantized-linear/32/q4_0", &[], &[]),
    line("quantized-linear/33/q4_0", &[], &[]),
    line("cold-start/first-token", &[], &[Target::Seconds { seconds: 4.0 }]),
    line("cold-start", &[], &[Target::Seconds { seconds: 30.0 }]),
    line("cold-start/second", &[], &[]),
];
