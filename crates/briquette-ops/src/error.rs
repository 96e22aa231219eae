use burn::tensor::DType;

/// Error of an operation. The operation has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum OpError {
    /// The device of the tensors has no kernels.
    #[error("{operation} runs on CubeCL devices only")]
    Device { operation: &'static str },
    /// No kernel computes what the call asks for.
    #[error("{operation}: no kernel computes {what}")]
    NoKernel { operation: &'static str, what: &'static str },
    /// A tensor has a shape that does not fit the others.
    #[error("{operation}: {tensor} is {found:?}, expected {expected:?}")]
    Shape { operation: &'static str, tensor: &'static str, found: Vec<usize>, expected: Vec<usize> },
    /// A tensor has another type than the tensor it must match.
    #[error("{operation}: {tensor} is {found:?}, expected {expected:?}")]
    DataType { operation: &'static str, tensor: &'static str, found: DType, expected: DType },
    /// A number is outside of the values that the operation takes.
    #[error("{operation}: {what} is {found}, expected {expected}")]
    Value { operation: &'static str, what: &'static str, found: usize, expected: String },
    /// A size is over the limit of the device for one launch.
    #[error("{operation}: {what} is {found}, this device takes {max} at most")]
    TooLarge { operation: &'static str, what: &'static str, found: usize, max: usize },
    /// Scores are NaN, so that entries cannot be ranked by them.
    #[error("{operation}: {count} scores are NaN")]
    NotANumber { operation: &'static str, count: usize },
    /// The device failed while executing.
    #[error("{operation}: the device failed: {reason}")]
    Execution { operation: &'static str, reason: String },
}

impl OpError {
    /// Whether the device is the reason: it has no kernels, or none for this, or cannot launch so
    /// much at once. Then, and only then, tensor operations take over.
    pub fn is_of_the_device(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::NoKernel { .. } | Self::TooLarge { .. })
    }

    /// Refuses a number that is not what an operation takes.
    ///
    /// # Errors
    /// [`OpError::Value`] unless it fits.
    pub fn check_value(
        operation: &'static str,
        what: &'static str,
        found: usize,
        fits: bool,
        expected: impl Into<String>,
    ) -> Result<()> {
        if fits {
            return Ok(());
        }
        Err(Self::Value { operation, what, found, expected: expected.into() })
    }

    /// Refuses a tensor of another shape than the one that fits the others.
    ///
    /// # Errors
    /// [`OpError::Shape`] unless they are the same.
    pub fn check_shape<const D: usize>(
        operation: &'static str,
        tensor: &'static str,
        found: [usize; D],
        expected: [usize; D],
    ) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_vec(), expected.to_vec());
        Err(Self::Shape { operation, tensor, found, expected })
    }

    /// Returns the error of a device that failed while a result was read from it.
    pub fn failed(operation: &'static str, error: impl ToString) -> Self {
        Self::Execution { operation, reason: error.to_string() }
    }

    /// Returns the name of the operation.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Device { operation }
            | Self::NoKernel { operation, .. }
            | Self::Shape { operation, .. }
            | Self::DataType { operation, .. }
            | Self::Value { operation, .. }
            | Self::TooLarge { operation, .. }
            | Self::NotANumber { operation, .. }
            | Self::Execution { operation, .. } => operation,
        }
    }
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, OpError>;
