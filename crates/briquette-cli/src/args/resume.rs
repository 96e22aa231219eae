use briquette_eval::journal::Accept;

/// How results that are there are continued.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Set damaged lines of the results aside, into a file NAME.damaged beside them, and measure
    /// what they were of again
    #[arg(long)]
    repair: bool,
}

impl ResumeArgs {
    pub(crate) fn accept(&self, other_weights: bool) -> Accept {
        Accept { other_weights, damaged: self.repair }
    }
}
