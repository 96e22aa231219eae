//! The command as tests call it.

#![allow(dead_code, reason = "no test calls all of it")]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// The embedded model.
pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m");

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn briquette(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Stdout of a command that succeeds.
pub(crate) fn stdout(args: &[&str]) -> String {
    let output = briquette(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Stderr of a command that fails.
pub(crate) fn refused(args: &[&str]) -> String {
    let output = briquette(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

/// The results of a run in an order that does not depend on how they came, without the seconds they
/// took.
pub(crate) fn records(path: &Path) -> Vec<String> {
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().retain(|key, _| !key.ends_with("seconds"));
        value.to_string()
    };
    let mut lines: Vec<String> = read(path).lines().skip(1).map(line).collect();
    lines.sort();
    lines
}
