//! Numbers that may be infinite: `inf` in a file, in quotes where the format has no such number
//! (JSON).

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{Error, Unexpected},
};

const INFINITE: &str = "inf";

pub(crate) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
    match *number {
        f64::INFINITY => to.serialize_str(INFINITE),
        finite => to.serialize_f64(finite),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }
    match Written::deserialize(from)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) if text == INFINITE => Ok(f64::INFINITY),
        Written::Text(text) => {
            Err(Error::invalid_value(Unexpected::Str(&text), &"a number or \"inf\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Budget, Policy, reduce::EvictThenMerge};

    #[test]
    fn an_infinite_gamma_can_be_written_and_read() {
        let all = EvictThenMerge { gamma: f64::INFINITY, ..EvictThenMerge::default() };
        let policy = Policy::ems(Budget::Tokens(64)).with_reducer(all);
        let (toml, json) = (policy.to_toml().unwrap(), policy.to_json().unwrap());
        assert!(toml.contains("gamma = \"inf\"") && json.contains("\"gamma\": \"inf\""), "{json}");
        let bare = toml.replace("\"inf\"", "inf");
        for read in [Policy::from_toml(&toml), Policy::from_toml(&bare), Policy::from_json(&json)] {
            assert_eq!(read.unwrap().to_toml().unwrap(), toml);
        }
        let whole = Policy::from_toml(&toml.replace("\"inf\"", "3")).unwrap().to_toml().unwrap();
        assert!(whole.contains("gamma = 3.0"), "{whole}");
        for wrong in ["\"much\"", "true"] {
            assert!(Policy::from_toml(&toml.replace("\"inf\"", wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_budget_in_bytes_bounds_what_is_remembered() {
        let all = EvictThenMerge { gamma: f64::INFINITY, ..EvictThenMerge::default() };
        let policy = Policy::ems(Budget::Bytes(1 << 20)).with_reducer(all);
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains("reduce.gamma is inf"), "{error}");
    }
}
