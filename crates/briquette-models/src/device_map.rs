use briquette::device;
use burn::tensor::Device;

use crate::{
    Result,
    setting::{check_positive, invalid},
};

/// The keys of errors.
const DEVICES: &str = "the number of devices";
const SPLIT: &str = "the split of layers among devices";

/// The devices that a model is shared out among, its layers in order: activations move once from
/// one device to the next.
///
/// ```no_run
/// # use briquette_models::{DeviceMap, Model};
/// # use burn::tensor::DType;
/// # fn main() -> briquette_models::Result<()> {
/// let both = DeviceMap::open("cuda:0,cuda:1")?;
/// let model = Model::load("Llama-3.1-70B", both, DType::BF16)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceMap {
    devices: Vec<Device>,
    /// Layers of each device; `None` shares them out by memory.
    layers: Option<Vec<usize>>,
}

impl DeviceMap {
    /// Shares layers out by the memory of the devices, or equally where that of one is not known.
    /// What lies there already is not counted.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for no devices.
    pub fn by_memory(devices: Vec<Device>) -> Result<Self> {
        check_positive(DEVICES, devices.len())?;
        Ok(Self { devices, layers: None })
    }

    /// Gives each device so many layers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for no devices, or one without a
    /// layer.
    pub fn by_layers(shares: Vec<(Device, usize)>) -> Result<Self> {
        check_positive(DEVICES, shares.len())?;
        shares.iter().try_for_each(|(_, layers)| check_positive("layers of a device", *layers))?;
        let (devices, layers) = shares.into_iter().unzip();
        Ok(Self { devices, layers: Some(layers) })
    }

    /// Opens devices by [their names](device::open), separated by commas: `cuda:0,cuda:1`. With
    /// numbers of layers they are not shared out by memory: `cuda:0=24,cuda:1=8`.
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) for a device that cannot be opened, and
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) for a number of layers that is none,
    /// or is left out of one device alone.
    pub fn open(names: &str) -> Result<Self> {
        let mut shares = Vec::new();
        for name in names.split(',') {
            let (name, layers) = match name.rsplit_once('=') {
                Some((name, layers)) => (name, Some(layers)),
                None => (name, None),
            };
            let count = |text: &str| match text.parse::<usize>() {
                Ok(count) if count > 0 => Ok(count),
                _ => {
                    let found = format!("`{text}` for `{name}`");
                    Err(invalid("layers of a device", found, "a number, at least 1"))
                }
            };
            shares.push((device::open(name)?, layers.map(count).transpose()?));
        }
        let given = shares.iter().filter(|(_, layers)| layers.is_some()).count();
        if given == 0 {
            return Self::by_memory(shares.into_iter().map(|(device, _)| device).collect());
        }
        if given != shares.len() {
            return Err(invalid(SPLIT, names, "with layers for each, or for none"));
        }
        let counted = |(device, layers): (Device, Option<usize>)| Some((device, layers?));
        Self::by_layers(shares.into_iter().filter_map(counted).collect())
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The first device, which has the embeddings.
    pub fn first(&self) -> &Device {
        &self.devices[0]
    }

    /// Whether there is nothing to share out.
    pub(crate) fn is_one_for_all(&self) -> bool {
        self.devices.len() == 1 && self.layers.is_none()
    }

    /// The device of each layer of a model with so many numbers in its embeddings, layers and head.
    pub(crate) fn place(&self, (first, layers, last): (usize, &[usize], usize)) -> Result<Placed> {
        let counts = match &self.layers {
            Some(counts) if counts.iter().sum::<usize>() != layers.len() => {
                let shown: Vec<String> = counts.iter().map(ToString::to_string).collect();
                let found = format!("{} layers", shown.join(" + "));
                return Err(invalid(SPLIT, found, format!("{} layers together", layers.len())));
            }
            Some(counts) => counts.clone(),
            None => by_shares(&self.shares(), (first, layers, last)),
        };
        let of_device = |(device, count): (&Device, usize)| vec![device.clone(); count];
        Ok(Placed {
            layers: self.devices.iter().zip(counts).flat_map(of_device).collect(),
            devices: self.devices.clone(),
        })
    }

    /// Bytes of memory of all devices, each counted once; `None` where one does not tell.
    pub fn memory(&self) -> Option<u64> {
        each(&self.devices).map(device::memory).sum()
    }

    /// The memory of each device, or 1 for all where that of one is not known.
    fn shares(&self) -> Vec<f64> {
        let known: Option<Vec<u64>> = self.devices.iter().map(device::memory).collect();
        let known = known.unwrap_or_else(|| vec![1; self.devices.len()]);
        known.into_iter().map(|bytes| bytes as f64).collect()
    }
}

