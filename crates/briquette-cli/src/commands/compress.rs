use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use briquette::{Budget, Prefix};
use briquette_eval::{
    policy,
    prefix::{self, Content},
};
use briquette_models::{ConversationState, Error as ModelError, Instruction, prefill, reconstruct};
use clap::ArgGroup;
use serde::Serialize;

use crate::{
    args::{
        defaults, inputs,
        model::{Loaded, ModelArgs},
        policy_text::PolicyText,
        profile::ProfileArgs,
        prompt::PromptArgs,
        template::TemplateArgs,
    },
    terminal::{
        interrupt,
        output::{OutputArgs, bytes, note_fallbacks},
        output_gate::Mark,
        progress,
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette compress --file book.txt --policy compactor --budget 25% --out book.prefix
  briquette generate --prefix book.prefix --prompt \"Who is the narrator?\"";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(group(ArgGroup::new("conversation").args(["template", "system"]).multiple(true).requires("chat")))]
pub(crate) struct Args {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Method of `briquette policies`, or policy file
    ///
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON.
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = defaults::LATER,
        value_parser = PolicyText,
        hide_possible_values = true,
        help_heading = "Compression"
    )]
    policy: String,
    /// Budget of the cache: 256, 25%, 512KiB [default: 256, or that of the policy file]
    ///
    /// Tokens, a share of the tokens seen, or bytes.
    #[arg(long, help_heading = "Compression")]
    budget: Option<Budget>,
    /// Tokens of the text per call of the model [default: all]
    #[arg(long, value_name = "N", help_heading = "Speed")]
    chunk: Option<usize>,
    /// Give the text as the beginning of a user's message, in the chat template of the model
    ///
    /// The text of `generate --prefix` is then the rest of that message.
    #[arg(long, help_heading = "Prompt")]
    chat: bool,
    #[command(flatten)]
    template: TemplateArgs,
    /// File to write
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// JSON that `--json` writes.
#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    dtype: String,
    policy: String,
    budget: String,
    tokens: usize,
    /// One per layer.
    tokens_kept: Vec<usize>,
    /// Keys and values with their bookkeeping, and room for tokens to come.
    bytes_held: usize,
    bytes_spare: usize,
    bytes_full: usize,
    /// Bytes of the file.
    bytes_written: u64,
    /// Seconds of the prefill, which a prefix saves.
    prefill_seconds: f64,
    save_seconds: f64,
    /// Seconds of loading the file again, without the fingerprint of the model.
    load_seconds: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.out.as_os_str() == "-" {
        bail!("a prefix is a file, and no text for stdout: name one with --out FILE");
    }
    let others = [args.prompt.inputs(), args.template.inputs()].concat();
    let inputs = inputs::of(&args.model, &args.profile, [&args.policy], others);
    args.output.gate(inputs)?.file(&args.out, Mark::Prefix)?;
    let mut entry = policy::read(&args.policy, args.budget, Budget::Tokens(256))?;
    let text = args.prompt.read()?;
    if !args.chat {
        args.prompt.refuse_empty(&text)?;
    }
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    entry.policy = profiles.attached(entry.policy)?;
    let Loaded { model, tokenizer, dir, device, dtype, .. } = loaded;
    let (prompt, content) = match args.chat {
        true => {
            let template = args.template.of(&dir)?;
            let messages = args.template.conversation(text);
            let (text, tail) = template.render_unfinished(&messages)?;
            TemplateArgs::refuse_empty(&text)?;
            let prompt = tokenizer.encode(&text, false)?;
            let conversation = Some(ConversationState::unfinished(messages, text));
            (prompt, Content::Message { tail, conversation })
        }
        false => (tokenizer.encode(&text, true)?, Content::Text),
    };
    let instruction = Instruction::new(&tokenizer)?;
    let fingerprint = profiles.weights()?;

    // Under its whole name, which is shown where the prefix is used.
    let policy = entry.policy.clone().with_name(&entry.label);
    let mut cache = prefix::cache(&model, fingerprint, policy)?;
    let spinner = progress::spinner(format!("reading {} tokens", prompt.len()));
    let start = Instant::now();
    let prefilled = prefill(&model, &[&prompt], &mut cache, args.chunk)
        .and_then(|_| reconstruct(&model, &[&prompt], &mut cache, &instruction));
    model.device().sync().map_err(ModelError::from)?;
    let prefill_seconds = start.elapsed().as_secs_f64();
    spinner.clear();
    prefilled?;
    if interrupt::flag().is_set() {
        return Err(ModelError::Interrupted.into());
    }
    let start = Instant::now();
    prefix::save(&cache, &args.out, &content)?;
    let save_seconds = start.elapsed().as_secs_f64();
    // Read back, so that what is kept is known to be whole.
    let start = Instant::now();
    let loaded = prefix::open(Prefix::read(&args.out)?, &model, fingerprint)?;
    model.device().sync().map_err(ModelError::from)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let written = fs::metadata(&args.out);
    let written = written.with_context(|| format!("cannot read {}", args.out.display()))?;

    let layers = 0..model.cache_shape().layers;
    let report = Report {
        model: dir.display().to_string(),
        device,
        dtype,
        budget: entry.budget(),
        policy: entry.label,
        tokens: prompt.len(),
        tokens_kept: layers
            .map(|layer| Ok(loaded.tokens_kept(layer)?.first().copied().unwrap_or(0)))
            .collect::<Result<_>>()?,
        bytes_held: loaded.bytes_held(),
        bytes_spare: loaded.bytes_spare(),
        bytes_full: loaded.bytes_full(),
        bytes_written: written.len(),
        prefill_seconds,
        save_seconds,
        load_seconds,
    };
    note_fallbacks(&report.model, &model.fallbacks());
    args.output.write(&report.human(&args.out.display().to_string()), &report)
}

impl Report {
    fn human(&self, out: &str) -> String {
        let most = self.tokens_kept.iter().max().copied().unwrap_or(0);
        format!(
            "{out}  {most} of {} tokens, {} of the {} of a full cache; {} of room for tokens to come, {} in the file\npolicy   {}, budget {}\nprefill  \
             {:.3} s\nsave     {:.3} s\nload     {:.3} s, {:.0} times faster than prefilling again\n",
            self.tokens,
            bytes(self.bytes_held.saturating_sub(self.bytes_spare) as u64),
            bytes(self.bytes_full as u64),
            bytes(self.bytes_spare as u64),
            bytes(self.bytes_written),
            self.policy,
            self.budget,
            self.prefill_seconds,
            self.save_seconds,
            self.load_seconds,
            self.prefill_seconds / self.load_seconds.max(1e-9),
        )
    }
}
