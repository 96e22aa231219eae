use std::path::Path;

use serde::Deserialize;

use super::{fidelity::FidelityTask, text::TextTask};
use crate::tasks::{
    Labelled, Question, Task,
    files::{
        Coqa, Files, Gsm8k, InfiniteBench, LongBench, LongBenchV2, Questions, TruthfulQa,
        ZeroScrolls,
    },
    synthetic::{
        CommonWords, FrequentWords, KeyValue, MultiTurn, Needle, PassageCount, PassageRetrieval,
        Synthetic, VariableTracking,
    },
};

/// The tasks of a run file, `[[tasks.NAME]]`: those of [`Synthetic`] and of [`Files`], and texts.
///
/// A field a family, rather than an enum or the two structs flattened, so that an unknown task and
/// an unknown setting are reported with their line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Tasks {
    needle: Vec<Needle>,
    variable_tracking: Vec<VariableTracking>,
    common_words: Vec<CommonWords>,
    frequent_words: Vec<FrequentWords>,
    passage_retrieval: Vec<PassageRetrieval>,
    passage_count: Vec<PassageCount>,
    key_value: Vec<KeyValue>,
    multi_turn: Vec<MultiTurn>,
    #[serde(rename = "longbench")]
    long_bench: Vec<LongBench>,
    #[serde(rename = "longbench-v2")]
    long_bench_v2: Vec<LongBenchV2>,
    zero_scrolls: Vec<ZeroScrolls>,
    infinite_bench: Vec<InfiniteBench>,
    gsm8k: Vec<Gsm8k>,
    coqa: Vec<Coqa>,
    truthful_qa: Vec<TruthfulQa>,
    questions: Vec<Questions>,
    perplexity: Vec<TextTask>,
    fidelity: Vec<FidelityTask>,
}

/// A task with its label.
#[derive(Debug)]
pub struct Planned {
    /// Label in results.
    pub label: String,
    /// How it is measured.
    pub work: Work,
}

impl Planned {
    /// A task of one's own, whose questions are asked at these times.
    pub fn ask(label: impl Into<String>, task: impl Task + 'static, ask: &[Question]) -> Self {
        Self { label: label.into(), work: Work::Ask { task: Box::new(task), ask: ask.to_vec() } }
    }
}

/// How a task is measured.
#[derive(Debug)]
pub enum Work {
    /// Questions are asked.
    Ask {
        /// Makes the samples.
        task: Box<dyn Task>,
        /// When they are asked.
        ask: Vec<Question>,
    },
    /// A text is continued.
    Text(TextTask),
    /// A model on a compressed cache is compared with itself on the full one.
    Fidelity(FidelityTask),
}

impl Tasks {
    /// All of them, with paths that begin at `base`: synthetic ones first, then files, then texts.
    pub(super) fn planned(&self, base: &Path) -> Vec<Planned> {
        let Self {
            needle,
            variable_tracking,
            common_words,
            frequent_words,
            passage_retrieval,
            passage_count,
            key_value,
            multi_turn,
            long_bench,
            long_bench_v2,
            zero_scrolls,
            infinite_bench,
            gsm8k,
            coqa,
            truthful_qa,
            questions,
            perplexity,
            fidelity,
        } = self.clone();
        let mut synthetic = Synthetic {
            needle,
            variable_tracking,
            common_words,
            frequent_words,
            passage_retrieval,
            passage_count,
            key_value,
            multi_turn,
        };
        synthetic.resolve(base);
        let mut files = Files {
            long_bench,
            long_bench_v2,
            zero_scrolls,
            infinite_bench,
            gsm8k,
            coqa,
            truthful_qa,
            questions,
        };
        files.resolve(base);
        let asked =
            synthetic.tasks().into_iter().chain(files.tasks()).map(
                |Labelled { label, ask, task }| Planned { label, work: Work::Ask { task, ask } },
            );
        let text = perplexity.into_iter().map(|mut task| {
            task.resolve(base);
            Planned { label: task.label(), work: Work::Text(task) }
        });
        let fidelity = fidelity.into_iter().map(|mut task| {
            task.resolve(base);
            Planned { label: task.label(), work: Work::Fidelity(task) }
        });
        asked.chain(text).chain(fidelity).collect()
    }
}
