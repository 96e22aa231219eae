use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::{
    coqa, f1, gsm8k, infinite_bench, longbench, longbench_v2, plain,
    rouge::google::{self, Kind},
    truthful_qa::{self, Likeness},
    zero_scrolls,
};
use crate::Error;

/// How an answer is scored.
///
/// Its name in files is the variant's in kebab case, as `qa-f1`. Metrics that read answers in a
/// form that belongs to one benchmark begin with the name of that benchmark.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[strum(parse_err_ty = Error, parse_err_fn = unknown)]
#[non_exhaustive]
pub enum Metric {
    /// 1 if the answer, without white space around it, is one of the references.
    ExactMatch,
    /// The share of references that occur in the answer, whatever their case (RULER,
    /// `string_match_all`).
    Contains,
    /// 1 if any reference occurs in the answer, whatever its case (RULER, `string_match_part`).
    ContainsAny,
    /// 1 − Levenshtein distance / length of the longer text, in characters; the best over
    /// references.
    EditSimilarity,
    /// F1 of the words shared with a reference, without case, punctuation and articles; the best
    /// over references (LongBench, `qa_f1_score`; InfiniteBench, En.QA).
    QaF1,
    /// ROUGE-1 F1 as Google's `rouge_score` counts it, without stemming; the best over references.
    Rouge1,
    /// ROUGE-2 F1 as Google's `rouge_score` counts it, without stemming; the best over references.
    Rouge2,
    /// ROUGE-L F1 as Google's `rouge_score` counts it, without stemming, the text taken as one
    /// sentence; the best over references.
    RougeL,
    /// ROUGE-Lsum F1 as Google's `rouge_score` counts it, without stemming, a line taken as a
    /// sentence; the best over references (InfiniteBench, En.Sum).
    RougeLSum,

    /// [`QaF1`](Self::QaF1) of the answer's first line (LongBench, TriviaQA).
    LongbenchFirstLineF1,
    /// F1 of the words shared with a reference, the text cut into words by jieba (LongBench,
    /// `qa_f1_zh_score`).
    LongbenchF1Zh,
    /// ROUGE-L F1 as the Python package `rouge` counts it: the union of longest common subsequences
    /// over the distinct words of sentences (LongBench, `rouge_score`).
    LongbenchRouge,
    /// [`LongbenchRouge`](Self::LongbenchRouge) of the answer's first line (LongBench, SAMSum).
    LongbenchFirstLineRouge,
    /// [`LongbenchRouge`](Self::LongbenchRouge) on words cut by jieba (LongBench,
    /// `rouge_zh_score`).
    LongbenchRougeZh,
    /// 1 / the number of classes named in the answer's first line if the right one is among them,
    /// else 0 (LongBench, `classification_score` for TREC and LSHT).
    LongbenchClassification,
    /// The share of numbers in the answer that are the one of the reference's `Paragraph N`
    /// (LongBench, `retrieval_score`).
    LongbenchRetrieval,
    /// The share of numbers in the answer that are the one of the reference's `段落N` (LongBench,
    /// `retrieval_zh_score`).
    LongbenchRetrievalZh,
    /// The share of numbers in the answer that are the reference (LongBench, `count_score`).
    LongbenchCount,
    /// Similarity of the answer's first line of code to the reference, in whole percent:
    /// fuzzywuzzy's ratio with python-Levenshtein installed, 1 − insertions and deletions / both
    /// lengths (LongBench, `code_sim_score`).
    LongbenchCodeSimilarity,
    /// [`LongbenchCodeSimilarity`](Self::LongbenchCodeSimilarity) with fuzzywuzzy's ratio as it is
    /// without python-Levenshtein, which LongBench's list of requirements does not name: the ratio
    /// of Python's `difflib`.
    LongbenchCodeSimilarityDifflib,

    /// 1 if the letter after "The correct answer is" is the reference (LongBench v2,
    /// `extract_answer`).
    LongbenchV2Choice,

