use burn::tensor::DType;

/// Why an operation has no result. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The device of the tensors has no kernels.
    #[error("{operation} runs on CubeCL devices only")]
    Device {
        /// The operation.
        operation: &'static str,
    },
    /// A tensor has another shape than the others ask for.
    #[error("{operation}: {tensor} is {found:?}, expected {expected:?}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that fits the others.
        expected: Vec<usize>,
    },
    /// A tensor has another type than the one it goes with.
    #[error("{operation}: {tensor} is {found:?}, expected {expected:?}")]
    DataType {
        /// The operation.
        operation: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// Its type.
        found: DType,
        /// The other's.
        expected: DType,
    },
    /// A number is not one the kernel can work with.
    #[error("{operation}: {what} is {found}, expected {expected}")]
    Value {
        /// The operation.
        operation: &'static str,
        /// Name of the number.
        what: &'static str,
        /// The number.
        found: usize,
        /// Values that it can have.
        expected: String,
    },
    /// The device cannot launch so much at once.
    #[error("{operation}: {what} is {found}, this device takes {max} at most")]
    TooLarge {
        /// The operation.
        operation: &'static str,
        /// Name of the size that is too large.
        what: &'static str,
        /// How large it is.
        found: usize,
        /// The limit of the device.
        max: usize,
    },
    /// Scores are NaN, which nothing can be ranked by.
    #[error("{operation}: {count} scores are NaN")]
    NotANumber {
        /// The operation.
        operation: &'static str,
        /// How many of them.
        count: usize,
    },
    /// The device failed while executing.
    #[error("{operation}: the device failed: {reason}")]
    Execution {
        /// The operation.
        operation: &'static str,
        /// Message of the device.
        reason: String,
    },
}

impl OpError {
    /// Whether the device is what an operation lacks, because it has no kernels or cannot launch so
    /// much: then, and only then, tensor operations take over.
    pub fn is_of_the_device(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::TooLarge { .. })
    }

    /// A failure of the device while its answer was read.
    pub fn failed(operation: &'static str, error: impl ToString) -> Self {
        Self::Execution { operation, reason: error.to_string() }
    }

    /// The operation that was called.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Device { operation }
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
