use std::{fmt::Write, num::NonZeroU16, path::PathBuf, time::Instant};

use anyhow::{Context, Result};
use briquette_eval::{
    Error, environment::Environment, files, fingerprint, mask, run::weak, settings,
    stats::Proportion, tasks::needle,
};
use briquette_report::table::{Column, Sheet, interval};
use serde_json::json;

use crate::{
    args::{
        depths::DepthArgs, haystack::HaystackArgs, inputs, jobs::JobsArgs, model::ModelArgs,
        profile::ProfileArgs, resume::ResumeArgs,
    },
    terminal::{output, progress},
};

const EXAMPLES: &str = "\
Examples:
  briquette mask-heads
  briquette mask-heads --model MODEL --profile profile.json --out out/heads";

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Numbers of heads to silence
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1,2,4,8,16")]
    counts: Vec<usize>,
    /// Tokens of a prompt and its answer
    #[arg(long, value_name = "N", default_value_t = 512)]
    length: usize,
    #[command(flatten)]
    depths: DepthArgs,
    /// Prompts for each depth
    #[arg(long, value_name = "N", default_value = "4")]
    samples: NonZeroU16,
    /// Seed of the prompts and of the random heads
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    haystack: HaystackArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    resume: ResumeArgs,
    /// Folder for mask-heads.csv
    ///
    /// What has been measured is in its mask-heads.jsonl, where a run that was killed goes on.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    #[command(flatten)]
    tables: output::TableArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let inputs = inputs::of(&args.model, &args.profile, [], args.haystack.inputs());
    let mut gate = args.tables.output.gate(inputs)?;
    if let Some(out) = &args.out {
        gate.results("mask-heads", out, "mask-heads.jsonl", &["mask-heads.csv"])?;
    }
    let haystack = args.haystack.read(&args.model)?;
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    let (model, dir, name) = (&loaded.model, loaded.dir.display().to_string(), loaded.name());
    let profile = profiles.profile()?.with_context(|| {
        format!("there is no profile.json in {dir}: make one with `briquette calibrate`, or name one with --profile")
    })?;
    let (length, context) = (args.length, model.config().max_position_embeddings);
    if length > context {
        return Err(Error::ContextTooShort { length, context }.into());
    }
    let task = needle::NeedleTask::new(&loaded.tokenizer, &haystack, args.seed)?;
    let mut prompts = Vec::new();
    for sample in 0..usize::from(args.samples.get()) {
        for &depth in &args.depths.depths {
            prompts.push(task.prompt(needle::Place { length, depth, needles: 1, sample })?);
        }
    }

    let plan = json!({
        "length": length,
        "depths": args.depths.depths,
        "samples": args.samples,
        "seed": args.seed,
        "profile": fingerprint::of(profile.to_json()?.as_bytes()),
    });
    let named = (model, name.as_str(), profiles.weights()?);
    let settings = settings::of("mask-heads", named, Some(&haystack), &[], &plan);
    let path = args.out.as_ref().map(|out| out.join("mask-heads.jsonl"));
    let accept = args.resume.accept(loaded.other_weights);
    let mut kept = mask::Right::open(path.as_deref(), &settings, accept)?;

    let measured = (model, profile.as_ref());
    let (counts, seed, threads) = (&args.counts, args.seed, args.jobs.threads(&loaded.device)?);
    let bar = progress::bar(0);
    let start = Instant::now();
    let cells = mask::run(measured, &prompts, counts, seed, threads, &mut kept, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let (cells, seconds) = (cells?, start.elapsed().as_secs_f64());

    let heads = [Column::left("heads by"), Column::right("masked")];
    let shares = ["exact", "per token"].map(Column::interval);
    let mut sheet = Sheet::new(heads.into_iter().chain(shares))
        .with_intervals("Brackets are 95 % Wilson intervals");
    let mut csv = String::from(
        "choice,masked,prompts,exact,exact_low,exact_high,per_token,per_token_low,per_token_high\n",
    );
    let rounded = |of: &Proportion| interval(of.rate, Some([of.low, of.high]), 2);
    let whole = |of: &Proportion| format!("{:?},{:?},{:?}", of.rate, of.low, of.high);
    for mask::Cell { choice, masked, exact, per_token, .. } in &cells {
        sheet.row([choice.into(), masked.into(), rounded(exact), rounded(per_token)]);
        writeln!(csv, "{choice},{masked},{},{},{}", exact.trials, whole(exact), whole(per_token))?;
    }
    let exact = cells.iter().find(|cell| cell.masked == 0).map(|cell| cell.exact);
    let said = exact.and_then(|exact| weak("needle", exact.rate, exact.trials));
    let before = said.map_or_else(String::new, |said| said + "\n\n");
    let (each, device) = (prompts.len(), &loaded.device);
    let mut behind =
        format!("{each} prompts per row, {length} tokens, {seconds:.0} s on {device}\n");
    if let Some(out) = &args.out {
        let path = out.join("mask-heads.csv");
        files::write(&path, csv)?;
        writeln!(behind, "all digits are in {}", path.display())?;
    }
    let report = json!({
        "environment": Environment::new(dir, model.cache_shape(), loaded.dtype, loaded.device),
        "haystack": haystack.name(),
        "profile": profile.made,
        "plan": plan,
        "seconds": seconds,
        "cells": cells,
    });
    args.tables.write(&output::Shown { before, tables: vec![sheet], behind }, &report)
}