    /// The geometric mean of ROUGE-1, ROUGE-2 and ROUGE-L F1, each the best over references
    /// (ZeroSCROLLS, of one answer).
    ZeroScrollsRouge,
    /// [`QaF1`](Self::QaF1) with letters brought to ASCII (ZeroSCROLLS, `f1`).
    ZeroScrollsF1,
    /// 1 if the first letter A to D that stands alone is that of the reference (ZeroSCROLLS,
    /// `accuracy`).
    ZeroScrollsAccuracy,
    /// ½ to the distance between the first percentages of answer and reference, in tens
    /// (ZeroSCROLLS, `exp_similarity`).
    ZeroScrollsSimilarity,
    /// The share of pairs in the order of the reference, 0 if the answer does not list the same
    /// numbers (ZeroSCROLLS, `concordance_index`).
    ZeroScrollsConcordance,

    /// 1 if the first number in the answer is the first reference, digit by digit (InfiniteBench,
    /// Retrieve.PassKey and Retrieve.Number).
    InfiniteBenchFirstNumber,
    /// 1 if the first reference is a word of the answer (InfiniteBench, Retrieve.KV).
    InfiniteBenchKvRetrieval,
    /// 1 if the first reference is a word of the answer in capitals (InfiniteBench, En.Dia).
    InfiniteBenchDialogue,
    /// 1 if the answer names an option; the references are its text and its letter (InfiniteBench,
    /// En.MC).
    InfiniteBenchChoice,
    /// F1 of the characters shared with a reference; the best over references (InfiniteBench,
    /// Zh.QA).
    InfiniteBenchF1Zh,
    /// 1 if the last word of the answer is the first reference, a whole number (InfiniteBench,
    /// Code.Run).
    InfiniteBenchCodeRun,
    /// 1 if the answer names the faulty function; the references are its name and the letter of its
    /// option (InfiniteBench, Code.Debug).
    InfiniteBenchCodeDebug,
    /// 1 if the first number of the answer equals the first reference (InfiniteBench, Math.Find).
    InfiniteBenchMathFind,
    /// The share of references that the numbers of the answer give before the first that is wrong;
    /// the references are the numbers in order (InfiniteBench, Math.Calc).
    InfiniteBenchMathCalc,

    /// 1 if the number after `####` is that of the reference (GSM8K, `is_correct`).
    Gsm8k,
    /// 1 if the number after `####` is that of the reference, whatever the point behind it
    /// (lm-evaluation-harness, `strict-match`).
    Gsm8kStrict,
    /// 1 if the last number of the answer is that of the reference (lm-evaluation-harness,
    /// `flexible-extract`).
    Gsm8kFlexible,

    /// F1 of the words shared with the best of the references, the mean over leaving out each
    /// reference (CoQA).
    CoqaF1,
    /// 1 if the answer is one of the references but for case, punctuation and articles, the mean
    /// over leaving out each reference (CoQA).
    CoqaExactMatch,

    /// The best sentence BLEU over the true references (TruthfulQA).
    TruthfulqaBleuMax,
    /// The best sentence BLEU over the true references less that over the false ones, in −1..=1
    /// (TruthfulQA).
    TruthfulqaBleuDiff,
    /// 1 if the best sentence BLEU over the true references is above that over the false ones
    /// (TruthfulQA).
    TruthfulqaBleuAcc,
    /// The best ROUGE-1 over the true references (TruthfulQA).
    TruthfulqaRouge1Max,
    /// The best ROUGE-1 over the true references less that over the false ones, in −1..=1
    /// (TruthfulQA).
    TruthfulqaRouge1Diff,
    /// 1 if the best ROUGE-1 over the true references is above that over the false ones
    /// (TruthfulQA).
    TruthfulqaRouge1Acc,
    /// The best ROUGE-2 over the true references (TruthfulQA).
    TruthfulqaRouge2Max,
    /// The best ROUGE-2 over the true references less that over the false ones, in −1..=1
    /// (TruthfulQA).
    TruthfulqaRouge2Diff,
    /// 1 if the best ROUGE-2 over the true references is above that over the false ones
    /// (TruthfulQA).
    TruthfulqaRouge2Acc,
    /// The best ROUGE-L over the true references (TruthfulQA).
    TruthfulqaRougeLMax,
    /// The best ROUGE-L over the true references less that over the false ones, in −1..=1
    /// (TruthfulQA).
    TruthfulqaRougeLDiff,
    /// 1 if the best ROUGE-L over the true references is above that over the false ones
    /// (TruthfulQA).
    TruthfulqaRougeLAcc,
}

