//! The rows of the table, one file per group, in families of operations. `benches/torch/kernels.py`
//! computes the same rows, under the same names.

mod attention;
mod ceilings;
mod cluster;
mod merge;
pub mod model;
mod select;
mod step;

use crate::bench::Bench;

type Group = fn(&mut Bench) -> anyhow::Result<()>;

/// Times every row that is wanted.
pub fn run(bench: &mut Bench) {
    let groups: [(&str, Group); 14] = [
        ("ceilings", ceilings::run),
        ("select", select::top_k::run),
        ("group", cluster::sort::run),
        ("compact", select::compact::run),
        ("rotate", attention::rotary::run),
        ("scores", attention::scores::run),
        ("attention", attention::dense_ragged::run),
        ("compressed", attention::compressed::run),
        ("merge", merge::run),
        ("tokens", cluster::tokens::run),
        ("lists", select::ragged::run),
        ("step", step::run),
        ("linear", model::linear::run),
        ("quantized-linear", model::quantized_linear::run),
    ];
    for (name, group) in groups {
        // Inputs are made outside of what is guarded row by row.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| group(bench)));
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("{name}: {error:#}"),
            Err(_) => eprintln!("{name}: panicked, see above"),
        }
        bench.device.memory_cleanup();
    }
}
