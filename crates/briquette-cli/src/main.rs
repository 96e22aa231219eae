//! The command `briquette`: run a model on a compressed KV cache, and measure what it costs.

mod args;
mod commands;
mod error;
mod measure;
mod talk;
mod terminal;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use briquette_eval::warnings;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    args::jobs,
    commands::{
        calibrate, chat, compare, completions, compress, fidelity, generate, man, mask_heads,
        merge, needle, perplexity, policies, report, run, score, tune,
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

/// KV-cache compression for models in Burn: run a model on a compressed cache, and measure what it
/// costs.
#[derive(Debug, Parser)]
#[command(name = "briquette", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say nothing on stderr but errors: no progress, no remarks
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say also which operations had no kernel on the device
    #[arg(long, short, global = true)]
    verbose: bool,
    /// Tables with all their columns, wider than the terminal
    #[arg(long, global = true)]
    wide: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Continue a text on a compressed cache, and say what that took
    Generate(generate::Args),
    /// Talk with a model on a compressed cache, which stays compressed from turn to turn
    Chat(chat::Args),
    /// Compress a text once and keep it in a file, for `generate --prefix` and run files to start
    /// from
    Compress(compress::Args),
    /// Needle in a haystack: how well a model still finds a number in its compressed cache
    Needle(needle::Args),
    /// How well a model continues a text on a compressed cache
    Perplexity(perplexity::Args),
    /// How far a model on a compressed cache is from itself on the full one, on any text
    Fidelity(fidelity::Args),
    /// Every method at every budget, on needles and on text: one table
    Compare(compare::Args),
    /// Models, policies and tasks of a run file: every one with every other
    Run(run::Args),
    /// Join the results of shards into one file
    Merge(merge::Args),
    /// Find the policy that serves a model best in a share of the full cache's memory, on any text
    Tune(tune::Args),
    /// Find out which heads of a model retrieve and which layers need their cache, for policies
    /// that ask
    Calibrate(calibrate::Args),
    /// Silence the heads that retrieve, and see what the model still finds
    MaskHeads(mask_heads::Args),
    /// Write the page of a run: its results as tables and charts in one HTML file
    Report(report::Args),
    /// Score predictions made elsewhere, by any metric
    Score(score::Args),
    /// The compression methods, their stages and parameters
    Policies(policies::Args),
    /// Print what a shell completes the command by
    Completions(completions::Args),
    /// Print the manual, or write a page a command
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
    output::lay_out(cli.wide);
    let done = jobs::check_environment().and_then(|()| cli.command.run());
    for warning in warnings::take() {
        output::note(&format!("warning: {warning}"));
    }
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
