use std::{collections::BTreeMap, fmt, path::PathBuf};

use briquette::{Budget, Policy, Prefix, methods};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};

use super::{budget::BudgetText, twice::twice};
use crate::{
    Error, Result, files,
    policy::{AMPLE, changed, changed_everywhere, from_file},
    prefix,
};

/// A policy with a budget that is to be measured, or the reason why it cannot be.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Label of the policy in tables.
    pub(super) label: String,
    /// Its budget as text, `-` for a policy without one.
    pub(super) budget: String,
    /// The policy.
    pub(super) policy: std::result::Result<Policy, String>,
}

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
    budgets: Vec<BudgetText>,
}

/// The name of a method that exists, or of all.
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
                name: &str,
            ) -> std::result::Result<MethodName, E> {
                let known: Vec<String> = methods().into_iter().map(|method| method.name).collect();
                if name == ALL || known.iter().any(|known| known == name) {
                    return Ok(MethodName(name.to_owned()));
                }
                Err(E::custom(format!("unknown method `{name}`; known: {}", known.join(", "))))
            }
        }
        deserializer.deserialize_str(Name).map_err(D::Error::custom)
    }
}

impl PolicySpec {
    /// Makes the path of the file begin at `base`.
    pub(super) fn resolve(&mut self, base: &std::path::Path) {
        for path in [&mut self.file, &mut self.prefix].into_iter().flatten() {
            *path = files::joined(base, path);
        }
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

    /// The policy at this budget, or with that of its file. Those of `changes` are made that it has
    /// the keys of; `used` notes which.
    fn policy(
        &self,
        budget: Option<Budget>,
        changes: &[String],
        used: &mut [bool],
    ) -> Result<Policy> {
        let fail = |reason: &str| Error::PolicyText { text: self.label(), reason: reason.into() };
        let policy = match (&self.name, &self.file, &self.prefix) {
            (Some(name), None, None) => Policy::named(&name.0, budget.unwrap_or(AMPLE))?,
            (None, None, Some(path)) if self.change.is_empty() && self.budgets.is_empty() => {
                let prefix = Prefix::read(path)?;
                match prefix::content(&prefix)? {
                    prefix::Content::Text => {}
                    prefix::Content::Message { .. } => {
                        return Err(fail(
                            "its prefix is the beginning of a user's message, which `generate --prefix` goes on with; a run \
                             starts from one that was compressed without --chat",
                        ));
                    }
                    prefix::Content::Conversation(_) => {
                        return Err(Error::WholeConversation { path: path.clone() });
                    }
                }
                return Ok(prefix.policy()?);
            }
            (None, None, Some(_)) => {
                return Err(fail("a prefix has the policy and the budget it was made with"));
            }
            (None, Some(file), None) => {
                let policy = from_file(file)?;
                match budget {
                    Some(budget) => policy.with_budget(budget),
                    None => policy,
                }
            }
            _ => return Err(fail("a policy has either a `name`, a `file` or a `prefix`")),
        };
        let mut policy = self
            .change
            .iter()
            .try_fold(policy, |policy, change| changed(&policy, change))
            .map_err(|reason| fail(&reason))?;
        for (change, used) in changes.iter().zip(used) {
            if let Some(changed) =
                changed_everywhere(&policy, change).map_err(|reason| fail(&reason))?
            {
                (policy, *used) = (changed, true);
            }
        }
        policy.check()?;
        Ok(policy)
    }

    /// The policy at each of its budgets, with the reason where it cannot hold.
    fn candidates(
        &self,
        default: &[Budget],
        changes: &[String],
        used: &mut [bool],
    ) -> Result<Vec<Candidate>> {
        let label = self.label();
        let ample = self.policy(Some(AMPLE), changes, used)?;
        if self.prefix.is_some() {
            let budget = ample.budget().map_or_else(|| "-".into(), |budget| budget.to_string());
            return Ok(vec![Candidate { label, budget, policy: Ok(ample) }]);
        }
        let one = |budget: String, policy| Candidate { label: label.clone(), budget, policy };
        if ample.budget().is_none() {
            return Ok(vec![one("-".into(), Ok(ample))]);
        }
        // Its changes set the budget.
        if let Some(budget) = ample.budget().filter(|budget| *budget != AMPLE) {
            return Ok(vec![one(budget.to_string(), Ok(ample))]);
        }
        let own: Vec<Budget> = self.budgets.iter().map(|budget| budget.0).collect();
        let budgets = match (own.as_slice(), &self.file) {
            ([], Some(_)) => {
                let policy = self.policy(None, changes, used)?;
                let budget =
                    policy.budget().map_or_else(|| "-".into(), |budget| budget.to_string());
                return Ok(vec![one(budget, Ok(policy))]);
            }
            ([], None) => default,
            (own, _) => own,
        };
        if budgets.is_empty() {
            let reason = "it needs a budget: write `budgets` beside it or at the top of the file";
            return Err(Error::PolicyText { text: label, reason: reason.into() });
        }
        Ok(budgets
            .iter()
            .map(|budget| {
                let policy = self.policy(Some(*budget), changes, used);
                let policy = policy.map_err(|error| error.to_string());
                one(budget.to_string(), policy)
            })
            .collect())
    }
}

/// The prefixes that policies start from, by the labels of those.
pub(super) fn prefixes(policies: &[PolicySpec]) -> BTreeMap<String, PathBuf> {
    let starts = policies.iter().filter_map(|spec| Some((spec.label(), spec.prefix.clone()?)));
    starts.collect()
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
        let every = methods()
            .into_iter()
            .map(|method| PolicySpec { name: Some(MethodName(method.name)), ..spec.clone() });
        every.filter(|spec| !named.contains(&spec.label())).collect()
    };
    policies.into_iter().flat_map(of_all).collect()
}

/// Every policy at every budget, behind the full cache. Each of `changes` is made to every policy
/// that has its key.
///
/// # Errors
/// A policy that no budget helps, and [`Error::Setting`] for a change that no policy has the key
/// of.
pub(super) fn candidates(
    policies: &[PolicySpec],
    changes: &[String],
    default: &[Budget],
    full: bool,
) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    let mut used = vec![false; changes.len()];
    if full {
        candidates.push(Candidate {
            label: "full".into(),
            budget: "-".into(),
            policy: Ok(Policy::full()),
        });
    }
    for spec in policies {
        let more = spec.candidates(default, changes, &mut used)?;
        // Named beside the reference it would be the same.
        let same = full && spec.label() == "full" && more.iter().all(|one| one.budget == "-");
        if !same {
            candidates.extend(more);
        }
    }
    if let Some((change, _)) = changes.iter().zip(used).find(|(_, used)| !used) {
        let reason = format!("no policy takes `{change}`");
        return Err(Error::Setting { name: "change", reason });
    }
    let names: Vec<(&String, &String)> =
        candidates.iter().map(|one| (&one.label, &one.budget)).collect();
    if let Some((label, budget)) = twice(&names) {
        let reason =
            format!("it is there twice with budget {budget}; tell the two apart with `label`");
        return Err(Error::PolicyText { text: (*label).clone(), reason });
    }
    Ok(candidates)
}
