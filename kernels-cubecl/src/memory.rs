use burn::{backend::DispatchDevice, tensor::Device};
use cubecl::MemoryScope;

/// Bytes of the buffers that are alive on the device now, in all streams, without what its allocator pads and keeps
/// for later; `None` where there is no CubeCL.
pub fn bytes_in_use(device: &Device) -> Option<u64> {
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return None };
    Some(device.client().memory_report(MemoryScope::Device).usage().bytes_in_use)
}
