//! Devices by name, among the backends of this build.

use burn::tensor::{DType, Device, Tensor, kind::Basic};

pub use crate::upkeep::Upkeep;
use crate::{Error, Result, nearest::did_you_mean};

/// Every backend by the name of its device and feature, and whether this build has it.
const BACKENDS: [(bool, &str); 9] = [
    (cfg!(feature = "flex"), "flex"),
    (cfg!(feature = "wgpu"), "wgpu"),
    (cfg!(feature = "vulkan"), "vulkan"),
    (cfg!(feature = "metal"), "metal"),
    (cfg!(feature = "cuda"), "cuda"),
    (cfg!(feature = "rocm"), "rocm"),
    (cfg!(feature = "cpu"), "cpu"),
    (cfg!(feature = "libtorch"), "libtorch"),
    (cfg!(feature = "remote"), "remote"),
];

/// Returns the backends of this build, as [`open`] names them.
pub fn available() -> Vec<&'static str> {
    BACKENDS.into_iter().filter_map(|(built, name)| built.then_some(name)).collect()
}

/// The types that a device computes in, of those that a cache holds keys and values in.
pub fn float_types(device: &Device) -> Vec<DType> {
    let all = [DType::F32, DType::F16, DType::BF16];
    all.into_iter().filter(|&dtype| device.supports_dtype(dtype)).collect()
}

/// Whether `what` can be held in a type on a device.
///
/// # Errors
/// [`Error::DataType`] with those that the device computes in.
pub(crate) fn check_type(what: &'static str, dtype: DType, device: &Device) -> Result<()> {
    if device.supports_dtype(dtype) {
        return Ok(());
    }
    let names: Vec<String> = float_types(device).iter().map(|dtype| format!("{dtype:?}")).collect();
    let expected = format!("one that {device:?} computes in: {}", names.join(" or "));
    Err(Error::DataType { what, dtype, expected })
}

/// Opens a device: `flex`, `wgpu`, `cuda`, `cuda:1`, `vulkan`, `metal`, `rocm`, `cpu`, `libtorch`.
///
/// A number after a colon picks one of several devices of a backend; the default is the first.
/// `remote:ws://HOST:PORT` connects to a Burn remote server.
///
/// # Errors
/// [`Error::Device`] if the build does not hold the backend, or no such device is found.
pub fn open(name: &str) -> Result<Device> {
    let fail = |reason: String| Error::Device {
        name: name.to_owned(),
        reason,
        available: available().join(", "),
    };
    let (backend, rest) = match name.split_once(':') {
        Some((backend, rest)) => (backend, Some(rest)),
        None => (name, None),
    };
    match BACKENDS.into_iter().find(|(_, name)| *name == backend) {
        Some((true, _)) => {}
        Some((false, name)) => {
            return Err(fail(format!(
                "this build has no backend `{name}`: build it with `--features {name}`"
            )));
        }
        None => {
            let near = did_you_mean(backend, BACKENDS.map(|(_, name)| name));
            return Err(fail(format!("{near}there is no backend `{backend}`")));
        }
    }
    if backend == "remote" {
        return remote(rest.unwrap_or_default()).map_err(fail);
    }
    let index = match rest {
        None => 0,
        Some(text) => {
            text.parse::<usize>().map_err(|_| fail(format!("`{text}` is not a device number")))?
        }
    };
    let mut found = enumerate(backend);
    if index >= found.len() {
        return Err(fail(format!("{} devices found, number {index} asked for", found.len())));
    }
    Ok(found.swap_remove(index))
}

/// Keeps compiled kernels, and what was tuned, in a folder for processes to come, and takes them
/// from there. Call it before anything uses a device.
///
/// CUDA, ROCm, Vulkan's SPIR-V and Metal keep kernels; through WebGPU's WGSL only what was tuned is
/// kept, and the driver has a cache of its own. Entries are keyed by the build of the program, the
/// device and its driver, so a folder outlives them, grows, and may be deleted at any time. Several
/// processes may use one folder. Where writing fails later, as on a full disk, kernels are compiled
/// anew.
///
/// # Errors
/// [`Error::KeepCompiled`] for a folder that cannot be made or written to, or where a device has
/// been used.
#[cfg(feature = "persistence")]
pub fn keep_compiled(dir: impl AsRef<std::path::Path>) -> Result<()> {
    let dir = dir.as_ref();
    let fail = |reason: String| Error::KeepCompiled { dir: format!("{}", dir.display()), reason };
    let written = std::fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
    written.map_err(|error| fail(error.to_string()))?;
    #[cfg(feature = "kernels")]
    if !briquette_kernels::keep_compiled(dir) {
        return Err(fail("a device has been used before, or this was called before".to_owned()));
    }
    Ok(())
}

