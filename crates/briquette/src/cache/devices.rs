use std::{
    fmt,
    iter::once,
    sync::{Arc, OnceLock},
};

use burn::tensor::Device;

use crate::{Error, Policy, Result, check, device::Rows};

/// Where the layers of a cache lie, those of attention first.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    /// The device of the cache, on which layers lie that have none of their own.
    pub(super) first: Device,
    of_layers: Option<Arc<[Device]>>,
    /// The layout of rows on the device of each layer.
    rows: OnceLock<Arc<[Rows]>>,
    layers: usize,
}

impl Devices {
    pub(super) fn new(first: &Device, of_layers: Option<Arc<[Device]>>, layers: usize) -> Self {
        Self { first: first.clone(), of_layers, rows: OnceLock::new(), layers }
    }

    /// The device of a layer.
    pub(super) fn of(&self, layer: usize) -> &Device {
        let own = self.of_layers.as_ref().and_then(|all| all.get(layer));
        own.unwrap_or(&self.first)
    }

    /// The layout of rows on the device of a layer.
    pub(super) fn rows(&self, layer: usize) -> Rows {
        let of = |layer| Rows::of(self.of(layer));
        let all = self.rows.get_or_init(|| (0..self.layers).map(of).collect());
        all.get(layer).copied().unwrap_or_default()
    }

    /// Whether layers lie on several devices.
    pub(super) fn are_several(&self) -> bool {
        self.of_layers.iter().flat_map(|all| all.iter()).any(|device| *device != self.first)
    }

    /// The devices, each once.
    pub(super) fn each(&self) -> impl Iterator<Item = &Device> {
        let all = || once(&self.first).chain(self.of_layers.iter().flat_map(|all| all.iter()));
        let is_new =
            move |(at, one): &(usize, &Device)| !all().take(*at).any(|before| before == *one);
        all().enumerate().filter(is_new).map(|(_, one)| one)
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// [`Error::Execution`].
    pub(super) fn sync(&self) -> Result<()> {
        let wait = |device: &Device| device.sync();
        self.each().try_for_each(wait).map_err(|error| Error::Execution(error.to_string()))
    }

    /// Checks that there is a device for each layer, and that the policy can follow several.
    pub(super) fn check(&self, policy: &Policy) -> Result<()> {
        let (layers, given) = (self.layers, self.of_layers.as_ref().map(|all| all.len()));
        if let Some(given) = given.filter(|given| *given != layers) {
            let found = format!("of {given} layers");
            return check::refuse("devices", found, format!("of {layers} layers, as the cache"));
        }
        if policy.second_pass().is_some() && self.are_several() {
            let found = format!("several with `{}`, which repeats prompts", policy.name());
            return check::refuse("devices", found, "one for all layers");
        }
        Ok(())
    }
}

/// The device, or that of each layer where they lie on several.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.are_several() {
            return write!(f, "{:?}", self.first);
        }
        let of = |layer| self.of(layer);
        write!(f, "{:?} for its layers", (0..self.layers).map(of).collect::<Vec<_>>())
    }
}

/// Devices are the same where layers lie on the same ones.
impl PartialEq for Devices {
    fn eq(&self, other: &Self) -> bool {
        self.layers == other.layers
            && self.first == other.first
            && (0..self.layers).all(|layer| self.of(layer) == other.of(layer))
    }
}
