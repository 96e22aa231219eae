use std::path::PathBuf;

use briquette_eval::policy;

use crate::args::{model::ModelArgs, profile::ProfileArgs};

/// Files and folders that a command reads: of the model, its profile and its policies, and
/// `others`.
pub(crate) fn of<'a>(
    model: &ModelArgs,
    profile: &ProfileArgs,
    policies: impl IntoIterator<Item = &'a String>,
    others: Vec<PathBuf>,
) -> Vec<PathBuf> {
    [model.inputs(), profile.inputs(), policy::inputs(policies), others].concat()
}
