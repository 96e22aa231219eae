//! Run files.
#![no_main]

use std::path::Path;

use briquette_eval::run::RunFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = RunFile::parse(text, Path::new("run.toml"), Path::new("runs"));
});
