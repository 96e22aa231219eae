//! Names that were probably meant.

use rapidfuzz::distance::levenshtein;

/// Returns a question for the name that was probably meant, to put before a message about an
/// unknown name; empty if no name is near.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "))
}

/// Returns the name that was probably meant: the one that differs in the fewest letters, at most a
/// third of them. Upper case, hyphens and the like do not count.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = letters(name);
    let (distance, near) = known
        .into_iter()
        .map(|known| (levenshtein::distance(name.chars(), letters(known).chars()), known))
        .min_by_key(|(distance, _)| *distance)?;
    (3 * distance <= name.chars().count()).then_some(near)
}

fn letters(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_found() {
        let near = |name| nearest(name, ["snapkv", "streaming-llm", "tova", "h2o"]);
        for (name, meant) in [
            ("snapvk", Some("snapkv")),
            ("SnapKV", Some("snapkv")),
            ("Snap_KV", Some("snapkv")),
            ("SNAPVK", Some("snapkv")),
            ("StreamingLLM", Some("streaming-llm")),
            ("H2O", Some("h2o")),
            ("quux", None),
            ("", None),
        ] {
            assert_eq!(near(name), meant, "{name}");
        }
    }
}
