//! The version of the command, with what it was built from.

/// The version of Burn that the workspace depends on.
const BURN: &str = "0.22.1";

/// Version, commit, Burn's version and the backends of this build, on one line.
pub(crate) fn text() -> String {
    let commit = option_env!("BRIQUETTE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(String::new, |commit| format!("{commit}, "));
    let backends = briquette::device::available().join(" ");
    format!("{} ({commit}Burn {BURN}, {backends})", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_this_workspace() {
        let manifest = include_str!("../../../Cargo.toml");
        assert!(manifest.contains(&format!("burn = {{ version = \"{BURN}\"")));
        assert!(text().starts_with(env!("CARGO_PKG_VERSION")) && text().contains("flex"));
    }
}
