use crate::{Error, Result, check};

/// A prompt that arrives in one or more calls of [`KvCache::attend`](crate::KvCache::attend).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub(super) columns: usize,
    pub(super) left_padding: Option<Vec<usize>>,
}

impl Prompt {
    /// Creates a prompt of `columns` columns in every batch row.
    pub fn new(columns: usize) -> Self {
        Self { columns, left_padding: None }
    }

    /// Sets the number of padding columns at the left of each batch row.
    pub fn left_padding(mut self, padding: Vec<usize>) -> Self {
        self.left_padding = Some(padding);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let columns = self.columns;
        if columns == 0 {
            return Err(Error::EmptyPrompt { row: 0, columns, padding: 0 });
        }
        check::columns("the columns of a prompt", columns)?;
        let rows = self.left_padding.iter().flatten().enumerate();
        match rows.into_iter().find(|&(_, &padding)| padding >= columns) {
            Some((row, &padding)) => Err(Error::EmptyPrompt { row, columns, padding }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_rows(&self, batch: usize) -> Result<()> {
        match &self.left_padding {
            Some(padding) if padding.len() != batch => {
                Err(Error::PaddingRows { expected: batch, found: padding.len() })
            }
            _ => Ok(()),
        }
    }
}
