use std::sync::Arc;

use burn::tensor::Device;

use briquette::position::{NoPositionEncoding, PositionEncoding};

use crate::{ModelConfig, Result, RopeConfig, device_map::Placed};

/// The position encoding of every layer of a model.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    layers: Vec<Arc<dyn PositionEncoding>>,
}

impl Positions {
    pub(crate) fn new(config: &ModelConfig, placed: &Placed) -> Result<Self> {
        let of_devices = placed.each().map(|device| OfDevice::new(config, device));
        let of_devices = of_devices.collect::<Result<Vec<_>>>()?;
        let none: Arc<dyn PositionEncoding> = match config.attn_temperature {
            Some(temperature) => Arc::new(temperature),
            None => Arc::new(NoPositionEncoding),
        };
        let of = |layer| {
            let here = of_devices.iter().find(|here| here.device == *placed.of(layer));
            let with = here.filter(|_| !config.layers_without_rope.contains(&layer));
            let Some(here) = with else { return none.clone() };
            let local = here.local.as_ref().filter(|_| config.sliding_layers.contains(&layer));
            local.unwrap_or(&here.global).clone()
        };
        Ok(Self { layers: (0..config.num_hidden_layers).map(of).collect() })
    }

    /// The encoding of a layer; layers beyond the last encode nothing.
    pub(crate) fn of(&self, layer: usize) -> &dyn PositionEncoding {
        self.layers.get(layer).map_or(&NoPositionEncoding, |encoding| encoding.as_ref())
    }
}

/// The encodings of a device.
struct OfDevice {
    device: Device,
    global: Arc<dyn PositionEncoding>,
    /// That of layers with a window, if it is another.
    local: Option<Arc<dyn PositionEncoding>>,
}

impl OfDevice {
    fn new(config: &ModelConfig, device: &Device) -> Result<Self> {
        let rotary = |rope: &RopeConfig| {
            rope.encoding(config.head_dim, config.max_position_embeddings, device)
        };
        Ok(Self {
            device: device.clone(),
            global: rotary(&config.rope)?,
            local: config.local_rope.as_ref().map(rotary).transpose()?,
        })
    }
}
