//! The memory of a test.

#![allow(dead_code)] // each test file uses its part

use std::{cell::Cell, env, ffi::OsStr, fs, process::Command};

use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// Draws so many inputs for the one test of this name, in a process of its own that must not hold
/// `most` MiB. `run` says whether an input was taken or refused: there must be some of both.
pub(crate) fn bounded<S: Strategy>(
    test: &str,
    (cases, most): (u32, usize),
    inputs: S,
    run: impl Fn(S::Value) -> bool,
) {
    if !alone(test) {
        return;
    }
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let [taken, refused] = [(); 2].map(|()| Cell::new(0_u32));
    let ran = TestRunner::new_with_rng(config, rng).run(&inputs, |input| {
        let count = if run(input) { &taken } else { &refused };
        count.set(count.get() + 1);
        if let Some(found) = most_held().map(|kib| kib >> 10) {
            prop_assert!(found < most, "{found} MiB");
        }
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    let (taken, refused) = (taken.get(), refused.get());
    assert!(taken > 20 && refused > 20, "{taken} taken, {refused} refused");
}

/// Whether this process runs the one test of this name. If not, it runs it in a process of its own,
/// whose memory nobody else adds to.
fn alone(test: &str) -> bool {
    const CHILD: &str = "BRIQUETTE_TEST_ALONE";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    print!("{}", run_alone(test, CHILD, "1".as_ref()));
    false
}

/// Runs the one test of this name in a process of its own, which sees this variable, and returns
/// what it said. There glibc's allocator has one arena: each thread's would keep what was freed
/// there, more or less of it as threads fall.
pub(crate) fn run_alone(test: &str, variable: &str, value: &OsStr) -> String {
    let ran = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, value)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    said.into_owned()
}

/// The most memory that this process has held, in KiB, where the system says it.
pub(crate) fn most_held() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
