use briquette::Budget;

/// Reads a size in bytes, as 512MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(Budget::Bytes(bytes)) => usize::try_from(bytes).map_err(|error| error.to_string()),
        _ => Err("a size in bytes above 0 is needed, as in 512MiB".into()),
    }
}
