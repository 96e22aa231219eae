//! Every command of the README and the book runs as it is printed, at small sizes where it is long.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
};

use common::{command, done};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Beginnings of lines that call other programs; `.ci/full` runs those that need neither a GPU nor
/// a cluster.
const OTHERS: [&str; 11] = [
    ".ci/full",
    ".ci/test",
    "BRIQUETTE_TEST_DEVICES=",
    "apt-get ",
    "cargo install ",
    "cargo nextest ",
    "cargo test ",
    "python3 -c ",
    "sbatch ",
    // These books are not in a clone.
    "cargo run --release --bin briquette -- run runs/held-out-text.toml",
    // A build of its own.
    "cargo run --release -p briquette-cli --features cuda -- needle --device cuda",
];

/// Flags with what they are set to, so that a command ends in seconds.
fn small(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "needle" => {
            &[("--lengths", "128"), ("--depths", "50"), ("--samples", "1"), ("--budgets", "48")]
        }
        "fidelity" => &[("--length", "160"), ("--tokens", "2"), ("--windows", "1")],
        "tune" => &[
            ("--length", "1024"),
            ("--tokens", "2"),
            ("--windows", "2"),
            ("--policies", "local-window"),
        ],
        "calibrate" => &[("--prompts", "1"), ("--tokens", "128"), ("--min-right", "0")],
        "mask-heads" => {
            &[("--counts", "0,1"), ("--length", "128"), ("--depths", "50"), ("--samples", "1")]
        }
        "generate" => &[("--max-new-tokens", "2"), ("--device", "flex"), ("--dtype", "f32")],
        _ => &[],
    }
}

/// The lines of shell in a page, those that go on joined, without remarks.
fn lines(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let joined: String = blocks.collect::<String>().replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split("  #").next().unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The words of a line, quoted ones as one.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('"').enumerate();
    let word = |(number, part): (usize, &str)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    };
    parts.flat_map(word).collect()
}

