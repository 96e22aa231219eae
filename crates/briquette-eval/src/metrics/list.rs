use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, SeqAccess, Visitor, value::StrDeserializer},
};

use super::metric::Metric;
use crate::{Error, Result};

/// The metrics of an answer. All are computed from the same text; the first is *the* score, which
/// stands where there is room for one number.
///
/// In files one is a name, several are a list: `"qa-f1"`, `["qa-f1", "contains-any"]`. The order
/// of those behind the first says nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metrics {
    first: Metric,
    beside: BTreeSet<Metric>,
}

impl Metrics {
    /// These metrics, the first of which is the score.
    ///
    /// # Errors
    /// [`Error::Setting`] for none, and for one that is there twice.
    pub fn new(metrics: &[Metric]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::Setting { name: "metric", reason });
        let Some((first, rest)) = metrics.split_first() else {
            return refuse("the list is empty: name at least one".into());
        };
        let mut all = Self::from(*first);
        for metric in rest {
            if metric == first || !all.beside.insert(*metric) {
                return refuse(format!("`{}` is there twice", metric.name()));
            }
        }
        Ok(all)
    }

    /// A metric and others beside it.
    pub(crate) fn with(first: Metric, beside: impl IntoIterator<Item = Metric>) -> Self {
        let beside = beside.into_iter().filter(|metric| *metric != first).collect();
        Self { first, beside }
    }

    /// The score.
    pub fn first(&self) -> Metric {
        self.first
    }

    /// Those beside it.
    pub fn beside(&self) -> impl Iterator<Item = Metric> {
        self.beside.iter().copied()
    }

    /// One of them that reads classes, where there are none: its scores would mean nothing.
    pub fn without_classes(&self, classes: &[String]) -> Option<Metric> {
        self.iter().find(|metric| metric.reads_classes() && classes.is_empty())
    }

    /// All, the score first.
    pub fn iter(&self) -> impl Iterator<Item = Metric> {
        [self.first].into_iter().chain(self.beside())
    }
}

impl From<Metric> for Metrics {
    fn from(first: Metric) -> Self {
        Self { first, beside: BTreeSet::new() }
    }
}

/// Names, with commas between.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(Metric::name).collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.beside.is_empty() {
            true => self.first.serialize(serializer),
            false => serializer.collect_seq(self.iter()),
        }
    }
}

impl<'de> Deserialize<'de> for Metrics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrSeveral)
    }
}

struct OneOrSeveral;

impl<'de> Visitor<'de> for OneOrSeveral {
    type Value = Metrics;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a metric or a list of metrics")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> std::result::Result<Metrics, E> {
        Metric::deserialize(StrDeserializer::new(name)).map(Metrics::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> std::result::Result<Metrics, A::Error> {
        let mut metrics = Vec::new();
        while let Some(metric) = names.next_element()? {
            metrics.push(metric);
        }
        Metrics::new(&metrics).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_a_name_and_several_are_a_list() {
        let read = |text: &str| serde_json::from_str::<Metrics>(text).map_err(|e| e.to_string());
        let one = read("\"qa-f1\"").unwrap();
        assert_eq!(one, Metric::QaF1.into());
        assert_eq!(read("[\"qa-f1\"]").unwrap(), one);
        let several = read("[\"qa-f1\",\"rouge1\",\"contains-any\"]").unwrap();
        assert_eq!(several.first(), Metric::QaF1);
        let names: Vec<&str> = several.iter().map(Metric::name).collect();
        assert_eq!(names, ["qa-f1", "contains-any", "rouge1"]);
        assert_eq!(several.to_string(), "qa-f1, contains-any, rouge1");
        assert_eq!(read("[\"qa-f1\",\"contains-any\",\"rouge1\"]").unwrap(), several);
        for metrics in [one, several] {
            assert_eq!(read(&serde_json::to_string(&metrics).unwrap()).unwrap(), metrics);
        }
        for (text, reason) in [
            ("[]", "at least one"),
            ("[\"qa-f1\",\"qa-f1\"]", "`qa-f1` is there twice"),
            ("[\"rouge1\",\"qa-f1\",\"qa-f1\"]", "`qa-f1` is there twice"),
            ("[\"qa-f1\",\"blue\"]", "`blue`"),
            ("\"blue\"", "`blue`"),
            ("7", "a metric or a list of metrics"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
