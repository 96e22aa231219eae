use anyhow::Result;
use briquette_models::{ModelFamily, families};
use briquette_report::table::{Column, Rank, Sheet};
use serde::Serialize;

use crate::terminal::output::{Shown, TableArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    tables: TableArgs,
}

#[derive(Serialize)]
struct Listed {
    families: Vec<ModelFamily>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.tables.output.gate([])?;
    let families = families();
    let mut sheet = Sheet::new([
        Column::left("model_type"),
        Column::left("models"),
        Column::left("GGUF"),
        Column::left("its own").ranked(Rank::Extra),
    ]);
    for &ModelFamily { model_type, models, gguf, own, .. } in &families {
        sheet.row([model_type, models, if gguf { "yes" } else { "" }, own]);
    }
    let behind = "All are read from safetensors and PyTorch files of a Hugging Face folder\n";
    let shown = Shown { tables: vec![sheet], behind: behind.into(), ..Shown::default() };
    args.tables.write(&shown, &Listed { families })
}
