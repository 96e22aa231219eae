//! Shared parts of the suites in `tests/`: an independent f64 [`mod@reference`] of every method,
//! the [`backends`] of this build, and scripted [`session`]s that play the same numbers through
//! both.

pub mod backends;
pub mod inputs;
pub mod policy;
pub mod profiles;
pub mod reference;
pub mod session;

use briquette::{Budget, Policy};

/// All methods that a cache compresses by itself, with a budget of so many tokens. KVzip needs a
/// second pass over the prompt, which its own suite has.
pub fn in_one_pass(tokens: usize) -> impl Iterator<Item = Policy> {
    let budget = Budget::Tokens(tokens);
    let all = briquette::methods().into_iter().map(move |method| named(&method.name, budget));
    all.filter(|policy| policy.second_pass().is_none())
}

/// The method of this name, with this budget if it takes one.
///
/// # Panics
/// If there is none.
pub fn named(name: &str, budget: Budget) -> Policy {
    Policy::named(name, None).expect("the name of a method").with_default_budget(budget)
}
