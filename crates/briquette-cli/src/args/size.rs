use briquette::Budget;

/// Reads a size in bytes, as 512MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(Budget::Bytes(bytes)) => usize::try_from(bytes).map_err(|error| error.to_string()),
        _ => Err("a number above 0 with a unit is needed, as in 512MiB".into()),
    }
}
