use crate::shown::shown;

/// What is wrong with a JSON file, without the names that types have here.
pub(crate) fn in_words(error: &serde_json::Error) -> String {
    let text = shown(error);
    let Some((found, rest)) = text.split_once("expected ") else { return text };
    let (expected, place) = match rest.rfind(" at line ") {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let expected = match expected {
        "u8" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{found}expected {expected}{place}")
}
