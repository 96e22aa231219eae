//! The rows of the table, a file a group. `benches/torch/kernels.py` computes the same rows, under the same names.

mod attention;
mod ceilings;
mod compact;
mod compressed;
mod group;
mod linear;
mod lists;
mod merge;
mod rotate;
mod scores;
mod select;
mod step;
mod tokens;

use crate::bench::Bench;

type Group = fn(&mut Bench) -> anyhow::Result<()>;

/// Times every row that is wanted.
pub fn run(bench: &mut Bench) {
    let groups: [(&str, Group); 13] = [
        ("ceilings", ceilings::run),
        ("select", select::run),
        ("group", group::run),
        ("compact", compact::run),
        ("rotate", rotate::run),
        ("scores", scores::run),
        ("attention", attention::run),
        ("compressed", compressed::run),
        ("merge", merge::run),
        ("tokens", tokens::run),
        ("lists", lists::run),
        ("step", step::run),
        ("linear", linear::run),
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
