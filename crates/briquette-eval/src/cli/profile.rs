use std::path::{Path, PathBuf};

use super::model::Loaded;
use crate::{Result, profiles::Profiles};

/// Which profile.
#[derive(Debug, clap::Args)]
pub(super) struct ProfileArgs {
    /// Profile of the model by `briquette calibrate`, for policies that read it
    /// [default: profile.json in the folder of the model, if there]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

impl ProfileArgs {
    /// The file that is read, if one is named.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        self.profile.iter().cloned().collect()
    }

    /// The file that is named.
    pub(super) fn file(&self) -> Option<&Path> {
        self.profile.as_deref()
    }

    /// The profile for this model.
    pub(super) fn of(&self, loaded: &Loaded) -> Result<Profiles> {
        Profiles::of(&loaded.dir, self.profile.as_deref(), loaded.other_weights)
    }
}
