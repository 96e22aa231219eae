use std::panic;

use anyhow::Result;
use briquette::device;
use briquette_report::table::{Column, Sheet};
use burn::tensor::Tensor;
use serde::Serialize;

use crate::terminal::output::{Shown, TableArgs, bytes};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    tables: TableArgs,
}

/// A device of this build.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    /// Bytes of its memory, where it tells.
    memory: Option<u64>,
    /// Why it cannot be used.
    error: Option<String>,
}

#[derive(Serialize)]
struct Devices {
    devices: Vec<Listed>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let devices: Vec<Listed> = device::available().into_iter().map(listed).collect();
    let mut sheet =
        Sheet::new([Column::left("device"), Column::left("state"), Column::right("memory")]);
    for Listed { name, memory, error } in &devices {
        let memory = memory.map(bytes);
        let state = error.as_deref().unwrap_or("ready").to_owned();
        sheet.row([(*name).to_owned(), state, memory.unwrap_or_else(|| "-".into())]);
    }
    let behind = "Backends that are not listed are features of the build, as in --features wgpu\n";
    let shown = Shown { tables: vec![sheet], behind: behind.into(), ..Shown::default() };
    args.tables.write(&shown, &Devices { devices })
}

/// Opens a device and uses it once: some are only then found missing, by a panic.
fn listed(name: &'static str) -> Listed {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let used = panic::catch_unwind(|| {
        let device = device::open(name).map_err(|error| error.to_string())?;
        let ones = Tensor::<1>::ones([2], &device).try_into_vec_as::<f32>();
        ones.map_err(|error| error.to_string())?;
        Ok(device::memory(&device))
    });
    panic::set_hook(hook);
    match used {
        Ok(Ok(memory)) => Listed { name, memory, error: None },
        Ok(Err(error)) => Listed { name, memory: None, error: Some(error) },
        Err(_) => Listed { name, memory: None, error: Some("no such device here".into()) },
    }
}
