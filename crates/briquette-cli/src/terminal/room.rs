use anyhow::{Context, Result};
use briquette::Policy;
use briquette_models::{Error, Model};

/// What is too long, and the policy under which it would not be.
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) endless: &'static str,
}

/// The tokens that an answer behind so many others may have.
pub(crate) fn room(model: &Model, policy: &Policy, tokens: usize, limit: &Limit) -> Result<usize> {
    let Some(context) = model.context(policy) else { return Ok(usize::MAX) };
    // The first new token comes out of the prompt, each further one needs a position.
    let room = context.saturating_add(1).checked_sub(tokens).filter(|room| *room > 0);
    let config = model.config();
    let error = || Error::PromptTooLong { tokens, context, why: config.beyond_context() };
    // Windows count positions as they were written, under every policy.
    let helps = config.sliding_window.is_none() && tokens > config.longest_context();
    let Limit { what, endless } = limit;
    room.ok_or_else(error).with_context(|| match helps {
        true => format!("{what}; {endless}"),
        false => (*what).to_owned(),
    })
}
