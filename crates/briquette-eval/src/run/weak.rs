/// The score with everything kept, below which a comparison says little.
const WEAK: f64 = 0.5;

/// Prompts of a task that the full cache answers before all others.
pub const FIRST_PROMPTS: usize = 2;

/// Warning where the full cache itself is often wrong, to stand before anything else.
pub fn weak(task: &str, score: f64, prompts: usize) -> Option<String> {
    (prompts > 0 && score < WEAK).then(|| {
        format!(
            "WARNING: on `{task}` the full cache scores {score:.2} ({prompts} {}). What compression loses cannot be told from what \
             the model does not find at all: is it large enough for the task, and is this the form of prompt that it was trained on \
             (chat = true)?",
            if prompts == 1 { "prompt" } else { "prompts" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_the_full_cache_fails_is_named() {
        assert_eq!(weak("needle", 0.5, 10), None);
        let said = weak("needle", 0.4, 10).unwrap();
        assert!(said.starts_with("WARNING: on `needle` the full cache scores 0.40 (10 prompts)"));
        assert_eq!(weak("needle", 0.0, 0), None);
    }
}
