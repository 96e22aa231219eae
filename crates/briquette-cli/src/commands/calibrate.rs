use std::path::PathBuf;

use anyhow::Result;
use briquette_eval::{
    calibrate::{Calibrated, Calibration, Plan},
    files, fingerprint,
    run::weak,
    tasks::text::Text,
};

use crate::{
    args::{
        haystack::HaystackArgs,
        jobs::JobsArgs,
        model::{Loaded, ModelArgs},
        path::partial,
        resume::ResumeArgs,
    },
    terminal::{output::OutputArgs, output_gate::Mark, progress},
};

const EXAMPLES: &str = "\
Examples:
  briquette calibrate --model MODEL --out MODEL/profile.json
  briquette calibrate --model MODEL --chat --form ruler --out MODEL/profile.json";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Profile to write
    ///
    /// Other commands find it by themselves as profile.json in the folder of the model.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    out: PathBuf,
    /// Retrieval prompts per length, and chunks of each text per length
    #[arg(long, alias = "prompts", value_name = "N", default_value_t = 32)]
    samples: usize,
    /// Lengths of the prompts, in tokens
    #[arg(
        long,
        alias = "tokens",
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "512,1024"
    )]
    lengths: Vec<usize>,
    /// Seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Further texts to measure the layers on, beside the retrieval prompts
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,
    /// Also search each head's sparse pattern, on a prompt of LENGTH tokens
    ///
    /// MInference's search, for `sparse_prefill=profile`. Take the length of the prompts it is for.
    #[arg(long, value_name = "LENGTH")]
    patterns: Option<usize>,
    /// Share of the retrieval prompts that the model must answer right
    ///
    /// The heads of a model that finds nothing say nothing of retrieval.
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    min_right: f64,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = [args.model.inputs(), args.haystack.inputs(), args.text.clone()].concat();
    let mut gate = args.output.gate_as(Mark::Profile, inputs)?;
    gate.new_file(&args.out, Mark::Profile)?;
    let haystack = args.haystack.read(&args.model)?;
    let loaded = args.model.load()?;
    let name = loaded.name();
    let Loaded { model, tokenizer, device, dir, other_weights, .. } = loaded;
    let texts = args
        .text
        .iter()
        .map(|path| Text::from_file(path, &tokenizer))
        .collect::<briquette_eval::Result<Vec<_>>>()?;
    let calibration = Calibration {
        model: &model,
        tokenizer: &tokenizer,
        haystack: &haystack,
        texts: &texts,
        plan: Plan {
            prompts: args.samples,
            lengths: args.lengths,
            seed: args.seed,
            patterns: args.patterns,
        },
        name,
        weights: fingerprint::of_model(&dir)?,
        accept: args.resume.accept(other_weights),
        min_right: args.min_right,
        threads: args.jobs.threads(&device)?,
    };

    let bar = progress::bar(calibration.steps());
    let calibrated = calibration.run(&partial(&args.out), |steps| {
        bar.inc(steps as u64);
        // Steps of an earlier run come at once, and say nothing of the time left.
        if steps != 1 {
            bar.reset_eta();
        }
    });
    bar.finish_and_clear();
    let Calibrated { profile, right, prompts, journal } = calibrated?;
    let text = profile.to_json()? + "\n";
    files::write(&args.out, text)?;
    journal.remove()?;

    let shares: Vec<String> =
        profile.layer_errors.iter().map(|error| format!("{error:.3}")).collect();
    let said = weak("needle", right as f64 / prompts.max(1) as f64, prompts)
        .map_or_else(String::new, |said| said + "\n\n");
    let human = format!(
        "{said}{}: the model answers {right} of {prompts} prompts right\nlayer errors {}\n",
        args.out.display(),
        shares.join(" ")
    );
    args.output.write_plain(&human, &profile)
}
