//! Results, as lines of JSON and as a table in Markdown.

use serde::Serialize;

/// Result of a method at a setting, written as a line of JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Line {
    /// `papers`.
    pub kind: &'static str,
    /// The table.
    pub table: String,
    /// The method.
    pub method: String,
    /// Its budget, in tokens.
    pub budget: usize,
    /// Rows at once.
    pub batch: usize,
    /// Whether this is the largest batch that fits, to within an eighth.
    pub largest: bool,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub new: usize,
    /// Decoded tokens between two compressions; absent if it does not compress in decoding.
    pub decode_every: Option<usize>,
    /// Seconds until the first token of all rows.
    pub prefill_s: Option<f64>,
    /// Rows whose prefill was timed; the time is that of all rows in turn.
    pub prefill_rows: usize,
    /// Whether a prefill before it had compiled.
    pub prefill_warm: bool,
    /// Decode steps at the start, in the middle and at the end, by which the whole is reckoned.
    pub points: Vec<Point>,
    /// Milliseconds of a decode step, the mean of the whole by Simpson's rule.
    pub step_ms: Option<f64>,
    /// Seconds from the prompt to the last token.
    pub latency_s: Option<f64>,
    /// New tokens per second of the whole, of the batch.
    pub tokens_per_s: Option<f64>,
    /// Bytes that the cache holds at the end.
    pub bytes_held: usize,
    /// The most bytes that the allocator had taken from the device, the weights' among them.
    pub bytes_reserved: Option<u64>,
    /// GiB of the card.
    pub memory_gib: f64,
    /// The reason why the batch does not count: it goes beyond the card.
    pub refused: Option<String>,
    /// Tokens per second over the full cache's in this process.
    pub ratio: Option<f64>,
    /// The full cache's step over this one's, by rows.
    pub decode_ratio: Option<f64>,
    /// Tokens per second of the paper.
    pub published_tokens_per_s: Option<f64>,
    /// The ratio of the paper.
    pub published_ratio: Option<f64>,
    /// The error, if the run failed.
    pub error: Option<String>,
    /// The type of weights and cache.
    pub dtype: String,
    /// The device.
    pub device: String,
    /// The day, in UTC.
    pub date: String,
}

/// Decode steps at one length.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// Tokens of a row behind which they were timed.
    pub seen: usize,
    /// Steps of each timing.
    pub steps: usize,
    /// Milliseconds of a launched step.
    pub launched_ms: f64,
    /// Milliseconds of a replayed one.
    pub replayed_ms: Option<f64>,
    /// Milliseconds that it takes to record steps anew beyond what they take, replayed.
    pub recording_ms: Option<f64>,
    /// Tokens for which there is room before steps are recorded anew; absent if they are not.
    pub room: Option<usize>,
    /// The reason why steps were not replayed.
    pub launched_because: Option<String>,
    /// The step that counts: replayed, its share of a recording included, or launched.
    pub step_ms: f64,
    /// `replayed` or `launched`.
    pub counted: &'static str,
}

impl Point {
    /// Chooses the step that counts, where recording anew takes so many milliseconds.
    pub fn count(&mut self, recording_ms: f64) {
        match self.replayed_ms {
            Some(replayed) => {
                let anew = self.room.map_or(0.0, |room| recording_ms / room.max(1) as f64);
                (self.step_ms, self.counted) = (replayed + anew, "replayed");
            }
            None => (self.step_ms, self.counted) = (self.launched_ms, "launched"),
        }
    }
}

/// The mean of a function over an interval, by its values at the start, in the middle and at the
/// end.
pub fn simpson([start, middle, end]: [f64; 3]) -> f64 {
    (start + 4.0 * middle + end) / 6.0
}

impl Line {
    /// Reckons the whole from the prompt and the points.
    pub fn finish(&mut self) {
        // The first recordings of a process compile.
        let recording = self.points.iter().filter_map(|point| point.recording_ms);
        let recording = recording.fold(f64::INFINITY, f64::min);
        let recording = if recording.is_finite() { recording } else { 0.0 };
        self.points.iter_mut().for_each(|point| point.count(recording));
        let steps: Vec<f64> = self.points.iter().map(|point| point.step_ms).collect();
        let Ok(steps) = <[f64; 3]>::try_from(steps) else { return };
        let step = simpson(steps);
        self.step_ms = Some(step);
        let Some(prefill) = self.prefill_s else { return };
        // The first new token comes out of the prefill.
        let latency = prefill + step * 1e-3 * self.new.saturating_sub(1) as f64;
        self.latency_s = Some(latency);
        self.tokens_per_s = Some((self.batch * self.new) as f64 / latency);
    }

    /// Adds the ratios to the full cache, if both count.
    pub fn hold_against(&mut self, full: &Self) {
        if self.refused.is_some() || full.refused.is_some() {
            return;
        }
        let ratio = |own: Option<f64>, other: Option<f64>| Some(own? / other?);
        self.ratio = ratio(self.tokens_per_s, full.tokens_per_s);
        let rate = |line: &Self| Some(line.batch as f64 / line.step_ms?);
        self.decode_ratio = ratio(rate(self), rate(full));
    }
}

/// The lines as a table in Markdown, with the paper's numbers beside them.
pub fn markdown(title: &str, lines: &[Line]) -> String {
    let mut table = format!(
        "\n{title}\n\n| prompt + new | method | rows | prompt, s | step at start, middle, end, \
         ms | latency, s | tokens/s | published | ratio | published | of decoding | reserved, GiB \
         |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for line in lines {
        table += &row(line);
    }
    table
}

fn row(line: &Line) -> String {
    let rows = match line.largest {
        true => format!("{}, the largest", line.batch),
        false => line.batch.to_string(),
    };
    let head = format!("| {} + {} | {} | {rows} |", line.prompt, line.new, line.method);
    if let Some(error) = &line.error {
        return format!("{head} {} | | | | | | | | |\n", error.replace('|', "/"));
    }
    let of = |number: Option<f64>, digits: usize| match number {
        Some(number) => format!("{number:.digits$}"),
        None => "-".to_owned(),
    };
    let step = |point: &Point| {
        let launched = if point.counted == "launched" { " launched" } else { "" };
        format!("{:.2}{launched}", point.step_ms)
    };
    let steps: Vec<String> = line.points.iter().map(step).collect();
    let in_turn = if line.prefill_rows < line.batch { ", in turn" } else { "" };
    let cold = if line.prefill_warm { "" } else { ", the first" };
    let gib = line.bytes_reserved.map(|bytes| bytes as f64 / f64::from(1 << 30));
    let fits = match &line.refused {
        Some(refused) => format!(": {refused}"),
        None => format!(" of {:.0}", line.memory_gib),
    };
    format!(
        "{head} {}{in_turn}{cold} | {} | {} | {} | {} | {} | {} | {} | {}{fits} |\n",
        of(line.prefill_s, 2),
        steps.join(", "),
        of(line.latency_s, 1),
        of(line.tokens_per_s, 1),
        of(line.published_tokens_per_s, 1),
        of(line.ratio, 2),
        of(line.published_ratio, 2),
        of(line.decode_ratio, 2),
        of(gib, 1),
    )
}
