//! Results of whole generation.

use serde::Serialize;

/// Result of one method at one setting, written as a line of JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// `generate`.
    pub kind: &'static str,
    /// The name of the settings in their file.
    pub settings: Option<String>,
    /// The method.
    pub method: String,
    /// Its budget.
    pub budget: String,
    /// Prompts at once.
    pub batch: usize,
    /// Whether this is the largest batch that fits, to within an eighth.
    pub largest: bool,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens to generate after each.
    pub new: usize,
    /// Whether caches were filled with noise, so that no prefill was run.
    pub filled: bool,
    /// Decoded tokens between two compressions; absent if it does not compress in decoding.
    pub decode_every: Option<usize>,
    /// Seconds of the first prefill, compiling included, of all rows.
    pub first_prefill_s: f64,
    /// Seconds of the second prefill, or of the first if there was no time for another.
    pub prefill_s: f64,
    /// Whether there was time for the second.
    pub prefill_warm: bool,
    /// Rows whose prefill was timed; the time is that of all rows in turn.
    pub prefill_rows: usize,
    /// The decode steps that were timed.
    pub points: Vec<Point>,
    /// Milliseconds of a decode step, by Simpson's rule where there are three points.
    pub step_ms: Option<f64>,
    /// Decoded tokens per second, of the batch.
    pub decode_tokens_per_s: Option<f64>,
    /// New tokens per second with the prefill counted, of the batch.
    pub tokens_per_s: Option<f64>,
    /// Milliseconds of a step that activations take from device to device, and logits back to the
    /// first, where there are several.
    pub boundary_ms: Option<f64>,
    /// Bytes that the cache reports at the end.
    pub bytes_held: usize,
    /// Bytes that all keys and values of prompts and answers would take.
    pub bytes_full: usize,
    /// Live buffers at the end, the model's included, on the device that has most.
    pub bytes_in_use: Option<u64>,
    /// The most bytes that the allocator had taken from a device, the model's included.
    pub bytes_reserved: Option<u64>,
    /// Decoding against the full cache at this setting in this run.
    pub decode_ratio: Option<f64>,
    /// The same ratio with the prefill counted.
    pub ratio: Option<f64>,
    /// The ratio that was published.
    pub published: Option<f64>,
    /// The error, if the run failed.
    pub error: Option<String>,
    /// The devices.
    pub device: String,
}

/// Decode steps at one length.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// Tokens of a row behind which they were timed.
    pub seen: usize,
    /// Steps that were launched.
    pub steps: usize,
    /// Milliseconds of a launched step.
    pub launched_ms: f64,
    /// Of these, milliseconds until the host has handed a step to the device: as long as a step, if
    /// something in it waits for the device.
    pub host_ms: f64,
    /// Milliseconds of a step that is replayed from a recording, where steps are.
    pub replayed_ms: Option<f64>,
    /// Of these, milliseconds of the host.
    pub replayed_host_ms: Option<f64>,
    /// Milliseconds that it takes to record steps anew beyond what they take, replayed.
    pub recording_ms: Option<f64>,
    /// Tokens for which there is room before steps are recorded anew; absent if they are not.
    pub room: Option<usize>,
    /// The reason why steps were not replayed.
    pub fallback_reason: Option<String>,
    /// The step that counts: replayed, its share of a recording included, or launched.
    pub step_ms: f64,
}

/// The mean of a function over an interval, by its values at the start, in the middle and at the
/// end.
pub fn simpson([start, middle, end]: [f64; 3]) -> f64 {
    (start + 4.0 * middle + end) / 6.0
}

impl Report {
    /// Reckons the step and the rates from the prefill and one point or three.
    pub fn finish(&mut self) {
        // The first recordings of a process compile: the shortest counts.
        let recordings = self.points.iter().filter_map(|point| point.recording_ms);
        let recording = recordings.reduce(f64::min).unwrap_or(0.0);
        for point in &mut self.points {
            let anew = point.room.map_or(0.0, |room| recording / room.max(1) as f64);
            point.step_ms = point.replayed_ms.map_or(point.launched_ms, |step| step + anew);
        }
        let steps: Vec<f64> = self.points.iter().map(|point| point.step_ms).collect();
        let step = match steps[..] {
            [step] => step,
            [start, middle, end] => simpson([start, middle, end]),
            _ => return,
        };
        self.step_ms = Some(step);
        self.decode_tokens_per_s = Some(self.batch as f64 / step * 1e3);
        // The first new token comes out of the prefill.
        let whole = self.prefill_s + step * 1e-3 * self.new.saturating_sub(1) as f64;
        self.tokens_per_s = (!self.filled).then(|| (self.batch * self.new) as f64 / whole);
    }

    /// Adds the ratios to the full cache, unless this run failed.
    pub fn hold_against(&mut self, full: &Self) {
        if self.error.is_some() {
            return;
        }
        let ratio = |own: Option<f64>, other: Option<f64>| Some(own? / other?);
        self.ratio = ratio(self.tokens_per_s, full.tokens_per_s);
        self.decode_ratio = ratio(self.decode_tokens_per_s, full.decode_tokens_per_s);
    }
}
