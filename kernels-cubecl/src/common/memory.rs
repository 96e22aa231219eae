use burn::{backend::DispatchDevice, tensor::Device};
use cubecl::{MemoryScope, zspace::shape};

/// Bytes of the buffers that are alive on the device now, in all streams, without what its
/// allocator pads and keeps for later; `None` where there is no CubeCL.
pub fn bytes_in_use(device: &Device) -> Option<u64> {
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return None };
    Some(device.client().memory_report(MemoryScope::Device).usage().bytes_in_use)
}

/// Bytes of the memory of the device; `None` where its driver does not tell, or there is no CubeCL.
pub fn memory(device: &Device) -> Option<u64> {
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return None };
    device.client().properties().memory.max_memory()
}

/// Runs `allocate`, so that each tensor that it makes has an allocation of the device's of its own,
/// which is given back once nobody holds the tensor: not a part of a page, which CubeCL keeps until
/// all of it is free and the memory is cleaned up.
pub fn allocate_apart(device: &Device, allocate: &mut (dyn FnMut() + Send)) {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => {
            device.client().memory_dedicated_allocation(allocate, |allocate| allocate());
        }
        _ => allocate(),
    }
}

/// Layout of the rows of a tensor on a device, a row being its last dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowLayout {
    /// Bytes that longer rows are padded to a multiple of; `None` where rows are not padded.
    alignment: Option<usize>,
}

impl RowLayout {
    /// Reads the layout of this device off a small tensor. Rows are not padded where there is no
    /// CubeCL.
    pub fn of(device: &Device) -> Self {
        // No alignment divides rows of so many bytes.
        const ODD: usize = 97;
        let DispatchDevice::Cube(device) = device.as_dispatch() else { return Self::default() };
        let client = device.client();
        let small = client.empty_tensor(shape![2, ODD], size_of::<u32>());
        let padded = small.strides[0] > ODD;
        let alignment = client.properties().memory.alignment as usize;
        Self { alignment: padded.then_some(alignment) }
    }

    /// Bytes of a row of so many numbers of `size` bytes each. CubeCL pads a row to a power of two
    /// from 16 bytes up, and from the alignment on to a multiple of that; a row of one number is
    /// not padded.
    pub fn bytes(self, numbers: usize, size: usize) -> usize {
        let bytes = numbers.saturating_mul(size);
        match self.alignment {
            Some(alignment) if numbers > 1 => {
                let row = bytes.checked_next_power_of_two().unwrap_or(usize::MAX);
                let row = row.clamp(16, alignment.max(16));
                bytes.checked_next_multiple_of(row).unwrap_or(usize::MAX)
            }
            _ => bytes,
        }
    }

    /// The most that a row is padded by, in bytes.
    pub fn most_padding(self) -> usize {
        self.alignment.map_or(0, |alignment| alignment - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::RowLayout;

    #[test]
    fn rows_are_padded_as_cuda_pads_them() {
        let rows = RowLayout { alignment: Some(512) };
        let sizes = [(1, 4), (2, 4), (5, 4), (64, 2), (80, 2), (97, 4), (128, 4), (129, 4)];
        let bytes = sizes.map(|(numbers, size)| rows.bytes(numbers, size));
        assert_eq!(bytes, [4, 16, 32, 128, 256, 512, 512, 1024]);
        assert_eq!(RowLayout::default().bytes(97, 4), 388);
    }
}
