//! Runs from a file as their users start them: kept as they come, continued, cut into shards,
//! joined.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use briquette_eval::run::RunFile;
use common::{
    assert_says, briquette, file, json, outputs, read, records, refused, refused_with, run_file,
    spawn, stdout,
};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a run file, and folders of results beside it.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(rest: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.write(rest);
        place
    }

    fn write(&self, rest: &str) {
        self.write_with("", rest);
    }

    /// With keys of the whole file.
    fn write_with(&self, keys: &str, rest: &str) {
        self.write_all(&format!("budgets = [48]\n{keys}"), rest);
    }

    /// With all keys of the whole file but its name.
    fn write_all(&self, keys: &str, rest: &str) {
        run_file(self.dir.path(), "small.toml", keys, rest);
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The arguments that run it.
    fn args(&self, out: &str, more: &[&str]) -> Vec<String> {
        let (file, out) = (self.path("small.toml"), self.path(out));
        let args = ["run", &file, "--out", &out, "--no-report"];
        args.iter().chain(more).map(ToString::to_string).collect()
    }

    fn run(&self, out: &str, more: &[&str]) -> String {
        stdout(self.args(out, more))
    }

    /// The JSON of a dry run.
    fn dry_run(&self, more: &[&str]) -> Value {
        json(self.args("out", &[&["--dry-run"], more].concat()))
    }

    fn refused(&self, out: &str, more: &[&str]) -> String {
        refused(self.args(out, more))
    }

    fn results(&self, out: &str) -> PathBuf {
        self.dir.path().join(out).join("results.jsonl")
    }
}

const SMALL: &str = "
[[policies]]
name = \"streaming-llm\"
[[policies]]
name = \"snapkv\"
budgets = [16]
[[tasks.needle]]
lengths = [192]
depths = [50]
samples = 2
[[tasks.perplexity]]
prompt = 96
tokens = 6
[[tasks.perplexity]]
protocol = \"stream\"
tokens = 24
chunk = 8
[[tasks.fidelity]]
prompt = 96
tokens = 3
";

/// A policy that cannot hold; two needles asked before and after, two texts and one comparison,
/// under two policies.
const SMALL_LINES: usize = 1 + 2 * (2 * 2 + 2 + 1);

/// The sum of a number over the shares of a dry run.
fn sum(dry_run: &Value, key: &str) -> u64 {
    dry_run["shares"].as_array().unwrap().iter().map(|share| share[key].as_u64().unwrap()).sum()
}

#[test]
fn a_run_is_continued_wherever_it_was_cut_and_gives_the_same() {
    let place = Place::new(SMALL);
    let table = place.run("whole", &[]);
    let parts = ["full", "streaming-llm", "query-aware", "per token", "KL", "32 recent"];
    assert_says(&table, &parts);
    let whole = place.results("whole");
    let expected = records(&whole);
    assert_eq!(expected.len(), SMALL_LINES);
    let kind = |kind: &str| expected.iter().filter(|record| record["kind"] == kind).count();
    let kinds = ["unavailable", "answers", "text", "fidelity"].map(kind);
    assert_eq!(kinds, [1, 8, 4, 2]);
    let copy = read(&whole.with_file_name("run.toml"));
    assert_eq!(copy, fs::read_to_string(place.path("small.toml")).unwrap());

    // Nothing is left to do but the page.
    let bytes = fs::read(&whole).unwrap();
    let page = whole.with_file_name("report.html");
    assert!(!page.exists());
    let (file, out) = (place.path("small.toml"), place.path("whole"));
    assert_says(&stdout(["run", &file, "--out", &out, "--jobs", "1"]), &["report.html"]);
    assert_eq!(fs::read(&whole).unwrap(), bytes);
    assert!(read(&page).contains("32 recent"));

    // Cut in the middle of a line.
    let end = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(9).unwrap().0;
    let cut = place.results("cut");
    fs::create_dir(cut.parent().unwrap()).unwrap();
    fs::write(&cut, &bytes[..end + 40]).unwrap();
    place.run("cut", &["--jobs", "1"]);
    assert_eq!(fs::read(&cut).unwrap()[..=end], bytes[..=end]);
    assert_eq!(records(&cut), expected);
}

