//! Policies as TOML and JSON, budgets, profiles: what is read can be written, and is the same when
//! it is read again.
#![no_main]

use briquette::{Budget, Policy, Profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for policy in [Policy::from_toml(text), Policy::from_json(text)].into_iter().flatten() {
        if policy.check().is_ok() {
            let again = Policy::from_json(&policy.to_json().unwrap()).unwrap();
            assert_eq!(again.to_json().unwrap(), policy.to_json().unwrap());
        }
    }
    if let Ok(budget) = text.parse::<Budget>() {
        let _ = budget.to_string();
    }
    if let Ok(profile) = serde_json::from_str::<Profile>(text) {
        let _ = profile.check();
    }
});
