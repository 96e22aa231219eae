//! The page of a run: its numbers against those worked out by hand, and what it does with results
//! that lack things.

mod made_up;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use briquette_eval::{
    record::{CacheBytes, KeptTokens, Outcome, Record},
    tasks::Question,
};
use briquette_report::html::{self, TableFormat};
use made_up::{HOSTILE, answers, record};
use tempfile::TempDir;

/// Bytes kept, and beside them room of a tenth of a full cache.
fn held(kept: usize, full: usize) -> CacheBytes {
    CacheBytes { bytes: kept + full / 10, spare: Some(full / 10), full }
}

/// Answers of one policy to the task `tiny`.
fn tiny(policy: &str, budget: &str, scores: &[f64], cache: CacheBytes) -> Vec<Record> {
    let one = |(sample, score): (usize, &f64)| {
        let outcome = answers(&[], HOSTILE, &[*score], cache);
        record(policy, budget, "tiny", sample, Some(Question::Before), outcome)
    };
    scores.iter().enumerate().map(one).collect()
}

fn text(policy: &str, budget: &str, windows: &[&[f32]], cache: CacheBytes) -> Vec<Record> {
    let one = |(sample, nats): (usize, &&[f32])| {
        let outcome = Outcome::Text { prompt: 4, nats: nats.to_vec(), cache };
        record(policy, budget, "book", sample, None, outcome)
    };
    windows.iter().enumerate().map(one).collect()
}

fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
}

/// Measure by policy, task and name: mean, low, high.
type Found = BTreeMap<(String, String, String), (f64, Option<f64>, Option<f64>)>;

fn numbers(path: &Path) -> Found {
    let mut found = Found::new();
    for row in rows(path) {
        let number = |name: &str| row[name].parse::<f64>().ok();
        found.insert(
            (row["policy"].clone(), row["task"].clone(), row["measure"].clone()),
            (number("mean").unwrap(), number("low"), number("high")),
        );
    }
    found
}

fn close(found: (f64, Option<f64>, Option<f64>), mean: f64, interval: Option<[f64; 2]>) {
    let near = |a: f64, b: f64| (a - b).abs() < 2e-3;
    let ends = found.1.zip(found.2).map(|(low, high)| [low, high]);
    assert!(near(found.0, mean), "{found:?} is not {mean}");
    match (ends, interval) {
        (Some(ends), Some(expected)) => {
            assert!(
                near(ends[0], expected[0]) && near(ends[1], expected[1]),
                "{found:?}, {expected:?}"
            );
        }
        (ends, expected) => assert_eq!(ends, expected, "{found:?}"),
    }
}

/// The report of these records, its page, and the folder that it is in.
fn written(records: &[Record]) -> (TempDir, html::Written, String) {
    let dir = tempfile::tempdir().unwrap();
    made_up::write(&dir.path().join("results.jsonl"), records);
    let written = html::write(dir.path(), None, None).unwrap();
    let page = fs::read_to_string(&written.page).unwrap();
    (dir, written, page)
}

