use std::path::Path;

use anyhow::{Result, anyhow, bail};
use briquette::{Error as CacheError, Prefix};
use briquette_eval::policy;

pub(crate) use crate::talk::args::Args;
use crate::{
    args::jobs,
    error::Error,
    talk::{args::BUDGET, session::Session},
    terminal::{
        hints::{self, of_cache},
        interrupt,
        lines::{Input, Lines},
        output::{bytes, error, note, with_causes},
    },
};

const COMMANDS: &str = "\
/clear                        forgets the conversation
/policy                       says what the cache keeps
/policy NAME|FILE [BUDGET]    begins anew with another policy: /policy tova 25%
/save FILE                    keeps the conversation and its cache: chat --resume FILE goes on
/quit                         ends, as Ctrl-D does
Text that begins with a slash is sent behind a space.";

const LEAVE: &str =
    "Ctrl-C once more ends, as Ctrl-D and /quit do; /save FILE keeps the conversation first";

pub(crate) fn run(args: Args) -> Result<()> {
    let entry = policy::read(&args.policy, args.budget, BUDGET)?;
    let kept = args.resume.as_ref().map(Prefix::read).transpose()?;
    if args.model.model.is_none() && args.template.inputs().is_empty() {
        bail!(
            "the model that comes with briquette continues texts and has no chat template: name one that answers with \
             --model DIR|FILE, a Hugging Face folder or a GGUF file of an \"instruct\" model (in the repository \
             `models/fetch-smollm2` fetches one of 98 MB to models/smollm2-135m-instruct), or a template with --template FILE"
        );
    }
    jobs::compute_here();
    let loaded = args.model.load()?;
    let profiles = args.profile.of(&loaded)?;
    let template = args.template.of(&loaded.dir)?;
    let mut session = Session::open(&args, &loaded, &template, &profiles, (entry, kept))?;
    let interrupt = interrupt::flag();
    let mut lines = Lines::open()?;
    if lines.reads_keys() {
        interrupt::ends_nothing();
    }
    if lines.is_terminal() {
        let taken_up = session.taken_up().map_or_else(String::new, |text| format!(" {text}."));
        let described = session.describe();
        note(&format!("{}, {described}.{taken_up} /help says what can be written.", loaded.name()));
    }
    let mut was_asked = false;
    loop {
        if !lines.reads_keys() {
            // While nothing is computed, Ctrl-C is as a second one: it ends the program.
            interrupt.set();
        }
        let input = lines.next()?;
        interrupt.clear();
        let text = match input {
            Input::Text(text) => text,
            Input::Interrupt { is_empty: true } if was_asked => {
                drop(lines);
                std::process::exit(interrupt::EXIT_CODE.into());
            }
            Input::Interrupt { .. } => {
                was_asked = true;
                note(LEAVE);
                continue;
            }
            Input::End => {
                if lines.is_terminal() {
                    note("");
                }
                return Ok(());
            }
        };
        was_asked = false;
        let (word, rest) = text.trim_end().split_once(char::is_whitespace).unwrap_or((&text, ""));
        let done = match word.trim_end() {
            "/quit" => return Ok(()),
            "/help" => {
                note(COMMANDS);
                Ok(())
            }
            "/clear" | "/reset" => {
                session.clear();
                Ok(())
            }
            "/policy" => policy_command(&mut session, rest),
            "/save" => save_command(&mut session, rest.trim()),
            word if word.strip_prefix('/').is_some_and(is_name) => {
                note(&format!("there is no {word}\n{COMMANDS}"));
                Ok(())
            }
            _ if text.trim().is_empty() => Ok(()),
            _ => {
                let answered = session.answer(text.trim(), &mut lines, &interrupt);
                if answered.is_err() {
                    lines.offer(text.trim());
                }
                answered
            }
        };
        match done {
            // Where nobody reads it, what follows would be answered as if this had been.
            Err(failed) if lines.is_terminal() => {
                let said = match interrupt::caused(&failed) {
                    true => {
                        "the message was not read to its end: it waits to be sent again".to_owned()
                    }
                    false => {
                        let hint = hints::of(&failed).map(|hint| format!(" ({hint})"));
                        format!("error: {}{}", with_causes(&failed), hint.unwrap_or_default())
                    }
                };
                error(&said);
            }
            done => done?,
        }
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(char::is_alphabetic)
}

/// Shows the policy, or begins anew with another.
fn policy_command(session: &mut Session<'_>, rest: &str) -> Result<()> {
    let mut words = rest.split_whitespace();
    match words.next() {
        Some(policy) => {
            session.change(policy, words.next()).map_err(|error| match of_cache(&error) {
                Some(CacheError::BudgetMissing { .. }) => {
                    anyhow!("`{policy}` has no budget: /policy {policy} 25% gives it one")
                }
                _ => error,
            })?;
            note(&format!("a new conversation: {}", session.describe()));
        }
        None => note(&session.describe()),
    }
    Ok(())
}

fn save_command(session: &mut Session<'_>, file: &str) -> Result<()> {
    if file.is_empty() {
        bail!("/save FILE: a file is missing");
    }
    let held = session.save(Path::new(file)).map_err(|error| match error.downcast_ref() {
        Some(Error::OutputForeign { .. }) => {
            anyhow!("{file} is there and is no conversation of briquette: name another file")
        }
        _ => error,
    })?;
    note(&format!("{file} holds {}: chat --resume goes on with it", bytes(held as u64)));
    Ok(())
}
