use std::{ops::ControlFlow, path::PathBuf};

use anyhow::Result;
use briquette::{Budget, KvCache, Prefix};
use briquette_eval::{
    Error,
    policy::{self, NamedPolicy},
    prefix::{self, Content},
    record::CacheBytes,
};
use briquette_models::{Error as ModelError, Instruction, Timing, generate_until};
use burn::tensor::Device;
use clap::ArgGroup;
use serde::Serialize;

use crate::{
    args::{
        defaults, inputs, jobs,
        model::{Loaded, ModelArgs},
        policy_text::PolicyText,
        profile::ProfileArgs,
        prompt::PromptArgs,
        sampling::SamplingArgs,
        size,
        template::TemplateArgs,
    },
    terminal::{
        interrupt,
        output::{OutputArgs, Stream, bytes, note, note_fallbacks},
        progress,
        room::{Limit, room},
    },
};

const EXAMPLES: &str = "\
Examples:
  briquette generate --file book.txt --policy snapkv:kernel=15 --budget 25%
  briquette generate --model MODEL --chat --prompt \"Why is the sky blue?\" --budget 512";

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
    /// Parameters are changed as in `snapkv:kernel=15`. Files are TOML or JSON. SnapKV pools
    /// scores over 5 tokens in its paper; kernel=15 keeps longer answers whole.
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = defaults::POLICY,
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
    /// Bytes that the cache may hold at any time: 512MiB [default: no limit]
    ///
    /// A call that needs more is refused, also in the middle of a prompt.
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::bytes,
        conflicts_with = "prefix",
        help_heading = "Compression"
    )]
    memory_ceiling: Option<usize>,
    /// File of `briquette compress` to go on from, under its policy and budget
    ///
    /// After `compress --chat` the text is the rest of the user's message, and what the chat
    /// template writes comes behind it.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["policy", "budget", "template", "system"],
        help_heading = "Compression"
    )]
    prefix: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Sampling")]
    max_new_tokens: usize,
    /// Give the text as a user's message, in the chat template of the model
    #[arg(long, help_heading = "Prompt")]
    chat: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Reads a number of bytes, as budgets are written.
/// JSON that `--json` writes.
#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    dtype: String,
    policy: String,
    budget: String,
    text: String,
    /// Whether a stop token ended it.
    stopped: bool,
    prefill: Speed,
    decode: Speed,
    /// Decode steps of the model, and those of them that were replayed from a recording.
    steps: usize,
    steps_replayed: usize,
    /// The reason why steps were launched that might have been replayed.
    fallback_reason: Option<String>,
    /// `None` without `--lookup`.
    lookup: Option<Lookup>,
    cache: CacheReport,
    memory: Memory,
}

/// Tokens that were looked up in the text.
#[derive(Serialize)]
struct Lookup {
    drafted: usize,
    /// Those of them that were right.
    accepted: usize,
}

/// Bytes that model and cache took together, where the device or the system tells.
#[derive(Serialize)]
struct Memory {
    /// Alive on the devices at the end.
    device: Option<u64>,
    /// The most that the process had.
    process_peak: Option<u64>,
}

impl Memory {
    fn of(devices: &[Device]) -> Self {
        let device = devices.iter().map(briquette::device::bytes_in_use).sum();
        Self { device, process_peak: process_peak() }
    }

    fn human(&self) -> String {
        match (self.device.map(bytes), self.process_peak.map(bytes)) {
            (Some(device), _) => format!("memory   {device} of device memory, weights and cache\n"),
            (None, Some(peak)) => format!("memory   {peak} at most in the process\n"),
            (None, None) => String::new(),
        }
    }
}

#[cfg(unix)]
fn process_peak() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let most = u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()?;
    // Apple counts bytes, others KiB.
    Some(if cfg!(target_vendor = "apple") { most } else { most << 10 })
}

#[cfg(not(unix))]
fn process_peak() -> Option<u64> {
    None
}

#[derive(Serialize)]
struct Speed {
    tokens: usize,
    seconds: f64,
    tokens_per_second: f64,
}

