use crate::stats::Proportion;

/// The share of right answers with everything kept, below which a comparison says little.
const WEAK: f64 = 0.8;

/// Warning where the full cache itself is often wrong, to stand before anything else.
pub(crate) fn weak(full: Proportion) -> Option<String> {
    let Proportion { rate, trials, .. } = full;
    (trials > 0 && rate < WEAK).then(|| {
        format!(
            "WARNING: with everything kept, the model answers {:.0} % of {trials} prompts right. What compression loses \
             cannot be told from what the model does not find at all: is this the form of prompt that it was trained on (--form, --chat)?",
            100.0 * rate
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_finds_little_is_named() {
        assert_eq!(weak(Proportion::wilson(8.0, 10)), None);
        let said = weak(Proportion::wilson(7.0, 10)).unwrap();
        assert!(said.starts_with("WARNING") && said.contains("70 % of 10 prompts"), "{said}");
        assert_eq!(weak(Proportion::wilson(0.0, 0)), None);
    }
}
