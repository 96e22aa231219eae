use std::{fmt::Write, thread, time::SystemTime};

use minijinja::{
    AutoEscape, Environment, Error, Value, context,
    machinery::{
        CodeGenerator, Instructions, Span, Token, ast::Stmt, eval, make_string_output, parse,
        tokenize,
    },
};

use super::{
    budget::{GIVEN, refused},
    check::statement,
    dialect,
};

/// Bytes of a template. Those of models have a few thousand.
const LONGEST: usize = 128 << 10;
/// A stack for expressions as deep as a template is long.
const STACK: usize = 512 << 20;
/// The name in messages.
const NAME: &str = "chat_template.txt";

/// The text of a template as it is parsed: newlines as Jinja has them, and `{% generation %}`,
/// which marks what a model is trained on, as a block of no meaning.
///
/// # Errors
/// A text that is too long, or does not parse.
pub(crate) fn prepare(text: &str) -> Result<String, Error> {
    if text.len() > LONGEST {
        let bytes = text.len();
        return Err(refused(format!(
            "the template has {bytes} bytes, at most {LONGEST} are taken"
        )));
    }
    let text = without_generation(&text.replace("\r\n", "\n").replace('\r', "\n"))?;
    on_its_stack(|| check(&text).map(drop))?;
    Ok(text)
}

/// Renders a template that [`prepare`] returned. `given` is the bytes of the conversation among the
/// `variables`.
///
/// # Errors
/// What the template refuses, and what takes too many steps or bytes.
pub(crate) fn render(
    text: &str,
    variables: Value,
    given: usize,
    now: Option<SystemTime>,
) -> Result<String, Error> {
    let environment = dialect::environment(now);
    on_its_stack(|| run(&environment, text, variables, given))
}

fn run<'a>(
    environment: &'a Environment<'a>,
    text: &'a str,
    variables: Value,
    given: usize,
) -> Result<String, Error> {
    let mut generator = CodeGenerator::new(NAME, text);
    generator.compile_stmt(&check(text)?);
    let (instructions, blocks): (Instructions<'a>, _) = generator.finish();
    let given = Value::from_pairs([(GIVEN, given)]);
    let variables = context! { ..variables, ..given };
    let mut rendered = String::new();
    let mut output = make_string_output(&mut rendered);
    eval(environment, &instructions, variables, &blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(rendered)
}

fn check(text: &str) -> Result<Stmt<'_>, Error> {
    statement(&parse(text, NAME, dialect::syntax()?)?)
}

/// `{% generation %}` as `{% with %}`, which has a scope of its own too.
fn without_generation(text: &str) -> Result<String, Error> {
    let mut changed = String::new();
    let mut copied = 0;
    let mut block = false;
    for token in tokenize(text, false, dialect::syntax()?) {
        // What does not lex is said by the parser, with its place.
        let Ok((token, Span { start_offset, end_offset, .. })) = token else { break };
        let instead = match token {
            Token::Ident("generation") if block => Some("with"),
            Token::Ident("endgeneration") if block => Some("endwith"),
            _ => None,
        };
        block = matches!(token, Token::BlockStart);
        if let Some(instead) = instead {
            let (start, end) = (start_offset as usize, end_offset as usize);
            let before = text.get(copied..start).unwrap_or_default();
            write!(changed, "{before}{instead}")?;
            copied = end;
        }
    }
    changed.push_str(text.get(copied..).unwrap_or_default());
    Ok(changed)
}

/// Runs on a thread whose stack holds what a template may nest.
fn on_its_stack<T: Send>(run: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| refused(format!("no thread to render it: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(refused("the template cannot be rendered")))
    })
}
