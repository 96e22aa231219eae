//! Names and checks that tasks from files share.

use std::path::Path;

use crate::{
    Error, Result, files,
    metrics::{Metric, Metrics},
};

/// The name of the data set that a file holds: its own if `known`, else that of its folder if that
/// is known.
pub(super) fn named_by(file: &Path, known: impl Fn(&str) -> bool) -> String {
    let folder = files::name(file.parent().and_then(Path::file_name).unwrap_or_default());
    let own = files::stem(file);
    if !known(&own) && known(&folder) { folder } else { own }
}

/// The metrics of a benchmark, each of which must be one of its own.
pub(super) fn checked(
    task: &'static str,
    metrics: Option<&Metrics>,
    default: Metric,
    own: &[Metric],
) -> Result<Metrics> {
    let metrics = metrics.cloned().unwrap_or_else(|| default.into());
    let Some(metric) = metrics.iter().find(|metric| !own.contains(metric)) else {
        return Ok(metrics);
    };
    let known: Vec<&str> = own.iter().map(|metric| metric.name()).collect();
    let reason = format!("`{}` does not score it; {} do", metric.name(), known.join(", "));
    Err(Error::TaskParameter { task, parameter: "metric", reason })
}
