use std::path::Path;

use anyhow::{Result, bail};
use briquette::{KvCache, Prefix};
use briquette_eval::{
    Error,
    policy::{self, NamedPolicy},
    prefix::{self, Content},
    profiles::Profiles,
    record::CacheBytes,
};
use briquette_models::{
    ChatMessage, ChatTemplate, Conversation, ConversationState, Instruction, Interrupt, prefill,
    reconstruct,
};

use crate::{
    args::{inputs, model::Loaded, template::TemplateArgs},
    talk::{
        args::{Args, BUDGET},
        reply::Reply,
    },
    terminal::{
        lines::Lines,
        output::{Stream, bytes, note},
        output_gate::{Mark, OutputGate},
        progress,
        room::{Limit, room},
    },
};

/// A conversation, its cache, and what it began with.
pub(crate) struct Session<'a> {
    args: &'a Args,
    loaded: &'a Loaded,
    template: &'a ChatTemplate,
    profiles: &'a Profiles,
    cache: KvCache,
    conversation: Conversation<'a>,
    /// The cache behind the tokens that the next turn repeats, where the template writes earlier
    /// turns differently than they came.
    lasting: Option<KvCache>,
    /// The message that it began with, and its cache.
    begun: Option<(KvCache, ConversationState)>,
    /// Messages of the role `system` before all others.
    system: Vec<ChatMessage>,
    out: Stream,
}

impl<'a> Session<'a> {
    /// A conversation under this policy, or the one of a file.
    ///
    /// # Errors
    /// A policy that lacks something, and a file of another model or without a conversation.
    pub(crate) fn open(
        args: &'a Args,
        loaded: &'a Loaded,
        template: &'a ChatTemplate,
        profiles: &'a Profiles,
        (entry, kept): (NamedPolicy, Option<Prefix>),
    ) -> Result<Self> {
        let (cache, state) = match kept {
            Some(kept) => {
                let state = kept_conversation(&kept, args.resume.as_deref())?;
                (prefix::open(kept, &loaded.model, profiles.weights()?)?, state)
            }
            None => {
                let state = ConversationState::new(args.template.system());
                (empty_cache(loaded, profiles, entry)?, state)
            }
        };
        let system = state.messages().iter().take_while(|message| message.role == "system");
        Ok(Self {
            args,
            loaded,
            template,
            profiles,
            lasting: None,
            begun: state.is_unfinished().then(|| (cache.fork(), state.clone())),
            system: system.cloned().collect(),
            cache,
            conversation: Conversation::resume(template, &loaded.tokenizer, state),
            out: Stream::stdout(),
        })
    }

    /// The policy and its budget.
    pub(crate) fn describe(&self) -> String {
        let policy = self.cache.policy();
        match policy.budget() {
            Some(budget) => format!("{} with a budget of {budget}", policy.name()),
            None => policy.name().to_owned(),
        }
    }

    /// The part of the conversation that it goes on behind, in words; `None` for a new one.
    pub(crate) fn taken_up(&self) -> Option<String> {
        let seen = self.seen();
        let messages = self.conversation.messages().len();
        match self.conversation.state().is_unfinished() {
            _ if seen == 0 => None,
            true => Some(format!("Your message begins with {seen} tokens and goes on")),
            false => Some(format!("It goes on behind {messages} messages, {seen} tokens")),
        }
    }

    /// Forgets the conversation, but for the message that it began with.
    pub(crate) fn clear(&mut self) {
        self.lasting = None;
        let state = match &self.begun {
            Some((cache, state)) => {
                self.cache = cache.fork();
                state.clone()
            }
            None => {
                self.cache.reset();
                ConversationState::new(self.system.clone())
            }
        };
        self.conversation = Conversation::resume(self.template, &self.loaded.tokenizer, state);
    }

    /// Begins anew with another policy. After an error the conversation is as before.
    ///
    /// # Errors
    /// What [`policy::read`] refuses, and a policy that lacks something.
    pub(crate) fn change(&mut self, policy: &str, budget: Option<&str>) -> Result<()> {
        let written = policy::parse(policy)?;
        let of_command = self.args.budget.filter(|_| written.takes_budget());
        let budget = budget.map(str::parse).transpose()?.or(of_command);
        let entry = policy::read(policy, budget, BUDGET)?;
        self.cache = empty_cache(self.loaded, self.profiles, entry)?;
        self.begun = None;
        self.clear();
        Ok(())
    }

    /// Writes the conversation and its cache to a file, and returns the bytes that the cache holds.
    ///
    /// # Errors
    /// A conversation without an answer, and a file that cannot be written or is somebody else's.
    pub(crate) fn save(&mut self, path: &Path) -> Result<usize> {
        let state = self.conversation.state();
        if self.seen() == 0 || state.is_unfinished() {
            bail!("nothing was said yet");
        }
        let Args { model, profile, policy, template, resume, .. } = self.args;
        let others = [template.inputs(), resume.iter().cloned().collect()].concat();
        let inputs = inputs::of(model, profile, [policy], others);
        // What it went on with may be written anew.
        let inputs = inputs.into_iter().filter(|input| Some(input) != resume.as_ref());
        OutputGate::new(false, inputs).file(path, Mark::Prefix)?;
        let _spinner = progress::spinner(format!("writing {}", path.display()));
        self.cache.name_model(prefix::identity(&self.loaded.model, self.profiles.weights()?));
        prefix::save(&self.cache, path, &Content::Conversation(state.clone()))?;
        Ok(self.cache.bytes_held())
    }

