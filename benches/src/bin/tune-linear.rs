//! Times every way to multiply many rows on Hopper's tensor cores, and writes the table that the
//! kernels choose from. Only with `next/burn-0.23.patch`.

#[cfg(cubecl_0_12)]
mod tune {
    use std::{fmt::Write, fs, path::PathBuf, time::Duration};

    use anyhow::{Result, ensure};
    use briquette_benches::{
        measure::{Effort, keep, time, time_graph},
        rows::model::linear::check,
    };
    use briquette_kernels::{LINEAR_SETTINGS, linear_by};
    use briquette_ops::LinearInput;
    use burn::tensor::{DType, Device, Distribution, Tensor};
    use clap::Parser;

    /// Rows of `x`.
    const ROWS: [usize; 10] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 32768];
    /// Inputs and outputs: Llama 3 8B's and Llama 3.2 1B's.
    const SHAPES: [[usize; 2]; 10] = [
        [4096, 6144],
        [4096, 4096],
        [4096, 28672],
        [14336, 4096],
        [4096, 128256],
        [2048, 3072],
        [2048, 2048],
        [2048, 16384],
        [8192, 2048],
        [2048, 128256],
    ];
    /// The most numbers of a product that is timed: heads are of few rows.
    const MOST: usize = 1 << 30;
    const EFFORT: Effort = Effort {
        window: Duration::from_millis(5),
        all: Duration::from_millis(40),
        calls: 100,
        windows: 3,
        warm_up: 2,
    };

    /// Times every setting of products, and writes the fastest of each as a table.
    #[derive(Debug, Parser)]
    struct Args {
        /// The device, as `briquette::device::open` names it
        #[arg(long, default_value = "cuda")]
        device: String,
        /// The table, Rust
        #[arg(long)]
        table: PathBuf,
        /// All times, CSV
        #[arg(long)]
        out: PathBuf,
    }

    pub(super) fn main() -> Result<()> {
        let args = Args::parse();
        let device = briquette::device::open(&args.device)?;
        device.seed(2026);
        let mut lines = "rows,inputs,outputs,groups,tile_outputs,stages,ms\n".to_owned();
        let mut table = Vec::new();
        for [inputs, outputs] in SHAPES {
            for rows in ROWS {
                if rows * outputs > MOST {
                    continue;
                }
                let sizes = [rows, inputs, outputs];
                let times = times(&device, sizes)?;
                let mut fastest = (f64::INFINITY, LINEAR_SETTINGS[0]);
                for (setting, time) in LINEAR_SETTINGS.into_iter().zip(times) {
                    let [groups, wide, stages] = setting;
                    match time {
                        Ok(ms) => {
                            fastest = if ms < fastest.0 { (ms, setting) } else { fastest };
                            writeln!(
                                lines,
                                "{rows},{inputs},{outputs},{groups},{wide},{stages},{ms:.5}"
                            )?;
                        }
                        Err(error) => eprintln!("{sizes:?}, setting {setting:?}: {error:#}"),
                    }
                }
                ensure!(fastest.0.is_finite(), "{sizes:?}: no setting works");
                println!("{sizes:?}: setting {:?}, {:.4} ms", fastest.1, fastest.0);
                table.push((sizes, fastest.1));
                fs::write(&args.out, &lines)?;
            }
        }
        fs::write(&args.table, code(&table))?;
        Ok(())
    }

    /// Milliseconds of each setting.
    fn times(device: &Device, [rows, inputs, outputs]: [usize; 3]) -> Result<Vec<Result<f64>>> {
        let random = |shape: [usize; 2]| -> Tensor<2> {
            Tensor::random(shape, Distribution::Normal(0.0, 1.0), (device, DType::BF16))
        };
        let x = random([rows, inputs]);
        // So that none is found in the cache, as the next layer's is not.
        let sets = (200_000_000 / (inputs * outputs * 2)).clamp(1, 16);
        let weights: Vec<_> = (0..sets).map(|_| random([outputs, inputs]).transpose()).collect();
        let one = |setting: usize| -> Result<f64> {
            let call = |set: usize| -> Result<Tensor<2>> {
                let (x, weight) = (x.clone(), weights[set].clone());
                Ok(linear_by(LinearInput { x, weight, bias: None }, setting)?)
            };
            let (off, most) = check(&x, &weights[0], call(0)?)?;
            ensure!(off <= most / 100.0, "off by {off} of {most}");
            let kept = |set: usize| keep(call(set)?);
            let ms = time(device, EFFORT, sets, &kept)?.device;
            if ms > 2.0 { Ok(ms) } else { time_graph(device, EFFORT, sets, ms, &kept) }
        };
        Ok((0..LINEAR_SETTINGS.len()).map(one).collect())
    }

    fn code(table: &[([usize; 3], [usize; 3])]) -> String {
        let rows: String = table.iter().map(|row| format!("    {row:?},\n")).collect();
        format!(
            "//! Written by `tune-linear`.\n\n\
             /// Rows of `x`, inputs and outputs, and the setting that was fastest.\n\
             pub(super) const TABLE: [([usize; 3], [usize; 3]); {}] = [\n{rows}];\n",
            table.len()
        )
    }
}

#[cfg(cubecl_0_12)]
fn main() -> anyhow::Result<()> {
    tune::main()
}

#[cfg(not(cubecl_0_12))]
fn main() -> anyhow::Result<()> {
    anyhow::bail!("there is nothing to choose from on Burn 0.22: apply next/burn-0.23.patch")
}
