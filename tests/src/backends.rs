//! The devices that every suite runs on.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "remote")]
use std::{net::TcpListener, sync::LazyLock, thread};

#[cfg(feature = "wgpu")]
use burn::backend::{WgpuBackend, WgpuDevice, WgpuDeviceKind};
#[cfg(feature = "remote")]
use burn::server::{RemoteServer, WebSocketTransport};
use burn::tensor::{DType, Device, Tensor};

/// Names devices, separated by commas, that stand in for all of the build: `flex`, `flex,wgpu`,
/// `cuda:1`.
pub const DEVICES: &str = "BRIQUETTE_TEST_DEVICES";
/// If set, accelerators run every session of the host's suite instead of a few per method.
pub const THOROUGH: &str = "BRIQUETTE_TEST_THOROUGH";
/// If set, accelerators run one session per method, and every second case of a kernel, in f32: a
/// software device compiles each kernel for seconds.
pub const FEW: &str = "BRIQUETTE_TEST_FEW";

/// The name of wgpu's device on OpenGL, whatever other drivers there are. It binds sixteen buffers
/// per kernel, where Vulkan, Metal and CUDA bind as many as any kernel here has.
pub const OPENGL: &str = "opengl";

/// An open device.
#[derive(Clone, Debug)]
pub struct Backend {
    /// The name it was opened by.
    pub name: String,
    /// The device.
    pub device: Device,
}

impl Backend {
    /// Opens one.
    ///
    /// # Panics
    /// If that fails, with what to do about it.
    pub fn open(name: &str) -> Self {
        let device = match name {
            #[cfg(feature = "wgpu")]
            OPENGL => opengl(),
            #[cfg(feature = "remote")]
            "remote" => remote(),
            _ => briquette::device::open(name)
                .unwrap_or_else(|error| cannot_open(name, &error.to_string())),
        };
        // Some devices only show that they are missing when they are first used, by a panic.
        let first_use = || Tensor::<1>::ones([2], &device).try_into_vec_as::<f32>();
        match catch_unwind(AssertUnwindSafe(first_use)) {
            Ok(Ok(_)) => Self { name: name.to_owned(), device },
            Ok(Err(error)) => cannot_open(name, &error.to_string()),
            Err(_) => cannot_open(name, "its first use panicked, see above"),
        }
    }

    /// The types a cache can hold keys and values in on this device.
    pub fn dtypes(&self) -> Vec<DType> {
        if self.runs_few() {
            vec![DType::F32]
        } else {
            briquette::device::float_types(&self.device)
        }
    }

    /// Whether this is an accelerator, and [`FEW`] is set.
    pub fn runs_few(&self) -> bool {
        self.name != "flex" && std::env::var_os(FEW).is_some()
    }

    /// The cases of a kernel that run here in this type: on CUDA, whose tensor cores take 16-bit
    /// types, all; elsewhere, where kernels multiply in f32 whatever the type and a software device
    /// compiles each for seconds, every fourth.
    pub fn some<T>(&self, cases: Vec<T>, dtype: DType) -> Vec<T> {
        let all = dtype == DType::F32
            || self.name.starts_with("cuda")
            || std::env::var_os(THOROUGH).is_some();
        let step = if self.runs_few() { 2 } else { 1 };
        cases.into_iter().step_by(if all { step } else { 4 }).collect()
    }

    /// Whether the device binds fewer tensors than some kernels have, so that tensor operations
    /// answer for those.
    pub fn binds_few(&self) -> bool {
        self.name == OPENGL
    }

    /// Whether every session runs here. Elsewhere, where a launch costs milliseconds and a kernel's
    /// first one seconds, a few per method stand for all.
    pub fn is_quick(&self) -> bool {
        self.name == "flex" || std::env::var_os(THOROUGH).is_some()
    }
}

impl Drop for Backend {
    /// Waits for what the device was given: Mesa's OpenGL frees itself as the process ends, whether
    /// its own threads still work or not.
    fn drop(&mut self) {
        // What failed was told where it was read.
        let _ = self.device.sync();
    }
}

/// Every backend of this build, or those that [`DEVICES`] names.
///
/// # Panics
/// If one of them cannot be opened: a device that silently went missing would look like one that
/// passed.
pub fn backends() -> Vec<Backend> {
    let named = std::env::var(DEVICES).unwrap_or_default();
    let mut names: Vec<&str> =
        named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        names = briquette::device::available();
    }
    assert!(!names.is_empty(), "this build has no backend: enable the feature `flex`");
    names.into_iter().map(Backend::open).collect()
}

/// Whether the device of this name is one of CubeCL's, which tell their bytes.
pub fn is_cubecl(name: &str) -> bool {
    !["flex", "remote"].contains(&name)
}

/// Whether steps are recorded on the device of this name: not in a build that fuses.
pub fn records_steps(name: &str) -> bool {
    !cfg!(feature = "fusion") && is_cubecl(name)
}

/// The host device, for suites that need only one.
pub fn host() -> Device {
    Backend::open("flex").device.clone()
}

/// Pinned to OpenGL: CubeCL opens it there, or not at all.
#[cfg(feature = "wgpu")]
fn opengl() -> Device {
    let kind = WgpuDeviceKind::DefaultDevice;
    Device::new(WgpuDevice { kind, backend: WgpuBackend::Gl })
}

/// The host's device by a connection to a server in this process.
#[cfg(feature = "remote")]
fn remote() -> Device {
    static ADDRESS: LazyLock<String> = LazyLock::new(serve);
    briquette::device::open(&ADDRESS).expect("a server of this process")
}

/// A new server of the host's device in this process, under the name that opens it.
///
/// # Panics
/// If no port is free.
#[cfg(feature = "remote")]
pub fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("the port").to_string();
    let transport = WebSocketTransport::from_listener(listener);
    thread::spawn(|| RemoteServer::new([Device::flex()]).serve(transport));
    format!("remote:ws://{address}")
}

fn cannot_open(name: &str, why: &str) -> ! {
    panic!(
        "the device `{name}` cannot be opened: {why}\n\
         Without a GPU, install a software Vulkan driver (Debian: mesa-vulkan-drivers, libvulkan1), \
         or name the devices to test: {DEVICES}=flex"
    )
}
