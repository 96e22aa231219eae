//! The numbers that the page on policies quotes are those of the files it names.

use std::{collections::BTreeSet, fs, path::Path};

/// A file of `docs/src`, or with `../../` one of the repository.
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first table of a text: its head, and its rows without the line between.
fn table(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|'));
    let mut rows =
        lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let head = rows.next().expect("a table has a head");
    (head, rows.skip(1).collect())
}

/// Whether a table has a row with these cells under these heads.
fn has_row(text: &str, heads: &[&str], cells: &[&str]) -> bool {
    let (head, rows) = table(text);
    let at = |name: &&str| head.iter().position(|head| head == name);
    let Some(columns) = heads.iter().map(at).collect::<Option<Vec<usize>>>() else { return false };
    rows.iter().any(|row| columns.iter().zip(cells).all(|(&column, cell)| row[column] == *cell))
}

/// The entry of a file of results for a policy at a budget under a head as `needle in 512, before`,
/// as the page writes it.
fn result(csv: &str, policy: &str, budget: &str, head: &str) -> Option<String> {
    let (task, measure) = head.rsplit_once(", ").unwrap_or(("", head));
    let (ask, measure, write): (_, _, fn(f64) -> String) = match measure {
        "before" | "after" => (measure, "score", |mean| format!("{mean:.2}")),
        "nats over full" => ("", "nats-over-full", |mean| format!("{mean:+.3}")),
        "of full" => ("", "cache-share", |mean| format!("{:.0} %", 100.0 * mean)),
        _ => panic!("no measure is named `{measure}`"),
    };
    let task = if task.contains(',') { format!("\"{task}\"") } else { task.to_owned() };
    let start = format!("ember-7m,{policy},{budget},{task},{ask},{measure},");
    let line = csv.lines().find_map(|line| line.strip_prefix(&start))?;
    // Unit, samples, mean.
    let mean = line.split(',').nth(2).expect("a line has a mean");
    Some(write(mean.parse().expect("a mean is a number")))
}

/// Tables stand behind `<!-- numbers: FILE … -->`; outside of them the page has no decimals.
#[test]
fn the_page_on_policies_quotes_its_files() {
    let page = read("which-policy.md");
    let mut parts = page.split("<!-- numbers: ");
    let mut prose = parts.next().unwrap_or_default().to_owned();
    let mut compared = 0;
    for part in parts {
        let (files, rest) = part.split_once(" -->\n\n").expect("a table names its files");
        let (quoted, after) = rest.split_once("\n\n").expect("a table has an end");
        prose += after;
        let texts: Vec<String> = files.split(' ').map(read).collect();
        let (heads, rows) = table(quoted);
        for row in rows {
            compared += row.len();
            if files.ends_with(".md") {
                assert!(has_row(&texts[0], &heads, &row), "{files} has no row {row:?}");
                continue;
            }
            let (policy, budget) = (row[0].trim_matches('`'), row[1]);
            for (head, cell) in heads.iter().zip(&row).skip(2) {
                let found: Vec<String> =
                    texts.iter().filter_map(|csv| result(csv, policy, budget, head)).collect();
                assert_eq!(found, [*cell], "{policy}, budget {budget}, {head}: {files}");
            }
        }
    }
    assert!(compared > 100, "{compared} cells");
    let decimal =
        |text: &[u8]| matches!(text, [a, b'.', b] if a.is_ascii_digit() && b.is_ascii_digit());
    let decimals = prose.as_bytes().windows(3).filter(|text| decimal(text)).count();
    assert_eq!(decimals, 0, "numbers outside of the tables");
}

/// The table of short prompts names each policy by what its run file changes, but for when
/// prompts are compressed.
#[test]
fn short_prompts_have_the_policies_of_their_run() {
    let run = read("../../runs/asked-after.toml");
    let mut ran = BTreeSet::from(["`full`".to_owned()]);
    for policy in run.split("[[policies]]").skip(1) {
        let value = |key: &str| {
            let line = policy.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("no `{key}`:{policy}"))
        };
        let name = value("name = ").trim_matches('"');
        let changes = value("change = ").trim_matches(['[', ']']).split(", ");
        let changes = changes.map(|change| change.trim_matches('"'));
        let changes = changes.filter(|change| *change != "schedule.prefill=first-prompt");
        ran.insert(format!("`{}`", [vec![name], changes.collect()].concat().join(":")));
    }
    let board = read("results/short-prompts.md");
    let shown: BTreeSet<String> = table(&board).1.iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(shown, ran);
}
