//! Reckoning and tables of `bench-papers`.

use briquette_benches::papers::{Line, NAMES, Plan, Point, Table, markdown, simpson};

fn line(method: &str, batch: usize, steps: [f64; 3]) -> Line {
    let point = |launched_ms: f64| Point { launched_ms, ..Point::default() };
    Line {
        method: method.into(),
        batch,
        prompt: 100,
        new: 101,
        prefill_s: Some(1.0),
        prefill_rows: batch,
        prefill_warm: true,
        memory_gib: 80.0,
        points: steps.map(point).into(),
        ..Line::default()
    }
}

#[test]
fn simpson_is_exact_for_parabolas() {
    assert!((simpson([3.0; 3]) - 3.0).abs() < 1e-12);
    // The mean of 5 + 2x + 3x² from 0 to 4.
    let value = |x: f64| 5.0 + 2.0 * x + 3.0 * x * x;
    assert!((simpson([value(0.0), value(2.0), value(4.0)]) - 25.0).abs() < 1e-12);
}

#[test]
fn the_whole_is_the_prompt_and_all_steps_but_the_first() {
    let mut line = line("full", 4, [10.0, 20.0, 30.0]);
    line.finish();
    assert!((line.step_ms.unwrap() - 20.0).abs() < 1e-12);
    assert!((line.latency_s.unwrap() - 3.0).abs() < 1e-12);
    assert!((line.tokens_per_s.unwrap() - 404.0 / 3.0).abs() < 1e-9);
    assert_eq!(line.points[0].counted, "launched");
}

#[test]
fn replayed_steps_count_with_their_share_of_a_recording() {
    let mut line = line("full", 1, [10.0; 3]);
    for (point, recording) in line.points.iter_mut().zip([640.0, 64.0, 128.0]) {
        point.replayed_ms = Some(5.0);
        point.recording_ms = Some(recording);
        point.room = Some(64);
    }
    // A method that holds as much as before records nothing anew.
    line.points[2].room = None;
    line.finish();
    // The first recording compiles: the shortest counts.
    let steps: Vec<f64> = line.points.iter().map(|point| point.step_ms).collect();
    assert_eq!(steps, [6.0, 6.0, 5.0]);
    assert!(line.points.iter().all(|point| point.counted == "replayed"));
}

#[test]
fn a_line_without_three_points_has_no_rate() {
    let mut line = line("full", 1, [10.0; 3]);
    line.points.pop();
    line.finish();
    assert_eq!((line.step_ms, line.tokens_per_s), (None, None));
}

#[test]
fn a_batch_beyond_the_card_has_no_ratio() {
    let (mut full, mut own) = (line("full", 2, [20.0; 3]), line("ems", 16, [10.0; 3]));
    full.finish();
    own.finish();
    own.hold_against(&full);
    assert!((own.decode_ratio.unwrap() - 16.0).abs() < 1e-12);
    // 8 times the rows, in 2 seconds instead of 3.
    assert!((own.ratio.unwrap() - 12.0).abs() < 1e-12);
    let mut own = Line { refused: Some("beyond".into()), ratio: None, decode_ratio: None, ..own };
    own.hold_against(&full);
    assert_eq!((own.ratio, own.decode_ratio), (None, None));
}

#[test]
fn a_table_has_the_papers_numbers_beside_ours() {
    let mut full = line("full", 2, [20.0; 3]);
    full.finish();
    let mut own = line("ems", 16, [10.0; 3]);
    (own.published_tokens_per_s, own.published_ratio) = (Some(50.44), Some(3.44));
    own.bytes_reserved = Some(40 << 30);
    own.finish();
    own.hold_against(&full);
    let failed = Line { error: Some("a | b".into()), points: Vec::new(), ..own.clone() };
    let table = markdown("EMS", &[full, own, failed]);
    assert!(table.contains("\nEMS\n"), "{table}");
    assert!(table.contains("| 808.0 | 50.4 | 12.00 | 3.44 | 16.00 | 40.0 of 80 |"), "{table}");
    assert!(table.contains("| a / b |"), "{table}");
    // Title, head and rows; all rows have as many cells.
    let cells: Vec<usize> = table
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.matches('|').count())
        .collect();
    assert_eq!(cells, [13; 5], "{table}");
}

#[test]
fn every_table_begins_with_the_full_cache_and_reaches_its_end() {
    for name in NAMES {
        for tiny in [false, true] {
            let table = Table::named(name, tiny).unwrap();
            assert_eq!(table.name, name);
            for case in &table.cases {
                assert_eq!(case.runs[0].method, "full");
                assert!(case.prompt + case.new + 16 <= table.dimensions.context, "{name}");
            }
        }
    }
    assert!(Table::named("emss", false).is_err());
}

#[test]
fn published_ratios_are_those_of_published_rates() {
    for name in ["ems", "d2o"] {
        for case in Table::named(name, false).unwrap().cases {
            let full = case.runs[0].published.tokens_per_s.unwrap();
            for run in case.runs.iter().filter(|run| run.published.ratio.is_some()) {
                let ratio = run.published.tokens_per_s.unwrap() / full;
                let published = run.published.ratio.unwrap();
                assert!((ratio - published).abs() < 0.015, "{name} {run:?}: {ratio}");
            }
        }
    }
}

#[test]
fn as_many_rows_are_prefilled_as_their_tokens_allow() {
    let limit = std::time::Duration::from_secs(1);
    let plan = Plan { steps: 32, prompt_tokens: 131_072, limit, memory: None };
    let rows = [(16, 4096), (50, 8192), (4, 131_073), (3, 16)];
    assert_eq!(rows.map(|(batch, prompt)| plan.prefill_rows(batch, prompt)), [16, 16, 1, 3]);
}
