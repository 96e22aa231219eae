//! Settings and numbers of the papers, and of engines.

use anyhow::{Context, Result};

use crate::model::Dimensions;

/// A table of a paper: a model, a card, and what was run on it.
#[derive(Clone, Debug)]
pub struct Table {
    /// The name that `--tables` takes.
    pub name: &'static str,
    /// Source of the settings and numbers.
    pub title: &'static str,
    /// The model.
    pub dimensions: Dimensions,
    /// GiB of the card.
    pub memory: f64,
    /// Whether the largest batch of each method belongs to the table.
    pub largest: bool,
    /// Lengths, and what runs at them.
    pub cases: Vec<Case>,
}

/// A length of prompts and of answers.
#[derive(Clone, Debug)]
pub struct Case {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub new: usize,
    /// Tokens that a compressed layer keeps.
    pub budget: usize,
    /// Methods, the full cache first.
    pub runs: Vec<Run>,
}

/// A method at a batch.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The name of the method.
    pub method: &'static str,
    /// Rows at once.
    pub batch: usize,
    /// Numbers published for it.
    pub published: Published,
    /// The published ratio at the largest batch of both.
    pub published_largest: Option<f64>,
}

/// Numbers of a paper; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Published {
    /// New tokens per second, of the batch.
    pub tokens_per_s: Option<f64>,
    /// The same over that of the full cache.
    pub ratio: Option<f64>,
}

/// Tokens behind the longest row for which the tables of positions reach, too.
const BEYOND: usize = 4096;

/// Names of all tables.
pub const NAMES: [&str; 5] = ["ems", "d2o", "compresskv", "engines", "decode-only"];

impl Table {
    /// A table by name; with `tiny` of a model and lengths for a CPU.
    ///
    /// # Errors
    /// If there is no table of that name.
    pub fn named(name: &str, tiny: bool) -> Result<Self> {
        let table = match name {
            "ems" => ems(),
            "d2o" => d2o(),
            "compresskv" => compresskv(),
            "engines" => engines(),
            "decode-only" => decode_only(),
            _ => None.with_context(|| format!("`{name}` is none of {}", NAMES.join(", ")))?,
        };
        let table = if tiny { table.shrunk() } else { table };
        Ok(table.with_context())
    }

    /// The same table of a small model, a small card, and lengths for a CPU: one thirty-second of
    /// all, batches of two rows at most, and two cases.
    fn shrunk(mut self) -> Self {
        self.dimensions = Dimensions::TINY;
        self.memory /= 256.0;
        self.cases.truncate(2);
        for case in &mut self.cases {
            case.prompt = (case.prompt / 32).clamp(32, 128);
            case.new = (case.new / 32).clamp(32, 96);
            case.budget = (case.budget / 32).max(48);
            for run in &mut case.runs {
                run.batch = run.batch.min(2);
            }
        }
        self
    }

    fn with_context(mut self) -> Self {
        let longest = self.cases.iter().map(|case| case.prompt + case.new).max().unwrap_or(0);
        self.dimensions.context = (longest + BEYOND).next_power_of_two();
        self
    }
}

impl Run {
    fn of(method: &'static str, batch: usize) -> Self {
        Self { method, batch, published: Published::default(), published_largest: None }
    }

    fn published(mut self, tokens_per_s: Option<f64>, ratio: Option<f64>) -> Self {
        self.published = Published { tokens_per_s, ratio };
        self
    }
}

