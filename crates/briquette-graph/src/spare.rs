//! A cache as it was before a step, to go back to.

use burn::tensor::{Int, Tensor};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};

use briquette::{
    KvCache, Result,
    state::{Replay, StateTensor, StateVisitor},
};
use briquette_kernels::buffer::of_ints;

use crate::buffer::{of_state, overwrite, put};

/// Bytes from which a copy has device memory of its own, which the device has back at once.
const APART: usize = 16 << 20;

/// Room beside a cache for all that a step changes. What a recording writes that fails cannot be
/// read afterwards.
pub(crate) struct Spare {
    buffers: Vec<CubeTensor>,
    tokens: Tensor<2, Int>,
}

/// A cache, and the token of each row that is its next.
pub(crate) struct Before {
    pub(crate) cache: KvCache,
    pub(crate) tokens: Tensor<2, Int>,
}

impl Spare {
    /// Makes room. While a recording is being made ready nothing may be allocated that stays.
    pub(crate) fn new(cache: &mut KvCache, tokens: &Tensor<2, Int>) -> Result<Self> {
        let mut room = Room::default();
        cache.visit_state(&mut room)?;
        Ok(Self { buffers: room.0, tokens: tokens.clone().add_scalar(0) })
    }

    /// Copies a cache and its next tokens there; `None` if its tensors have become others.
    pub(crate) fn fill(self, cache: &KvCache, tokens: &Tensor<2, Int>) -> Result<Option<Before>> {
        let (Some(target), Some(source)) = (of_ints(&self.tokens), of_ints(tokens)) else {
            return Ok(None);
        };
        overwrite(&target, source);
        let mut cache = cache.fork();
        let mut fill = Fill { buffers: self.buffers.into_iter(), fits: true };
        cache.visit_state(&mut fill)?;
        Ok(fill.fits.then_some(Before { cache, tokens: self.tokens }))
    }
}

#[derive(Default)]
struct Room(Vec<CubeTensor>);

impl StateVisitor for Room {
    fn tensor(&mut self, tensor: StateTensor<'_>) {
        let Some(old) = of_state(&tensor) else { return };
        let (client, device) = (old.client.clone(), old.device.clone());
        let shape = old.meta.shape().clone();
        let allocate = |()| empty_device_dtype(client.clone(), device, shape, old.dtype);
        // Nothing that is used for a few steps stays in pages.
        let new = match old.meta.num_elements() * old.dtype.size() < APART {
            true => allocate(()),
            false => client.memory_dedicated_allocation((), allocate),
        };
        // Once, so that the copy later finds all it needs.
        overwrite(&new, old);
        self.0.push(new);
    }

    fn number(&mut self, _: usize) {}
}

struct Fill {
    buffers: std::vec::IntoIter<CubeTensor>,
    fits: bool,
}

impl StateVisitor for Fill {
    fn tensor(&mut self, tensor: StateTensor<'_>) {
        let (Some(old), Some(new)) = (of_state(&tensor), self.buffers.next()) else {
            self.fits = false;
            return;
        };
        if old.meta.shape() != new.meta.shape() || old.dtype != new.dtype {
            self.fits = false;
            return;
        }
        overwrite(&new, old);
        put(tensor, new);
    }

    fn number(&mut self, _: usize) {}
}
