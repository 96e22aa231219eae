//! Published prompts and metrics of benchmarks, read from `assets/benchmarks.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::{Error, Result, metrics::Metric};

static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    // The text is part of the program, and a test reads it.
    toml::from_str(include_str!("../../../assets/benchmarks.toml")).expect("benchmarks.toml")
});

pub(super) fn published() -> &'static Published {
    &PUBLISHED
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Published {
    #[serde(rename = "longbench")]
    pub(super) long_bench: BTreeMap<String, Protocol>,
    #[serde(rename = "longbench-v2")]
    pub(super) long_bench_v2: Protocol,
    pub(super) zero_scrolls: BTreeMap<String, Protocol>,
    pub(super) infinite_bench: BTreeMap<String, Protocol>,
    pub(super) gsm8k: Protocol,
    pub(super) coqa: Protocol,
    pub(super) truthful_qa: Protocol,
}

/// Prompt and metric of a data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Protocol {
    /// The prompt up to the end of the context. Empty where the file holds whole prompts.
    #[serde(default)]
    pub(super) context: String,
    /// The rest of the prompt.
    #[serde(default)]
    pub(super) question: String,
    /// Tokens of an answer at most.
    pub(super) max_new_tokens: usize,
    pub(super) metric: Metric,
    /// Whether the answer is one of the classes that each sample lists.
    #[serde(default)]
    pub(super) classes: bool,
    /// Texts at which an answer ends.
    #[serde(default)]
    pub(super) stop: Vec<String>,
}

/// The protocol of a data set.
pub(super) fn protocol(
    benchmark: &'static str,
    datasets: &'static BTreeMap<String, Protocol>,
    name: &str,
) -> Result<&'static Protocol> {
    datasets.get(name).ok_or_else(|| Error::UnknownDataset {
        benchmark,
        name: name.to_owned(),
        known: datasets.keys().map(String::as_str).collect(),
    })
}

