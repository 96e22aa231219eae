use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::{Verbosity, verbosity};

// indicatif draws on stderr, and nothing when that is no terminal.

/// The bar, hidden where nothing is to be said.
fn shown(bar: ProgressBar) -> ProgressBar {
    if verbosity() == Verbosity::Quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// A spinner for work of unknown length. Gone when dropped.
pub(super) fn spinner(message: impl Into<String>) -> Spinner {
    let bar = shown(ProgressBar::new_spinner()).with_message(message.into());
    bar.enable_steady_tick(Duration::from_millis(100));
    Spinner(bar)
}

pub(super) struct Spinner(ProgressBar);

impl Spinner {
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A bar over `total` steps.
pub(super) fn bar(total: usize) -> ProgressBar {
    let bar = shown(ProgressBar::new(total as u64));
    // The template is fixed, so the default style is never needed.
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {pos}/{len} prompts, {elapsed} gone, {eta} to go  {msg}",
    ) {
        bar.set_style(style);
    }
    bar
}

/// A bar over tokens, of which units of different length take a part each.
pub(super) fn units(tokens: usize) -> ProgressBar {
    let bar = shown(ProgressBar::new(tokens as u64));
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {percent} %, {elapsed} gone, {eta} to go  {msg}")
    {
        bar.set_style(style);
    }
    bar
}