const BATCHED: &str = "
[[policies]]
name = \"snapkv\"
[[policies]]
name = \"d2o\"
[[policies]]
name = \"adakv\"
[[policies]]
name = \"kvzip\"
[[policies]]
name = \"streaming-llm\"
budgets = [\"64KiB\"]
[[tasks.needle]]
lengths = [192]
depths = [0, 100]
samples = 2
[[tasks.key-value]]
lengths = [256]
depths = [50]
samples = 3
[[tasks.multi-turn]]
lengths = [256]
depths = [50]
samples = 1
";

/// Rows of a batch are summed in another order and hold as much as the longest answer.
#[test]
fn samples_in_batches_are_answered_as_alone() {
    let place = Place::new(BATCHED);
    place.write_with("change = [\"kernel=15\"]\n", BATCHED);
    place.run("alone", &["--jobs", "2"]);
    let alone = records(&place.results("alone"));
    let key = |record: &Value| {
        ["policy", "budget", "task", "sample", "ask"].map(|key| record[key].to_string())
    };
    let (_, said) = outputs(place.args("batched", &["--batch", "3"]));
    assert!(!said.contains("failed"), "{said}");
    let batched = records(&place.results("batched"));
    assert_eq!(batched.len(), alone.len());
    let lengths = alone.iter().filter(|record| record["task"] == "key-value-lines");
    let lengths: BTreeSet<u64> = lengths.filter_map(|one| one["cache"]["full"].as_u64()).collect();
    assert!(lengths.len() > 1, "rows of one length need no padding");
    for (one, row) in alone.iter().zip(&batched) {
        assert_eq!(key(one), key(row));
        assert_eq!(one["answers"], row["answers"], "{:?}", key(one));
        assert_eq!(one["decoded_tokens"], row["decoded_tokens"], "{:?}", key(one));
        assert_eq!(one["cache"]["full"], row["cache"]["full"], "{:?}", key(one));
        let [one, row] = [one, row].map(|record| record["cache"]["bytes"].as_f64().unwrap());
        assert!((row / one - 1.0).abs() < 0.1, "{one} bytes alone, {row} in a batch");
    }
}

#[test]
fn all_methods_have_one_name_and_changes_of_their_own() {
    let all = "[[policies]]\nname = \"all\"\n[[policies]]\nname = \"h2o\"\nbudgets = [64]\n\
               [[tasks.needle]]\nlengths = [192]\ndepths = [50]\nsamples = 1\nask = [\"after\"]\n";
    let place = Place::new(all);
    place.write_with("change = [\"schedule.prefill=first-prompt\"]\n", all);
    let listed = place.run("all", &["--dry-run"]);
    for method in briquette::methods() {
        assert_says(&listed, &[&method.name]);
    }
    assert_eq!(listed.lines().filter(|line| line.contains(" h2o ")).count(), 1, "{listed}");
    place.write_with(
        "change = [\"nothing=1\"]\n",
        "[[policies]]\nname = \"h2o\"\n[[tasks.needle]]\n",
    );
    assert_says(&place.refused("all", &["--dry-run"]), &["no policy takes `nothing=1`"]);
}

#[test]
fn one_time_needs_no_list() {
    let task = |ask: &str| format!("[[policies]]\nname = \"h2o\"\n[[tasks.needle]]\nask = {ask}\n");
    let place = Place::new("");
    let listed = |ask: &str| {
        place.write(&task(ask));
        place.dry_run(&[])["shares"].clone()
    };
    assert_eq!(listed("\"after\""), listed("[\"after\"]"));
    assert_ne!(listed("\"after\""), listed("[\"before\", \"after\"]"));
}

#[test]
fn budgets_are_of_the_policies_that_take_one() {
    let place = Place::new("");
    let own = briquette::Policy::snapkv(briquette::Budget::Tokens(77)).to_toml().unwrap();
    let none = own.replace("[budget]\ntokens = 77\n", "");
    assert_ne!(own, none);
    file(place.dir.path(), "own.toml", own);
    file(place.dir.path(), "none.toml", none);
    let task = "[[tasks.needle]]\nlengths = [192]\n";
    let write = |budgets: &str, policy: &str| {
        place.write_all(budgets, &format!("[[policies]]\n{policy}{task}"));
    };
    for (budgets, policy, expected) in [
        ("", "file = \"none.toml\"\nbudgets = [\"25%\", 64]\n", &["-", "25%", "64"][..]),
        ("budgets = [48]\n", "file = \"none.toml\"\n", &["-", "48"]),
        ("budgets = [48]\n", "file = \"own.toml\"\n", &["-", "77"]),
        ("budgets = [48]\n", "file = \"own.toml\"\nbudgets = [64]\n", &["-", "64"]),
        ("budgets = [48]\n", "name = \"tova:budget.ratio=0.5\"\n", &["-", "50%"]),
        (
            "budgets = [48]\n",
            "name = \"kivi\"\n[[policies]]\nname = \"snapkv:kernel=15\"\nchange = [\"sinks=2\"]\n",
            &["-", "-", "48"],
        ),
        ("", "name = \"tova\"\nbudgets = [64]\n[[policies]]\nname = \"fp8\"\n", &["-", "64", "-"]),
    ] {
        write(budgets, policy);
        let found = place.dry_run(&[]);
        let shares = found["shares"].as_array().unwrap().iter();
        let shares: Vec<&str> = shares.map(|share| share["budget"].as_str().unwrap()).collect();
        assert_eq!(shares, expected, "{budgets}{policy}");
    }
    for (budgets, policy, says) in [
        ("", "file = \"none.toml\"\n", "at the top of the file, or `[budget]` into its file"),
        ("", "name = \"h2o\"\n", "needs a budget: write `budgets` beside it"),
        ("", "name = \"kivi\"\nbudgets = [64]\n", "takes no budget, and 64 is given"),
        ("budgets = [64]\n", "name = \"fp8\"\n", "budgets: no policy here takes one"),
        ("", "name = \"tova:budget.tokens=9\"\nbudgets = [64]\n", "a budget of 9, and 64 is given"),
    ] {
        write(budgets, policy);
        assert_says(&place.refused("out", &["--dry-run"]), &[says]);
    }

    let file = place.path("none.toml");
    let needle = |policies: &str, budgets: &[&str]| {
        let small = ["needle", "--lengths", "192", "--depths", "50", "--samples", "1"];
        let args = [&small[..], &["--policies", policies, "--json", "-"], budgets].concat();
        let output = briquette(args);
        match output.status.success() {
            false => Err(String::from_utf8(output.stderr).unwrap()),
            true => {
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                let rows = report["rows"].as_array().unwrap().iter();
                let rows = rows.filter(|row| row["policy"] != "full" && row["ask"] == "after");
                Ok(rows.map(|row| row["budget"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
            }
        }
    };
    let both = format!("full,{file},{file}:kernel=15");
    assert_eq!(needle(&both, &["--budgets", "48,25%"]).unwrap(), ["48", "25%", "48", "25%"]);
    for (policies, budgets, says) in [
        (file.as_str(), &[][..], "has no budget: write `[budget]`"),
        ("full,kivi", &["--budget", "64"], "takes no budget, and 64 is given"),
    ] {
        assert_says(&needle(policies, budgets).unwrap_err(), &[says]);
    }
}

#[test]
fn shards_joined_are_the_whole() {
    let place = Place::new(SMALL);
    place.run("whole", &[]);
    for shard in ["1/3", "2/3"] {
        place.run("parts", &["--shard", shard]);
    }
    let parts = place.path("parts");
    let out = place.path("early");
    let args = ["merge", &parts, "--partial", "--out", &out];
    assert_says(&stdout(args), &["units are missing"]);
    // What is missing is counted.
    let early = records(&place.results("early")).len();
    let merged = json(args);
    let missing = merged["missing"].as_array().unwrap().iter();
    let missing: u64 = missing.map(|row| row["units"].as_u64().unwrap()).sum();
    assert_eq!(early + missing as usize, SMALL_LINES);

    for dry in [&[][..], &["--dry-run"]] {
        assert_says(&place.refused("parts", dry), &["2 shards", "briquette merge"]);
    }
    place.run("parts", &["--shard", "3/3"]);
    assert_says(&stdout(["merge", &parts]), &["3 files", "nothing is missing"]);
    assert_eq!(records(&place.results("parts")), records(&place.results("whole")));
    // The results are those of a run that was never cut: nothing is left, and its order is that of
    // the plan.
    let bytes = fs::read(place.results("parts")).unwrap();
    place.run("parts", &[]);
    assert_eq!(fs::read(place.results("parts")).unwrap(), bytes);

    // Equal results count once, others are refused with both lines.
    let twice = json(["merge", &parts, "--out", &place.path("twice")]);
    assert_eq!(
        (&twice["records"], &twice["duplicates"]),
        (&SMALL_LINES.into(), &(SMALL_LINES - 1).into())
    );
    let shard = place.dir.path().join("parts/results-3-of-3.jsonl");
    fs::write(&shard, read(&shard).replacen("\"full\":", "\"full\":9", 1)).unwrap();
    let error = refused(["merge", &parts]);
    assert_says(&error, &["results-3-of-3.jsonl, line ", "results.jsonl, line", "not the same"]);
}

#[test]
fn a_killed_run_loses_the_sample_in_flight_at_most() {
    let rest = "
[[policies]]
name = \"streaming-llm\"
[[tasks.needle]]
ask = [\"before\"]
lengths = [256]
depths = [50]
samples = 4
";
    let place = Place::new(rest);
    let results = place.results("killed");
    let lines = || fs::read_to_string(&results).map_or(0, |text| text.matches('\n').count());
    let mut run = spawn(place.args("killed", &["--jobs", "1"]));
    let start = Instant::now();
    while lines() < 3 {
        assert!(start.elapsed() < Duration::from_secs(120), "no results");
        thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let before = read(&results);
    let kept = &before[..=before.rfind('\n').unwrap()];
    let done = kept.lines().count() - 1;
    assert!((2..8).contains(&done), "{done} of 8 units were done");

    place.run("killed", &["--jobs", "1"]);
    let after = read(&results);
    assert!(after.starts_with(kept));
    assert_eq!(after.lines().count(), 1 + 8);
    place.run("whole", &[]);
    assert_eq!(records(&results), records(&place.results("whole")));
}

#[test]
fn a_run_grows_but_does_not_change() {
    let task = "[[tasks.perplexity]]\nprompt = 64\ntokens = 4\nstride = 100\nwindows = ";
    let window = "[[policies]]\nname = \"local-window\"\n";
    let place = Place::new(&format!("{window}{task}1\n"));
    place.run("out", &[]);
    let results = place.results("out");
    let first = read(&results);

    // Another policy and another window: 2 policies and a window more.
    let tova = "[[policies]]\nname = \"tova\"\n";
    place.write(&format!("{window}{tova}{task}2\n"));
    place.run("out", &[]);
    let second = read(&results);
    assert!(second.starts_with(&first));
    assert_eq!((first.lines().count(), second.lines().count()), (1 + 2, 1 + 3 * 2));

    for (rest, what) in [
        // Another policy under the label of one that was measured.
        (
            format!("{window}{tova}label = \"tova\"\nchange = [\"sinks=2\"]\n{task}2\n"),
            "policy `tova`",
        ),
        // Another prompt under the label of the task.
        (
            format!("{window}{tova}{task}2\n").replace("prompt = 64", "prompt = 63"),
            "task `perplexity`",
        ),
        // Another model.
        (
            format!("label = \"m\"\n{window}{task}1\n"),
            "its models.ember-7m is context, dtype, shape, stop, weights, here it is absent",
        ),
        (
            format!("chunk = 32\n{window}{task}1\n"),
            "models.ember-7m.chunk is absent, here it is 32",
        ),
    ] {
        place.write(&rest);
        assert_says(&place.refused("out", &[]), &[what]);
        assert_eq!(read(&results), second);
    }
}

/// Of policies that are to hold the same bytes.
#[test]
fn a_budget_may_be_the_share_of_the_bytes_that_is_held() {
    let policies = "[[policies]]\nname = \"streaming-llm\"\n[[policies]]\nname = \"d2o\"\n";
    let needle = "[[tasks.needle]]\nlengths = [192, 384]\ndepths = [50]\nsamples = 1\n";
    let place = Place::new("");
    let write = |budget: &str, task: &str| {
        let keys = format!("budgets = [\"{budget}\"]\nfull = false\n");
        place.write_all(&keys, &format!("{policies}{task}"));
    };
    write("held 50%", needle);
    let (json, said) = outputs(place.args("out", &["--json", "-"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    // Two policies, two lengths, the question before and after.
    assert_eq!(rows.len(), 8, "{json}");
    for row in rows.iter().filter(|row| row["ask"] == "after") {
        assert_eq!(row["budget"], "held 50%");
        let (held, spare) = (&row["held_of_full"], &row["spare_of_full"]);
        let share = held.as_f64().unwrap();
        assert!((0.40..=0.55).contains(&share), "{row} {spare}");
    }
    for policy in ["streaming-llm", "d2o"] {
        let line = format!("ember-7m, {policy} at held 50%: a budget of ");
        let found: Vec<&str> = said.lines().filter(|one| one.starts_with(&line)).collect();
        assert_eq!(found.len(), 2, "{said}");
    }
    // D2O holds what it merged beside its entries, so its budget is the smaller one.
    let budget = |policy: &str| -> f64 {
        let text = said.split(&format!("{policy} at held 50%: a budget of ")).nth(1).unwrap();
        text.split('%').next().unwrap().parse().unwrap()
    };
    assert!(budget("d2o") <= budget("streaming-llm"), "{said}");
    write("held 50%", "[[tasks.perplexity]]\nprotocol = \"stream\"\ntokens = 24\n");
    assert_says(&place.refused("stream", &[]), &["`perplexity-stream` has none"]);
    write("held 64", needle);
    assert_says(&place.refused("wrong", &[]), &["as `held 25%`, and not 64"]);
}

#[test]
fn a_dry_run_counts_and_writes_nothing() {
    let place = Place::new(SMALL);
    let table = place.run("out", &["--dry-run"]);
    assert!(!place.dir.path().join("out").exists());
    assert_says(&table, &["needle", "32 recent"]);
    let shares = place.dry_run(&[]);
    let sum = |key: &str| self::sum(&shares, key);
    assert_eq!(sum("units"), SMALL_LINES as u64 - 1);
    assert_eq!(sum("left"), sum("units"));
    // A needle prompt and its answer have 192 tokens; a text opens with a token of its own, which
    // the prompt counts.
    let answer = 192 - (sum("tokens") - 2 * (96 + 6 + 1 + 25 + 96 + 3)) / 8;
    assert!((7..=12).contains(&answer), "{shares}");
    // Together the shards are the whole.
    let units = |shard| self::sum(&place.dry_run(&["--shard", shard]), "units");
    assert_eq!(units("1/2") + units("2/2"), sum("units"));
    // A few units were measured.
    assert_says(&table, &[&format!("ember-7m: {} units, about ", sum("units"))]);
    assert!(shares["seconds"]["ember-7m"].as_f64().unwrap() > 0.0, "{shares}");
    // It refuses what the run would.
    let (_, said) = outputs(place.args("out", &["--dry-run", "--device", "abacus"]));
    assert_says(&said, &["would be refused: device `abacus`"]);
    fs::create_dir(place.path("foreign")).unwrap();
    file(place.dir.path(), "foreign/run.toml", "name = 7\n");
    assert_says(&place.refused("foreign", &["--dry-run"]), &["run.toml"]);
    file(place.dir.path(), "file", "");
    assert_says(&place.refused("file", &["--dry-run"]), &["is no folder"]);
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_runs() {
    let place = Place::new("");
    let policy = "[[policies]]\nname = \"h2o\"\n";
    let text = "[[tasks.perplexity]]\nprompt = 64\ntokens = 4\n";
    for (rest, reasons) in [
        (
            "[[tasks.nosuch]]\n",
            &["line 5, column 9", "unknown field `nosuch`", "`needle`", "`longbench`"][..],
        ),
        ("[[policies]]\nname = \"snapvk\"\n", &["line 6, column 8", "did you mean `snapkv`?"]),
        ("[[policies]]\nname = \"my.toml\"\n", &["line 6, column 8", "`file = \"my.toml\"`"]),
        ("[[policies]]\nname = \"h2o\"\nbudgets = [\"lots\"]\n", &["line 7", "`lots`", "25%"]),
        ("[[tasks.needle]]\nlengs = [8]\n", &["line 6", "`lengs`", "`lengths`"]),
        ("[[tasks.needle]]\nlenghts = [8]\n", &["line 6", "did you mean `lengths`?"]),
        ("[[tasks.needles]]\n", &["line 5, column 9", "did you mean `needle`?"]),
        (
            "[[tasks.needle]]\nask = \"behind\"\n",
            &[
                "line 6, column 7",
                "`tasks.needle[0].ask`",
                "\"before\", \"after\" or a list of them",
            ],
        ),
        (&format!("[[policies]]\n{text}"), &["either a `name`, a `file` or a `prefix`"]),
        (&format!("{policy}change = [\"kernal=3\"]\n{text}"), &["h2o:kernal=3", "kernal"]),
        (&format!("{policy}{policy}{text}"), &["`h2o`", "twice", "label"]),
        (&format!("{policy}{text}{text}"), &["task `perplexity`", "twice", "label"]),
        (policy, &["tasks"]),
        (&format!("{policy}[tasks]\n"), &["no task"]),
        (
            &format!("{policy}[[tasks.needle]]\nlengths = [5000]\n"),
            &["needle", "5000 tokens", "4096"],
        ),
        (&format!("{policy}{text}text = \"no.txt\"\n"), &["no.txt"]),
        (&format!("profile = \"no.json\"\n{policy}{text}"), &["no.json"]),
        (&format!("chunk = 0\n{policy}{text}"), &["chunk"]),
    ] {
        place.write(rest);
        assert_says(&place.refused("out", &[]), reasons);
        assert!(!place.dir.path().join("out").exists(), "{rest}");
    }
    assert_says(&refused(["run", &place.path("absent.toml")]), &["absent.toml"]);
    assert_says(&refused(["merge", &place.path("")]), &["results-I-of-N.jsonl"]);
    assert_says(&refused(["merge", "a.jsonl"]), &["--out"]);
    refused_with(2, ["run", "x.toml", "--shard", "4/3"]);
}

#[test]
fn the_run_files_of_the_book_can_be_read() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/evaluate");
    let mut read = 0;
    for page in fs::read_dir(pages).unwrap() {
        let page = page.unwrap().path();
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let whole = block.contains("[[models]]");
            let head = if whole { "" } else { "name = \"part\"\n[[models]]\ndir = \"model\"\n" };
            if let Err(error) = RunFile::parse(&format!("{head}{block}"), &page, Path::new("runs"))
            {
                panic!("{error}\n{block}");
            }
            read += 1;
        }
    }
    assert!(read >= 3, "{read}");
}

#[test]
fn the_committed_run_is_what_its_page_says() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/five-policies.toml");
    let found = json(["run", file, "--dry-run"]);
    let shares = found["shares"].as_array().unwrap();
    let units = |task: &str, policy: &str| -> u64 {
        let here = shares.iter().filter(|one| one["task"] == task && one["policy"] == policy);
        here.map(|share| share["units"].as_u64().unwrap()).sum()
    };
    // Two budgets but for the full cache; needles of two lengths, five depths and two samples,
    // asked before and after.
    assert_eq!((units("needle", "full"), units("needle", "h2o")), (40, 80));
    assert_eq!((units("fidelity", "full"), units("fidelity", "compresskv:kernel=15")), (3, 6));
    assert_eq!(units("perplexity-stream", "streaming-llm"), 2);
}
