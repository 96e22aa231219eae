use std::ops::ControlFlow;

/// The continuation of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// Whether a stop token or the receiver of the tokens ended it, rather than `max_new_tokens`.
    pub stopped: bool,
    /// The last token, where the cache has not seen it: a text that continues this one begins with
    /// it. `None` behind a stop token, and in a batch for a row that ended before others: it has
    /// left the cache, or the cache has seen tokens that are not its own.
    pub unseen: Option<u32>,
}

impl Generation {
    /// Takes the token that was chosen next. Breaks at a stop token, and where `on_token` does.
    pub(crate) fn take(
        &mut self,
        token: u32,
        stop: &[u32],
        on_token: impl FnOnce(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.unseen = None;
        let mut flow = ControlFlow::Break(());
        if !stop.contains(&token) {
            self.tokens.push(token);
            self.unseen = Some(token);
            flow = on_token(token);
        }
        self.stopped = flow.is_break();
        flow
    }
}