#[derive(Serialize)]
struct CacheReport {
    tokens_seen: usize,
    /// One per layer.
    tokens_kept: Vec<usize>,
    /// Those of them that are quantized; `None` if the store quantizes nothing.
    tokens_packed: Option<Vec<usize>>,
    /// The store, with its parameters.
    store: String,
    bytes_held: usize,
    /// Those of them that are room for tokens to come.
    bytes_spare: usize,
    bytes_full: usize,
    /// Without the room for tokens to come.
    held_of_full: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut others = [args.prompt.inputs(), args.template.inputs()].concat();
    others.extend(args.prefix.clone());
    args.output.gate(inputs::of(&args.model, &args.profile, [&args.policy], others))?;
    let mut entry = policy::read(&args.policy, args.budget, Budget::Tokens(256))?;
    let text = args.prompt.read()?;
    if args.prefix.is_none() {
        args.prompt.refuse_empty(&text)?;
    }
    jobs::compute_here();
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    let Loaded { model, tokenizer, dir, device, dtype, .. } = loaded;
    let mut chat_tail = None;
    let mut cache = match &args.prefix {
        Some(path) => {
            let prefix = Prefix::read(path)?;
            let path = path.clone();
            match prefix::content(&prefix)? {
                Content::Text if args.chat => return Err(Error::PlainPrefix { path }.into()),
                Content::Text => {}
                Content::Message { tail, .. } => chat_tail = Some(tail),
                Content::Conversation(_) => return Err(Error::WholeConversation { path }.into()),
            }
            let cache = prefix::open(prefix, &model, profiles.weights()?)?;
            entry = NamedPolicy {
                label: cache.policy().name().to_owned(),
                policy: cache.policy().clone(),
            };
            cache
        }
        None => {
            entry.policy = profiles.attached(entry.policy)?;
            let config = model.cache_config(&entry.policy)?;
            let config = match args.memory_ceiling {
                Some(bytes) => config.with_memory_ceiling(bytes),
                None => config,
            };
            let policy = entry.policy.clone();
            KvCache::with_config(model.cache_shape(), policy, config, &model.device())?
        }
    };
    let prompt = match chat_tail {
        // Many templates trim messages, and this one is rendered no more.
        Some(tail) => tokenizer.encode(&format!("{}{tail}", text.trim_end()), false)?,
        None if args.prefix.is_some() => {
            args.prompt.refuse_empty(&text)?;
            prefix::following(tokenizer.encode(&text, true)?, &tokenizer)?
        }
        None if args.chat => {
            let template = args.template.of(&dir)?;
            let text = template.render(&args.template.conversation(text), true)?;
            TemplateArgs::refuse_empty(&text)?;
            tokenizer.encode(&text, false)?
        }
        None => tokenizer.encode(&text, true)?,
    };
    let seen = cache.tokens_seen().first().copied().unwrap_or(0);
    let context = model.context(&entry.policy);
    let limit = Limit {
        what: "the prompt is too long",
        endless: "a policy that counts positions in the cache and compresses after every chunk takes longer ones: \
                  --policy streaming-llm",
    };
    let room = room(&model, &entry.policy, seen + prompt.len(), &limit)?;
    let stop = model.config().eos_token_ids.clone();
    let instruction = Instruction::new(&tokenizer)?;
    let options = args.sampling.options(args.max_new_tokens.min(room), stop, instruction);