/// The largest batches that ran on two RTX 4090, one or two rows of the full cache. The paper does
/// not name the model; its others are of seven and eight billion parameters.
fn ems() -> Table {
    let rows = [
        (128, 4096, 2, 14.67, 50.44, 3.44),
        (128, 6144, 2, 10.62, 48.89, 4.61),
        (4096, 128, 2, 8.31, 37.30, 4.48),
        (4096, 4096, 2, 5.93, 45.74, 7.71),
        (4096, 8192, 1, 4.27, 45.90, 10.75),
    ];
    let cases = rows.map(|(prompt, new, batch, full, ems, ratio)| Case {
        prompt,
        new,
        budget: 256,
        runs: vec![
            Run::of("full", batch).published(Some(full), None),
            Run::of("fp8", batch),
            Run::of("ems", 16).published(Some(ems), Some(ratio)),
        ],
    });
    Table {
        name: "ems",
        title: "EMS, Table 3 (Llama 2 7B, two RTX 4090, budget 256)",
        dimensions: Dimensions::LLAMA_2_7B,
        memory: 48.0,
        largest: false,
        cases: cases.into(),
    }
}

fn d2o() -> Table {
    let rows = [
        (256, 1024, 8, 374.79, (919.77, 2.45), (878.62, 2.34)),
        (512, 2048, 4, 198.94, (511.75, 2.57), (495.50, 2.49)),
        (1024, 4096, 2, 96.95, (281.36, 2.90), (272.28, 2.80)),
        (2048, 8192, 1, 43.44, (134.66, 3.10), (132.45, 3.04)),
    ];
    let cases = rows.map(|(prompt, new, batch, full, h2o, d2o)| Case {
        prompt,
        new,
        budget: prompt,
        runs: vec![
            Run::of("full", batch).published(Some(full), None),
            Run::of("fp8", batch),
            Run::of("h2o", 4 * batch).published(Some(h2o.0), Some(h2o.1)),
            Run::of("d2o", 4 * batch).published(Some(d2o.0), Some(d2o.1)),
        ],
    });
    Table {
        name: "d2o",
        title: "D2O, Table 5 (Llama 3 8B, A100 80 GB, the prompt's length as budget)",
        dimensions: Dimensions::LLAMA_3_8B,
        memory: 80.0,
        largest: false,
        cases: cases.into(),
    }
}

/// Figures without numbers.
fn compresskv() -> Table {
    let case = |thousands: usize| Case {
        prompt: 1024 * thousands,
        new: 1024,
        budget: 1024,
        runs: ["full", "fp8", "snapkv", "compresskv"].map(|method| Run::of(method, 1)).into(),
    };
    Table {
        name: "compresskv",
        title: "CompressKV, Figures 7 and 27 (Llama 3.1 8B, A100 80 GB, budget 1 024)",
        dimensions: Dimensions::LLAMA_3_8B,
        memory: 80.0,
        largest: false,
        cases: [4, 8, 16, 32, 64, 128].map(case).into(),
    }
}

/// RocketKV's ratios, by which other methods are held.
fn engines() -> Table {
    let case = |(prompt, new, one_row, largest)| {
        let held = |method| Run {
            published_largest: Some(largest),
            ..Run::of(method, 1).published(None, Some(one_row))
        };
        let runs = vec![Run::of("full", 1), Run::of("fp8", 1), held("snapkv"), held("compresskv")];
        Case { prompt, new, budget: 2048, runs }
    };
    Table {
        name: "engines",
        title: "8k/1k and 32k/4k; published: RocketKV in TensorRT-LLM (Llama 3.1 8B, B200, budget \
                2 048)",
        dimensions: Dimensions::LLAMA_3_8B,
        memory: 80.0,
        largest: true,
        cases: [(8192, 1024, 1.80, 1.40), (32_768, 4096, 3.40, 2.26)].map(case).into(),
    }
}

/// The full cache of 32 rows takes 71 GB at the end: more than 80 with the weights.
fn decode_only() -> Table {
    let runs = vec![
        Run::of("full", 32),
        Run::of("fp8", 32),
        Run::of("triattention", 32).published(None, Some(1.61)),
    ];
    Table {
        name: "decode-only",
        title: "Long answers; published: TriAttention in TensorRT-LLM (Qwen 3 8B, B200, budget \
                2 048, every 2 048 tokens)",
        dimensions: Dimensions::LLAMA_3_8B,
        memory: 128.0,
        largest: false,
        cases: vec![Case { prompt: 512, new: 16_384, budget: 2048, runs }],
    }
}
