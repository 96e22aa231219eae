//! The profile of a model, for the policies that read one.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use briquette::{Policy, Profile};

use crate::{Error, Result, fingerprint};

/// The profile in a model's folder that is read without being named.
const FILE: &str = "profile.json";

/// The profile of a model. One that lies beside it is read when the first policy asks: a damaged
/// one is in the way of no other.
#[derive(Debug)]
pub struct Profiles {
    model: PathBuf,
    path: Option<PathBuf>,
    /// Whether a profile of other weights is taken.
    other_weights: bool,
    weights: OnceLock<String>,
    profile: OnceLock<Arc<Profile>>,
}

impl Profiles {
    /// The profile of the model in the folder `model`: the file `named`, which is read at once, or
    /// `profile.json` beside the model, if it is there.
    ///
    /// # Errors
    /// As [`profile`](Self::profile), for one that is named.
    pub fn of(model: &Path, named: Option<&Path>, other_weights: bool) -> Result<Self> {
        let beside = || Some(model.join(FILE)).filter(|path| path.exists());
        let profiles = Self {
            model: model.into(),
            path: named.map(Path::to_path_buf).or_else(beside),
            other_weights,
            weights: OnceLock::new(),
            profile: OnceLock::new(),
        };
        if named.is_some() {
            profiles.profile()?;
        }
        Ok(profiles)
    }

