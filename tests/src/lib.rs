//! What the suites in `tests/` share: an independent f64 [`mod@reference`] of every method, the [`backends`] of
//! this build, and scripted [`session`]s that play the same numbers through both.

pub mod backends;
pub mod inputs;
pub mod policy;
pub mod profiles;
pub mod reference;
pub mod session;

/// The names of all methods that a cache compresses by itself. KVzip needs a second pass over the prompt, which its own suite
/// has.
pub fn in_one_pass() -> impl Iterator<Item = String> {
    let names = briquette::methods().into_iter().map(|method| method.name);
    names.filter(|name| !name.starts_with("kvzip"))
}