    /// Shows the answer to what the user says. After an error the conversation is as before.
    ///
    /// # Errors
    /// What the template, the model and the cache refuse, an interrupt before the first token of
    /// the answer, and output that nobody takes.
    pub(crate) fn answer(
        &mut self,
        text: &str,
        lines: &mut Lines,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let (before, seen) = (self.conversation.clone(), self.seen());
        let answered = self.try_answer(text, lines, interrupt);
        if answered.is_err() {
            self.conversation = before;
            if self.seen() != seen || seen == 0 {
                self.cache.reset();
                self.lasting = None;
                self.conversation.begin_again();
            }
        }
        lines.listen_to_end()?;
        note(&self.status(answered?)?);
        Ok(())
    }

    /// Shows the answer, and returns its tokens per second if it had several.
    fn try_answer(
        &mut self,
        text: &str,
        lines: &mut Lines,
        interrupt: &Interrupt,
    ) -> Result<Option<f64>> {
        let Loaded { model, tokenizer, .. } = self.loaded;
        let turn = self.conversation.say(text)?;
        if turn.tokens.is_empty() {
            TemplateArgs::refuse_empty("")?;
        }
        let known = self.lasting.take().filter(|_| turn.repeated > 0);
        let repeated = if known.is_some() { turn.repeated } else { 0 };
        let (seen, mut tokens) = match turn.from_start {
            true => (repeated, turn.tokens.get(repeated..).unwrap_or_default()),
            false => (self.seen(), &turn.tokens[..]),
        };
        let options = self.args.sampling.options(
            self.args.max_new_tokens.min(self.room(seen + tokens.len())?),
            model.config().eos_token_ids.clone(),
            Instruction::new(tokenizer)?,
        );
        if turn.from_start {
            match known {
                Some(cache) => self.cache = cache,
                None => self.cache.reset(),
            }
        }
        if let Some((lasting, rest)) =
            tokens.split_at_checked(turn.lasting.saturating_sub(repeated))
            && !lasting.is_empty()
            && !rest.is_empty()
        {
            if repeated == 0 {
                note(
                    "the chat template writes earlier turns differently than they came: they are read again, and with \
                     each turn from now on the last answer",
                );
            }
            let _spinner = progress::spinner(format!("reading {} tokens", lasting.len()));
            prefill(model, &[lasting], &mut self.cache, options.chunk)?;
            reconstruct(model, &[lasting], &mut self.cache, &options.instruction)?;
            self.lasting = Some(self.cache.fork());
            tokens = rest;
        }
        let terminal = (&mut self.out, lines, interrupt);
        let reply = Reply::show(self.loaded, tokens, &mut self.cache, &options, terminal)?;
        let rate = reply.rate();
        self.conversation.answered(reply.text, reply.unseen);
        Ok(rate)
    }

    /// Tokens that the cache has seen.
    fn seen(&self) -> usize {
        self.cache.tokens_seen().first().copied().unwrap_or(0)
    }

    /// The tokens that an answer behind so many others may have.
    fn room(&self, tokens: usize) -> Result<usize> {
        let limit = Limit {
            what: "the conversation is too long: /clear forgets it",
            endless: "with --policy streaming-llm:schedule.prefill=every-chunk it has no end",
        };
        room(&self.loaded.model, self.cache.policy(), tokens, &limit)
    }

    /// Status line: what the cache has seen and holds.
    fn status(&self, rate: Option<f64>) -> Result<String> {
        let mut kept = Vec::new();
        for layer in 0..self.cache.shape().layers {
            kept.extend(self.cache.tokens_kept(layer)?);
        }
        let (least, most) = (kept.iter().min().unwrap_or(&0), kept.iter().max().unwrap_or(&0));
        let kept = if least == most { most.to_string() } else { format!("{least} to {most}") };
        let held = CacheBytes::of(&self.cache);
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
        Ok(format!(
            "[{} tokens seen, {kept} kept, {}: {:.0} % of a full cache{rate}]",
            self.seen(),
            bytes(held.kept() as u64),
            100.0 * held.kept_of_full(),
        ))
    }
}

/// The conversation of a file.
fn kept_conversation(kept: &Prefix, path: Option<&Path>) -> Result<ConversationState> {
    match prefix::content(kept)? {
        Content::Conversation(state) | Content::Message { conversation: Some(state), .. } => {
            Ok(state)
        }
        Content::Text | Content::Message { conversation: None, .. } => {
            let path = path.unwrap_or(Path::new("-")).to_path_buf();
            Err(Error::NoConversation { path }.into())
        }
    }
}

/// A cache under this policy, which keeps the name it was given.
fn empty_cache(loaded: &Loaded, profiles: &Profiles, entry: NamedPolicy) -> Result<KvCache> {
    let NamedPolicy { label, policy } = entry;
    let policy = profiles.attached(policy)?.with_name(&label);
    Ok(loaded.model.cache(policy)?)
}