    let mut human = args.output.stream();
    let mut stream = tokenizer.stream();
    let mut shown = String::new();
    let mut shown_all: Result<()> = Ok(());
    let interrupt = interrupt::flag();
    let spinner = progress::spinner(format!("reading {} tokens", prompt.len()));
    let result = generate_until(&model, &prompt, &mut cache, &options, |token| {
        spinner.clear();
        let piece = stream.push(token).map_err(Into::into);
        shown_all = piece.and_then(|piece| show(&mut human, &mut shown, &piece));
        // Who reads no more needs no more.
        match shown_all.is_err() || interrupt.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(spinner);
    let (generation, timing) = result?;
    shown_all?;
    let rest = stream.finish()?;
    show(&mut human, &mut shown, &rest)?;
    human.show("\n")?;

    let Timing { prompt_tokens, prefill, decoded_tokens, decode, steps, replayed, .. } = timing;
    let held = CacheBytes::of(&cache);
    let layers = 0..model.cache_shape().layers;
    let packed = layers.clone().map(|layer| cache.tokens_packed(layer));
    let packed = packed.collect::<briquette::Result<Vec<_>>>()?;
    let of_layer = |rows: Option<Vec<usize>>| rows.and_then(|rows| rows.first().copied());
    let report = Report {
        model: dir.display().to_string(),
        device,
        dtype,
        budget: entry.budget(),
        policy: entry.label,
        text: shown,
        stopped: generation.stopped,
        prefill: Speed {
            tokens: prompt_tokens,
            seconds: prefill.as_secs_f64(),
            tokens_per_second: timing.prefill_rate(),
        },
        decode: Speed {
            tokens: decoded_tokens,
            seconds: decode.as_secs_f64(),
            tokens_per_second: timing.decode_rate(),
        },
        steps,
        steps_replayed: replayed,
        fallback_reason: timing.fallback_reason.clone(),
        lookup: (options.lookup > 0)
            .then_some(Lookup { drafted: timing.drafted, accepted: timing.accepted }),
        cache: CacheReport {
            tokens_seen: cache.tokens_seen().first().copied().unwrap_or(0),
            tokens_kept: layers
                .map(|layer| Ok(cache.tokens_kept(layer)?.first().copied().unwrap_or(0)))
                .collect::<Result<_>>()?,
            tokens_packed: packed
                .iter()
                .any(Option::is_some)
                .then(|| packed.into_iter().map(|rows| of_layer(rows).unwrap_or(0)).collect()),
            store: cache.policy().store().summary(),
            bytes_held: held.bytes,
            bytes_spare: cache.bytes_spare(),
            bytes_full: held.full,
            held_of_full: held.kept_of_full(),
        },
        memory: Memory::of(&model.devices()),
    };
    note(&report.human());
    note_fallbacks(&report.model, &model.fallbacks());
    if let Some(context) = context
        && options.max_new_tokens < args.max_new_tokens
        && !generation.stopped
    {
        let why =
            model.config().beyond_context().map_or_else(String::new, |why| format!("; {why}"));
        note(&format!("note     the context of the model, {context} tokens, is full{why}"));
    }
    // What was generated has been shown.
    args.output.write("", &report)?;
    if interrupt.is_set() { Err(ModelError::Interrupted.into()) } else { Ok(()) }
}

fn show(human: &mut Stream, shown: &mut String, piece: &str) -> Result<()> {
    shown.push_str(piece);
    human.show(piece)
}

impl Report {
    fn human(&self) -> String {
        let speed = |name, Speed { tokens, seconds, tokens_per_second }: &Speed| {
            format!("{name}  {tokens} tokens in {seconds:.2} s, {tokens_per_second:.0} tokens/s\n")
        };
        let CacheReport {
            tokens_seen,
            tokens_kept,
            tokens_packed,
            store,
            bytes_held,
            bytes_spare,
            bytes_full,
            held_of_full,
        } = &self.cache;
        let most = tokens_kept.iter().max().copied().unwrap_or(0);
        let packed = tokens_packed.as_ref().map_or_else(String::new, |packed| {
            let [packed, kept] = [packed, tokens_kept].map(|of| of.iter().sum::<usize>() as f64);
            format!("packed   {:.0} % of the tokens: {store}\n", 100.0 * packed / kept.max(1.0))
        });
        let why = self.fallback_reason.as_ref().map(|why| format!(": {why}"));
        let recorded = match (self.steps_replayed, why) {
            (0, None) => String::new(),
            (replayed, why) => format!(
                "recorded {replayed} of {} steps were replayed{}\n",
                self.steps,
                why.unwrap_or_default()
            ),
        };
        let lookup = self.lookup.as_ref().map_or_else(String::new, |lookup| {
            let Lookup { drafted, accepted } = lookup;
            let (calls, tokens) = (self.steps, self.decode.tokens);
            format!(
                "lookup   {calls} calls for {tokens} tokens: {accepted} of {drafted} drafted were right\n"
            )
        });
        format!(
            "--------\npolicy   {}, budget {}\n{}{}{recorded}{lookup}cache    {} for {most} of {tokens_seen} tokens: {:.0} % of the {} of a full cache; {} of room for tokens to come\n{packed}{}",
            self.policy,
            self.budget,
            speed("prefill", &self.prefill),
            speed("decode ", &self.decode),
            bytes(bytes_held.saturating_sub(*bytes_spare) as u64),
            100.0 * held_of_full,
            bytes(*bytes_full as u64),
            bytes(*bytes_spare as u64),
            self.memory.human(),
        )
    }
}
