/// Depths of needles.
#[derive(Debug, clap::Args)]
pub(crate) struct DepthArgs {
    /// Depths of the needle, in percent of the text
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "0,25,50,75,100")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=100))]
    pub(crate) depths: Vec<u32>,
}
