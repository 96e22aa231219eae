use briquette::KvCache;
use burn::tensor::Tensor;
use web_time::Instant;

use crate::{
    Error, GenerateOptions, Model, Result, Timing,
    generate::{
        choose::Chooser,
        prefill::{columns, prefill},
    },
    reconstruct,
};

/// The tokens that continue one prompt, an iterator that computes each when it is asked for: a
/// caller who asks no more has ended the text. It may move to another thread, so its steps are
/// launched: [`generate_until`](crate::generate_until) records them.
///
/// ```no_run
/// # use briquette::{KvCache, Policy};
/// # use briquette_models::{GenerateOptions, Model, Tokenizer, TokenStream};
/// # fn show(model: &Model, tokenizer: &Tokenizer, cache: &mut KvCache) -> briquette_models::Result<()> {
/// let prompt = tokenizer.encode("Call me Ishmael.", true)?;
/// let mut text = tokenizer.stream();
/// for token in TokenStream::new(model, &prompt, cache, &GenerateOptions::default())? {
///     print!("{}", text.push(token?)?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TokenStream<'a> {
    model: &'a Model,
    cache: &'a mut KvCache,
    chooser: Chooser,
    stop: Vec<u32>,
    /// Tokens that may still come.
    left: usize,
    /// `[1, vocab_size]`, unless the last token is still to be given to the model.
    logits: Option<Tensor<2>>,
    unseen: Option<u32>,
    stopped: bool,
    begun: Instant,
    timing: Timing,
}

impl<'a> TokenStream<'a> {
    /// Gives the prompt to the model. The cache may hold earlier text: the prompt then follows it.
    ///
    /// # Errors
    /// As [`generate`](crate::generate()).
    pub fn new(
        model: &'a Model,
        prompt: &[u32],
        cache: &'a mut KvCache,
        options: &GenerateOptions,
    ) -> Result<Self> {
        let chooser = Chooser::new(options, &[prompt], model.config().vocab_size)?;
        let start = Instant::now();
        let logits = prefill(model, &[prompt], cache, options.chunk)?;
        reconstruct(model, &[prompt], cache, &options.instruction)?;
        model.device().sync()?;
        let timing =
            Timing { prompt_tokens: prompt.len(), prefill: start.elapsed(), ..Timing::default() };
        Ok(Self {
            model,
            cache,
            chooser,
            stop: options.stop.clone(),
            left: options.max_new_tokens,
            logits: Some(logits),
            unseen: None,
            stopped: false,
            begun: Instant::now(),
            timing,
        })
    }

    /// The last token, which the cache has not seen: a text that continues this one begins with it.
    /// `None` before the first token and behind a stop token.
    pub fn unseen(&self) -> Option<u32> {
        self.unseen
    }

    /// Whether a stop token ended it.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Durations up to the last token.
    pub fn timing(&self) -> Timing {
        self.timing.clone()
    }

    /// The next token, or the stop token.
    fn choose(&mut self) -> Result<u32> {
        let decoded = self.unseen.is_some();
        if let Some(token) = self.unseen {
            let tokens = columns(vec![token], [1, 1], self.model);
            let hidden = self.model.decode(tokens, self.cache)?;
            self.unseen = None;
            self.logits = Some(self.model.last_logits(hidden)?);
        }
        // There are logits after the prompt and after each token.
        let logits = self.logits.take().ok_or(Error::NotFinite { row: 0 })?;
        let chosen = self.chooser.choose(logits, &[0], |_| false)?;
        let token = chosen.first().copied().ok_or(Error::NotFinite { row: 0 })?;
        self.timing.decoded_tokens += usize::from(decoded);
        self.timing.decode = self.begun.elapsed();
        Ok(token)
    }
}

impl Iterator for TokenStream<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let token = self.choose();
        match &token {
            Ok(token) if self.stop.contains(token) => {
                self.stopped = true;
                self.left = 0;
                return None;
            }
            Ok(token) => self.unseen = Some(*token),
            Err(_) => self.left = 0,
        }
        Some(token)
    }
}
