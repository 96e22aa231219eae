//! Speed of a process that serves one prompt after another, under methods in turn: it is to stay.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use briquette::{Budget, Policy, methods};
use briquette_benches::{
    measure::median,
    model::{Dimensions, random_llama},
};
use briquette_models::{GenerateOptions, Timing, generate};
use burn::tensor::DType;
use clap::Parser;

/// The model that all prompts go to.
const MODEL: Dimensions = Dimensions {
    layers: 8,
    hidden: 512,
    inner: 1024,
    query_heads: 8,
    kv_heads: 4,
    head_dim: 64,
    vocabulary: 4096,
    context: 8192,
};

/// Growth of the time per token from the second round to the last that is still taken for chance.
const GROWTH: f64 = 1.1;

/// Decodes with methods in turn, round after round, with prompts of other lengths in each, and
/// compares the time per token of the last round with that of the second.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long, default_value = "flex")]
    device: String,
    /// Methods of `briquette policies`, separated by commas [default: all that read the prompt
    /// once]
    #[arg(long, value_delimiter = ',')]
    methods: Vec<String>,
    /// Rounds, the first of which compiles
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// No round begins after so many seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Tokens of the shortest prompt; the others are up to half as long again
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Tokens generated after each
    #[arg(long, default_value_t = 32)]
    new: usize,
    /// Tokens that are kept
    #[arg(long, default_value_t = 128)]
    budget: usize,
    /// Clean the device's memory up whenever so many tokens have been decoded [default: never]
    #[arg(long)]
    cleanup: Option<usize>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.rounds >= 3, "{} rounds are too few to compare two of them", args.rounds);
    let device = briquette::device::open(&args.device)?;
    device.seed(2026);
    let model = random_llama(MODEL, DType::F32, &device)?;
    let policies = policies(&args)?;
    let options = GenerateOptions { max_new_tokens: args.new, ..GenerateOptions::default() };
    let begun = Instant::now();
    let mut decoded = 0_usize;
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    while rounds.len() < args.rounds && begun.elapsed() < Duration::from_secs(args.limit) {
        let mut round = Vec::new();
        for (number, policy) in policies.iter().enumerate() {
            let step = rounds.len() * policies.len() + number;
            let length = args.prompt + step * 37 % (args.prompt / 2).max(1);
            let prompt: Vec<u32> = (0..length).map(|at| (at * 7919 + step) as u32 % 4096).collect();
            let mut cache = model.cache(policy.clone())?;
            let (_, timing) = generate(&model, &prompt, &mut cache, &options, |_| {
                decoded += 1;
                if args.cleanup.is_some_and(|tokens| decoded.is_multiple_of(tokens)) {
                    device.memory_cleanup();
                }
            })?;
            round.push(per_token(timing));
        }
        let usage = device.memory_pool_usage();
        let mean = round.iter().sum::<f64>() / round.len() as f64;
        println!(
            "round {}: {mean:.2} ms per token, median {:.2}, {:.0} s; {usage:?}",
            rounds.len(),
            median(round.clone()),
            begun.elapsed().as_secs_f64()
        );
        rounds.push(round);
    }
    println!("\n| method | ms per token in round 0 | and in the others |");
    for (number, policy) in policies.iter().enumerate() {
        let times: Vec<String> =
            rounds.iter().map(|round| format!("{:.2}", round[number])).collect();
        println!("| {} | {} |", policy.name(), times.join(" | "));
    }
    ensure!(rounds.len() >= 3, "the time was up after {} rounds", rounds.len());
    let growth = median(rounds[rounds.len() - 1].clone()) / median(rounds[1].clone());
    println!("the last round takes {growth:.2} times the second's time per token");
    if growth > GROWTH {
        bail!(
            "the process ages: a token takes {growth:.2} times as long after {} rounds",
            rounds.len()
        );
    }
    Ok(())
}

/// The named methods, or all that read the prompt once and need no profile of the model.
fn policies(args: &Args) -> Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for method in methods() {
        let policy = Policy::named(&method.name, None)?;
        let policy = policy.with_default_budget(Budget::Tokens(args.budget));
        let chosen = match args.methods.is_empty() {
            true => policy.second_pass().is_none() && !policy.reads_profile(),
            false => args.methods.contains(&method.name),
        };
        if chosen {
            policies.push(policy);
        }
    }
    ensure!(!policies.is_empty(), "no method is called {}", args.methods.join(", "));
    Ok(policies)
}

/// Milliseconds of a decoded token.
fn per_token(timing: Timing) -> f64 {
    1e3 / timing.decode_rate()
}
