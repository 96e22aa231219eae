//! Names that were probably meant.

use rapidfuzz::distance::levenshtein;

/// Returns a question for the name that was probably meant, to put before a message about an
/// unknown name; empty if no name is near.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "))
}

/// Returns the end of a message about an unknown name: a question for the name that was probably
/// meant, if one is near, and then all known names.
pub(crate) fn meant_and_known(name: &str, known: &[String]) -> String {
    let all = known.join(", ");
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!(": did you mean `{near}`? Known: {all}"),
        None => format!("; known: {all}"),
    }
}

/// Returns the name that was probably meant: the one that differs by case alone, or else in the
/// fewest letters, at most a third of them. Upper case, hyphens and the like do not count.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = letters(name);
    let distance = |known: &str| levenshtein::distance(written.chars(), letters(known).chars());
    let (distance, _, near) = known
        .into_iter()
        .map(|known| (distance(known), !known.eq_ignore_ascii_case(name), known))
        .min_by_key(|(distance, by_letters, _)| (*distance, *by_letters))?;
    (3 * distance <= written.chars().count()).then_some(near)
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
        assert_eq!(nearest("AB", ["a-b", "ab"]), Some("ab"));
    }

    #[test]
    fn known_names_stand_behind_the_one_that_was_meant() {
        let known = ["h2o", "tova"].map(String::from);
        assert_eq!(meant_and_known("H2O", &known), ": did you mean `h2o`? Known: h2o, tova");
        assert_eq!(meant_and_known("quux", &known), "; known: h2o, tova");
    }
}
