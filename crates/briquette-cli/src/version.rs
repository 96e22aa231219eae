//! The version of the command, with what it was built from.

use briquette_eval::environment::BURN;

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
    fn it_names_burn_and_the_backends() {
        assert!(text().starts_with(env!("CARGO_PKG_VERSION")));
        assert!(text().contains(&format!("Burn {BURN}, ")) && text().contains("flex"));
    }
}
