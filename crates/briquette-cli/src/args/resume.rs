use briquette_eval::journal::Accept;

/// How results that are there are continued.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct ResumeArgs {
    /// Move damaged lines of the results to NAME.damaged, and measure those samples again
    #[arg(long)]
    repair: bool,
}

impl ResumeArgs {
    pub(crate) fn accept(&self, other_weights: bool) -> Accept {
        Accept { other_weights, damaged: self.repair }
    }
}
