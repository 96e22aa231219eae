//! The memory of a test.

use std::{env, fs, process::Command};

/// Whether this process runs the one test of this name. If not, it runs it in a process of its own,
/// whose memory nobody else adds to.
pub(crate) fn alone(test: &str) -> bool {
    const CHILD: &str = "BRIQUETTE_TEST_ALONE";
    if env::var_os(CHILD).is_some() {
        return true;
    }
    let ran = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    false
}

/// The most memory that this process has held, in MiB, where the system says it.
pub(crate) fn most() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib >> 10)
}