/// Returns the bytes of the buffers that are alive on the device now, without the padding and
/// reserves of its allocator; `None` where the backend does not tell (all but CubeCL's). Compare it
/// with [`KvCache::bytes_held`](crate::KvCache::bytes_held).
pub fn bytes_in_use(device: &Device) -> Option<u64> {
    #[cfg(feature = "kernels")]
    return briquette_kernels::bytes_in_use(device);
    #[cfg(not(feature = "kernels"))]
    {
        let _ = device;
        None
    }
}

/// Returns the bytes of memory that the device has; `None` where its driver does not tell (CUDA,
/// ROCm and `cpu` do).
pub fn memory(device: &Device) -> Option<u64> {
    #[cfg(feature = "kernels")]
    return briquette_kernels::memory(device);
    #[cfg(not(feature = "kernels"))]
    {
        let _ = device;
        None
    }
}

/// Layout of the rows of a tensor on a device.
#[cfg(feature = "kernels")]
pub(crate) type Rows = briquette_kernels::RowLayout;

/// Layout of the rows of a tensor on a device: one number after another.
#[cfg(not(feature = "kernels"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows;

#[cfg(not(feature = "kernels"))]
impl Rows {
    pub(crate) fn of(_: &Device) -> Self {
        Self
    }

    pub(crate) fn bytes(self, numbers: usize, size: usize) -> usize {
        numbers * size
    }

    pub(crate) fn most_padding(self) -> usize {
        0
    }
}

/// Returns the bytes of a buffer of this shape, with the padding of its rows.
pub(crate) fn buffer_bytes<const D: usize, K: Basic>(x: &Tensor<D, K>, rows: Rows) -> usize {
    let dims = x.dims();
    let Some((last, leading)) = dims.split_last() else { return 0 };
    leading.iter().product::<usize>() * rows.bytes(*last, x.dtype().size())
}

fn enumerate(backend: &str) -> Vec<Device> {
    #[allow(unused_imports)]
    use burn::tensor::DeviceType;
    match backend {
        #[cfg(feature = "flex")]
        "flex" => vec![Device::flex()],
        #[cfg(feature = "wgpu")]
        "wgpu" => Device::enumerate(DeviceType::Wgpu).into_vec(),
        #[cfg(feature = "vulkan")]
        "vulkan" => Device::enumerate(DeviceType::Vulkan).into_vec(),
        #[cfg(feature = "metal")]
        "metal" => Device::enumerate(DeviceType::Metal).into_vec(),
        #[cfg(feature = "cuda")]
        "cuda" => Device::enumerate(DeviceType::Cuda).into_vec(),
        #[cfg(feature = "rocm")]
        "rocm" => Device::enumerate(DeviceType::Rocm).into_vec(),
        #[cfg(feature = "cpu")]
        "cpu" => vec![Device::cpu()],
        #[cfg(feature = "libtorch")]
        "libtorch" => {
            let mut found = Device::enumerate(DeviceType::LibTorch).into_vec();
            found.push(Device::libtorch());
            found
        }
        _ => Vec::new(),
    }
}

#[cfg(feature = "remote")]
fn remote(address: &str) -> std::result::Result<Device, String> {
    if address.is_empty() {
        return Err("write remote:ws://HOST:PORT".to_owned());
    }
    let hosted = burn::tensor::remote::RemoteHost::websocket(address)
        .devices()
        .map_err(|error| error.to_string())?;
    hosted.into_vec().into_iter().next().ok_or_else(|| "the server hosts no device".to_owned())
}

#[cfg(not(feature = "remote"))]
fn remote(_address: &str) -> std::result::Result<Device, String> {
    Err("this build has no backend `remote`".to_owned())
}
