//! Several policies over several windows.

use briquette_models::Model;
use serde::Serialize;

use super::{Measured, Reference};
use crate::{
    Result, fingerprint,
    grid::Entry,
    jobs,
    journal::Steps,
    tasks::text::{Text, Window, check_windows},
};

/// Sizes of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens fed behind it.
    pub tokens: usize,
    /// Windows of the text.
    pub windows: usize,
    /// Tokens from the start of one to the start of the next; `None` spreads them over the text.
    pub stride: Option<usize>,
}

impl Plan {
    /// The windows of a text: a prompt, and the tokens fed behind it.
    ///
    /// # Errors
    /// [`Error::Grid`](crate::Error::Grid) for a number that is 0,
    /// [`Error::ContextTooShort`](crate::Error::ContextTooShort), and what [`Text::windows`]
    /// refuses.
    pub fn windows(&self, text: &Text, model: &Model) -> Result<Vec<Window>> {
        let counts = [("prompt", self.prompt), ("tokens", self.tokens), ("windows", self.windows)];
        let length = self.prompt.saturating_add(self.tokens);
        check_windows(&counts, length, model.config().max_position_embeddings)?;
        text.windows(length, self.windows, self.stride)
    }
}

/// Measurements by the fingerprint of the policy and the start of the window.
pub type Kept = Steps<(String, usize), Measured>;

/// Every policy in every window, `[entry][window]`, what is not in `kept` yet being measured. The
/// full cache runs once a window. `on_measured` hears of each.
///
/// # Errors
/// As [`Reference::new`] and [`Reference::measure`], and of the journal.
pub fn run(
    model: &Model,
    entries: &[Entry],
    windows: &[Window],
    prompt: usize,
    threads: usize,
    kept: &mut Kept,
    mut on_measured: impl FnMut(&Entry),
) -> Result<Vec<Vec<Measured>>> {
    let key =
        |entry: &Entry, window: &Window| (fingerprint::of_policy(&entry.policy), window.start);
    for window in windows {
        let (found, todo): (Vec<&Entry>, Vec<&Entry>) =
            entries.iter().partition(|entry| kept.get(&key(entry, window)).is_some());
        found.into_iter().for_each(&mut on_measured);
        if todo.is_empty() {
            continue;
        }
        let reference = Reference::new(model, &window.tokens, prompt)?;
        let work = |entry: &&Entry| reference.measure(entry.policy.clone());
        jobs::run(&todo, threads, work, |entry, measured| {
            kept.push(key(entry, window), measured)?;
            on_measured(entry);
            Ok(())
        })?;
    }
    kept.finish()?;
    let of_entry = |entry: &Entry| {
        windows.iter().filter_map(|window| kept.get(&key(entry, window)).cloned()).collect()
    };
    Ok(entries.iter().map(of_entry).collect())
}
