//! The table of whole generation.

use serde_json::Value;

/// Columns of a run.
const HEAD: &str = "| settings | method | budget | rows × prompt + new | prompt, s | step, ms | \
    of it the host | tokens/s | over full | published | decoded tokens/s | over full | held, GiB | \
    reserved, GiB |";

/// The lines of `bench-generate` and `benches/torch/generate.py` as a table in Markdown; others are
/// passed over, and of several lines of one run the last counts. Nothing if there are none.
pub fn generation(lines: &[Value]) -> String {
    let mut runs: Vec<(Vec<String>, &Value)> = Vec::new();
    for line in lines.iter().filter(|line| line["kind"] == "generate") {
        let head = head(line);
        match runs.iter_mut().find(|(known, _)| *known == head) {
            Some((_, last)) => *last = line,
            None => runs.push((head, line)),
        }
    }
    if runs.is_empty() {
        return String::new();
    }
    let row = |(head, line): (Vec<String>, &Value)| {
        format!("| {} |\n", [head, body(line)].concat().join(" | "))
    };
    let rule = "|---".repeat(HEAD.matches(" | ").count() + 1);
    let rows: String = runs.into_iter().map(row).collect();
    format!("\n{HEAD}\n{rule}|\n{rows}")
}

/// The cells that name a run.
fn head(line: &Value) -> Vec<String> {
    let mut method = text(&line["method"]);
    if let Some(side) = line["side"].as_str() {
        method += &format!(" ({side})");
    }
    if let Some(every) = line["decode_every"].as_u64().filter(|&every| every > 1) {
        method += &format!(", every {every} tokens");
    }
    let [batch, prompt, new] = ["batch", "prompt", "new"].map(|key| text(&line[key]));
    let mut rows = format!("{batch} × {prompt} + {new}");
    for key in ["filled", "largest"] {
        if line[key] == true {
            rows += &format!(", {key}");
        }
    }
    let budget = if line["method"] == "full" { "-".to_owned() } else { text(&line["budget"]) };
    vec![text(&line["settings"]), method, budget, rows]
}

/// The cells with its results.
fn body(line: &Value) -> Vec<String> {
    if let Some(error) = line["error"].as_str() {
        let mut cells = vec![error.replace('|', "/")];
        cells.resize(10, String::new());
        return cells;
    }
    let mut prompt = number(&line["prefill_s"], 2);
    if line["filled"] == true {
        prompt = "-".to_owned();
    } else if line["prefill_warm"] == false {
        prompt += ", the first";
    }
    let points = line["points"].as_array().map(Vec::as_slice).unwrap_or_default();
    let step = |point: &Value| {
        let launched = if point["fallback_reason"].is_string() { " launched" } else { "" };
        number(&point["step_ms"], 2) + launched
    };
    let host = |point: &Value| {
        let replayed = &point["replayed_host_ms"];
        number(if replayed.is_number() { replayed } else { &point["host_ms"] }, 2)
    };
    let each = |cell: &dyn Fn(&Value) -> String| match points {
        [] => cell(line),
        points => points.iter().map(cell).collect::<Vec<_>>().join(", "),
    };
    vec![
        prompt,
        each(&step),
        each(&host),
        number(&line["tokens_per_s"], 1),
        number(&line["ratio"], 2),
        number(&line["published"], 2),
        number(&line["decode_tokens_per_s"], 1),
        number(&line["decode_ratio"], 2),
        gib(&line["bytes_held"]),
        gib(&line["bytes_reserved"]),
    ]
}

fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

fn gib(value: &Value) -> String {
    let gib = value.as_f64().map(|bytes| bytes / f64::from(1 << 30));
    gib.map_or_else(|| "-".to_owned(), |gib| format!("{gib:.2}"))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
