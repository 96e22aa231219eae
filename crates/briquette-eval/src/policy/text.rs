use std::path::{Path, PathBuf};

use briquette::{Budget, Error as Refusal, Policy, nearest::did_you_mean, policy::text::Written};

use super::named::NamedPolicy;
use crate::{Error, Result, files};

/// Reads `NAME`, `FILE.toml` or `FILE.json`, each with changes behind it as [`Policy::parse`] reads
/// them.
///
/// # Errors
/// [`Error::PolicyText`] for a name that is not known, and what [`Written::new`] refuses.
pub fn parse(text: &str) -> Result<Written> {
    let (origin, changes) = split(text);
    let (label, base) = match is_file(origin) {
        true => {
            let path = Path::new(origin);
            (files::stem(path) + &text[origin.len()..], Policy::from_file(path)?)
        }
        false => {
            let fail = |reason| Error::PolicyText { text: text.into(), reason };
            (text.to_owned(), method(origin).map_err(fail)?)
        }
    };
    Ok(Written::new(label, &base, changes)?)
}

/// Reads a policy as [`parse`] does, at a budget: `budget` stands above the one of a file;
/// `default` is for a method that says none, when there is no `budget`.
///
/// # Errors
/// As [`parse`] and [`Written::at`]. [`BudgetMissing`](briquette::Error::BudgetMissing) if neither
/// `budget` nor the file has one.
pub fn read(text: &str, budget: Option<Budget>, default: Budget) -> Result<NamedPolicy> {
    let written = parse(text)?;
    let (origin, _) = split(text);
    let label = written.label().to_owned();
    let policy = match budget {
        Some(budget) => written.at(budget)?,
        None if is_file(origin) => written.checked().map_err(|refusal| {
            let (origin, refusal) = (origin.to_owned(), Box::new(refusal));
            Refusal::PolicyOfFile { origin, place: None, refusal }
        })?,
        None => written.or_at(default)?,
    };
    Ok(NamedPolicy { label, policy })
}

/// The method of this name, without a budget, or what is wrong with the name in words.
pub(crate) fn method(name: &str) -> std::result::Result<Policy, String> {
    Policy::named(name, None).map_err(|error| {
        let Refusal::UnknownMethod { known, .. } = error else { return error.to_string() };
        let near = did_you_mean(name, known.iter().map(String::as_str));
        let no_file = match Path::new(name).components().count() > 1 || Path::new(name).exists() {
            true => ", and a policy file ends in .toml or .json",
            false => "",
        };
        format!("{near}there is no such method{no_file}; `briquette policies` lists all")
    })
}

/// The name or file of a policy's text, and its changes.
pub fn split(text: &str) -> (&str, Vec<&str>) {
    if is_file(text) {
        return (text, Vec::new());
    }
    briquette::policy::text::split(text)
}

/// Whether `text` names a file, by its ending, and has no changes.
pub fn is_file(text: &str) -> bool {
    let path = Path::new(text);
    let ends = path.extension().is_some_and(|ending| ending == "toml" || ending == "json");
    // `snapkv:profile=mine.json` ends so too.
    let changes = text.split_once(':').is_some_and(|(_, changes)| changes.contains('='));
    ends && (!changes || path.is_file())
}

