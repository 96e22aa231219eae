/// Windows of a text.
#[derive(Debug, clap::Args)]
pub(crate) struct WindowArgs {
    /// Tokens per prompt, which is compressed
    #[arg(long, alias = "prompt", value_name = "N", default_value_t = 1024)]
    pub(crate) length: usize,
    /// Prompts, from different places of the text
    #[arg(long, alias = "windows", value_name = "N", default_value_t = 4)]
    pub(crate) samples: usize,
    /// Tokens between the starts of prompts [default: so that they span the text]
    #[arg(long, value_name = "N")]
    pub(crate) stride: Option<usize>,
}
