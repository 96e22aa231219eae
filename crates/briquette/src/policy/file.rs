//! File form of a policy, TOML or JSON.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{Policy, PositionMode, Schedule, SparsePrefill};
use crate::{
    Error, Profile, Result,
    allocate::AllocatorSpec,
    budget::{Budget, Protect},
    files,
    parse::{self, Mistake},
    reduce::ReducerSpec,
    score::ScorerSpec,
    store::StoreSpec,
};

#[derive(Clone, Copy)]
enum Format {
    Toml,
    Json,
}

/// Fields of a policy file; an unknown one is refused.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
    /// Share of the tokens to drop, another way to write a budget.
    #[serde(default, skip_serializing)]
    compression_ratio: Option<f64>,
    #[serde(default)]
    positions: PositionMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sparse_prefill: Option<SparsePrefill>,
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

/// Profile in a policy file: a path relative to the policy file, or the whole profile.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ProfileForm {
    Path(PathBuf),
    Whole(Box<Profile>),
}

impl Policy {
    /// Reads a policy file, TOML or JSON by its ending. If the file has no budget, set one by
    /// [`with_budget`](Self::with_budget).
    ///
    /// # Errors
    /// [`Error::PolicyFile`] with what is wrong and where, or the check of a parameter.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let origin = path.display().to_string();
        let fail =
            |message: String| Error::PolicyFile { origin: origin.clone(), place: None, message };
        let format = match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => return Err(fail("the name must end in .toml or .json".into())),
        };
        let text = files::read_text(path).map_err(|error| fail(error.to_string()))?;
        read_text(&text, format, &origin, path.parent()).map_err(|refusal| match refusal {
            Error::PolicyFile { .. } | Error::ProfileFile { .. } => refusal,
            _ => {
                let place = match (&refusal, format) {
                    (Error::InvalidParameter { parameter, .. }, Format::Toml) => {
                        parse::place_in_toml(&text, parameter)
                    }
                    _ => None,
                };
                Error::PolicyOfFile { origin, place, refusal: Box::new(refusal) }
            }
        })
    }

    /// Reads a policy from TOML. See [`from_file`](Self::from_file).
    ///
    /// # Errors
    /// [`Error::PolicyFile`], or the check of a parameter.
    pub fn from_toml(text: &str) -> Result<Self> {
        read_text(text, Format::Toml, "TOML", None)
    }

    /// Reads a policy from JSON. See [`from_file`](Self::from_file).
    ///
    /// # Errors
    /// [`Error::PolicyFile`], or the check of a parameter.
    pub fn from_json(text: &str) -> Result<Self> {
        read_text(text, Format::Json, "JSON", None)
    }

    /// Returns the policy as TOML.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] if a stage is custom, or [`Error::SetterMismatch`].
    pub fn to_toml(&self) -> Result<String> {
        write(self, Format::Toml)
    }

    /// Returns the policy as JSON.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] if a stage is custom, or [`Error::SetterMismatch`].
    pub fn to_json(&self) -> Result<String> {
        write(self, Format::Json)
    }
}

/// Reads a policy from text. Paths in it are relative to `folder`.
fn read_text(text: &str, format: Format, origin: &str, folder: Option<&Path>) -> Result<Policy> {
    let wrong = |Mistake { place, message }| Error::PolicyFile {
        origin: origin.to_owned(),
        place,
        message,
    };
    let file: std::result::Result<FileForm, Mistake> = match format {
        Format::Toml => parse::toml(text),
        Format::Json => parse::json(text),
    };
    let file = file.map_err(wrong)?;
    let budget = match (file.budget, file.compression_ratio) {
        (budget, None) => budget,
        (None, Some(ratio)) => Some(Budget::of_compression_ratio(ratio)?),
        (Some(_), Some(_)) => {
            let message = "`budget` and `compression_ratio` are the same: name one".into();
            return Err(wrong(Mistake { place: None, message }));
        }
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
        budget,
        score: file.score.stage().into(),
        protect: file.protect,
        allocate: file.allocate.stage().into(),
        reduce: file.reduce.stage().into(),
        store: file.store.stage().into(),
        schedule: file.schedule,
        positions: file.positions,
        sparse_prefill: file.sparse_prefill,
        mismatch: None,
    };
    policy.check_parts()?;
    Ok(policy)
}

