//! Checks of a call before it is put off or launched.

use briquette_ops::{OpError, Result, Scoring};
use burn::{
    backend::DispatchDevice,
    tensor::{DType, Device},
};
use cubecl::prelude::Client;

/// Checks of a call of one operation.
pub(crate) struct Check {
    pub(crate) operation: &'static str,
    client: Client,
}

impl Check {
    /// Refuses devices without kernels.
    pub(crate) fn new(operation: &'static str, device: &Device) -> Result<Self> {
        match device.as_dispatch() {
            DispatchDevice::Cube(device) => Ok(Self { operation, client: device.client() }),
            _ => Err(OpError::Device { operation }),
        }
    }

    /// The client of the device.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Refuses a device that lacks what the operation needs.
    pub(crate) fn supports(&self, supported: bool) -> Result<()> {
        if supported { Ok(()) } else { Err(OpError::Device { operation: self.operation }) }
    }

    /// Refuses weights that depend on positions, where the kernel knows none.
    pub(crate) fn no_positions(&self, scoring: &Scoring) -> Result<()> {
        let what = match scoring {
            Scoring { slopes: Some(_), .. } => "slopes",
            Scoring { window: Some(_), .. } => "window",
            _ => return Ok(()),
        };
        Err(OpError::NoKernel { operation: self.operation, what })
    }

    /// Refuses weights that are more than the softmax of scaled products.
    pub(crate) fn plain(&self, scoring: &Scoring) -> Result<()> {
        match scoring.beyond_plain() {
            Some(what) => Err(OpError::NoKernel { operation: self.operation, what }),
            None => Ok(()),
        }
    }

    /// Refuses sinks or slopes that are not one for each query head. Returns the number of tensors
    /// that a kernel reads them from.
    pub(crate) fn scoring(&self, scoring: &Scoring, query_heads: usize) -> Result<usize> {
        let Scoring { sinks, slopes, .. } = scoring;
        for (name, of_heads) in [("sinks", sinks), ("slopes", slopes)] {
            if let Some(of_heads) = of_heads {
                self.shape(name, of_heads.dims(), [query_heads])?;
            }
        }
        // Both are in one.
        Ok(usize::from(sinks.is_some() || slopes.is_some()))
    }

    /// Refuses a tensor of another shape.
    pub(crate) fn shape<const D: usize>(
        &self,
        tensor: &'static str,
        found: [usize; D],
        expected: [usize; D],
    ) -> Result<()> {
        OpError::check_shape(self.operation, tensor, found, expected)
    }

    /// Refuses values of another shape than expected, which has channels last. No kernel takes
    /// values that are as many as keys, and of another width.
    pub(crate) fn values<const D: usize>(
        &self,
        tensor: &'static str,
        found: [usize; D],
        expected: [usize; D],
    ) -> Result<()> {
        let is_narrow = found.split_last().zip(expected.split_last());
        match is_narrow {
            Some(((width, rows), (channels, of_keys))) if rows == of_keys && width != channels => {
                Err(OpError::NoKernel { operation: self.operation, what: "value_dim" })
            }
            _ => self.shape(tensor, found, expected),
        }
    }

    /// Refuses a tensor of another type than the one it goes with.
    pub(crate) fn same_type(
        &self,
        tensor: &'static str,
        found: DType,
        expected: DType,
    ) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(OpError::DataType { operation: self.operation, tensor, found, expected })
    }

    /// Refuses a number that is not what it has to be.
    pub(crate) fn value(
        &self,
        what: &'static str,
        found: usize,
        fits: bool,
        expected: impl Into<String>,
    ) -> Result<()> {
        OpError::check_value(self.operation, what, found, fits, expected)
    }

    /// Refuses sizes of zero.
    pub(crate) fn some<const N: usize>(&self, sizes: [(&'static str, usize); N]) -> Result<()> {
        sizes.into_iter().try_for_each(|(what, size)| self.value(what, size, size > 0, "1 or more"))
    }

    /// Refuses another number than expected.
    pub(crate) fn equal(&self, what: &'static str, found: usize, expected: usize) -> Result<()> {
        self.value(what, found, found == expected, expected.to_string())
    }

    /// Refuses more than the device takes.
    pub(crate) fn at_most(&self, what: &'static str, found: usize, max: usize) -> Result<()> {
        if found <= max {
            return Ok(());
        }
        Err(OpError::TooLarge { operation: self.operation, what, found, max })
    }

    /// Refuses a kernel of more tensors than the device binds at once, beside one for what else it
    /// is told.
    pub(crate) fn tensors(&self, count: usize) -> Result<()> {
        let max = self.client.properties().hardware.max_bindings as usize;
        self.at_most("the number of tensors", count + 1, max)
    }

    /// Refuses a launch of more cubes than the device takes in one dimension.
    pub(crate) fn cubes(&self, [x, y, z]: [usize; 3]) -> Result<()> {
        let (max_x, max_y, max_z) = self.client.properties().hardware.max_cube_count;
        self.at_most("the number of cubes along x", x, max_x as usize)?;
        self.at_most("the number of cubes along y", y, max_y as usize)?;
        self.at_most("the number of cubes along z", z, max_z as usize)
    }

    /// Refuses cubes of more units than the device takes.
    pub(crate) fn units(&self, units: usize) -> Result<()> {
        let max = self.client.properties().hardware.max_units_per_cube;
        self.at_most("units of a cube", units, max as usize)
    }

    /// Refuses a tensor whose numbers cannot be counted in 32 bits, as kernels do.
    pub(crate) fn countable(&self, what: &'static str, dims: &[usize]) -> Result<()> {
        let numbers = dims.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim));
        self.at_most(what, numbers.unwrap_or(usize::MAX), u32::MAX as usize)
    }

    /// Refuses a tensor of another type than f32.
    pub(crate) fn f32(&self, tensor: &'static str, dtype: DType) -> Result<()> {
        self.value(tensor, dtype.size(), dtype == DType::F32, "f32, of 4 bytes")
    }

    /// Refuses cubes that share more memory than the device has for one.
    pub(crate) fn shared_bytes(&self, bytes: usize) -> Result<()> {
        let max = self.client.properties().hardware.max_shared_memory_size;
        self.at_most("the bytes of shared memory", bytes, max)
    }
}