/// The files that texts name, as paths.
pub fn inputs<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<PathBuf> {
    let origins = texts.into_iter().map(|text| split(text).0);
    origins.filter(|origin| is_file(origin)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DEFAULT: Budget = Budget::Tokens(256);
    const SHARE: Budget = Budget::Ratio(0.25);

    fn refusal(text: &str, budget: Option<Budget>) -> String {
        read(text, budget, DEFAULT).unwrap_err().to_string()
    }

    #[test]
    fn names_take_the_budget_or_the_default() {
        let policy = |budget| read("h2o", budget, DEFAULT).unwrap().policy;
        assert_eq!(policy(None).budget(), Some(DEFAULT));
        assert_eq!(policy(Some(SHARE)).budget(), Some(SHARE));
        let changed = read("tova:compression_ratio=0.75", None, DEFAULT).unwrap();
        assert_eq!(changed.policy.budget(), Some(SHARE));
    }

    #[test]
    fn a_budget_that_cannot_apply_is_refused() {
        for name in ["full", "kivi", "fp8", "kivi:store.bits=4"] {
            assert_eq!(read(name, None, DEFAULT).unwrap().policy.budget(), None);
            let error = refusal(name, Some(SHARE));
            assert!(error.contains("takes no budget, and 25% is given"), "{error}");
        }
        let error = refusal("tova:budget.tokens=77", Some(SHARE));
        assert!(error.contains("says a budget of 77, and 25% is given"), "{error}");
        assert!(refusal("full:budget.tokens=77", None).contains("takes no budget"));
    }

    #[test]
    fn files_take_a_budget_above_their_own_and_none_by_default() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let whole = Policy::snapkv(Budget::Tokens(77)).to_toml().unwrap();
        let none = whole.replace("[budget]\ntokens = 77\n", "");
        assert_ne!(whole, none);
        let (own, none) = (file("mine.toml", whole), file("none.toml", none));
        let keeps_all = file("full.toml", Policy::full().to_toml().unwrap());

        let budget = |text, budget| read(text, budget, DEFAULT).unwrap().policy.budget();
        assert_eq!(budget(&own, None), Some(Budget::Tokens(77)));
        assert_eq!(budget(&own, Some(SHARE)), Some(SHARE));
        assert_eq!(budget(&none, Some(SHARE)), Some(SHARE));
        assert_eq!(budget(&keeps_all, None), None);
        for (file, given, says) in [
            (&none, None, "has no budget: write `[budget]`"),
            (&keeps_all, Some(SHARE), "takes no budget"),
        ] {
            let error = refusal(file, given);
            assert!(error.contains(says), "{error}");
        }

        assert_eq!(read(&own, None, DEFAULT).unwrap().label, "mine");
        let changed = read(&format!("{own}:kernel=15"), None, DEFAULT).unwrap();
        assert_eq!(changed.label, "mine:kernel=15");
        assert!(changed.policy.to_toml().unwrap().contains("kernel = 15"));
        assert_eq!(inputs([&format!("{own}:kernel=15")]), [PathBuf::from(own)]);
    }

    #[test]
    fn keys_of_the_file_can_be_changed_by_name() {
        let entry = read("snapkv:score.pool.kernel=15:protect.sinks=2", None, DEFAULT).unwrap();
        assert_eq!(entry.label, "snapkv:score.pool.kernel=15:protect.sinks=2");
        let file = entry.policy.to_toml().unwrap();
        assert!(file.contains("kernel = 15") && file.contains("sinks = 2"), "{file}");
        let short = read("snapkv:kernel=15:sinks=2", None, DEFAULT).unwrap();
        assert_eq!(short.policy.to_toml().unwrap(), file);
        let max = read("snapkv:score.pool.kind=max", None, DEFAULT).unwrap();
        assert!(max.policy.to_toml().unwrap().contains("kind = \"max\""));
    }

    #[test]
    fn changes_that_make_no_sense_are_refused() {
        for (text, says) in [
            ("nosuch", "policy `nosuch`: there is no such method; `briquette policies` lists all"),
            ("SnapKV", "policy `SnapKV`: did you mean `snapkv`? there is no such method; "),
            ("my/file.yaml", "a policy file ends in .toml or .json"),
            ("snapkv:kernel", "key=value"),
            (
                "snapkv:kernal=15",
                ": did you mean `kernel`? there is no `kernal`, but allocate.kind, ",
            ),
            ("snapkv:=15", "there is no ``"),
            // A parameter that the method does not have: the error says which it has.
            ("h2o:window=8", "score.normalize, "),
            ("h2o:score.window=8", "unknown field `window`, expected `normalize`"),
            ("tova:normalize=mean", "score.window"),
            ("snapkv:kind=max", "`kind` is allocate.kind, reduce.kind, "),
            ("snapkv:name.first=1", "name"),
            ("snapkv:score.pool.kernel=4", "kernel"),
            ("nosuch.toml", "nosuch.toml"),
        ] {
            let error = refusal(text, None);
            assert!(error.contains(says), "{text}: {error}");
            // Of one parser, and without the lines of a file that nobody wrote.
            assert!(!error.contains("TOML parse error") && !error.contains("\n"), "{error}");
        }
    }
}