/// The template with `{name}` replaced by its value. What stands in a value is left as it is.
pub(in crate::tasks) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        text += before;
        let found = values.iter().find_map(|(name, value)| {
            let after = from[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((value, after))
        });
        match found {
            Some((value, after)) => {
                text += value;
                rest = after;
            }
            None => {
                text.push('{');
                rest = &from[1..];
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::seed;

    /// The names in braces of a template.
    fn names(template: &str) -> Vec<&str> {
        template.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect()
    }

    #[test]
    fn every_data_set_is_there_with_its_fields() {
        let Published { long_bench, long_bench_v2, zero_scrolls, infinite_bench, .. } = published();
        assert_eq!((long_bench.len(), zero_scrolls.len(), infinite_bench.len()), (21, 10, 12));
        for (name, protocol) in long_bench {
            assert_eq!(names(&protocol.context), ["context"], "{name}");
            assert!(protocol.context.ends_with("{context}"), "{name}");
            assert!(names(&protocol.question).iter().all(|name| *name == "input"), "{name}");
        }
        assert_eq!(names(&long_bench_v2.context), ["context"]);
        assert_eq!(names(&long_bench_v2.question), ["question", "a", "b", "c", "d"]);
        for (name, protocol) in infinite_bench {
            let known = ["context", "input", "a", "b", "c", "d", "func", "func_call", "prefix"];
            let used = [names(&protocol.context), names(&protocol.question)].concat();
            assert!(protocol.context.ends_with("{context}"), "{name}");
            assert!(used.iter().all(|name| known.contains(name)), "{name}: {used:?}");
        }
        let classes: Vec<&String> =
            long_bench.iter().filter(|(_, one)| one.classes).map(|(name, _)| name).collect();
        assert_eq!(classes, ["lsht", "trec"]);
    }

    /// Data set, tokens of an answer, and the FNV-1a hash of the prompt that the published template
    /// makes of the values below.
    const LONG_BENCH: [(&str, usize, u64); 21] = [
        ("2wikimqa", 32, 0x6c5f0f31cac0bf42),
        ("dureader", 128, 0xefa43cc1c72169d1),
        ("gov_report", 512, 0xc13ca5a731c5f063),
        ("hotpotqa", 32, 0x6c5f0f31cac0bf42),
        ("lcc", 64, 0x0cb7e9b658bdd904),
        ("lsht", 64, 0x5251105d1a683449),
        ("multi_news", 512, 0x3915c88285593fe0),
        ("multifieldqa_en", 64, 0x94f1351c8e311465),
        ("multifieldqa_zh", 64, 0x7185530c2abbf94d),
        ("musique", 32, 0x6c5f0f31cac0bf42),
        ("narrativeqa", 128, 0xbcfbb25aaf21ef22),
        ("passage_count", 32, 0xaa71884b2682a7ed),
        ("passage_retrieval_en", 32, 0xb4b891df0e3274d6),
        ("passage_retrieval_zh", 32, 0x4157d0d56be06774),
        ("qasper", 128, 0x3774264d3176c182),
        ("qmsum", 512, 0x71d082216feafa11),
        ("repobench-p", 64, 0x1efa21180ae0ceb6),
        ("samsum", 128, 0x8ddecd1c4aa085be),
        ("trec", 64, 0x8115e1ccefd2dac4),
        ("triviaqa", 32, 0x9b2d3e3e8e8084a9),
        ("vcsum", 512, 0xca1030b9e6a84d5f),
    ];

    const INFINITE_BENCH: [(&str, usize, u64); 12] = [
        ("code_debug", 5, 0x05bce42e0e4211bd),
        ("code_run", 5, 0xc756ecfa389625e8),
        ("kv_retrieval", 50, 0x98205e18e815f439),
        ("longbook_choice_eng", 40, 0xebfd6b81e1660cfc),
        ("longbook_qa_chn", 40, 0x6f6c3ea088ff33c5),
        ("longbook_qa_eng", 40, 0x7401408a04256ae5),
        ("longbook_sum_eng", 1200, 0x35a6058a60f7b2cc),
        ("longdialogue_qa_eng", 40, 0x0c09e9547ba98297),
        ("math_calc", 30000, 0x4001102e498d80e9),
        ("math_find", 3, 0x7e4e0e861bfcc600),
        ("number_string", 12, 0x6d71b13f041fabe3),
        ("passkey", 6, 0x1474afa9208e3d99),
    ];

    fn prompt(protocol: &Protocol) -> String {
        let values = [
            ("context", "CONTEXT"),
            ("input", "INPUT"),
            ("question", "QUESTION"),
            ("a", "first"),
            ("b", "second"),
            ("c", "third"),
            ("d", "fourth"),
            ("func", "func"),
            ("func_call", "func(1)"),
            ("prefix", "PREFIX"),
        ];
        fill(&protocol.context, &values) + &fill(&protocol.question, &values)
    }

    #[test]
    fn prompts_and_lengths_are_the_published_ones() {
        let check = |datasets: &BTreeMap<String, Protocol>, expected: &[(&str, usize, u64)]| {
            for (name, tokens, hash) in expected {
                let protocol = &datasets[*name];
                assert_eq!(protocol.max_new_tokens, *tokens, "{name}");
                assert_eq!(seed::hash(prompt(protocol).bytes()), *hash, "{name}");
            }
        };
        check(&published().long_bench, &LONG_BENCH);
        check(&published().infinite_bench, &INFINITE_BENCH);
        let v2 = prompt(&published().long_bench_v2);
        assert_eq!(seed::hash(v2.bytes()), 0xbddb1840b83a5ae0);
    }

    #[test]
    fn values_are_not_templates() {
        let values = [("a", "{b}"), ("b", "two")];
        assert_eq!(fill("{a} {b} {c} {a", &values), "{b} two {c} {a");
        assert_eq!(fill("", &values), "");
    }

    #[test]
    fn an_unknown_data_set_is_told_what_exists() {
        let error = protocol("LongBench", &published().long_bench, "narrative").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("`narrative`") && error.contains("narrativeqa, "), "{error}");
    }
}
