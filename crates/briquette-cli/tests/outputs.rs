//! No command writes over a file that it reads, over one of somebody else, or over another of its
//! own.

mod common;

use std::{fs, path::Path};

use briquette::{Budget, Policy};
use common::{FILES, assert_says, command, copy_model, file, read, run_file_of};

/// Runs a command in the folder `dir`.
fn done(dir: &Path, line: &str) {
    common::done(command(line.split(' ')).current_dir(dir));
}

/// Stderr of a command in the folder `dir` that must fail.
fn failed(dir: &Path, line: &str) -> String {
    let output = command(line.split(' ')).current_dir(dir).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}: {said}");
    said
}

/// Stderr of a run that must fail and change nothing.
fn refused(dir: &Path, line: &str) -> String {
    let before = content(dir);
    let said = failed(dir, line);
    assert!(content(dir) == before, "{line} changed a file: {said}");
    said
}

/// Every file under a folder, with its bytes.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(content(&path)),
            false => {
                let bytes = fs::read(&path).unwrap_or_default();
                all.push((path.display().to_string(), bytes));
            }
        }
    }
    all.sort();
    all
}

/// A folder with a model, a run file with its results, texts, and files of others.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_model(&dir.path().join("m"), &FILES);
    let rest = "[[policies]]\nfile = \"p.toml\"\n[[tasks.perplexity]]\nprompt = 48\ntokens = 2\n";
    run_file_of(Path::new("m"), dir.path(), "run.toml", "budgets = [48]\n", rest);
    for (name, content) in [
        ("p.toml", Policy::tova(Budget::Tokens(48)).to_toml().unwrap().as_str()),
        ("t.txt", &"It was a bright cold day in April. ".repeat(40)),
        ("notes", "mine"),
        ("notes.toml", "mine = 1"),
        ("notes.json", "{\n  \"mine\": 1\n}\n"),
    ] {
        file(dir.path(), name, content);
    }
    dir
}

const GENERATE: &str = "generate --model m --file t.txt --max-new-tokens 1 --policy tova";
const COMPRESS: &str = "compress --model m --file t.txt --policy tova --budget 48";
const TUNE: &str = "tune --model m --target-ratio 0.9 --length 96 --tokens 2 --windows 2 --policies p.toml --text t.txt";
const CALIBRATE: &str = "calibrate --model m --prompts 1 --tokens 128 --min-right 0";
const NEEDLE: &str = "needle --model m --lengths 128 --depths 50 --samples 1 --policies p.toml";
const TEXT: &str = "--model m --tokens 2 --windows 2 --policies tova --budgets 48";

#[test]
fn a_file_that_is_read_is_never_an_output() {
    let dir = place();
    done(dir.path(), "run run.toml --out ro --no-report");
    for line in [
        format!("{GENERATE} --json m/model.safetensors"),
        format!("{GENERATE} --json m/config.json"),
        format!("{GENERATE} --json t.txt"),
        format!("{GENERATE}:window=4 --json ./m/../t.txt"),
        "generate --model m --prompt It --policy p.toml --json p.toml".into(),
        format!("{COMPRESS} --out t.txt"),
        format!("{COMPRESS} --out m/model.safetensors"),
        format!("{TUNE} --out p.toml"),
        format!("{TUNE} --out found.toml --json t.txt"),
        format!("{CALIBRATE} --out m/config.json"),
        format!("{NEEDLE} --json p.toml"),
        "needle --model m --policies p.toml --out ro --json ro/results.jsonl".into(),
        format!("perplexity {TEXT} --text t.txt --json t.txt"),
        "run run.toml --json run.toml".into(),
        "run run.toml --json p.toml".into(),
        "run run.toml --json m/tokenizer.json".into(),
        "run run.toml --prompts run.toml".into(),
        "report ro --out ro/results.jsonl".into(),
        "report ro --out ro/run.toml".into(),
        "merge ro --json ro/results.jsonl".into(),
        "score notes.json --metric exact-match --json notes.json".into(),
        "policies p.toml --json p.toml".into(),
    ] {
        for force in ["", " --force"] {
            let said = refused(dir.path(), &format!("{line}{force}"));
            assert_says(&said, &["is read by this command"]);
        }
    }
    #[cfg(unix)]
    {
        let at = |name: &str| dir.path().join(name);
        fs::hard_link(at("t.txt"), at("same.txt")).unwrap();
        std::os::unix::fs::symlink("t.txt", at("link.txt")).unwrap();
        for name in ["same.txt", "link.txt"] {
            let said = refused(dir.path(), &format!("{COMPRESS} --force --out {name}"));
            assert_says(&said, &[&format!("{name} is read")]);
        }
    }
}

