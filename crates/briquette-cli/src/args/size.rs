use briquette::Budget;

/// Reads a size in bytes, as 512MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    match text.parse().map_err(|error: briquette::Error| error.to_string())? {
        Budget::Bytes(bytes) => usize::try_from(bytes).map_err(|error| error.to_string()),
        _ => Err("a size in bytes is needed, as in 512MiB".into()),
    }
}
