use std::ops::ControlFlow;

use anyhow::{Context, Result};
use briquette::{Budget, KvCache, Policy};
use briquette_eval::policy;
use briquette_models::{
    ChatTemplate, Conversation, Error as ModelError, Instruction, Interrupt, Timing, generate_until,
};

use crate::{
    args::{
        defaults, jobs,
        model::{Loaded, ModelArgs},
        profile::ProfileArgs,
        sampling::SamplingArgs,
        template::TemplateArgs,
    },
    terminal::{
        interrupt,
        lines::{Input, Lines},
        output::{Stream, bytes, note},
        progress,
    },
};

const KEYS: &str = "On a terminal a line is edited as in a shell: a paste may have any length and several lines, and \
     arrows bring earlier lines back. Elsewhere each line of stdin is a turn of the user. /help lists \
     commands. Ctrl-C ends an answer, and between answers the program; so does the end of stdin.";

const COMMANDS: &str = "\
/clear                        forgets the conversation
/policy                       says what the cache keeps
/policy NAME|FILE [BUDGET]    begins anew with another policy: /policy tova 25%
/quit                         ends, as Ctrl-D does
Text that begins with a slash is sent behind a space.";

/// The budget where none is named.
const BUDGET: Budget = Budget::Tokens(512);

#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Compression: a method of `briquette policies`, changed as in `snapkv:kernel=15`, or a policy
    /// file (.toml, .json). SnapKV pools scores over 5 tokens in its paper: kernel=15 keeps longer
    /// answers whole
    #[arg(long, value_name = "NAME|FILE", default_value = defaults::POLICY)]
    policy: String,
    /// Budget of the cache: tokens (256), a share of the tokens seen (25%), or bytes (512KiB)
    /// [default: 512, or that of the policy file]
    #[arg(long)]
    budget: Option<Budget>,
    #[command(flatten)]
    template: TemplateArgs,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_new_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let entry = policy::read(&args.policy, args.budget, BUDGET)?;
    jobs::compute_here();
    let loaded = args.model.load()?;
    let policy = args.profile.of(&loaded)?.attached(entry.policy)?;
    let template = args.template.of(&loaded.dir)?;
    let interrupt = interrupt::flag();
    let mut chat = Chat {
        cache: loaded.model.cache(policy.clone())?,
        conversation: begin(&args, &template, &loaded),
        template: &template,
        loaded: &loaded,
        label: entry.label,
        policy,
        out: Stream::stdout(),
        args: &args,
    };
    let mut lines = Lines::open()?;
    if lines.is_terminal() {
        note(&format!("{}, {}. /help says what can be written.", loaded.name(), chat.describe()));
    }
    loop {
        // While nothing is computed, Ctrl-C is as a second one: it ends the program.
        interrupt.set();
        let input = lines.next()?;
        interrupt.clear();
        let text = match input {
            Input::Text(text) => text,
            Input::Interrupt => std::process::exit(interrupt::EXIT_CODE.into()),
            Input::End => {
                if lines.is_terminal() {
                    note("");
                }
                return Ok(());
            }
        };
        let mut words = text.split_whitespace();
        match words.next().filter(|_| text.starts_with('/')) {
            Some("/quit") => return Ok(()),
            Some("/help") => note(COMMANDS),
            Some("/clear" | "/reset") => chat.clear(),
            Some("/policy") => chat.change(words.next(), words.next()),
            Some(word) if word[1..].chars().all(char::is_alphabetic) => {
                note(&format!("there is no {word}\n{COMMANDS}"));
            }
            _ if text.trim().is_empty() => {}
            _ => chat.answer(text.trim(), &interrupt)?,
        }
    }
}

fn begin<'a>(args: &Args, template: &'a ChatTemplate, loaded: &'a Loaded) -> Conversation<'a> {
    Conversation::new(template, &loaded.tokenizer, args.template.system())
}

struct Chat<'a> {
    loaded: &'a Loaded,
    template: &'a ChatTemplate,
    /// The policy as it was written.
    label: String,
    policy: Policy,
    cache: KvCache,
    conversation: Conversation<'a>,
    out: Stream,
    args: &'a Args,
}

