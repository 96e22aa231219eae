/// Endings of file names that a label may have.
const ENDINGS: [&str; 7] = [".gguf", ".jsonl", ".json", ".txt", ".csv", ".toml", ".md"];

/// A label without the folders and the ending of a file that it may be named by, for titles.
pub(super) fn plain_name(label: &str) -> &str {
    let name = label.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(label);
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::plain_name;

    #[test]
    fn a_title_names_no_file() {
        assert_eq!(plain_name("/models/smol.Q8.gguf"), "smol.Q8");
        assert_eq!(plain_name("C:\\texts\\book.txt"), "book");
        assert_eq!(plain_name("models/ember-7m/"), "ember-7m");
        assert_eq!(plain_name("built-in"), "built-in");
    }
}
