use std::{
    cell::Cell,
    env,
    io::{self, BufRead, IsTerminal, Read, StdinLock, Write},
    mem,
};

use anyhow::{Context, Result, bail};
use rustyline::{
    Behavior, Config, Context as EditorContext, Helper, completion::Completer,
    error::ReadlineError, highlight::Highlighter, hint::Hinter, history::DefaultHistory,
    validate::Validator,
};

use crate::terminal::{quiet::Quiet, typed::Typed};

/// Bytes of a line of stdin at most: a file of zeros has no end of line.
const LONGEST: u64 = 64 << 20;

/// Terminals that no line can be edited on.
const BARE: [&str; 3] = ["dumb", "cons25", "emacs"];

const PROMPT: &str = "> ";

/// Reads what a user says, turn by turn: on a terminal by a line editor, which takes pastes of any
/// length and of several lines and remembers earlier turns; elsewhere by lines of stdin.
pub(crate) enum Lines {
    Editor(Box<Editor>),
    Stdin {
        stdin: StdinLock<'static>,
        /// Whether it is a terminal, which is shown when it is waited for.
        is_terminal: bool,
    },
}

/// A line editor, and a terminal that is quiet between lines.
pub(crate) struct Editor {
    editor: rustyline::Editor<Watched, DefaultHistory>,
    quiet: Quiet,
    typed: Typed,
    /// Text that the next line begins with.
    offered: String,
}

/// A turn of the user.
pub(crate) enum Input {
    Text(String),
    /// Ctrl-C in place of a line, which it may take away.
    Interrupt {
        is_empty: bool,
    },
    End,
}

/// Sees whether there is text in the line, which the editor does not tell of one that was taken
/// away.
#[derive(Default)]
struct Watched {
    is_empty: Cell<bool>,
}

impl Hinter for Watched {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &EditorContext<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Completer for Watched {
    type Candidate = String;
}

impl Highlighter for Watched {}

impl Validator for Watched {}

impl Helper for Watched {}

impl Lines {
    /// The terminal, if stdin is one.
    ///
    /// # Errors
    /// If a terminal cannot be read key by key.
    pub(crate) fn open() -> Result<Self> {
        let is_terminal = io::stdin().is_terminal();
        let bare = |name: String| BARE.contains(&name.to_lowercase().as_str());
        if !is_terminal || env::var("TERM").is_ok_and(bare) {
            return Ok(Self::Stdin { stdin: io::stdin().lock(), is_terminal });
        }
        // The editor writes to the terminal also where answers go to a file.
        let config = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true);
        let failed = "cannot read the terminal";
        let mut editor = rustyline::Editor::with_config(config.build()).context(failed)?;
        editor.set_helper(Some(Watched::default()));
        let quiet = Quiet::new().context(failed)?;
        let (typed, offered) = (Typed::default(), String::new());
        Ok(Self::Editor(Box::new(Editor { editor, quiet, typed, offered })))
    }

    /// Whether somebody sits before it.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor(_) | Self::Stdin { is_terminal: true, .. })
    }

    /// Whether Ctrl-C is a [key](Input::Interrupt) while a line is waited for, else a signal.
    pub(crate) fn reads_keys(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// Takes what is typed while an answer is written: it stands in the next line, to be sent by
    /// its user.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub(crate) fn listen(&mut self) -> Result<()> {
        if let Self::Editor(editor) = self {
            let read = editor.quiet.read(&mut editor.typed);
            read.context("cannot read the terminal")?;
        }
        Ok(())
    }

    /// As [`listen`](Self::listen), at the end of the answer: what is typed from now on is the next
    /// line.
    ///
    /// # Errors
    /// If the terminal cannot be read.
    pub(crate) fn listen_to_end(&mut self) -> Result<()> {
        if let Self::Editor(editor) = self {
            let read = editor.quiet.read_to_end(&mut editor.typed);
            read.context("cannot read the terminal")?;
        }
        Ok(())
    }

    /// Offers a text as the beginning of the next line.
    pub(crate) fn offer(&mut self, text: &str) {
        if let Self::Editor(editor) = self {
            text.clone_into(&mut editor.offered);
        }
    }

    /// Waits for the next turn.
    ///
    /// # Errors
    /// If stdin or the terminal cannot be read, or a line of stdin is longer than 64 MiB.
    pub(crate) fn next(&mut self) -> Result<Input> {
        match self {
            Self::Editor(editor) => editor.next(),
            Self::Stdin { stdin, is_terminal } => {
                if *is_terminal {
                    let mut stderr = io::stderr();
                    let _ = stderr.write_all(PROMPT.as_bytes()).and_then(|()| stderr.flush());
                }
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

impl Editor {
    fn next(&mut self) -> Result<Input> {
        let failed = "cannot read the terminal";
        let offered = [mem::take(&mut self.offered), self.typed.take()];
        let offered = offered.into_iter().filter(|text| !text.is_empty());
        let offered = offered.collect::<Vec<String>>().join("\n");
        if !offered.is_empty() {
            // Ctrl-C takes a line away, and arrows bring it back.
            self.editor.add_history_entry(&offered).context(failed)?;
        }
        if let Some(watched) = self.editor.helper() {
            watched.is_empty.set(offered.is_empty());
        }
        let line = self.editor.readline_with_initial(PROMPT, (&offered, ""));
        self.quiet.begin().context(failed)?;
        match line {
            Ok(text) => Ok(Input::Text(text)),
            Err(ReadlineError::Interrupted) => {
                let is_empty = self.editor.helper().is_none_or(|watched| watched.is_empty.get());
                Ok(Input::Interrupt { is_empty })
            }
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(error).context(failed),
        }
    }
}
