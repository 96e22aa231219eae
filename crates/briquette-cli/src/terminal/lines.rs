use std::io::{self, BufRead, IsTerminal, Read, StdinLock};

use anyhow::{Context, Result, bail};
use rustyline::{Behavior, Config, DefaultEditor, error::ReadlineError};

/// Bytes of a line of stdin at most: a file of zeros has no end of line.
const LONGEST: u64 = 64 << 20;

/// Reads what a user says, turn by turn: on a terminal by a line editor, which takes pastes of any
/// length and of several lines and remembers earlier turns; elsewhere by lines of stdin.
pub(crate) enum Lines {
    Editor(Box<DefaultEditor>),
    Stdin(StdinLock<'static>),
}

/// A turn of the user.
pub(crate) enum Input {
    Text(String),
    /// Ctrl-C in place of a line.
    Interrupt,
    End,
}

impl Lines {
    /// The terminal, if stdin is one.
    ///
    /// # Errors
    /// If a terminal cannot be read key by key.
    pub(crate) fn open() -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Stdin(io::stdin().lock()));
        }
        // The editor writes to the terminal also where answers go to a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true);
        let editor = DefaultEditor::with_config(config.build()).context("cannot read the terminal");
        Ok(Self::Editor(Box::new(editor?)))
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// Waits for the next turn.
    ///
    /// # Errors
    /// If stdin or the terminal cannot be read, or a line of stdin is longer than 64 MiB.
    pub(crate) fn next(&mut self) -> Result<Input> {
        match self {
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(text) => Ok(Input::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(error).context("cannot read the terminal"),
            },
            Self::Stdin(stdin) => {
                let mut line = String::new();
                let read = stdin.by_ref().take(LONGEST + 1).read_line(&mut line);
                match read.context("cannot read stdin")? as u64 {
                    0 => Ok(Input::End),
                    bytes if bytes > LONGEST => {
                        bail!("a line of stdin is longer than {LONGEST} bytes")
                    }
                    _ => Ok(Input::Text(line)),
                }
            }
        }
    }
}