/// Arguments behind the name of the command.
fn arguments(line: &str) -> Option<Vec<String>> {
    let rest = line.strip_prefix("briquette ").or_else(|| {
        let (cargo, rest) = line.split_once(" -- ")?;
        (cargo.starts_with("cargo run ") && cargo.ends_with("--bin briquette")).then_some(rest)
    })?;
    let mut args = words(rest);
    let command = args[0].clone();
    let has_tasks = args.iter().any(|arg| arg == "--tasks");
    for (flag, value) in small(&command) {
        // Tasks have lengths of their own.
        if has_tasks && ["--length", "--tokens"].contains(flag) {
            continue;
        }
        match args.iter().position(|arg| arg == flag) {
            // A list of policies as it stands, unless all would be tried.
            Some(at) if args.get(at + 1).is_some() => args[at + 1] = (*value).to_owned(),
            _ => args.extend([(*flag).to_owned(), (*value).to_owned()]),
        }
    }
    if command == "run" {
        args.push("--dry-run".to_owned());
    }
    Some(args)
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let mut folders = vec![Path::new(ROOT).join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// A folder that looks like a clone, with the files that the pages speak of.
fn clone() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["models/ember-7m", "runs", "docs/src", "examples", "DIR"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let copy = |from: &str, to: &str| {
        fs::copy(Path::new(ROOT).join(from), at(to)).unwrap();
    };
    for file in ["config.json", "tokenizer.json", "model.safetensors", "profile.json"] {
        copy(&format!("models/ember-7m/{file}"), &format!("models/ember-7m/{file}"));
        copy(&format!("models/ember-7m/{file}"), &format!("DIR/{file}"));
    }
    // Python leaves a folder there.
    let runs = fs::read_dir(Path::new(ROOT).join("runs")).unwrap().map(Result::unwrap);
    for entry in runs.filter(|entry| entry.path().is_file()) {
        let name = entry.file_name().into_string().unwrap();
        copy(&format!("runs/{name}"), &format!("runs/{name}"));
    }
    copy("docs/src/glossary.md", "docs/src/glossary.md");
    for text in ["examples/harbour.txt", "examples/lantern.txt"] {
        copy(text, text);
    }
    copy("docs/src/glossary.md", "TEXT");
    for text in ["FILE", "frankenstein.txt", "the-war-of-the-worlds.txt"] {
        copy("crates/briquette-eval/assets/haystack.txt", text);
    }
    let policy = briquette::Policy::snapkv(briquette::Budget::Tokens(64)).to_toml().unwrap();
    fs::write(at("my-snapkv.toml"), policy).unwrap();
    fs::write(at("said.jsonl"), "{\"prediction\":\"a\",\"answers\":[\"a\"]}\n").unwrap();
    let run = "name = \"five\"\n[[models]]\ndir = \"models/ember-7m\"\n[[tasks.needle]]\nlengths = [192]\ndepths = [50]\nsamples = 1\n";
    fs::write(at("five.toml"), run).unwrap();
    // The files of the tutorial.
    let tutorial = fs::read_to_string(Path::new(ROOT).join("docs/src/evaluate.md")).unwrap();
    let run = tutorial.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    fs::write(at("questions.toml"), run.unwrap()).unwrap();
    let text = fs::read_to_string(at("examples/harbour.txt")).unwrap();
    let question = serde_json::json!({ "text": text, "question": "?", "answers": ["4178205"] });
    fs::write(at("questions.jsonl"), format!("{question}\n")).unwrap();
    dir
}

fn run(dir: &Path, args: &[String]) -> Result<(), String> {
    let output = command(args).current_dir(dir).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Whether a command needs weights that are not in a clone, or results that were made with them:
/// tests of their own read them where they have been fetched.
fn of_fetched_weights(dir: &Path, line: &str) -> bool {
    let names = |file: &str| {
        file.ends_with(".toml")
            && fs::read_to_string(dir.join(file)).is_ok_and(|run| run.contains("smollm2"))
    };
    line.contains("smollm2")
        || line.starts_with("python runs/")
        || line.split_whitespace().any(names)
}

#[test]
fn every_command_runs() {
    let dir = clone();
    let five = ["run", "five.toml", "--out", "out/five", "--no-report"].map(String::from);
    run(dir.path(), &five).unwrap();
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for page in pages() {
        for line in lines(&fs::read_to_string(&page).unwrap()) {
            if OTHERS.iter().any(|other| line.starts_with(other)) || ran.contains(&line) {
                continue;
            }
            if of_fetched_weights(dir.path(), &line) {
                continue;
            }
            // A name stands for any.
            let line = line.replace("--policy NAME", "--policy tova");
            let Some(mut args) = arguments(&line) else {
                failed.push(format!("{}: `{line}` is no command of ours", page.display()));
                continue;
            };
            // Two commands do not write into one folder.
            for arg in args.iter_mut().filter(|arg| *arg == "out") {
                *arg = format!("out-{}", ran.len());
            }
            if let Err(error) = run(dir.path(), &args) {
                failed.push(format!("{}: `{line}`, run as {args:?}: {error}", page.display()));
            }
            ran.push(line);
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(ran.len() > 12, "{ran:#?}");
}

/// Runs a line that asks the embedded model, as the page has it, and gives what it says.
fn asked(dir: &Path, line: &str) -> (String, String) {
    let (_, rest) = line.split_once(" -- ").unwrap();
    done(command(words(rest)).args(["--device", "flex", "--dtype", "f32"]).current_dir(dir))
}

/// README's lines on one text and two questions say what stands behind them.
#[test]
fn the_readme_says_what_its_commands_do() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let dir = clone();
    let mut right = Vec::new();
    for line in readme.lines().filter(|line| line.starts_with("cargo run ")) {
        let (command, remark) = line.split_once("  # ").unwrap_or((line, ""));
        if !command.contains("harbour") {
            continue;
        }
        let (said, _) = asked(dir.path(), command);
        if let Some((answer, verdict)) = remark.split_once(": ") {
            assert_eq!(said.trim(), answer, "{line}");
            let first = command.contains("generate --file");
            let hidden = if first { "4178205" } else { "9035172" };
            assert_eq!(answer == hidden, verdict == "right", "{line}");
            right.push(answer == hidden);
        }
    }
    assert_eq!(right, [true, false, true]);
}

/// The page that a newcomer reads first shows what its commands print: the number that the text
/// hides, or that it is lost, and the cache it took.
#[test]
fn the_first_question_is_answered() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/src/start.md")).unwrap();
    let lines = lines(&page);
    let asking: Vec<&String> = lines.iter().filter(|line| line.contains("harbour.txt")).collect();
    let found = [true, true, false, false];
    assert_eq!(asking.len(), found.len());
    for (line, found) in asking.into_iter().zip(found) {
        let (said, report) = asked(Path::new(ROOT), line);
        assert_eq!(said == "4178205\n", found, "{line} says {said}");
        let steady = |part: &&str| part.starts_with("policy ") || part.starts_with("cache ");
        for part in report.lines().filter(|part| found && steady(part)) {
            assert!(page.contains(part), "{line} prints `{part}`");
        }
    }
}
