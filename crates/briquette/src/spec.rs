//! The built-in stages of a kind, and their file form.

/// Defines an enum of built-in stages: what a policy file says of a stage, `kind` and parameters.
/// A kind has the name of its type unless an attribute gives it another. Stages `around` another of
/// the kind have a form of their own, which holds the spec of that one.
macro_rules! built_in {
    (
        $(#[$meta:meta])* $spec:ident: $stage:ident { $($(#[$name:meta])* $kind:ident),* $(,)? }
        $(around { $($(#[$outer_name:meta])* $wrapper:ident($form:ident)),* $(,)? })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub(crate) enum $spec {
            $($(#[$name])* $kind($kind),)*
            $($($(#[$outer_name])* $wrapper($form),)*)?
        }

        impl $spec {
            /// The built-in stage that `stage` is; `None` for one of a user's own, which has no file form.
            pub(crate) fn of(stage: &dyn $stage) -> Option<Self> {
                let stage: &dyn ::std::any::Any = stage;
                $(if let Some(stage) = stage.downcast_ref::<$kind>() {
                    return Some(Self::$kind(::std::clone::Clone::clone(stage)));
                })*
                $($(if let Some(stage) = stage.downcast_ref::<$wrapper>() {
                    return $form::of(stage).map(Self::$wrapper);
                })*)?
                None
            }

            /// The stage it describes.
            pub(crate) fn stage(self) -> ::std::sync::Arc<dyn $stage> {
                match self {
                    $(Self::$kind(stage) => ::std::sync::Arc::new(stage),)*
                    $($(Self::$wrapper(form) => form.stage(),)*)?
                }
            }
        }
    };
}

pub(crate) use built_in;

/// Whether a parameter is what it is when a file does not name it.
pub(crate) fn is_default<T: Default + PartialEq>(parameter: &T) -> bool {
    *parameter == T::default()
}
