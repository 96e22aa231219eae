use burn::tensor::DType;

/// Why a kernel was not launched. Nothing has been computed or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
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
        /// What the number is.
        what: &'static str,
        /// The number.
        found: usize,
        /// What it can be.
        expected: String,
    },
    /// The device cannot launch so much at once.
    #[error("{operation}: {what} is {found}, this device takes {max} at most")]
    TooLarge {
        /// The operation.
        operation: &'static str,
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: usize,
        /// The limit of the device.
        max: usize,
    },
}

/// What a kernel returns, or why it was not launched.
pub type Result<T> = std::result::Result<T, KernelError>;