impl From<&Device> for DeviceMap {
    /// One device for all.
    fn from(device: &Device) -> Self {
        Self { devices: vec![device.clone()], layers: None }
    }
}

/// Numbers of layers of each device, so that what lies there is as its share of all: a layer goes
/// where its middle lies.
fn by_shares(shares: &[f64], (first, layers, last): (usize, &[usize], usize)) -> Vec<usize> {
    let all = (first + layers.iter().sum::<usize>() + last) as f64;
    let of_all: f64 = shares.iter().sum();
    let mut counts = vec![0; shares.len()];
    let (mut before, mut device, mut end) = (first as f64, 0, shares[0] / of_all);
    for layer in layers {
        let middle = before + *layer as f64 / 2.0;
        while middle > end * all && device + 1 < shares.len() {
            device += 1;
            end += shares[device] / of_all;
        }
        counts[device] += 1;
        before += *layer as f64;
    }
    counts
}

/// The device of each part of a model.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    devices: Vec<Device>,
    layers: Vec<Device>,
}

impl Placed {
    /// All on one device.
    pub(crate) fn on(device: &Device, layers: usize) -> Self {
        Self { devices: vec![device.clone()], layers: vec![device.clone(); layers] }
    }

    /// The device of the embeddings, to which tokens come and on which logits are.
    pub(crate) fn first(&self) -> &Device {
        &self.devices[0]
    }

    /// The device of the last norm and the head.
    pub(crate) fn last(&self) -> &Device {
        &self.devices[self.devices.len() - 1]
    }

    /// The device of a layer.
    pub(crate) fn of(&self, layer: usize) -> &Device {
        self.layers.get(layer).unwrap_or(self.last())
    }

    /// The device of each layer, where there are several devices.
    pub(crate) fn of_layers(&self) -> Option<&[Device]> {
        (self.devices.len() > 1).then_some(&self.layers)
    }

    /// The devices, each once.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Device> {
        each(&self.devices)
    }
}

/// Devices, each once.
fn each(devices: &[Device]) -> impl Iterator<Item = &Device> {
    let before = |at: usize| &devices[..at];
    devices
        .iter()
        .enumerate()
        .filter(move |(at, one)| !before(*at).contains(one))
        .map(|(_, one)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_go_by_what_devices_hold() {
        let layers = [10; 8];
        assert_eq!(by_shares(&[1.0, 1.0], (0, &layers, 0)), [4, 4]);
        assert_eq!(by_shares(&[3.0, 1.0], (0, &layers, 0)), [6, 2]);
        // Embeddings as large as four layers, and a head.
        assert_eq!(by_shares(&[1.0, 1.0], (40, &layers, 0)), [2, 6]);
        assert_eq!(by_shares(&[1.0, 1.0], (40, &layers, 40)), [4, 4]);
        assert_eq!(by_shares(&[1.0, 1.0, 1.0], (0, &layers, 10)), [3, 3, 2]);
        // Nothing but embeddings fits the first.
        assert_eq!(by_shares(&[1.0, 1.0], (90, &layers, 0)), [0, 8]);
    }

    #[test]
    fn devices_and_layers_are_read_from_names() {
        let both = DeviceMap::open("flex,flex").unwrap();
        assert_eq!((both.devices.len(), &both.layers), (2, &None));
        let counted = DeviceMap::open("flex=3,flex=1").unwrap();
        assert_eq!(counted.layers, Some(vec![3, 1]));
        let refused = |names| DeviceMap::open(names).unwrap_err().to_string();
        for (names, parts) in [
            ("flex=3,flex", ["flex=3,flex", "for none"]),
            ("flex=three", ["`three` for `flex`", "a number"]),
            ("flex=4,flex=0", ["`0` for `flex`", "at least 1"]),
            ("flex,abacus", ["abacus", "this build has"]),
            ("", ["there is no backend", "this build has"]),
        ] {
            let message = refused(names);
            assert!(parts.iter().all(|part| message.contains(part)), "{names}: {message}");
        }
        let message = counted.place((0, &[1; 5], 0)).unwrap_err().to_string();
        assert!(message.contains("3 + 1 layers") && message.contains("5 layers"), "{message}");
    }
}
