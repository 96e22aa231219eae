//! Times Briquette's operations on a device, one line of JSON per row.

use std::path::PathBuf;

use anyhow::{Result, bail};
use briquette_benches::{
    bench::{Bench, Variant},
    measure::Effort,
    model::dtype_of,
    record::Sink,
    rows,
};
use burn::tensor::DType;
use clap::{Parser, ValueEnum};

/// Times Briquette's operations on a device, one line of JSON per row.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long, default_value_t = default_device())]
    device: String,
    /// The type of queries, keys and values: bf16, f16 or f32 [default: bf16 where the device has
    /// it, else f32]
    #[arg(long)]
    dtype: Option<String>,
    /// Parts of names of rows, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Implementations to time, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Variant::value_variants().to_vec())]
    variants: Vec<Variant>,
    /// Append the lines to this file too
    #[arg(long)]
    out: Option<PathBuf>,
    /// Small sizes and few calls: whether it runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Do not capture graphs
    #[arg(long)]
    no_graph: bool,
}

fn default_device() -> String {
    let built = briquette::device::available();
    let first =
        ["cuda", "rocm", "metal", "vulkan", "wgpu"].iter().find(|name| built.contains(name));
    first.copied().unwrap_or("flex").to_owned()
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = briquette::device::open(&args.device)?;
    device.seed(2026);
    let dtype = match args.dtype.as_deref() {
        Some(name) => dtype_of(name)?,
        None if device.supports_dtype(DType::BF16) => DType::BF16,
        None => DType::F32,
    };
    if !device.supports_dtype(dtype) {
        bail!("{} has no arithmetic for {dtype:?}", args.device);
    }
    let identity = device.identity().map(|identity| format!(" ({identity:?})"));
    eprintln!("{}{}", args.device, identity.unwrap_or_default());
    let mut bench = Bench {
        device,
        ops: briquette::ops::best(),
        name: args.device,
        dtype,
        quick: args.quick,
        rows: args.rows,
        variants: args.variants,
        graph: !args.no_graph,
        effort: if args.quick { Effort::QUICK } else { Effort::FULL },
        sink: Sink::new(args.out.as_ref())?,
    };
    rows::run(&mut bench);
    Ok(())
}
