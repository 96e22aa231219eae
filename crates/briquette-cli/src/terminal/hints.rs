//! Hints against errors, in the words of the command: the libraries below do not know its options.

use briquette::Error as CacheError;
use briquette_eval::Error;
use briquette_models::Error as ModelError;

use crate::error::Error as CommandError;

/// Returns the hint of an option that helps, if one does.
pub(crate) fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let eval = cause.downcast_ref::<Error>();
        let model = cause.downcast_ref::<ModelError>().or(match eval {
            Some(Error::Model(error)) => Some(error),
            _ => None,
        });
        if let Some(CommandError::OutputForeign { .. } | CommandError::ResultsThere { .. }) =
            cause.downcast_ref()
        {
            return Some("--force overwrites it".into());
        }
        let hint = match cache_error(cause) {
            Some(CacheError::ProfileMissing { .. }) => Some(
                "make a profile with `briquette calibrate --out FILE`, and name it with --profile FILE",
            ),
            Some(
                CacheError::BudgetTooSmall { .. }
                | CacheError::BudgetAllProtected { .. }
                | CacheError::BytesTooFew { .. },
            ) => Some("--budget takes a larger one"),
            Some(CacheError::BudgetMissing { .. }) => Some("as --budget 256 or --budget 25%"),
            Some(CacheError::BudgetUnused { .. }) => {
                Some("leave it out, or take a policy that drops tokens")
            }
            Some(CacheError::Device { .. }) => Some("--device names another"),
            _ => model.and_then(of_model),
        };
        hint.map(str::to_owned)
    })
}

/// Returns the cache's error among the causes of another, the last one, if there is one.
pub(crate) fn of_cache(error: &anyhow::Error) -> Option<&CacheError> {
    error.chain().filter_map(cache_error).last()
}

fn cache_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a CacheError> {
    let of_file = cause.downcast_ref::<Box<CacheError>>().map(|boxed| &**boxed);
    cause.downcast_ref().or(of_file).or_else(|| {
        match (cause.downcast_ref::<Error>(), cause.downcast_ref::<ModelError>()) {
            (Some(Error::Cache(error) | Error::Model(ModelError::Cache(error))), _)
            | (_, Some(ModelError::Cache(error))) => Some(error),
            _ => None,
        }
    })
}

fn of_model(error: &ModelError) -> Option<&'static str> {
    match error {
        ModelError::UnsupportedType { .. } => Some("--dtype takes another"),
        ModelError::NumbersNotFinite { .. } | ModelError::NotFinite { .. } => {
            Some("--dtype f32 takes the widest")
        }
        ModelError::PromptNotInParts { .. } => Some("--policy NAME:schedule.prefill=every-chunk"),
        ModelError::ChunkTooLong { .. } => Some("--chunk N sets them"),
        _ => None,
    }
}
