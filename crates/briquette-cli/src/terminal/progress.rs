use std::{
    fmt::Write,
    io::{self, IsTerminal},
    thread,
    time::Duration,
};

use briquette_models::Interrupt;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::terminal::output::{Verbosity, note, plain, verbosity};

/// Between two drawings: the time that has gone shows that a long unit is at work.
const TICK: Duration = Duration::from_millis(500);

/// Between two lines where stderr is no terminal.
const INTERVAL: Duration = Duration::from_secs(10);

/// The bar, hidden where nothing is to be said. indicatif draws on a terminal alone; a log gets
/// lines.
fn shown(bar: ProgressBar) -> ProgressBar {
    if verbosity() == Verbosity::Quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    } else if !io::stderr().is_terminal() {
        lines(&bar, INTERVAL, note);
    }
    bar
}

/// Writes a line in each interval, until the bar is finished or dropped.
fn lines(bar: &ProgressBar, interval: Duration, write: impl Fn(&str) + Send + 'static) {
    let bar = bar.downgrade();
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) else { return };
            let gone = bar.elapsed().as_secs();
            let (message, left) = (bar.message(), bar.prefix());
            write(&match bar.length() {
                Some(length) if length > 0 => {
                    let percent = 100.0 * bar.position() as f64 / length as f64;
                    let left = match left.is_empty() {
                        true => format!("{} s to go", bar.eta().as_secs()),
                        false => left,
                    };
                    format!("{percent:.0} %, {gone} s gone, {left}  {message}")
                }
                _ => format!("{message}, {gone} s gone"),
            });
        }
    });
}

/// A spinner for work of a length that is not known yet. Gone when dropped.
pub(crate) fn spinner(message: impl Into<String>) -> Spinner {
    let message = plain(&message.into()).into_owned();
    let bar = shown(ProgressBar::new_spinner()).with_message(message);
    bar.enable_steady_tick(Duration::from_millis(100));
    Spinner(bar)
}

pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    /// Makes it a bar over bytes, once it is known how many there are.
    pub(crate) fn bytes(&self, read: u64, all: u64) {
        if self.0.length().is_none() {
            let template = "{bar:20} {binary_bytes}/{binary_total_bytes}, {eta} to go  {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.0.set_style(style);
            }
            self.0.set_position(read);
            self.0.set_length(all);
        }
        self.0.set_position(read);
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A time as people say it, in its two largest units.
pub(crate) fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) if minutes < 10 => format!("{minutes} min {seconds} s"),
        (0, minutes, _) => format!("{minutes} min"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// A bar over `total` steps.
pub(crate) fn bar(total: usize) -> ProgressBar {
    let bar = shown(ProgressBar::new(total as u64));
    // The template is fixed, so the default style is never needed.
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:20} {pos}/{len} prompts, {elapsed} gone, {eta} to go  {wide_msg}",
    ) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// A bar over tokens, of which units of different length take a part each. Its prefix is the time
/// that is left. Behind it stand the tokens that were read, within a unit too.
pub(crate) fn units(tokens: usize, read: Interrupt) -> ProgressBar {
    let bar = shown(ProgressBar::new(tokens as u64)).with_prefix("no estimate yet");
    let template = "{bar:12} {percent} %, {elapsed} gone, {prefix}, {read} tokens  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        let read = move |_: &ProgressState, text: &mut dyn Write| {
            // What cannot be written is not shown.
            let _ = write!(text, "{}", HumanCount(read.tokens_read()));
        };
        bar.set_style(style.with_key("read", read));
    }
    bar.enable_steady_tick(TICK);
    bar
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn times_are_said_in_two_units() {
        let spoken = [7, 67, 667, 7_320].map(|seconds| super::spoken(Duration::from_secs(seconds)));
        assert_eq!(spoken, ["7 s", "1 min 7 s", "11 min", "2 h 2 min"]);
    }

    #[test]
    fn a_spinner_becomes_a_bar_when_there_are_bytes() {
        let spinner = Spinner(ProgressBar::hidden());
        assert_eq!(spinner.0.length(), None);
        spinner.bytes(3, 12);
        spinner.bytes(9, 12);
        assert_eq!((spinner.0.position(), spinner.0.length()), (9, Some(12)));
    }

    #[test]
    fn a_log_gets_a_line_in_each_interval_until_the_bar_is_gone() {
        let (sender, heard) = mpsc::channel();
        let bar = ProgressBar::hidden().with_message("tova 64");
        bar.set_length(8);
        bar.set_position(2);
        lines(&bar, Duration::from_millis(2), move |line| sender.send(line.to_owned()).unwrap());
        for _ in 0..2 {
            let line = heard.recv().unwrap();
            assert!(line.starts_with("25 %, 0 s gone") && line.ends_with("tova 64"), "{line}");
        }
        drop(bar);
        // The thread ends, and its end of the channel with it.
        while heard.recv().is_ok() {}
    }
}