    /// The fingerprint of the model, by [`of_model`](fingerprint::of_model), which is computed
    /// once.
    ///
    /// # Errors
    /// As [`of_model`](fingerprint::of_model).
    pub fn weights(&self) -> Result<&str> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let weights = fingerprint::of_model(&self.model)?;
        Ok(self.weights.get_or_init(|| weights))
    }

    /// The profile, if there is one.
    ///
    /// # Errors
    /// [`Error::Cache`] for one that cannot be read, and [`Error::OtherWeights`].
    pub fn profile(&self) -> Result<Option<Arc<Profile>>> {
        let Some(path) = &self.path else { return Ok(None) };
        if let Some(profile) = self.profile.get() {
            return Ok(Some(profile.clone()));
        }
        let profile = Profile::from_file(path)?;
        self.check(&profile, || path.display().to_string())?;
        Ok(Some(self.profile.get_or_init(|| Arc::new(profile)).clone()))
    }

    /// The policy with the profile, if it reads one and has none of its own.
    ///
    /// # Errors
    /// As [`profile`](Self::profile), for policies that read one.
    pub fn attached(&self, policy: Policy) -> Result<Policy> {
        if !policy.reads_profile() {
            return Ok(policy);
        }
        if let Some(profile) = policy.profile() {
            self.check(profile, || format!("the profile of the policy `{}`", policy.name()))?;
            return Ok(policy);
        }
        Ok(match self.profile()? {
            Some(profile) => policy.with_profile(profile),
            None => policy,
        })
    }

    /// As [`attached`](Self::attached), for policies among others: a profile that cannot be read is
    /// the reason why the policy has none.
    ///
    /// # Errors
    /// [`Error::OtherWeights`], and [`Error::Read`] for the weights.
    pub fn attached_or_reason(
        &self,
        policy: std::result::Result<Policy, String>,
    ) -> Result<std::result::Result<Policy, String>> {
        match policy.map(|policy| self.attached(policy)) {
            Ok(Err(Error::Cache(error))) => Ok(Err(error.to_string())),
            Ok(attached) => attached.map(Ok),
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// A profile that names no weights is one made by hand.
    fn check(&self, profile: &Profile, what: impl Fn() -> String) -> Result<()> {
        match &profile.weights {
            Some(found) if !self.other_weights && found != self.weights()? => {
                let given = self.weights()?.to_owned();
                Err(Error::OtherWeights { what: what(), found: found.clone(), given })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use briquette::{Budget, CacheShape, HeadScores};

    use super::*;

    fn profile(model: &str, weights: Option<&str>) -> Profile {
        let table = || vec![vec![1.0]];
        let shape = CacheShape { layers: 1, query_heads: 1, kv_heads: 1, head_dim: 2 };
        let heads = HeadScores { semantic: table(), copy_paste: table(), headkv: table() };
        let mut profile = Profile::new(shape, heads, vec![1.0]);
        (profile.model, profile.weights) = (model.into(), weights.map(str::to_owned));
        profile
    }

    fn write(path: &Path, profile: &Profile) {
        fs::write(path, profile.to_json().unwrap()).unwrap();
    }

    #[test]
    fn the_one_beside_the_model_is_found_and_another_can_be_named() {
        let dir = tempfile::tempdir().unwrap();
        let model = |named: Option<&Path>| {
            let found = Profiles::of(dir.path(), named, false)?.profile()?;
            Ok::<_, Error>(found.map(|profile| profile.model.clone()))
        };
        assert_eq!(model(None).unwrap(), None);
        write(&dir.path().join(FILE), &profile("beside", None));
        assert_eq!(model(None).unwrap().unwrap(), "beside");
        let other = dir.path().join("other.json");
        assert!(model(Some(&other)).unwrap_err().to_string().contains("other.json"));
        write(&other, &profile("other", None));
        assert_eq!(model(Some(&other)).unwrap().unwrap(), "other");
    }

    #[test]
    fn only_policies_that_read_one_and_have_none_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget::Tokens(64);
        let bare = Profiles::of(dir.path(), None, false).unwrap();
        assert!(bare.attached(Policy::headkv(budget)).unwrap().profile().is_none());
        write(&dir.path().join(FILE), &profile("beside", None));
        let profiles = Profiles::of(dir.path(), None, false).unwrap();
        let model = |policy: Policy| {
            profiles.attached(policy).unwrap().profile().map(|found| found.model.clone())
        };
        assert_eq!(model(Policy::snapkv(budget)), None);
        assert_eq!(model(Policy::headkv(budget)).unwrap(), "beside");
        let own = Arc::new(profile("own", None));
        assert_eq!(model(Policy::headkv(budget).with_profile(own)).unwrap(), "own");
    }

    #[test]
    fn a_profile_of_other_weights_is_refused_unless_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model.safetensors"), "weights").unwrap();
        let weights = fingerprint::of_model(dir.path()).unwrap();
        let reading = Policy::headkv(Budget::Tokens(64));
        let attached = |policy: &Policy, other_weights| {
            Profiles::of(dir.path(), None, other_weights)?.attached(policy.clone())
        };
        let path = dir.path().join(FILE);
        write(&path, &profile("m", Some(&weights)));
        assert!(attached(&reading, false).unwrap().profile().is_some());
        write(&path, &profile("m", Some("f00d")));
        let error = attached(&reading, false).unwrap_err().to_string();
        for part in ["profile.json", "f00d", &weights, "--other-weights"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(attached(&reading, true).unwrap().profile().is_some());
        assert!(attached(&Policy::h2o(Budget::Tokens(64)), false).is_ok());
        // That of a policy file, too.
        let own = reading.with_profile(Arc::new(profile("m", Some("f00d"))));
        assert!(matches!(attached(&own, false), Err(Error::OtherWeights { .. })));
    }

    #[test]
    fn a_damaged_profile_is_in_the_way_of_its_readers_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{\"model\": \"m\", \"ma").unwrap();
        let profiles = Profiles::of(dir.path(), None, false).unwrap();
        let budget = Budget::Tokens(64);
        profiles.attached(Policy::snapkv(budget)).unwrap();
        let reason = profiles.attached_or_reason(Ok(Policy::headkv(budget))).unwrap().unwrap_err();
        assert!(reason.contains(FILE), "{reason}");
        assert!(profiles.attached(Policy::headkv(budget)).is_err());
    }
}
