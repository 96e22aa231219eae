//! The command as tests call it.

#![allow(dead_code, reason = "no test calls all of it")]

use std::{
    cell::RefCell,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The embedded model.
pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m");

/// What a model cannot do without.
pub(crate) const WEIGHTS: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];
/// All of it.
pub(crate) const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "profile.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

thread_local! {
    /// The last command of the test, for messages of failures.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(crate) fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_briquette"));
    command.args(args).stdin(Stdio::null()).env_remove("COLUMNS");
    LAST.set(format!("{command:?}"));
    command
}

/// A command at work, which nobody reads but on stderr.
pub(crate) fn spawn<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Child {
    command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn briquette<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Output {
    command(args).output().unwrap()
}

/// Stdout of a command that succeeds.
#[track_caller]
pub(crate) fn stdout<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> String {
    outputs(args).0
}

/// Stdout and stderr of a command that succeeds.
#[track_caller]
pub(crate) fn outputs<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> (String, String) {
    done(&mut command(args))
}

/// Stdout and stderr of a command, which must succeed.
#[track_caller]
pub(crate) fn done(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// The JSON that a command writes to stdout.
#[track_caller]
pub(crate) fn json<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Value {
    serde_json::from_str(&done(command(args).args(["--json", "-"])).0).unwrap()
}

/// Stderr of a command that fails.
#[track_caller]
pub(crate) fn refused<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> String {
    refused_with(1, args)
}

/// Stderr of a command that ends with this code.
#[track_caller]
pub(crate) fn refused_with<A: AsRef<OsStr>>(
    code: i32,
    args: impl IntoIterator<Item = A>,
) -> String {
    let mut command = command(args);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Checks that a text says all of this. A failure names the last command, and shows the whole text.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    let last = LAST.with_borrow(String::clone);
    for part in parts {
        assert!(text.contains(part), "after {last}: `{part}` is not in\n{text}");
    }
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

/// A folder, gone when it is dropped, and paths in it.
pub(crate) fn folder<const N: usize>(names: [&str; N]) -> (TempDir, [PathBuf; N]) {
    let dir = tempfile::tempdir().unwrap();
    let paths = names.map(|name| dir.path().join(name));
    (dir, paths)
}

/// Writes a file, and returns where it is.
pub(crate) fn file(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Writes a run file of the embedded model, with these keys of the whole file before it.
pub(crate) fn run_file(dir: &Path, name: &str, keys: &str, rest: &str) -> PathBuf {
    run_file_of(Path::new(MODEL), dir, name, keys, rest)
}

/// Likewise of another model.
pub(crate) fn run_file_of(model: &Path, dir: &Path, name: &str, keys: &str, rest: &str) -> PathBuf {
    let models = format!("[[models]]\ndir = {:?}\n", text(model));
    file(dir, name, format!("name = \"n\"\n{keys}{models}{rest}"))
}

/// Copies files of the embedded model into a folder, which is made.
pub(crate) fn copy_model(to: &Path, files: &[&str]) {
    fs::create_dir_all(to).unwrap();
    for file in files {
        fs::copy(Path::new(MODEL).join(file), to.join(file)).unwrap();
    }
}

/// Sends a signal to a command at work.
#[cfg(unix)]
pub(crate) fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success(), "{signal} was not sent");
}

/// The lines of results behind the first, by what they hold and not by how they came: without
/// seconds, and in one order.
pub(crate) fn records(path: &Path) -> Vec<Value> {
    records_without(path, |key| key.ends_with("seconds"))
}

/// Likewise without what has such a key.
pub(crate) fn records_without(path: &Path, is_left_out: impl Fn(&str) -> bool) -> Vec<Value> {
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().retain(|key, _| !is_left_out(key));
        value
    };
    let mut lines: Vec<Value> = read(path).lines().skip(1).map(line).collect();
    lines.sort_by_key(Value::to_string);
    lines
}
