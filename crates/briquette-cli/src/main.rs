//! The command `briquette`: run a model on a compressed KV cache, and measure what it costs.

mod args;
mod commands;
mod error;
mod measure;
mod talk;
mod terminal;
mod version;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    args::jobs,
    commands::{
        calibrate, chat, compare, completions, compress, devices, fidelity, generate, man,
        mask_heads, merge, models, needle, perplexity, plan, policies, report, run, score, tune,
    },
    terminal::{
        excerpt::short,
        hints, interrupt,
        output::{self, Verbosity},
    },
};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  it failed: one message on stderr says why
  2  the command line cannot be understood
130  it was interrupted; what was measured is kept, and the same command goes on";

/// Run a language model on a compressed KV cache, and measure what that costs.
#[derive(Debug, Parser)]
#[command(name = "briquette", version = version::text(), after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print nothing but results and errors
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = "Output")]
    quiet: bool,
    /// Also print which operations had no kernel on the device
    #[arg(long, short, global = true, help_heading = "Output")]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Continue a text, and report time and memory
    Generate(generate::Args),
    /// Chat with a model; the cache stays compressed from turn to turn
    Chat(chat::Args),
    /// Compress a text once into a file, to generate from it later
    Compress(compress::Args),
    /// Measure needles in a haystack: how often a model finds a hidden number
    Needle(needle::Args),
    /// Measure perplexity on a text
    Perplexity(perplexity::Args),
    /// Measure the distance from the full cache, on any text
    Fidelity(fidelity::Args),
    /// Compare every method at every budget, on needles and text
    Compare(compare::Args),
    /// Run every model, policy and task of a run file
    Run(run::Args),
    /// Merge the results of shards
    Merge(merge::Args),
    /// Find the best policy for a share of the memory
    Tune(tune::Args),
    /// Calibrate a model: which heads retrieve, which layers need their cache
    Calibrate(calibrate::Args),
    /// Silence the heads that retrieve, and measure what the model still finds
    MaskHeads(mask_heads::Args),
    /// Write the HTML page of a run, with tables and charts
    Report(report::Args),
    /// Score predictions, or a run's answers by other metrics
    Score(score::Args),
    /// List the compression methods, or print the policy file of one
    Policies(policies::Args),
    /// List the families of models that are read
    Models(models::Args),
    /// Say what memory a model and its cache will take, without loading it
    Plan(plan::Args),
    /// List the devices of this build, and whether they can be opened
    Devices(devices::Args),
    /// Print a shell completion script
    Completions(completions::Args),
    /// Print the manual, or write one page per command
    Man(man::Args),
}

/// Reads the command line, does what it says, and reports a failure on stderr.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            output::error(&error.render().to_string());
            return ExitCode::from(2);
        }
        // Stdout may be closed, or full.
        Err(help) => match help.print().and_then(|()| io::stdout().flush()) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => {
                output::error(&format!("error: cannot write to stdout: {error}"));
                return ExitCode::FAILURE;
            }
        },
    };
    output::say(match (cli.quiet, cli.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    });
    let done = jobs::check_environment().and_then(|()| cli.command.run());
    output::note_warnings();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if interrupt::caused(&error) => {
            output::error("stopped; what was measured is kept, and the same command goes on");
            ExitCode::from(interrupt::EXIT_CODE)
        }
        Err(error) => {
            let hint = hints::of(&error).map_or_else(String::new, |hint| format!(" ({hint})"));
            output::error(&format!("error: {}{hint}", short(&output::with_causes(&error))));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Generate(args) => generate::run(args),
            Self::Chat(args) => chat::run(args),
            Self::Compress(args) => compress::run(args),
            Self::Needle(args) => needle::run(args),
            Self::Perplexity(args) => perplexity::run(args),
            Self::Fidelity(args) => fidelity::run(args),
            Self::Compare(args) => compare::run(args),
            Self::Run(args) => run::run(args),
            Self::Merge(args) => merge::run(args),
            Self::Tune(args) => tune::run(args),
            Self::Calibrate(args) => calibrate::run(args),
            Self::MaskHeads(args) => mask_heads::run(args),
            Self::Report(args) => report::run(args),
            Self::Score(args) => score::run(args),
            Self::Policies(args) => policies::run(args),
            Self::Models(args) => models::run(args),
            Self::Plan(args) => plan::run(args),
            Self::Devices(args) => devices::run(args),
            Self::Completions(args) => completions::run(args, Cli::command()),
            Self::Man(args) => man::run(args, Cli::command()),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn causes_are_said_once() {
        let inner = io::Error::other("disk on fire");
        let error =
            anyhow::Error::new(briquette_eval::Error::Read { path: "a.txt".into(), source: inner })
                .context("no haystack");
        assert_eq!(output::with_causes(&error), "no haystack: cannot read a.txt: disk on fire");
    }
}
