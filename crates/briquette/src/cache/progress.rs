use super::Prompt;
use crate::{Error, Result};

/// Progress of a layer: the tokens it has seen, and the part of a prompt that has arrived. All of
/// it is known on the host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Tokens seen per batch row, padding not counted.
    seen: Vec<usize>,
    /// Columns seen per batch row, padding included.
    columns: Vec<usize>,
    /// The prompt that is arriving, and how many of its columns have arrived.
    prompt: Option<(Prompt, usize)>,
    /// Whether a prompt has arrived whole.
    after_first: bool,
    /// Tokens decoded since the last prompt or compression.
    decoded: usize,
    /// The decoded tokens that the next call is declared to bring.
    draft: Option<Draft>,
}

/// Decoded tokens of one call that may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) columns: usize,
    /// Whether others of the same draft came before.
    pub(crate) goes_on: bool,
}

/// The columns of one call of `attend`: their positions, and the prompt or decoding they are part
/// of.
#[derive(Clone, Debug)]
pub(crate) struct InputSpan {
    /// The position of each new column, row by row, −1 for padding.
    pub(crate) positions: Vec<i64>,
    /// Tokens seen before, per batch row.
    pub(crate) seen_before: Vec<usize>,
    /// Tokens of the prompt that have arrived with this call, per batch row; 0 in decoding.
    pub(crate) of_prompt: Vec<usize>,
    /// Whether a column of this call is padding.
    pub(crate) padded: bool,
    /// The prompt or the decoding that the columns are part of.
    pub(crate) phase: Phase,
    after: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A prompt: the columns that will still be missing, and whether it is the first prompt.
    Prompt { missing: usize, first: bool },
    /// The n-th token decoded since the last prompt or compression.
    Decode { decoded: usize },
    /// Decoded tokens that may be taken back. They stay for this call: only what was `due` before
    /// them is dropped.
    Draft { due: usize, columns: usize },
}

impl Phase {
    pub(crate) fn is_prompt(self) -> bool {
        matches!(self, Self::Prompt { .. })
    }

    pub(crate) fn ends_prompt(self) -> bool {
        matches!(self, Self::Prompt { missing: 0, .. })
    }
}

impl InputSpan {
    pub(crate) fn seen(&self) -> &[usize] {
        &self.after.seen
    }

    /// Progress of the layer with these columns.
    pub(crate) fn after(&self) -> &Progress {
        &self.after
    }

    pub(crate) fn into_progress(self, compressed: bool) -> Progress {
        let mut after = self.after;
        if compressed {
            after.decoded = match self.phase {
                Phase::Draft { columns, .. } => columns,
                Phase::Prompt { .. } | Phase::Decode { .. } => 0,
            };
        }
        after
    }
}

impl Progress {
    pub(crate) fn seen(&self) -> &[usize] {
        &self.seen
    }

    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Progress of a layer that has `seen` tokens among `columns`, its prompts complete, and has
    /// `decoded` tokens since the last prompt or compression.
    pub(crate) fn after(seen: Vec<usize>, columns: Vec<usize>, decoded: usize) -> Self {
        Self { seen, columns, prompt: None, after_first: true, decoded, draft: None }
    }

    pub(crate) fn decoded(&self) -> usize {
        self.decoded
    }

    /// Number of columns that the first row has seen: every call brings as many to each row.
    pub(crate) fn count(&self) -> usize {
        self.columns.first().copied().unwrap_or(0)
    }

    /// Whether a prompt is declared that has not arrived whole.
    pub(crate) fn awaits_prompt(&self) -> bool {
        self.prompt.is_some()
    }

    /// Forgets what the next call was declared to be.
    pub(crate) fn withdraw(&mut self) {
        (self.prompt, self.draft) = (None, None);
    }

    /// Columns of a prompt that has arrived in part, as (arrived, declared).
    pub(crate) fn unfinished(&self) -> Option<(usize, usize)> {
        let prompt = self.prompt.as_ref().filter(|(_, arrived)| *arrived > 0);
        prompt.map(|(prompt, arrived)| (*arrived, prompt.columns))
    }

    pub(crate) fn begin(&mut self, prompt: Prompt) {
        self.prompt = Some((prompt, 0));
        self.draft = None;
    }

    /// Declares that the next call brings decoded tokens.
    pub(crate) fn begin_draft(&mut self, draft: Draft) {
        self.prompt = None;
        self.draft = Some(draft);
    }

    /// The decoded tokens that the next call is declared to bring.
    pub(crate) fn draft(&self) -> Option<Draft> {
        self.draft
    }

    /// Progress without the last `columns` columns, which were decoded tokens of every row.
    pub(crate) fn without(&self, columns: usize) -> Self {
        let less = |all: &[usize]| all.iter().map(|all| all.saturating_sub(columns)).collect();
        Self {
            seen: less(&self.seen),
            columns: less(&self.columns),
            decoded: self.decoded.saturating_sub(columns),
            ..self.clone()
        }
    }

    /// Assigns positions to `new` columns of `batch` rows that arrive now. Does not change the
    /// progress yet.
    pub(crate) fn arrive(&self, layer: usize, batch: usize, new: usize) -> Result<InputSpan> {
        let mut after = self.clone();
        if after.seen.is_empty() {
            (after.seen, after.columns) = (vec![0; batch], vec![0; batch]);
        }
        after.columns.iter_mut().for_each(|columns| *columns += new);
        let seen_before = after.seen.clone();
        // Several columns, or the first ever, are a prompt even if nobody declared one.
        let first = seen_before.iter().all(|&seen| seen == 0);
        let draft = after.draft.take();
        if let Some(Draft { columns: declared, .. }) = draft.filter(|it| it.columns != new) {
            return Err(Error::DraftColumns { layer, declared, new });
        }
        if draft.is_none() && after.prompt.is_none() && (new > 1 || first) {
            after.begin(Prompt::new(new));
        }
        let (padding, arrived, phase) = match after.prompt.take() {
            None => {
                let due = after.decoded;
                after.decoded += new;
                let phase = match draft {
                    Some(Draft { columns, goes_on }) => {
                        Phase::Draft { due: if goes_on { 0 } else { due }, columns }
                    }
                    None => Phase::Decode { decoded: after.decoded },
                };
                (vec![0; batch], 0, phase)
            }
            Some((prompt, arrived)) => {
                prompt.check_rows(batch)?;
                let declared = prompt.columns;
                if arrived + new > declared {
                    return Err(Error::PromptOverrun { layer, declared, arrived, new });
                }
                let padding = prompt.left_padding.clone().unwrap_or_else(|| vec![0; batch]);
                let missing = declared - arrived - new;
                after.decoded = 0;
                after.after_first |= missing == 0;
                if missing > 0 {
                    after.prompt = Some((prompt, arrived + new));
                }
                (padding, arrived, Phase::Prompt { missing, first: !self.after_first })
            }
        };
        let of_row = |padding: &usize| match phase {
            Phase::Prompt { .. } => (arrived + new).saturating_sub(*padding),
            Phase::Decode { .. } | Phase::Draft { .. } => 0,
        };
        let of_prompt = padding.iter().map(of_row).collect();
        let mut positions = Vec::with_capacity(batch * new);
        for (seen, padding) in after.seen.iter_mut().zip(padding) {
            for column in arrived..arrived + new {
                if column < padding {
                    positions.push(-1);
                } else {
                    positions.push(*seen as i64);
                    *seen += 1;
                }
            }
        }
        let padded = positions.contains(&-1);
        Ok(InputSpan { positions, seen_before, of_prompt, padded, phase, after })
    }
}
