//! Built-in stages of a kind, and their file form.

/// Defines an enum of built-in stages, the file form of a stage: `kind` and parameters. A kind has
/// the name of its type unless an attribute gives it another. Stages `around` another hold it in a
/// field `of`, and have a file form if that one has.
macro_rules! built_in {
    (
        $(#[$meta:meta])* $spec:ident: $stage:ident { $($(#[$name:meta])* $kind:ident),* $(,)? }
        $(around { $($(#[$outer_name:meta])* $wrapper:ident),* $(,)? })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub(crate) enum $spec {
            $($(#[$name])* $kind($kind),)*
            $($($(#[$outer_name])* $wrapper($wrapper),)*)?
        }

        impl $spec {
            /// The file form of a stage; `None` for a custom one, and for one around a custom one.
            pub(crate) fn of(stage: &dyn $stage) -> Option<Self> {
                let stage: &dyn ::std::any::Any = stage;
                $(if let Some(stage) = stage.downcast_ref::<$kind>() {
                    return Some(Self::$kind(::std::clone::Clone::clone(stage)));
                })*
                $($(if let Some(stage) = stage.downcast_ref::<$wrapper>() {
                    Self::of(stage.of.as_ref())?;
                    return Some(Self::$wrapper(::std::clone::Clone::clone(stage)));
                })*)?
                None
            }

            /// Returns the stage it describes.
            pub(crate) fn stage(self) -> ::std::boxed::Box<dyn $stage> {
                match self {
                    $(Self::$kind(stage) => ::std::boxed::Box::new(stage),)*
                    $($(Self::$wrapper(stage) => ::std::boxed::Box::new(stage),)*)?
                }
            }
        }
    };
}

pub(crate) use built_in;

/// Whether a parameter has its default, so that a file need not name it.
pub(crate) fn is_default<T: Default + PartialEq>(parameter: &T) -> bool {
    *parameter == T::default()
}