#[test]
fn numbers_are_those_worked_out_by_hand() {
    let fidelity =
        |policy: &str, budget: &str, sample, error: [f64; 2], kl: [f32; 2], agreement| {
            let full = policy == "full";
            let kept = KeptTokens {
                tokens: vec!["a".into(), " b".into(), "<i>".into()],
                share: if full { vec![1.0; 3] } else { vec![1.0, 0.5, 0.0] },
                heads: if full { vec![vec![3, 3]; 2] } else { vec![vec![2, 1], vec![1, 2]] },
            };
            let overlap = if full { Vec::new() } else { vec![vec![1.0, 0.5], vec![0.0, 0.5]] };
            let (error, kl) = (error.to_vec(), kl.to_vec());
            let outcome = Outcome::Fidelity {
                output_error: error,
                kl,
                agreement,
                overlap,
                kept,
                cache: held(100, 100),
            };
            record(policy, budget, "near", sample, None, outcome)
        };
    let mut records = tiny("full", "-", &[1.0, 1.0, 1.0, 1.0], held(100, 100));
    records.extend(tiny("snapkv", "64", &[1.0, 0.0, 1.0, 1.0], held(20, 100)));
    records.extend(tiny("h2o", "64", &[0.5, 0.25], held(25, 100)));
    records.extend(text("full", "-", &[&[1.0, 3.0], &[4.0, 4.0]], held(400, 400)));
    records.extend(text("snapkv", "64", &[&[2.0, 3.0], &[4.5, 5.5]], held(120, 400)));
    records.push(fidelity("full", "-", 0, [0.0, 0.0], [0.0, 0.0], 1.0));
    records.push(fidelity("snapkv", "64", 0, [0.1, 0.3], [0.5, 0.1], 0.75));
    records.push(record(
        "cake",
        "64",
        "tiny",
        0,
        None,
        Outcome::Unavailable { reason: format!("too small {HOSTILE}") },
    ));
    let (dir, written, page) = written(&records);
    assert_eq!(written.records, records.len());
    let found = numbers(&written.csv);
    let of = |policy: &str, task: &str, measure: &str| {
        found[&(policy.to_owned(), task.to_owned(), measure.to_owned())]
    };
    // Wilson, 3 of 4.
    close(of("snapkv", "tiny", "score"), 0.75, Some([0.3006, 0.9544]));
    // Spread 0.1768, error 0.125, quantile of 1 degree 12.7: cut to a share.
    close(of("h2o", "tiny", "score"), 0.375, Some([0.0, 1.0]));
    close(of("snapkv", "tiny", "prefill"), 0.25, Some([0.25, 0.25]));
    // 60 ms, 6 tokens.
    close(of("snapkv", "tiny", "decode"), 10.0, Some([10.0, 10.0]));
    close(of("full", "book", "nats"), 3.0, Some([3.0 - 12.7062, 3.0 + 12.7062]));
    // 0.5 and 1.0 above.
    close(of("snapkv", "book", "nats-over-full"), 0.75, Some([0.75 - 3.1766, 0.75 + 3.1766]));
    close(of("snapkv", "near", "kl"), 0.3, None);
    close(of("snapkv", "near", "agreement"), 0.75, None);
    close(of("snapkv", "near", "output-error"), 0.2, None);
    close(of("snapkv", "near", "overlap"), 0.5, None);
    // 4 · 20 + 2 · 120 + 100 of 4 · 100 + 2 · 400 + 100.
    close(of("snapkv", "", "held-share"), 420.0 / 1300.0, None);
    close(of("snapkv", "", "held-bytes"), 60.0, None);
    // 4 · 10 + 2 · 40 + 10 of the same.
    close(of("snapkv", "", "spare-share"), 0.1, None);
    close(of("snapkv", "", "spare-bytes"), 130.0 / 7.0, None);
    close(of("snapkv", "", "seconds"), 0.5, None);
    assert!(!found.contains_key(&("full".into(), "near".into(), "overlap".into())));

    let snapkv = rows(&written.csv).into_iter().find(|row| row["policy"] == "snapkv").unwrap();
    assert_eq!([&snapkv["method"], &snapkv["paper"]], ["SnapKV", "Li et al., 2024"]);

    let tables = fs::read_to_string(&written.tables[0]).unwrap();
    for part in [
        "flex (CPU)",
        "2026-11-21",
        "seed 0.\n",
        "### tiny, query-aware\n\nMean score of the samples, 0 to 1. More is better. Metric: contains. \
         2 to 4 samples, 95 % intervals.\n",
        "| policy   |         no budget |                64 |\n",
        "| `cake`   |                   |       cannot hold |\n",
        "| `snapkv` |                   | 0.75 [0.30, 0.95] |\n",
        // In pairs -½ and -¾: t is -5 with 1 degree, p 0.1257, twice that of two policies.
        // Student's interval would begin at -2.21, and no difference of scores is below -1.
        "### tiny, query-aware: over full\n",
        " -0.62 [-1.00, +0.96], p = 0.251 |\n",
        // 0, -1, 0, 0: spread 0.5, error 0.25, Student's quantile of 3 degrees 3.18; one changed.
        "| `snapkv` | -0.25 [-1.00, +0.54], p = 1.000 |\n",
        "<details><summary>Pairs</summary>\n\n### tiny, query-aware: pairs\n",
        "| `h2o vs snapkv` | -0.12 [-1.00, +1.00], p = 0.795 |\n",
        "### book, nats per token\n",
        "| `snapkv` | +0.750 [-2.427, +3.927], p = 0.205 |\n",
        "### near, agreement\n",
        "| `snapkv` | SnapKV     | Li et al., 2024    |\n",
        "### cache\n",
        "0 / 32.3 % / 0 |\n",
    ] {
        assert!(tables.contains(part), "{part} is not in\n{tables}");
    }
    // The full cache is far from itself by nothing, so pairs alone are compared there.
    assert!(!tables.contains("near, KL, nats: "));
    // Of the tasks that it was not to hold in, nothing is said.
    assert_eq!(tables.matches("cannot hold").count(), 1);

    for part in [
        "0.75 <small>0.30 to 0.95</small>",
        "score 0.75, 95 % interval 0.30 to 0.95, 4 samples",
        "+0.750 <small>-2.427 to +3.927</small>",
        "+0.750 <small>-2.427 to +3.927</small> <small>p = 0.205</small>",
        "32.3 %",
        "policies have between 2 and 4 samples",
        "<h1>ember-7m: book, near, tiny, 2026-11-21</h1>",
        "<dt>Run</dt><dd>made up</dd>",
        "spare room, of full",
        "spare room, of full 10.0 %, no interval, 7 samples",
        "2026-11-21",
        "flex (CPU)",
        "[[100,100,100],[100,50,0]]",
        "too small &lt;&#x2f;script&gt;",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Snapkv's row: its mean score is better than h2o's, at one budget.
    let row = &page[page.find("<tr data-policy=\"snapkv\"").unwrap()..];
    let row = &row[..row.find("</tr>").unwrap()];
    assert!(row.contains("class=\"n best bar\" data-v=\"0.75\" style=\"--b:75.0%\""), "{row}");
    for picture in ["perplexity-positions", "output-error", "overlap", "held", "heads-near"] {
        for format in ["svg", "png"] {
            let file = dir.path().join(format!("report/{picture}.{format}"));
            assert!(fs::metadata(&file).unwrap().len() > 1000, "{}", file.display());
        }
    }
}

#[test]
fn what_a_model_says_stays_text() {
    let (_, _, page) = written(&made_up::run());
    assert!(page.contains("&lt;&#x2f;script&gt;&lt;img src=x onerror"));
    assert!(!page.contains("<img") && !page.contains("<b>and"));
    // Its own scripts: one of shares and one of code.
    assert_eq!(page.matches("</script>").count(), 2);
    assert_eq!(page.matches("<script").count(), 2);
    for outside in ["http:", "https:", "//cdn", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_same_results_give_the_same_files_in_whatever_order() {
    let mut records = made_up::run();
    let (_dir, first, page) = written(&records);
    let files = |of: &html::Written| {
        [&of.csv, &of.differences, &of.tables[0]].map(|file| fs::read(file).unwrap())
    };
    let before = files(&first);
    records.reverse();
    let (_dir, second, again) = written(&records);
    assert!(page == again);
    assert!(before == files(&second));
}

/// The score of each sample, for one policy at a budget.
fn scores(
    records: &[Record],
    row: &BTreeMap<String, String>,
    policy: &str,
    budget: &str,
) -> BTreeMap<String, f64> {
    let ask = match row["ask"].as_str() {
        "before" => Question::Before,
        _ => Question::After,
    };
    let here = records.iter().filter(|Record { key, .. }| {
        (key.policy.as_str(), key.budget.as_str()) == (policy, budget)
            && (key.task.as_str(), key.ask) == (row["task"].as_str(), Some(ask))
    });
    let score = |record: &Record| {
        let Outcome::Answers { axes, answers, .. } = &record.outcome else { return None };
        let length = axes.get("length").map_or_else(String::new, ToString::to_string);
        let sum: f64 = answers.iter().map(|answer| answer.score).sum();
        (row["length"].is_empty() || row["length"] == length)
            .then(|| (record.key.sample.clone(), sum / answers.len() as f64))
    };
    here.filter_map(score).collect()
}

/// The two-sided p-value of Student's t, by the integral of its density (Simpson's rule).
fn student(t: f64, degrees: f64) -> f64 {
    let density = |x: f64| (1.0 + x * x / degrees).powf(-(degrees + 1.0) / 2.0);
    let integral = |to: f64| {
        let steps = 20_000;
        let at = |i: i32| density(to * f64::from(i) / f64::from(steps));
        let weight = |i: i32| if i % 2 == 1 { 4.0 } else { 2.0 };
        let inner: f64 = (1..steps).map(|i| weight(i) * at(i)).sum();
        (at(0) + inner + at(steps)) * to / f64::from(steps) / 3.0
    };
    1.0 - integral(t.abs()) / integral(400.0)
}

/// The two-sided p-value of the sign test, by Pascal's triangle.
fn sign(rises: usize, falls: usize) -> f64 {
    let mut line = vec![1.0];
    for _ in 0..rises + falls {
        line.push(0.0);
        line = (0..line.len())
            .map(|i| 0.5 * (line[i] + if i > 0 { line[i - 1] } else { 0.0 }))
            .collect();
    }
    f64::min(1.0, 2.0 * line[..=rises.min(falls)].iter().sum::<f64>())
}

#[test]
fn differences_are_paired_by_sample() {
    let records = made_up::run();
    let (_dir, written, _) = written(&records);
    let all = rows(&written.differences);
    // 5 policies at 3 budgets and 1 without from the full cache, 3 · 10 pairs. Needles of all
    // lengths and of 3, and pairs; texts; and pairs for their divergence.
    assert_eq!(all.len(), 2 * (4 + 1) * (16 + 30) + (16 + 30) + 30);
    let number = |row: &BTreeMap<String, String>, name: &str| row[name].parse::<f64>().unwrap();
    let (mut of_tests, mut groups, mut whole) = (BTreeSet::new(), BTreeMap::new(), 0);
    for row in all.iter().filter(|row| row["measure"] == "score") {
        let budget = &row["budget"];
        let against = &row["against"];
        let other = if against == "full" { "-" } else { budget };
        let these = scores(&records, row, &row["policy"], budget);
        let those = scores(&records, row, against, other);
        let differences: Vec<f64> =
            these.iter().map(|(sample, score)| score - those[sample]).collect();
        let n = differences.len() as f64;
        assert_eq!(number(row, "samples"), n);
        let mean = differences.iter().sum::<f64>() / n;
        assert!((number(row, "difference") - mean).abs() < 1e-9, "{row:?}");
        let squares: f64 = differences.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        let p = if row["task"] == "needle" {
            let count = |sign: f64| differences.iter().filter(|value| **value == sign).count();
            sign(count(1.0), count(-1.0))
        } else {
            student(mean / error, n - 1.0)
        };
        assert!((number(row, "p") - p).abs() < 1e-6, "{row:?}: {p}");
        // Student's interval has the values that the t test would not refuse, cut to those that
        // can be.
        if error == 0.0 {
            assert_eq!(row["low"].clone() + &row["high"], "");
        } else {
            let ends = ["low", "high"].map(|end| number(row, end));
            assert!(ends.iter().all(|end| end.abs() <= 1.0), "{row:?}");
            for end in ends.iter().filter(|end| end.abs() < 1.0) {
                let t = (end - mean).abs() / error;
                assert!((student(t, n - 1.0) - 0.05).abs() < 1e-3, "{row:?}");
                whole += 1;
            }
        }
        of_tests.insert(row["task"].clone());
        let name = |name: &str| row[name].clone();
        let group = (name("task"), name("ask"), name("length"), against == "full");
        groups.entry(group).or_insert_with(Vec::new).push((p, number(row, "p_holm")));
    }
    assert!(whole > 20, "{whole} ends of intervals were looked at");
    assert!(of_tests.len() == 2 && groups.len() == 20, "{:?}", groups.keys());
    for group in groups.values_mut() {
        group.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut least = 0.0;
        for (place, (p, found)) in group.iter().enumerate() {
            least = f64::max(least, f64::min(1.0, p * (group.len() - place) as f64));
            assert!((found - least).abs() < 1e-5, "{group:?}");
        }
    }
}

#[test]
fn tables_are_written_for_latex() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = tiny("full", "-", &[1.0, 1.0], held(100, 100));
    records.extend(tiny("a_b:x=50%", "25%", &[1.0, 0.0], held(25, 100)));
    for record in &mut records {
        record.key.task = "q&a #1 {x}".into();
    }
    made_up::write(&dir.path().join("results.jsonl"), &records);
    let written = html::write_as(TableFormat::Latex, dir.path(), None, None).unwrap();
    let names = ["tables.md", "tables.tex"].map(|name| dir.path().join("report").join(name));
    assert_eq!(written.tables, names);
    let tex = fs::read_to_string(&names[1]).unwrap();
    for part in [
        "% briquette ",
        "\\caption{q\\&a \\#1 \\{x\\}, query-aware. Mean score of the samples, 0 to 1.",
        "\\begin{tabular}{lrr}\n\\toprule\npolicy & no budget & 25\\% \\\\\n\\midrule\n",
        "\\texttt{a\\_b:x=50\\%} &  & 0.50 [0.09, 0.91] \\\\\n\\bottomrule\n",
        "\\texttt{a\\_b:x=50\\%} & $-$0.50 [$-$1.00, +1.00], p = 1.000 \\\\\n",
        "\\begin{tabular}{lll}\n\\toprule\npolicy & method & paper \\\\\n",
        "\\texttt{full} & Full cache & - \\\\\n",
    ] {
        assert!(tex.contains(part), "{part} is not in\n{tex}");
    }
    assert_eq!(tex.matches("\\begin{table}").count(), tex.matches("\\end{table}").count());
}

#[test]
fn a_task_that_the_full_cache_fails_is_told_of() {
    let page = |scores: &[f64]| {
        let dir = tempfile::tempdir().unwrap();
        let mut records = tiny("full", "-", scores, held(100, 100));
        records.extend(tiny("snapkv", "25%", &[0.0, 1.0], held(25, 100)));
        made_up::write(&dir.path().join("results.jsonl"), &records);
        html::write(dir.path(), None, None).unwrap();
        fs::read_to_string(dir.path().join("report.html")).unwrap()
    };
    let said = "the full cache scores 0.00 (2 prompts). What compression loses cannot be told";
    assert!(page(&[0.0, 0.0]).contains(said));
    assert!(!page(&[0.0, 1.0]).contains("the full cache scores"));
}

/// The texts of the charts of a kind, as their sheet has them.
fn sheet(dir: &Path, stem: &str) -> String {
    fs::read_to_string(dir.join(format!("report/{stem}.svg"))).unwrap()
}

#[test]
fn budgets_in_tokens_and_in_per_cent_have_axes_of_their_own() {
    let mut records = tiny("full", "-", &[1.0; 2], held(100, 100));
    records.extend(tiny("kivi", "-", &[1.0, 0.0], held(20, 100)));
    for (budget, kept) in [("64", 10), ("128", 20), ("25%", 25), ("50%", 50)] {
        records.extend(tiny("snapkv", budget, &[1.0, 0.0], held(kept, 100)));
    }
    let (_, _, page) = written(&records);
    let chart = |title: &str| {
        let start = page.find(&format!(">{title}</text>")).unwrap_or_else(|| panic!("{title}"));
        page[start..start + page[start..].find("</svg>").unwrap()].to_owned()
    };
    let tokens = chart("tiny, query-aware; budget, tokens");
    assert!(tokens.contains(">64</text>") && tokens.contains(">128</text>"), "{tokens}");
    assert!(tokens.contains(">budget, tokens (log scale)</text>"), "{tokens}");
    assert!(!tokens.contains(">25%</text>"), "{tokens}");
    let shares = chart("tiny, query-aware; budget, share of the tokens");
    assert!(shares.contains(">25%</text>") && !shares.contains(">64</text>"), "{shares}");
    // What has no budget is a line across in both.
    for chart in [&tokens, &shares] {
        assert!(
            chart.contains("<g data-policy=\"kivi\">") && chart.contains("kivi: score"),
            "{chart}"
        );
    }
    // One unit needs no more than its axis.
    records.truncate(8);
    let (_, _, page) = written(&records);
    assert!(page.contains(">tiny, query-aware</text>") && !page.contains("; budget, tokens"));
    // Of one budget there is no line.
    records.truncate(6);
    let (_, of_one, page) = written(&records);
    assert!(!page.contains("<figure") && of_one.pictures.is_empty(), "{:?}", of_one.pictures);
    assert!(!page.contains("<section id=\"accuracy\"") && page.contains("<section id=\"memory\""));
}

#[test]
fn scores_are_drawn_against_the_bytes_held() {
    let mut records = tiny("full", "-", &[1.0; 4], held(100, 100));
    records.extend(tiny("snapkv", "64", &[1.0, 0.0, 1.0, 1.0], held(20, 100)));
    records.extend(tiny("h2o", "64", &[0.0, 0.0, 1.0, 0.0], held(45, 100)));
    records.extend(tiny("h2o", "128", &[0.0, 0.0, 1.0, 0.0], held(60, 100)));
    let (dir, _, page) = written(&records);
    for part in [
        "Score against bytes held",
        ">held, % of a full cache</text>",
        // Room is not held.
        "snapkv · 64: held, of full 20.0 %, no interval, 4 samples; score 0.75",
        "h2o · 64: held, of full 45.0 %",
        "<li data-policy=\"best so far\">",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(sheet(dir.path(), "memory").contains("best so far"));
}

#[test]
fn maps_of_a_kind_share_one_scale_of_colours() {
    let (dir, _, page) = written(&made_up::run());
    let places = &page[page.find("<section id=\"places\"").unwrap()..];
    let places = &places[..places.find("</section>").unwrap()];
    // The needle before and after: 17 maps each.
    assert_eq!(places.matches("<figure").count(), 2 * 17);
    assert_eq!(places.matches("<div class=\"colors\">").count(), 2);
    let heads = &page[page.find("tokens held by each head").unwrap()..];
    assert!(heads.contains(">the most in the map</text>"));
    // A sheet has one too: eleven colours more than tiles, whatever the maps.
    let (map, tiles) = (sheet(dir.path(), "heatmap-needle-before"), 17 * 15);
    assert_eq!(map.matches("<rect").count(), 1 + 11 + tiles);
}

#[test]
fn results_of_older_versions_tell_no_spare_room() {
    let old = CacheBytes { bytes: 45, spare: None, full: 100 };
    let mut records = tiny("snapkv", "64", &[1.0, 0.0], old);
    records.extend(tiny("full", "-", &[1.0, 1.0], held(100, 100)));
    let (_dir, written, page) = written(&records);
    let found = numbers(&written.csv);
    let of = |policy: &str, measure: &str| {
        found.get(&(policy.to_owned(), String::new(), measure.to_owned())).copied()
    };
    close(of("snapkv", "held-share").unwrap(), 0.45, None);
    assert_eq!(of("snapkv", "spare-share"), None);
    close(of("full", "held-share").unwrap(), 1.0, None);
    assert!(page.contains("Some results are of an older version"));
    // A share is a number, whatever the budget was called.
    assert!(page.contains(">45.0 %<") && !page.contains("quarter"));
}

#[test]
fn sections_without_results_are_left_out() {
    let sections = |page: &str| -> Vec<String> {
        page.match_indices("<section id=\"")
            .map(|(at, tag)| page[at + tag.len()..].split('"').next().unwrap().to_owned())
            .collect()
    };
    let (_, _, page) = written(&made_up::run());
    assert_eq!(
        sections(&page),
        [
            "summary",
            "accuracy",
            "differences",
            "places",
            "memory",
            "perplexity",
            "fidelity",
            "kept",
            "samples"
        ]
    );
    let (_, _, page) = written(&tiny("snapkv", "64", &[1.0, 0.0], held(20, 100)));
    assert_eq!(sections(&page), ["summary", "memory", "samples"]);
    let (_, _, page) = written(&text("snapkv", "64", &[&[1.0]], held(20, 100)));
    assert_eq!(sections(&page), ["summary", "memory", "perplexity"]);
    let (_, written, page) = written(&[]);
    assert_eq!((sections(&page), written.records), (vec!["summary".to_owned()], 0));
    assert!(page.contains("No results yet."));
}

#[test]
fn wall_time_counts_what_ran_at_a_time_once_and_no_pause() {
    let mut records = text("full", "-", &[&[1.0], &[1.0], &[1.0], &[1.0]], held(20, 100));
    // The second began before the first ended, the third is the first once more; the last came
    // after a pause.
    let spans = [(2.0, 1002.0), (2.0, 1003.0), (2.0, 1002.0), (1.0, 2000.0)];
    for (record, (seconds, ended)) in records.iter_mut().zip(spans) {
        (record.seconds, record.ended_seconds) = (seconds, Some(ended));
    }
    let (_, _, page) = written(&records);
    assert!(page.contains("<dt>Wall time, s</dt><dd>4</dd>"));
    // One that does not say when it ended.
    records[0].ended_seconds = None;
    let (_, _, page) = written(&records);
    assert!(page.contains("<dt>Seconds, summed</dt><dd>7</dd>"));
}

#[test]
fn many_results_make_a_small_page() {
    let mut records = Vec::new();
    let said = "long ".repeat(200);
    for policy in 0..15 {
        for budget in ["64", "128", "256"] {
            for task in 0..12 {
                for sample in 0..40 {
                    let axes = [("length", 512 << (sample % 4)), ("depth", 10 * (sample / 4))];
                    let score = f64::from(u8::from((policy + sample) % 3 == 0));
                    let outcome = answers(&axes, &said, &[score], held(20, 100));
                    let (policy, task) = (format!("policy-{policy}"), format!("task-{task}"));
                    let after = Some(Question::After);
                    records.push(record(&policy, budget, &task, sample as usize, after, outcome));
                }
            }
        }
    }
    let (_, written, page) = written(&records);
    assert_eq!(written.records, 15 * 3 * 12 * 40);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    // Nothing is left out in silence: of 540 maps of 40 tiles 300 are drawn, and not all of them on
    // the page.
    assert!(page.contains("240 more maps are not drawn"));
    assert!(page.contains("more charts are in report/heatmap-task-"));
    assert!(page.contains("answers are shown; 2"), "answers not shown are counted");
    assert!(page.contains("long long") && !page.contains(&said));
}