#[test]
fn two_outputs_are_two_files() {
    let dir = place();
    fs::create_dir(dir.path().join("ro")).unwrap();
    for line in [
        format!("{COMPRESS} --out x --json x"),
        format!("{COMPRESS} --out x --json ./x"),
        format!("{TUNE} --out x.toml --json x.toml"),
        format!("{CALIBRATE} --out x --json x"),
        "run run.toml --prompts x --json x".into(),
        "run run.toml --out ro --json ro/report.html".into(),
    ] {
        let said = refused(dir.path(), &format!("{line} --force"));
        assert_says(&said, &["is named for two outputs"]);
    }
}

#[test]
fn a_file_of_others_is_overwritten_by_force_alone() {
    let dir = place();
    done(dir.path(), "run run.toml --out ro --no-report");
    let at = |name: &str| dir.path().join(name);
    for name in [
        "ro/report.html",
        "ro/report/tables.md",
        "briquette.1",
        "needle/report/memory.png",
        "table/report/tables.md",
        "nats/report.html",
    ] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), "mine").unwrap();
    }
    let lines = [
        format!("{GENERATE} --json notes"),
        format!("{GENERATE} --json notes.json"),
        format!("{COMPRESS} --out notes"),
        format!("{COMPRESS} --out m.prefix --json notes.json"),
        format!("{TUNE} --out notes.toml"),
        format!("{CALIBRATE} --out notes.json"),
        format!("{NEEDLE} --out needle"),
        format!("perplexity {TEXT} --prompt 48 --out nats"),
        format!("compare {TEXT} --length 96 --depths 50 --samples 1 --out table"),
        "run run.toml --prompts notes".into(),
        "run run.toml --out ro".into(),
        "run run.toml --dry-run --json notes.json".into(),
        "report ro".into(),
        "report ro --out notes".into(),
        "policies --json notes.json".into(),
        "policies tova --json notes.json".into(),
        "score notes.json --metric exact-match --json notes".into(),
        "merge ro --json notes".into(),
        "man --out .".into(),
    ];
    for line in &lines {
        assert_says(&refused(dir.path(), line), &["was not written by briquette (--force"]);
    }
    for line in [&lines[0], &lines[2], &lines[9], &lines[18]] {
        done(dir.path(), &format!("{line} --force"));
    }
    assert_says(&read(&at("briquette.1")), &[".TH briquette"]);
}

#[test]
fn results_of_another_command_are_left_as_they_are() {
    let dir = place();
    let compare = format!("compare {TEXT} --length 128 --depths 50 --samples 1");
    done(dir.path(), "run run.toml --out ro --no-report");
    done(dir.path(), &format!("{compare} --out table"));
    for force in ["", " --force"] {
        let said = refused(dir.path(), &format!("{compare} --out ro{force}"));
        assert_says(&said, &["its name is n, here it is compare"]);
    }
    for shard in ["", " --shard 1/2", " --dry-run"] {
        let said = refused(dir.path(), &format!("run run.toml --out table --no-report{shard}"));
        assert_says(&said, &["its name is compare, here it is n"]);
    }
    fs::rename(dir.path().join("table/results.jsonl"), dir.path().join("x.toml.partial")).unwrap();
    let said = refused(dir.path(), &format!("{TUNE} --out x.toml"));
    assert_says(&said, &["`briquette run`, not of `briquette tune`"]);
}

