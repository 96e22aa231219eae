//! Settings, reckoning and tables of `bench-generate`.

use std::path::Path;

use briquette_benches::{
    generate::{Point, Report, simpson},
    settings::{Method, Setting, command_lines},
    table::generation,
};

fn report(method: &str, batch: usize, steps: [f64; 3]) -> Report {
    let point = |launched_ms: f64| Point { launched_ms, ..Point::default() };
    let points = steps.map(point).into();
    let of = Report { kind: "generate", method: method.into(), batch, points, ..Report::default() };
    let mut report = Report { prompt: 100, new: 101, prefill_s: 1.0, prefill_warm: true, ..of };
    report.finish();
    report
}

#[test]
fn simpson_is_exact_for_parabolas() {
    // The mean of 5 + 2x + 3x² from 0 to 4.
    let value = |x: f64| 5.0 + 2.0 * x + 3.0 * x * x;
    assert!((simpson([value(0.0), value(2.0), value(4.0)]) - 25.0).abs() < 1e-12);
}

#[test]
fn the_whole_is_the_prompt_and_all_steps_but_the_first() {
    let mut full = report("full", 4, [10.0, 20.0, 30.0]);
    assert!((full.step_ms.unwrap() - 20.0).abs() < 1e-12);
    assert!((full.tokens_per_s.unwrap() - 404.0 / 3.0).abs() < 1e-9);
    // Without a prefill there is a rate of decoding only.
    full.filled = true;
    full.finish();
    assert!(full.tokens_per_s.is_none() && full.decode_tokens_per_s.is_some());
}

#[test]
fn replayed_steps_count_with_their_share_of_a_recording() {
    let mut full = report("full", 1, [10.0; 3]);
    for (point, recording) in full.points.iter_mut().zip([640.0, 64.0, 128.0]) {
        point.replayed_ms = Some(5.0);
        point.recording_ms = Some(recording);
        point.room = Some(64);
    }
    // A method that holds as much as before records nothing anew.
    full.points[2].room = None;
    full.finish();
    // The first recording compiles: the shortest counts.
    let steps: Vec<f64> = full.points.iter().map(|point| point.step_ms).collect();
    assert_eq!(steps, [6.0, 6.0, 5.0]);
}

#[test]
fn a_table_has_ratios_to_the_full_cache_beside_the_published_ones() {
    let full = report("full", 2, [20.0; 3]);
    let mut own = report("ems", 16, [10.0; 3]);
    (own.published, own.bytes_reserved) = (Some(3.44), Some(40 << 30));
    own.hold_against(&full);
    let mut failed = Report { error: Some("a | b".into()), ratio: None, ..own.clone() };
    failed.method = "d2o".into();
    failed.hold_against(&full);
    assert_eq!(failed.ratio, None);
    let lines = [&full, &full, &own, &failed].map(|line| serde_json::to_value(line).unwrap());
    let table = generation(&lines);
    // 8 times the rows, in 2 seconds instead of 3.
    let steps = "10.00, 10.00, 10.00";
    assert!(table.contains(&format!("| 1.00 | {steps} | ")), "{table}");
    assert!(table.contains("| 808.0 | 12.00 | 3.44 | 1600.0 | 16.00 | 0.00 | 40.00 |"), "{table}");
    assert!(table.contains("| a / b |"), "{table}");
    // Head, rule and three runs; all have as many cells.
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let cells: Vec<usize> = rows.map(|line| line.matches('|').count()).collect();
    assert_eq!(cells, [15; 5], "{table}");
}

#[test]
fn methods_may_have_rows_and_published_ratios() {
    let method: Method = "snapkv@4=1.8/1.4".parse().unwrap();
    assert_eq!((method.name.as_str(), method.rows), ("snapkv", Some(4)));
    assert_eq!((method.published, method.published_largest), (Some(1.8), Some(1.4)));
    let method: Method = "ems".parse().unwrap();
    assert_eq!((method.rows, method.published), (None, None));
    for wrong in ["", "ems@0", "ems@x", "ems=x", "@3"] {
        assert!(wrong.parse::<Method>().is_err(), "{wrong}");
    }
    let setting = Setting { batch: 8, prompt: 4096, new: 1024 };
    assert_eq!("8:4096+1024".parse::<Setting>().unwrap(), setting);
    assert!("8:4096".parse::<Setting>().is_err());
}

#[test]
fn a_command_line_goes_before_the_file() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/settings/papers.toml"));
    let given = ["bench-generate", "--points", "2", "--methods=full"].map(str::to_owned);
    let lines = command_lines(file, &["decode-only".to_owned()], &given).unwrap();
    let [(name, line)] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(name, "decode-only");
    for option in ["--graph", "--at=32:512+16384", "--memory=128", "--methods=full"] {
        assert!(line.iter().any(|given| given == option), "{option}: {line:?}");
    }
    assert!(!line.iter().any(|given| given.starts_with("--points=")), "{line:?}");
    assert_eq!(line.iter().filter(|given| given.starts_with("--methods")).count(), 1);
    assert!(command_lines(file, &["ems-2".to_owned()], &given).is_err());
}