impl Chat<'_> {
    /// The policy and its budget.
    fn describe(&self) -> String {
        match self.policy.budget() {
            Some(budget) => format!("{} with a budget of {budget}", self.label),
            None => self.label.clone(),
        }
    }

    /// Forgets the conversation.
    fn clear(&mut self) {
        self.cache.reset();
        self.conversation = begin(self.args, self.template, self.loaded);
    }

    /// Shows the policy, or begins anew with another. After an error the policy and the
    /// conversation are as before.
    fn change(&mut self, text: Option<&str>, budget: Option<&str>) {
        let Some(text) = text else {
            note(&self.describe());
            return;
        };
        let changed = || -> Result<(String, Policy, KvCache)> {
            let budget = budget.map(str::parse).transpose()?.or(self.args.budget);
            let entry = policy::read(text, budget, BUDGET)?;
            let policy = self.args.profile.of(self.loaded)?.attached(entry.policy)?;
            let cache = self.loaded.model.cache(policy.clone())?;
            Ok((entry.label, policy, cache))
        };
        match changed() {
            Ok((label, policy, cache)) => {
                (self.label, self.policy, self.cache) = (label, policy, cache);
                self.conversation = begin(self.args, self.template, self.loaded);
                note(&format!("a new conversation: {}", self.describe()));
            }
            Err(error) => note(&format!("{error:#}")),
        }
    }

    fn answer(&mut self, text: &str, interrupt: &Interrupt) -> Result<()> {
        let Loaded { model, tokenizer, .. } = self.loaded;
        let turn = self.conversation.say(text)?;
        if turn.from_start {
            self.cache.reset();
        }
        let seen = self.cache.tokens_seen().first().copied().unwrap_or(0);
        let room = match model.context(&self.policy) {
            // The first new token comes out of the prompt, each further one needs a position.
            Some(context) => {
                let tokens = seen + turn.tokens.len();
                let room = (context + 1).checked_sub(tokens).filter(|room| *room > 0);
                room.ok_or(ModelError::PromptTooLong { tokens, context }).context(
                    "the conversation is too long; with --policy streaming-llm:schedule.prefill=every-chunk it has no end",
                )?
            }
            None => usize::MAX,
        };
        let stop = model.config().eos_token_ids.clone();
        let options = self.args.sampling.options(
            self.args.max_new_tokens.min(room),
            stop,
            Instruction::new(tokenizer)?,
        );
        let spinner = progress::spinner(format!("reading {} tokens", turn.tokens.len()));
        let mut decoder = tokenizer.stream();
        let mut answer = String::new();
        let mut last = None;
        let (mut shown, mut is_cut): (Result<()>, bool) = (Ok(()), false);
        let out = &mut self.out;
        let result = generate_until(model, &turn.tokens, &mut self.cache, &options, |token| {
            spinner.clear();
            last = Some(token);
            shown = decoder.push(token).map_err(Into::into).and_then(|piece| {
                answer += &piece;
                out.show(&piece)
            });
            is_cut = shown.is_err() || interrupt.is_set();
            if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(spinner);
        let (at_stop_token, timing) = match result {
            // The answer ends where it is; a prompt that was not read to its end is an error.
            Err(ModelError::Interrupted) if last.is_some() => (false, Timing::default()),
            result => {
                let (generation, timing) = result?;
                (generation.stopped && !is_cut, timing)
            }
        };
        shown?;
        // The cache has seen the last token if a stop token came after it.
        let unseen = last.filter(|_| !at_stop_token);
        let rest = decoder.finish()?;
        self.out.show(&rest)?;
        self.out.show("\n")?;
        answer += &rest;
        self.conversation.answered(answer, unseen);
        note(&self.status(timing.decode_rate())?);
        Ok(())
    }

    /// Status line: what the cache has seen and holds.
    fn status(&self, rate: f64) -> Result<String> {
        let mut kept = Vec::new();
        for layer in 0..self.cache.shape().layers {
            kept.extend(self.cache.tokens_kept(layer)?);
        }
        let (least, most) = (kept.iter().min().unwrap_or(&0), kept.iter().max().unwrap_or(&0));
        let kept = if least == most { most.to_string() } else { format!("{least} to {most}") };
        let (held, full) = (self.cache.bytes_held(), self.cache.bytes_full());
        Ok(format!(
            "[{} tokens seen, {kept} kept, {} of {}, {rate:.1} tokens/s]",
            self.cache.tokens_seen().first().unwrap_or(&0),
            bytes(held),
            bytes(full),
        ))
    }
}
