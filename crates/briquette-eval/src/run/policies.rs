use std::{
    fmt,
    path::{Path, PathBuf},
};

use briquette::{Policy, Prefix, methods};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};

use super::{
    budget::RunBudget,
    candidate::{Candidate, FULL},
    own::OwnPolicy,
    twice::twice,
};
use crate::{
    Error, Result, files,
    policy::{NamedPolicy, Written, is_file, method, split},
    prefix,
};

/// A policy in a run file: a method by its name, a policy file, or a prefix that was compressed
/// under one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PolicySpec {
    name: Option<MethodName>,
    file: Option<PathBuf>,
    prefix: Option<PathBuf>,
    label: Option<String>,
    #[serde(default)]
    change: Vec<String>,
    #[serde(default)]
    budgets: Vec<RunBudget>,
}

/// The name of a method that exists, with its changes as on the command line, or of all.
#[derive(Clone, Debug)]
struct MethodName(String);

/// The name that stands for every method.
const ALL: &str = "all";

impl<'de> Deserialize<'de> for MethodName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = MethodName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a method, or `all`")
            }

            fn visit_str<E: serde::de::Error>(
                self,
                text: &str,
            ) -> std::result::Result<MethodName, E> {
                let name = MethodName(text.to_owned());
                if is_file(text) {
                    return Err(E::custom(format!(
                        "a policy file is named by `file = \"{text}\"`"
                    )));
                }
                if name.0 != ALL {
                    method(name.parts().0)
                        .map_err(|reason| E::custom(format!("`{text}`: {reason}")))?;
                }
                Ok(name)
            }
        }
        deserializer.deserialize_str(Name).map_err(D::Error::custom)
    }
}

impl MethodName {
    fn parts(&self) -> (&str, Vec<&str>) {
        split(&self.0)
    }
}

impl PolicySpec {
    /// Makes the path of the file begin at `base`.
    pub(super) fn resolve(&mut self, base: &Path) {
        for path in [&mut self.file, &mut self.prefix].into_iter().flatten() {
            *path = files::joined(base, path);
        }
    }

    /// Whether it says what the policy is.
    pub(super) fn has_origin(&self) -> bool {
        self.name.is_some() || self.file.is_some() || self.prefix.is_some()
    }

    /// Label in results: its own, or as it is written on the command line, `snapkv:kernel=15`.
    pub fn label(&self) -> String {
        if let Some(label) = &self.label {
            return label.clone();
        }
        let name = match (&self.name, self.file.as_ref().or(self.prefix.as_ref())) {
            (Some(name), _) => name.0.clone(),
            (None, file) => file.map(|file| files::stem(file)).unwrap_or_default(),
        };
        self.change.iter().fold(name, |label, change| format!("{label}:{change}"))
    }

    fn error(&self, reason: &str) -> Error {
        Error::PolicyText { text: self.label(), reason: reason.into() }
    }

    /// The policy of a prefix, with the budget that the prefix was made with.
    fn of_prefix(&self, path: &Path) -> Result<Policy> {
        if !(self.change.is_empty() && self.budgets.is_empty()) {
            return Err(self.error("a prefix has the policy and the budget it was made with"));
        }
        let prefix = Prefix::read(path)?;
        match prefix::content(&prefix)? {
            prefix::Content::Text => Ok(prefix.policy()?),
            prefix::Content::Message { .. } => Err(self.error(
                "its prefix is the beginning of a user's message, which `generate --prefix` goes on with; a run \
                 starts from one that was compressed without --chat",
            )),
            prefix::Content::Conversation(_) => {
                Err(Error::WholeConversation { path: path.to_owned() })
            }
        }
    }

    /// The policy with its changes. Those of `changes` are made that it has the keys of; `used`
    /// notes which.
    fn written(&self, changes: &[String], used: &mut [bool]) -> Result<Written> {
        let (base, own) = match (&self.name, &self.file, &self.prefix) {
            (Some(name), None, None) => {
                let (name, own) = name.parts();
                (method(name).map_err(|reason| self.error(&reason))?, own)
            }
            (None, Some(file), None) => (Policy::from_file(file)?, Vec::new()),
            _ => return Err(self.error("a policy has either a `name`, a `file` or a `prefix`")),
        };
        let own = own.into_iter().chain(self.change.iter().map(String::as_str));
        let mut written = Written::new(self.label(), &base, own)?;
        for (change, used) in changes.iter().zip(used) {
            *used |= written.change_everywhere(change)?;
        }
        Ok(written)
    }

