use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Error {
    /// Results that cannot be read, or a file that cannot be written.
    #[error(transparent)]
    Eval(#[from] briquette_eval::Error),
    /// Results of a command that has no page.
    #[error(
        "{path} is of `briquette {command}`, which writes its own tables; a page is of `briquette run`, whose file names \
         models, policies and tasks"
    )]
    NoPage { path: PathBuf, command: &'static str },
    /// Results of runs with different settings in one folder.
    #[error("{path} was written with other settings than {first}; they are not of one run")]
    ResultSettings { path: PathBuf, first: PathBuf },
    /// A page that cannot be put together.
    #[error("cannot write the page: {message}")]
    Page { message: String },
}