impl Metric {
    /// All metrics.
    pub fn all() -> &'static [Self] {
        Self::VARIANTS
    }

    /// The score of an answer, within [`range`](Self::range). 0 without a reference.
    ///
    /// `classes` are the labels to choose from, for
    /// [`LongbenchClassification`](Self::LongbenchClassification), and the false answers, for the
    /// metrics of TruthfulQA. Other metrics leave them aside.
    pub fn score(self, answer: &str, references: &[String], classes: &[String]) -> f64 {
        let max = |likeness| truthful_qa::max(likeness, answer, references);
        let diff = |likeness| truthful_qa::diff(likeness, answer, references, classes);
        let acc = |likeness| truthful_qa::acc(likeness, answer, references, classes);
        match self {
            Self::ExactMatch => plain::exact_match(answer, references),
            Self::Contains => plain::contains(answer, references),
            Self::ContainsAny => plain::contains_any(answer, references),
            Self::EditSimilarity => plain::edit_similarity(answer, references),
            Self::QaF1 => f1::qa_f1(answer, references),
            Self::Rouge1 => google::rouge(Kind::N(1), answer, references),
            Self::Rouge2 => google::rouge(Kind::N(2), answer, references),
            Self::RougeL => google::rouge(Kind::L, answer, references),
            Self::RougeLSum => google::rouge(Kind::LSum, answer, references),
            Self::LongbenchFirstLineF1 => longbench::first_line_f1(answer, references),
            Self::LongbenchF1Zh => longbench::f1_zh(answer, references),
            Self::LongbenchRouge => longbench::rouge(answer, references),
            Self::LongbenchFirstLineRouge => longbench::first_line_rouge(answer, references),
            Self::LongbenchRougeZh => longbench::rouge_zh(answer, references),
            Self::LongbenchClassification => longbench::classification(answer, references, classes),
            Self::LongbenchRetrieval => longbench::retrieval(answer, references),
            Self::LongbenchRetrievalZh => longbench::retrieval_zh(answer, references),
            Self::LongbenchCount => longbench::count(answer, references),
            Self::LongbenchCodeSimilarity => longbench::code_similarity(answer, references),
            Self::LongbenchCodeSimilarityDifflib => {
                longbench::code_similarity_difflib(answer, references)
            }
            Self::LongbenchV2Choice => longbench_v2::choice(answer, references),
            Self::ZeroScrollsRouge => zero_scrolls::rouge(answer, references),
            Self::ZeroScrollsF1 => zero_scrolls::f1(answer, references),
            Self::ZeroScrollsAccuracy => zero_scrolls::accuracy(answer, references),
            Self::ZeroScrollsSimilarity => zero_scrolls::similarity(answer, references),
            Self::ZeroScrollsConcordance => zero_scrolls::concordance(answer, references),
            Self::InfiniteBenchFirstNumber => infinite_bench::first_number(answer, references),
            Self::InfiniteBenchKvRetrieval => infinite_bench::kv_retrieval(answer, references),
            Self::InfiniteBenchDialogue => infinite_bench::dialogue(answer, references),
            Self::InfiniteBenchChoice => infinite_bench::choice(answer, references),
            Self::InfiniteBenchF1Zh => infinite_bench::f1_zh(answer, references),
            Self::InfiniteBenchCodeRun => infinite_bench::code_run(answer, references),
            Self::InfiniteBenchCodeDebug => infinite_bench::code_debug(answer, references),
            Self::InfiniteBenchMathFind => infinite_bench::math_find(answer, references),
            Self::InfiniteBenchMathCalc => infinite_bench::math_calc(answer, references),
            Self::Gsm8k => gsm8k::official(answer, references),
            Self::Gsm8kStrict => gsm8k::strict(answer, references),
            Self::Gsm8kFlexible => gsm8k::flexible(answer, references),
            Self::CoqaF1 => coqa::f1(answer, references),
            Self::CoqaExactMatch => coqa::exact_match(answer, references),
            Self::TruthfulqaBleuMax => max(Likeness::Bleu),
            Self::TruthfulqaRouge1Max => max(Likeness::Rouge1),
            Self::TruthfulqaRouge2Max => max(Likeness::Rouge2),
            Self::TruthfulqaRougeLMax => max(Likeness::RougeL),
            Self::TruthfulqaBleuDiff => diff(Likeness::Bleu),
            Self::TruthfulqaRouge1Diff => diff(Likeness::Rouge1),
            Self::TruthfulqaRouge2Diff => diff(Likeness::Rouge2),
            Self::TruthfulqaRougeLDiff => diff(Likeness::RougeL),
            Self::TruthfulqaBleuAcc => acc(Likeness::Bleu),
            Self::TruthfulqaRouge1Acc => acc(Likeness::Rouge1),
            Self::TruthfulqaRouge2Acc => acc(Likeness::Rouge2),
            Self::TruthfulqaRougeLAcc => acc(Likeness::RougeL),
        }
    }

    /// The lowest and the highest score: 0 and 1, for differences −1 and 1.
    pub fn range(self) -> RangeInclusive<f64> {
        match self {
            Self::TruthfulqaBleuDiff
            | Self::TruthfulqaRouge1Diff
            | Self::TruthfulqaRouge2Diff
            | Self::TruthfulqaRougeLDiff => -1.0..=1.0,
            _ => 0.0..=1.0,
        }
    }

    /// Whether it reads classes: the labels to choose from, or the false answers. Without any its
    /// scores mean nothing.
    pub fn reads_classes(self) -> bool {
        matches!(
            self,
            Self::LongbenchClassification
                | Self::TruthfulqaBleuDiff
                | Self::TruthfulqaRouge1Diff
                | Self::TruthfulqaRouge2Diff
                | Self::TruthfulqaRougeLDiff
                | Self::TruthfulqaBleuAcc
                | Self::TruthfulqaRouge1Acc
                | Self::TruthfulqaRouge2Acc
                | Self::TruthfulqaRougeLAcc
        )
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown(name: &str) -> Error {
    let known = Metric::all().iter().map(|metric| metric.name()).collect();
    Error::UnknownMetric { name: name.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, str::FromStr};

    use super::*;

    #[test]
    fn names_are_distinct_and_the_same_everywhere() {
        for &metric in Metric::all() {
            let json = format!("\"{}\"", metric.name());
            assert_eq!(serde_json::to_string(&metric).unwrap(), json);
            assert_eq!(serde_json::from_str::<Metric>(&json).unwrap(), metric);
            assert_eq!(Metric::from_str(metric.name()).unwrap(), metric);
        }
        let names: HashSet<_> = Metric::all().iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), Metric::all().len());
        for name in
            ["exact-match", "qa-f1", "rouge1", "rouge-l-sum", "longbench-v2-choice", "gsm8k-strict"]
        {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_told_what_exists() {
        let error = Metric::from_str("blue").unwrap_err().to_string();
        assert!(error.contains("`blue`") && error.contains("exact-match, contains, "), "{error}");
        let error = serde_json::from_str::<Metric>("\"blue\"").unwrap_err().to_string();
        assert!(error.contains("`blue`") && error.contains("`exact-match`"), "{error}");
    }
}