    /// The policy at each of its budgets, with the reason where it cannot hold. `used` notes the
    /// changes that were made.
    fn candidates(
        &self,
        default: &[RunBudget],
        changes: &[String],
        used: &mut [bool],
    ) -> Result<Vec<Candidate>> {
        let label = self.label();
        if let (None, None, Some(path)) = (&self.name, &self.file, &self.prefix) {
            let of = Candidate::of(NamedPolicy { label, policy: self.of_prefix(path)? });
            return Ok(vec![Candidate { prefix: Some(path.clone()), ..of }]);
        }
        let written = self.written(changes, used)?;
        if let (Some(budget), false) = (self.budgets.first(), written.takes_budget()) {
            // It says why.
            written.at(budget.budget())?;
            return Ok(Vec::new());
        }
        let budgets = match self.budgets.as_slice() {
            [] if written.budget().is_some() || !written.takes_budget() => {
                let policy = written.checked()?;
                return Ok(vec![Candidate::of(NamedPolicy { label, policy })]);
            }
            [] => default,
            own => own,
        };
        if budgets.is_empty() {
            let file = if self.file.is_some() { ", or `[budget]` into its file" } else { "" };
            return Err(self.error(&format!(
                "it needs a budget: write `budgets` beside it or at the top of the file{file}"
            )));
        }
        let at = |budget: &RunBudget| {
            let policy = written.clone().at(budget.budget());
            Candidate::at(&label, *budget, policy)
        };
        Ok(budgets.iter().map(at).collect())
    }
}

/// The same policies, and for one named `all` every method whose label none of the others has.
pub(super) fn expanded(policies: Vec<PolicySpec>) -> Vec<PolicySpec> {
    let is_all = |spec: &PolicySpec| spec.name.as_ref().is_some_and(|name| name.0 == ALL);
    let named: Vec<String> =
        policies.iter().filter(|spec| !is_all(spec)).map(PolicySpec::label).collect();
    let of_all = |spec: PolicySpec| -> Vec<PolicySpec> {
        if !is_all(&spec) {
            return vec![spec];
        }
        let takes_budget = |name: &str| method(name).is_ok_and(|policy| policy.takes_budget());
        let every = methods().into_iter().map(|method| PolicySpec {
            // A budget of all is for those that take one.
            budgets: if takes_budget(&method.name) { spec.budgets.clone() } else { Vec::new() },
            name: Some(MethodName(method.name)),
            ..spec.clone()
        });
        every.filter(|spec| !named.contains(&spec.label())).collect()
    };
    policies.into_iter().flat_map(of_all).collect()
}

/// Every policy at every budget, behind the full cache, those of `own` last. Each of `changes` is
/// made to every policy of the file that has its key.
pub(super) fn candidates(
    policies: &[PolicySpec],
    own: &[OwnPolicy],
    changes: &[String],
    default: &[RunBudget],
    full: bool,
) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    let mut used = vec![false; changes.len()];
    if full {
        let (label, policy) = (FULL.into(), Policy::full());
        candidates.push(Candidate::of(NamedPolicy { label, policy }));
    }
    for spec in policies {
        let more = spec.candidates(default, changes, &mut used)?;
        // Named beside the reference it would be the same.
        let same = full && spec.label() == FULL && more.iter().all(|one| one.budget == "-");
        if !same {
            candidates.extend(more);
        }
    }
    for one in own {
        candidates.extend(one.candidates(default)?);
    }
    let kept = |one: &Candidate| one.policy.as_ref().is_ok_and(|policy| !policy.takes_budget());
    if !default.is_empty() && candidates.iter().all(kept) {
        let reason = "no policy here takes one".into();
        return Err(Error::Setting { name: "budgets", reason });
    }
    if let Some((change, _)) = changes.iter().zip(used).find(|(_, used)| !used) {
        let reason = format!("no policy takes `{change}`");
        return Err(Error::Setting { name: "change", reason });
    }
    let names: Vec<(&String, &String)> =
        candidates.iter().map(|one| (&one.label, &one.budget)).collect();
    if let Some((label, budget)) = twice(&names) {
        let reason =
            format!("it is there twice with budget {budget}; give one of the two another `label`");
        return Err(Error::PolicyText { text: (*label).clone(), reason });
    }
    Ok(candidates)
}
