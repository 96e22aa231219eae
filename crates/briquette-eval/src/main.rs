//! The command `briquette`.

use std::process::ExitCode;

fn main() -> ExitCode {
    briquette_eval::cli::main()
}