fn write(policy: &Policy, format: Format) -> Result<String> {
    policy.check_setters()?;
    let custom = |stage, name: &str| Error::NotSerializable {
        policy: policy.name.clone(),
        stage,
        name: name.to_owned(),
    };
    let file = FileForm {
        name: policy.name.clone(),
        budget: policy.budget,
        compression_ratio: None,
        positions: policy.positions,
        sparse_prefill: policy.sparse_prefill.clone(),
        score: ScorerSpec::of(policy.scorer())
            .ok_or_else(|| custom("scorer", policy.scorer().name()))?,
        protect: policy.protect,
        allocate: AllocatorSpec::of(policy.allocator())
            .ok_or_else(|| custom("allocator", policy.allocator().name()))?,
        reduce: ReducerSpec::of(policy.reducer())
            .ok_or_else(|| custom("reducer", policy.reducer().name()))?,
        store: StoreSpec::of(policy.store())
            .ok_or_else(|| custom("store", policy.store().name()))?,
        schedule: policy.schedule,
        profile: policy.profile().map(|profile| ProfileForm::Whole(Box::new(profile.clone()))),
    };
    let text = match format {
        Format::Toml => toml::to_string(&file).map_err(|error| error.to_string()),
        Format::Json => serde_json::to_string_pretty(&file).map_err(|error| error.to_string()),
    };
    text.map_err(|message| {
        let origin = policy.name.clone();
        Error::PolicyFile { origin, place: None, message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{methods, ops::HeadPattern};

    /// The method of this name, with this budget if it takes one.
    fn named(name: &str, budget: Budget) -> Policy {
        Policy::named(name, None).unwrap().with_default_budget(budget)
    }

    #[test]
    fn every_method_survives_both_forms() {
        for method in methods() {
            let policy = named(&method.name, Budget::Tokens(256));
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
    fn a_compression_ratio_is_what_a_budget_leaves() {
        let file = Policy::snapkv(Budget::Ratio(0.25)).to_toml().unwrap();
        let rest = file.replace("[budget]\nratio = 0.25\n", "");
        assert_ne!(file, rest);
        let named = format!("compression_ratio = 0.75\n{rest}");
        assert_eq!(Policy::from_toml(&named).unwrap().budget(), Some(Budget::Ratio(0.25)));
        let error = Policy::from_toml(&format!("compression_ratio = 0.5\n{file}")).unwrap_err();
        assert!(error.to_string().contains("name one"), "{error}");
    }

    #[test]
    fn a_sparse_prefill_has_a_short_form_and_a_long_one() {
        let antidiagonal = HeadPattern::Antidiagonal { stride: 8, threshold: 0.9 };
        let lines = HeadPattern::VerticalSlash { vertical: 30, slash: 800 };
        let each = vec![vec![antidiagonal, HeadPattern::Dense], vec![lines, antidiagonal]];
        let full = Policy::full().to_toml().unwrap();
        for (short, long) in [
            ("\"xattention\"", SparsePrefill::xattention()),
            ("\"minference\"", SparsePrefill::minference()),
            ("\"profile\"", SparsePrefill::of_profile()),
            ("{ antidiagonal = { stride = 8, threshold = 0.9 } }", SparsePrefill::xattention()),
            (
                "[[{ antidiagonal = { stride = 8, threshold = 0.9 } }, \"dense\"], \
                 [{ vertical-slash = { vertical = 30, slash = 800 } }, \
                  { antidiagonal = { stride = 8, threshold = 0.9 } }]]",
                SparsePrefill::of_heads(each),
            ),
        ] {
            let policy = Policy::from_toml(&format!("sparse_prefill = {short}\n{full}")).unwrap();
            assert_eq!(policy.sparse_prefill(), Some(&long));
            let toml = policy.to_toml().unwrap();
            assert_eq!(Policy::from_toml(&toml).unwrap().sparse_prefill(), Some(&long));
        }
        for wrong in ["\"no such\"", "{ blocks = { blocks = 0 } }", "{ blocks = { number = 3 } }"] {
            let toml = format!("sparse_prefill = {wrong}\n{full}");
            Policy::from_toml(&toml).unwrap_err();
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let small = Policy::snapkv(Budget::Tokens(8)).check().unwrap_err().to_string();
        assert!(small.contains('8') && small.contains("32"), "{small}");
        let even = Policy::snapkv(Budget::Tokens(64)).with_pool(crate::score::Pool::avg(4));
        assert!(even.check().unwrap_err().to_string().contains("pool.kernel is 4"));
    }

    #[test]
    fn a_parameter_that_a_stage_does_not_have_is_refused_with_those_it_has() {
        let toml = Policy::h2o(Budget::Tokens(64)).to_toml().unwrap();
        let with_window = toml.replace("[score]", "[score]\nwindow = 32");
        let error = Policy::from_toml(&with_window).unwrap_err().to_string();
        assert!(error.contains("`window`") && error.contains("`normalize`"), "{error}");
    }

    #[test]
    fn a_setter_called_in_vain_is_not_written_away() {
        let policy = Policy::streaming_llm(Budget::Tokens(64)).with_window(8);
        for error in [policy.to_toml().unwrap_err(), policy.to_json().unwrap_err()] {
            assert!(matches!(error, Error::SetterMismatch { .. }), "{error}");
        }
    }
}
