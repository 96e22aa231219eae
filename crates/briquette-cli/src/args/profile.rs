use std::path::PathBuf;

use briquette_eval::{Result, profiles::Profiles};

use crate::args::model::Loaded;

/// Which profile.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Compression")]
pub(crate) struct ProfileArgs {
    /// Profile of the model, by `briquette calibrate` [default: profile.json beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
}

impl ProfileArgs {
    /// The file that is read, if one is named.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        self.profile.iter().cloned().collect()
    }

    /// The profile for this model.
    pub(crate) fn of(&self, loaded: &Loaded) -> Result<Profiles> {
        Profiles::of(&loaded.dir, self.profile.as_deref(), loaded.other_weights)
    }
}
