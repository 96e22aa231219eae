//! The rows in their order, with their counterparts and targets.

use crate::rows::model::{linear, quantized_linear};

/// A row of the table.
pub(super) struct Line {
    pub(super) row: String,
    /// The variant of ours.
    pub(super) variant: &'static str,
    /// The row of PyTorch, if it has another name.
    pub(super) peer: Option<&'static str>,
    /// The variants of PyTorch, in the order they are shown.
    pub(super) peers: &'static [&'static str],
    pub(super) targets: &'static [Target],
}

impl Line {
    pub(super) fn peer_row(&self) -> &str {
        self.peer.unwrap_or(&self.row)
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

fn line(
    row: impl Into<String>,
    peers: &'static [&'static str],
    targets: &'static [Target],
) -> Line {
    Line { row: row.into(), variant: "briquette", peer: None, peers, targets }
}

const SDPA_DECODE: Target = Target::OfPeer { factor: 1.2, variant: "sdpa" };
const OF_FEW_ROWS: Target = Target::OfPeer { factor: 1.05, variant: "linear" };
const OF_PRODUCTS: Target = Target::OfPeer { factor: 1.1, variant: "linear" };
const OF_TOPK: &[Target] = &[Target::OfPeer { factor: 1.0, variant: "topk" }];
const OF_SCORES: &[Target] = &[
    Target::FasterThanPeer { factor: 13.0, variant: "eager" },
    Target::FasterThanPeer { factor: 3.0, variant: "compiled" },
];
const OF_DECODE: &[Target] =
    &[Target::OfOwn { factor: 0.5, row: "decode/1024-batch-32", variant: "briquette" }];
const OF_DENSE: &[Target] =
    &[Target::OfOwn { factor: 1.0, row: "sparse/dense", variant: "briquette" }];
const OF_LAYER: &[Target] = &[
    Target::OfOwn { factor: 0.05, row: "layer-prefill/whole", variant: "briquette" },
    Target::OfOwn { factor: 0.05, row: "layer-prefill", variant: "briquette" },
];

/// Every row.
pub(super) fn lines() -> Vec<Line> {
    let mut lines = vec![
        Line { variant: "burn", ..line("copy", &["copy"], &[]) },
        Line { variant: "burn", ..line("matmul", &["matmul"], &[]) },
        line("select/256", &["topk", "topk + sort", "topk bf16"], OF_TOPK),
        line("select/1024", &["topk", "topk + sort", "topk bf16"], OF_TOPK),
        line("select/1m", &["topk", "topk + sort"], &[]),
        line("group/1024", &["argsort"], &[]),
        line("group/16384", &["argsort"], &[]),
        line("compact/256", &["gather", "index_select"], &[]),
        line("compact/1024", &["gather", "index_select"], &[]),
        line("compact/8192", &["gather", "index_select"], &[]),
        line("rotate/prompt", &["apply_rotary_pos_emb"], &[]),
        line("rotate/step", &["apply_rotary_pos_emb"], &[]),
        line("column-scores", &["eager", "compiled"], OF_SCORES),
        Line {
            peer: Some("column-scores"),
            ..line("column-scores/with-attention", &["eager", "compiled"], OF_SCORES)
        },
        line("window-scores", &["eager", "compiled", "eager, keys expanded"], &[]),
        line(
            "prefill",
            &["sdpa"],
            &[
                Target::OfPeer { factor: 2.0, variant: "sdpa" },
                Target::FasterThanBurn { factor: 10.0 },
            ],
        ),
        line("prefill-grouped", &["sdpa"], &[Target::OfPeer { factor: 2.0, variant: "sdpa" }]),
        // Half of the products; lists and masks as well.
        line(
            "prefill-sparse",
            &[],
            &[Target::OfOwn { factor: 0.5, row: "prefill-grouped", variant: "briquette" }],
        ),
        // PyTorch's is plain.
        Line { peer: Some("prefill-grouped"), ..line("prefill-window", &["sdpa"], &[]) },
        Line { peer: Some("prefill-grouped"), ..line("prefill-softcap", &["sdpa"], &[]) },
        line("decode/4096", &["sdpa"], &[SDPA_DECODE]),
        line("decode/4096-in-cache", &["sdpa"], &[SDPA_DECODE]),
        line("decode/4096-with-weights", &["eager"], &[]),
        // PyTorch's is plain.
        Line { peer: Some("decode/4096"), ..line("decode/4096-softcap", &["sdpa"], &[]) },
        Line { peer: Some("decode/4096"), ..line("decode/4096-window", &["sdpa"], &[]) },
        Line { peer: Some("decode/4096"), ..line("decode/4096-sinks", &["sdpa"], &[]) },
        line("decode/32768", &["sdpa"], &[SDPA_DECODE, Target::ShareOfCopy { share: 0.6 }]),
        line("decode/32768-with-weights", &["eager"], &[]),
        line("decode/1024-batch-32", &["sdpa"], &[]),
        line("ragged-decode", &["sdpa, padded"], &[]),
        Line { peer: Some("decode/1024-batch-32"), ..line("shared-decode", &["sdpa"], OF_DECODE) },
        Line {
            peer: Some("decode/1024-batch-32"),
            ..line("shared-decode/rotary", &["sdpa"], OF_DECODE)
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
        line("sparse/minference", &[], OF_DENSE),
        line("sparse/xattention", &[], OF_DENSE),
        line("compress-step/snapkv", &["eager"], OF_LAYER),
        line("compress-step/h2o", &[], OF_LAYER),
        line("compress-step/ems", &[], OF_LAYER),
    ];
    for rows in linear::ROWS {
        lines.extend(linear::names(rows).map(|row| {
            let targets: &[Target] = match (rows, row.ends_with("/step")) {
                (1 | 16, true) => &[OF_FEW_ROWS],
                (64 | 256 | 1024, true) | (32_768, _) => &[OF_PRODUCTS],
                _ => &[],
            };
            line(row, &["linear"], targets)
        }));
    }
    lines.extend(quantized_linear::names().map(|row| line(row, &[], &[])));
    lines.extend([
        line("cold-start/first-token", &[], &[Target::Seconds { seconds: 4.0 }]),
        line("cold-start", &[], &[Target::Seconds { seconds: 30.0 }]),
        line("cold-start/second-first-token", &[], &[Target::Seconds { seconds: 2.0 }]),
        line("cold-start/second", &[], &[]),
    ]);
    lines
}
