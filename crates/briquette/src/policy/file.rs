//! The file form of a policy, TOML or JSON.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{Budget, Policy, PositionMode, Protect, Schedule, Stage};
use crate::{
    Error, Profile, Result, allocate::AllocatorSpec, cache::store::StoreSpec, reduce::ReducerSpec,
    score::ScorerSpec,
};

#[derive(Clone, Copy)]
pub(super) enum Format {
    Toml,
    Json,
}

/// Every field a policy file may have; an unknown one is refused.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
    #[serde(default)]
    positions: PositionMode,
    score: ScorerSpec,
    #[serde(default)]
    protect: Protect,
    #[serde(default)]
    allocate: AllocatorSpec,
    #[serde(default)]
    reduce: ReducerSpec,
    #[serde(default)]
    store: StoreSpec,
    schedule: Schedule,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileForm>,
}

/// A profile in a policy file: the path of its own file, from where the policy file is, or all of it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ProfileForm {
    Path(PathBuf),
    Whole(Box<Profile>),
}

pub(super) fn read(path: &Path) -> Result<Policy> {
    let origin = path.display().to_string();
    let fail = |message: String| Error::PolicyFile { origin: origin.clone(), message };
    let format = match path.extension().and_then(|ending| ending.to_str()) {
        Some("toml") => Format::Toml,
        Some("json") => Format::Json,
        _ => return Err(fail("the name must end in .toml or .json".into())),
    };
    let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    parse_at(&text, format, &origin, path.parent())
}

pub(super) fn parse(text: &str, format: Format, origin: &str) -> Result<Policy> {
    parse_at(text, format, origin, None)
}

/// `folder` is where the paths in the file begin.
fn parse_at(text: &str, format: Format, origin: &str, folder: Option<&Path>) -> Result<Policy> {
    let fail = |message: String| Error::PolicyFile { origin: origin.to_owned(), message };
    let file: PolicyFile = match format {
        Format::Toml => toml::from_str(text).map_err(|error| fail(error.to_string()))?,
        Format::Json => serde_json::from_str(text).map_err(|error| fail(error.to_string()))?,
    };
    let profile = match file.profile {
        None => None,
        Some(ProfileForm::Whole(profile)) => {
            profile.check()?;
            Some(Arc::new(*profile))
        }
        Some(ProfileForm::Path(path)) => {
            let path = folder.map_or(path.clone(), |folder| folder.join(&path));
            Some(Arc::new(Profile::from_file(path)?))
        }
    };
    let policy = Policy {
        profile,
        name: file.name,
        budget: file.budget,
        score: Stage::Named(file.score),
        protect: file.protect,
        allocate: Stage::Named(file.allocate),
        reduce: Stage::Named(file.reduce),
        store: Stage::Named(file.store),
        schedule: file.schedule,
        positions: file.positions,
    };
    policy.check()?;
    Ok(policy)
}

pub(super) fn write(policy: &Policy, format: Format) -> Result<String> {
    let custom = |stage, name: &str| Error::NotSerializable {
        policy: policy.name.clone(),
        stage,
        name: name.to_owned(),
    };
    let file = PolicyFile {
        name: policy.name.clone(),
        budget: policy.budget,
        positions: policy.positions,
        score: named(&policy.score).ok_or_else(|| custom("scorer", policy.scorer().name()))?,
        protect: policy.protect,
        allocate: named(&policy.allocate)
            .ok_or_else(|| custom("allocator", policy.allocator().name()))?,
        reduce: named(&policy.reduce).ok_or_else(|| custom("reducer", policy.reducer().name()))?,
        store: named(&policy.store).ok_or_else(|| custom("store", policy.store().name()))?,
        schedule: policy.schedule,
        profile: policy
            .profile
            .as_ref()
            .map(|profile| ProfileForm::Whole(Box::new((**profile).clone()))),
    };
    let fail = |message: String| Error::PolicyFile { origin: policy.name.clone(), message };
    match format {
        Format::Toml => toml::to_string(&file).map_err(|error| fail(error.to_string())),
        Format::Json => {
            serde_json::to_string_pretty(&file).map_err(|error| fail(error.to_string()))
        }
    }
}

fn named<S: Clone, T: ?Sized>(stage: &Stage<S, T>) -> Option<S> {
    match stage {
        Stage::Named(spec) => Some(spec.clone()),
        Stage::Custom(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;

    #[test]
    fn every_method_survives_both_forms() {
        for method in methods() {
            let policy = Policy::named(&method.name, Budget::Tokens(256)).unwrap();
            let toml = policy.to_toml().unwrap();
            let json = policy.to_json().unwrap();
            assert_eq!(Policy::from_toml(&toml).unwrap().to_toml().unwrap(), toml);
            assert_eq!(Policy::from_json(&json).unwrap().to_toml().unwrap(), toml);
        }
    }

    #[test]
    fn an_unknown_field_is_refused_wherever_it_stands() {
        let policy = Policy::snapkv(Budget::Tokens(256)).with_sinks(1);
        let json: serde_json::Value = serde_json::from_str(&policy.to_json().unwrap()).unwrap();
        let spoil = |path: &[&str]| {
            let mut json = json.clone();
            let mut place = &mut json;
            for key in path {
                place = &mut place[*key];
            }
            place["kernal"] = 5.into();
            Policy::from_json(&json.to_string()).unwrap_err().to_string()
        };
        for path in [
            &[][..],
            &["score"],
            &["score", "pool"],
            &["protect"],
            &["allocate"],
            &["reduce"],
            &["store"],
            &["schedule"],
        ] {
            assert!(spoil(path).contains("kernal"), "{path:?}: {}", spoil(path));
        }
        let error = Policy::from_toml("name = \"x\"\nkernal = 5").unwrap_err().to_string();
        assert!(error.contains("kernal") && error.contains("line 2"), "{error}");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let small = Policy::snapkv(Budget::Tokens(8)).check().unwrap_err().to_string();
        assert!(small.contains('8') && small.contains("32"), "{small}");
        let even = Policy::snapkv(Budget::Tokens(64)).with_pool(crate::score::Pool::avg(4));
        assert!(even.check().unwrap_err().to_string().contains("pool.kernel is 4"));
    }
}
