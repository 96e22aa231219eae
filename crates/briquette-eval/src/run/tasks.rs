use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{fidelity::FidelityTask, text::TextTask};
use crate::tasks::{
    Question, Task, TaskSpec,
    files::{
        Coqa, Gsm8k, InfiniteBench, LongBench, LongBenchV2, Questions, TruthfulQa, ZeroScrolls,
    },
    synthetic::{
        CommonWords, FrequentWords, KeyValue, MultiTurn, Needle, PassageCount, PassageRetrieval,
        VariableTracking,
    },
};

/// The tasks of a run file by family, as `[[tasks.needle]]`: those that are generated, those from
/// files, and texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Tasks {
    /// Needles in a haystack.
    pub needle: Vec<Needle>,
    /// Chains of variables.
    pub variable_tracking: Vec<VariableTracking>,
    /// The most common words of a list.
    pub common_words: Vec<CommonWords>,
    /// The most frequent words of a coded text.
    pub frequent_words: Vec<FrequentWords>,
    /// Which passage an excerpt is from.
    pub passage_retrieval: Vec<PassageRetrieval>,
    /// How many passages there are without the repeated ones.
    pub passage_count: Vec<PassageCount>,
    /// The value of a key.
    pub key_value: Vec<KeyValue>,
    /// Several questions about one context.
    pub multi_turn: Vec<MultiTurn>,
    /// LongBench and LongBench-E.
    #[serde(rename = "longbench")]
    pub long_bench: Vec<LongBench>,
    /// LongBench v2.
    #[serde(rename = "longbench-v2")]
    pub long_bench_v2: Vec<LongBenchV2>,
    /// ZeroSCROLLS.
    pub zero_scrolls: Vec<ZeroScrolls>,
    /// InfiniteBench.
    pub infinite_bench: Vec<InfiniteBench>,
    /// GSM8K.
    pub gsm8k: Vec<Gsm8k>,
    /// CoQA.
    pub coqa: Vec<Coqa>,
    /// TruthfulQA, generation.
    pub truthful_qa: Vec<TruthfulQa>,
    /// Questions of one's own.
    pub questions: Vec<Questions>,
    /// How well a model continues a text.
    pub perplexity: Vec<TextTask>,
    /// How far a model is from itself on the full cache.
    pub fidelity: Vec<FidelityTask>,
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
    /// All of them, in the order of the fields, with paths that begin at `base`.
    pub fn planned(&self, base: &Path) -> Vec<Planned> {
        // A family that is forgotten here does not compile.
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
        } = self;
        let mut all = Vec::new();
        add(needle, base, &mut all);
        add(variable_tracking, base, &mut all);
        add(common_words, base, &mut all);
        add(frequent_words, base, &mut all);
        add(passage_retrieval, base, &mut all);
        add(passage_count, base, &mut all);
        add(key_value, base, &mut all);
        add(multi_turn, base, &mut all);
        add(long_bench, base, &mut all);
        add(long_bench_v2, base, &mut all);
        add(zero_scrolls, base, &mut all);
        add(infinite_bench, base, &mut all);
        add(gsm8k, base, &mut all);
        add(coqa, base, &mut all);
        add(truthful_qa, base, &mut all);
        add(questions, base, &mut all);
        for mut task in perplexity.iter().cloned() {
            task.resolve(base);
            all.push(Planned { label: task.label(), work: Work::Text(task) });
        }
        for mut task in fidelity.iter().cloned() {
            task.resolve(base);
            all.push(Planned { label: task.label(), work: Work::Fidelity(task) });
        }
        all
    }
}

fn add(family: &[impl TaskSpec + 'static], base: &Path, all: &mut Vec<Planned>) {
    for task in family {
        let mut task = task.clone();
        task.resolve(base);
        all.push(Planned::ask(task.label(), task.clone(), task.ask()));
    }
}