/// Each command had a journal of its own once.
#[test]
fn results_of_an_older_version_are_named() {
    let dir = place();
    for command in ["needle", "perplexity", "fidelity", "compare"] {
        let out = dir.path().join(command);
        fs::create_dir(&out).unwrap();
        let name = format!("{command}.jsonl");
        fs::write(out.join(&name), "{}\n").unwrap();
        let said = refused(dir.path(), &format!("{command} --model m --out {command}"));
        assert_says(&said, &[&name, "older version"]);
    }
    let journal = dir.path().join("compare/results.jsonl");
    fs::remove_file(dir.path().join("compare/compare.jsonl")).unwrap();
    fs::write(&journal, "{\"briquette\":\"0.1.0\",\"command\":\"compare\"}\n").unwrap();
    let said = refused(dir.path(), "compare --model m --policies tova --out compare");
    let expected = "results.jsonl holds results of `briquette compare`, not of `briquette run`";
    assert_says(&said, &[expected]);
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_not_followed() {
    let dir = place();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    for line in [format!("{GENERATE} --json link"), format!("{COMPRESS} --out link --force")] {
        assert_says(&refused(dir.path(), &line), &["a link to a file that is not there"]);
        assert!(!dir.path().join("nowhere").exists());
    }
}

#[test]
fn what_briquette_wrote_is_written_again() {
    let dir = place();
    let needle = format!("{NEEDLE} --out needle --json needle.json");
    for line in [
        format!("{GENERATE} --json g.json"),
        format!("{COMPRESS} --out m.prefix --json c.json"),
        format!("{TUNE} --out x.toml --json tuned.json"),
        format!("{CALIBRATE} --out m/profile.json --json profile.json"),
        needle,
        format!("fidelity {TEXT} --length 64 --out near"),
        "run run.toml --out ro --json ran.json".into(),
        "run run.toml --prompts prompts.jsonl".into(),
        "run run.toml --dry-run --json dry.json".into(),
        "report ro".into(),
        "report ro --out page.html".into(),
        "merge ro --json merged.json".into(),
        "policies --json policies.json".into(),
        "man --out man".into(),
    ] {
        done(dir.path(), &line);
        done(dir.path(), &line);
    }
    // Nothing is lost with a file that is empty.
    fs::write(dir.path().join("empty"), "").unwrap();
    done(dir.path(), "policies --json empty");
}

/// All of these nodes are made here: as root a test could take one of `/dev` from the machine.
#[cfg(unix)]
#[test]
fn devices_pipes_and_what_links_lead_to_are_no_outputs() {
    use std::{
        os::unix::{
            fs::{FileTypeExt, symlink},
            net::UnixListener,
        },
        process::Command,
    };

    let dir = place();
    done(dir.path(), "run run.toml --out ro --no-report");
    let at = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(at("pipe.toml")).status().unwrap().success());
    let _socket = UnixListener::bind(at("socket.toml")).unwrap();
    symlink("pipe.toml", at("link.toml")).unwrap();
    let mut names = vec!["pipe.toml", "socket.toml", "link.toml"];
    // Root alone may make one.
    let null = Command::new("mknod").arg(at("null.toml")).args(["c", "1", "3"]).output();
    if null.is_ok_and(|made| made.status.success()) {
        names.push("null.toml");
    }
    let kind = |name: &str| fs::symlink_metadata(at(name)).unwrap().file_type();
    let before: Vec<_> = names.iter().map(|name| kind(name)).collect();
    for line in [
        format!("{GENERATE} --json"),
        format!("{COMPRESS} --out"),
        format!("{TUNE} --out"),
        format!("{CALIBRATE} --out"),
        format!("{NEEDLE} --json"),
        "run run.toml --prompts".into(),
        "run run.toml --dry-run --json".into(),
        "report ro --out".into(),
        "merge ro --json".into(),
        "policies --json".into(),
        "score notes.json --metric exact-match --json".into(),
    ] {
        for name in &names {
            let said = failed(dir.path(), &format!("{line} {name} --force"));
            assert_says(&said, &["it is no regular file"]);
        }
    }
    assert!(names.iter().map(|name| kind(name)).eq(before));
    assert!(
        kind("pipe.toml").is_fifo()
            && kind("socket.toml").is_socket()
            && kind("link.toml").is_symlink()
    );
    // Files that a folder of results has anyway.
    for name in ["ro/run.toml", "ro/plan.jsonl", "ro/report.html", "ro/report"] {
        let _ = fs::remove_file(at(name));
        symlink("../pipe.toml", at(name)).unwrap();
        assert_says(&failed(dir.path(), "run run.toml --out ro --force"), &[name, "no"]);
        assert!(kind("pipe.toml").is_fifo() && kind(name).is_symlink(), "{name}");
        fs::remove_file(at(name)).unwrap();
    }
}

/// Links that lead to stdout are written there, also where stdout is a file that has no name any
/// more.
#[cfg(target_os = "linux")]
#[test]
fn a_link_to_stdout_is_stdout() {
    use std::io::{Read, Seek};

    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("/proc/self/fd/1", at("out")).unwrap();
    for deleted in [false, true] {
        let mut options = fs::OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).open(at("stdout")).unwrap();
        if deleted {
            fs::remove_file(at("stdout")).unwrap();
        }
        let mut command = command(["policies", "--json", "out"]);
        common::done(command.current_dir(dir.path()).stdout(file.try_clone().unwrap()));
        let mut written = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut written).unwrap();
        assert!(written.starts_with("{\n  \"written_by\""), "{written}");
        assert!(at("out").is_symlink());
        let _ = fs::remove_file(at("stdout"));
    }
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["out"]);
}

/// Ctrl-C while a text is compressed: nothing is written. It may come before anything listens to
/// it, so it comes later and later.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_compress() {
    use std::{process::Stdio, thread, time::Duration};

    let dir = place();
    file(dir.path(), "t.txt", "It was a bright cold day in April. ".repeat(150));
    for wait in (1..).map(|steps| Duration::from_millis(150 * steps)) {
        let line = "compress --model m --file t.txt --policy kvzip --budget 128 --out x";
        let mut command = command(line.split(' '));
        let mut child = command.current_dir(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(wait);
        common::signal(&child, "-INT");
        let code = child.wait().unwrap().code();
        assert_ne!(code, Some(0), "it was never stopped");
        if code == Some(130) {
            assert!(!dir.path().join("x").exists());
            return;
        }
    }
}
