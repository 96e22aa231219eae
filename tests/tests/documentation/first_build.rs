//! The first build that the README names, `cargo run --bin briquette`, compiles no backend of a
//! GPU.

use std::{env, process::Command};

use crate::root;

#[test]
fn a_plain_build_has_flex_alone() {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"];
    let output = Command::new(cargo).args(tree).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let crates: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"briquette-cli") && crates.contains(&"burn-flex"), "{lines}");
    // Without a backend of a GPU Burn 0.22.1 does not compile beside the last two.
    for gpu in ["burn-wgpu", "burn-cuda", "burn-cubecl", "cubecl"] {
        assert!(!crates.contains(&gpu), "{gpu} is compiled");
    }
}
