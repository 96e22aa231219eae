use std::path::Path;

use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig};

/// Keeps what is compiled and tuned in this process in a folder, and takes from there what an
/// earlier one has kept. Other settings are those of `cubecl.toml` and the environment. Returns
/// whether it does: no setting changes once a device has been used.
pub fn keep_compiled(dir: &Path) -> bool {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    config.environment.path = CacheConfig::Directory(dir.to_owned());
    CubeClRuntimeConfig::try_set(config)
}
