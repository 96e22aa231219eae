use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::Result;
use briquette::KvCache;
use briquette_models::{Error as ModelError, GenerateOptions, Interrupt, generate_until};

use crate::{
    args::model::Loaded,
    terminal::{lines::Lines, output::Stream, progress},
};

/// An answer of the model.
pub(crate) struct Reply {
    pub(crate) text: String,
    /// The last token, where the cache has not seen it.
    pub(crate) unseen: Option<u32>,
    /// Tokens behind the first.
    decoded: usize,
    /// Time from the first token to the last.
    time: Duration,
}

impl Reply {
    /// Shows what the model answers to `tokens`, until it ends or Ctrl-C ends it.
    ///
    /// # Errors
    /// What the model and the cache refuse, an interrupt before the first token, and output that
    /// nobody takes.
    pub(crate) fn show(
        loaded: &Loaded,
        tokens: &[u32],
        cache: &mut KvCache,
        options: &GenerateOptions,
        (out, lines, interrupt): (&mut Stream, &mut Lines, &Interrupt),
    ) -> Result<Self> {
        let spinner = progress::spinner(format!("reading {} tokens", tokens.len()));
        let mut decoder = loaded.tokenizer.stream();
        let mut text = String::new();
        let mut last = None;
        let (mut first_at, mut last_at, mut count) = (None, Instant::now(), 0);
        let mut shown: Result<()> = Ok(());
        let result = generate_until(&loaded.model, tokens, cache, options, |token| {
            spinner.clear();
            (last, last_at) = (Some(token), Instant::now());
            first_at.get_or_insert(last_at);
            count += 1;
            shown = decoder.push(token).map_err(Into::into).and_then(|piece| {
                text += &piece;
                out.show(&piece)?;
                lines.listen()
            });
            let is_cut = shown.is_err() || interrupt.is_set();
            if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(spinner);
        let unseen = match result {
            Ok((generation, _)) => generation.unseen,
            // The answer ends where it is; a prompt that was not read to its end is an error.
            Err(ModelError::Interrupted) if last.is_some() => last,
            Err(error) => return Err(error.into()),
        };
        shown?;
        let rest = decoder.finish()?;
        out.show(&rest)?;
        out.show("\n")?;
        text += &rest;
        let time = last_at - first_at.unwrap_or(last_at);
        Ok(Self { text, unseen, decoded: usize::saturating_sub(count, 1), time })
    }

    /// Tokens per second behind the first; `None` if none came.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.decoded > 0).then(|| self.decoded as f64 / self.time.as_secs_f64())
    }
}
