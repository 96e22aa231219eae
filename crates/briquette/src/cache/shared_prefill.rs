//! One prefill of a prompt for several caches.

use std::time::Duration;

use burn::tensor::{DType, Tensor};

use super::{
    KvCache, Prompt,
    call::{answer::Attention, input::Projections},
    shared_attention::{Clock, SharedAttention},
};
use crate::{Error, Policy, Result, position::PositionEncoding};

/// Fills empty caches of one model with the same prompt, in one pass of the model.
///
/// The matrix products of the model are computed once, and so is the attention of policies that
/// observe the same statistics. Each cache scores and compresses for itself, and ends as it would
/// have alone, number for number.
///
/// Compression comes after the attention, so the attention of a whole prompt is the same under
/// every policy that [can share it](Policy::can_share_prefill).
///
/// ```
/// # use briquette::{Budget, CacheShape, KvCache, Policy, Prompt, SharedPrefill};
/// # use briquette::position::NoPositionEncoding;
/// # use burn::tensor::{DType, Tensor};
/// # fn main() -> briquette::Result<()> {
/// # let device = briquette::device::open("flex")?;
/// # let shape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
/// # let x = |heads, new| Tensor::<4>::zeros([1, heads, new, 16], &device);
/// let policies = [Policy::tova(Budget::Tokens(4)), Policy::h2o(Budget::Tokens(4))];
/// let mut caches = Vec::new();
/// for policy in policies {
///     caches.push(KvCache::new(shape, policy, &device)?);
/// }
/// let mut prefill = SharedPrefill::new(&mut caches, Prompt::new(9))?;
/// for layer in 0..3 {
///     prefill.attend(layer, x(4, 9), x(2, 9), x(2, 9), &NoPositionEncoding)?;
/// }
/// assert_eq!(caches[1].tokens_kept(2)?, [4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedPrefill<'a> {
    caches: &'a mut [KvCache],
    columns: usize,
    is_timed: bool,
    times: SharedTimes,
}

/// Time that a timed shared prefill has spent in its caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedTimes {
    /// Time in all caches together.
    pub all: Duration,
    /// Time of each cache: its attention, whichever cache computed it, and its own work. With the
    /// time outside the caches, a prefill of this cache alone would take as long.
    pub each: Vec<Duration>,
}

impl<'a> SharedPrefill<'a> {
    /// Declares the prompt to all caches. Each layer then takes it in one call of
    /// [`attend`](Self::attend).
    ///
    /// # Errors
    /// [`Error::SharedPrefill`] for no cache, one that holds tokens, one of another shape,
    /// data type, device or way to compute weights than the first, and a policy whose attention is
    /// its own; what [`KvCache::begin_prompt`] returns. No cache has a prompt then.
    pub fn new(caches: &'a mut [KvCache], prompt: Prompt) -> Result<Self> {
        let columns = prompt.columns;
        let refused = |cache, reason: String| Err(Error::SharedPrefill { cache, reason });
        let Some(first) = caches.first() else {
            return refused(0, "there is none".into());
        };
        for (number, cache) in caches.iter().enumerate() {
            let policy = cache.policy();
            if cache.batch.is_some() {
                return refused(number, "it holds tokens".into());
            }
            if !policy.can_share_prefill() {
                return refused(number, format!("`{}` has sparse attention", policy.name()));
            }
            if cache.config.values_in_keys {
                return refused(number, "its values are in its keys".into());
            }
            if !cache.recurrent.is_empty() {
                return refused(number, "it has recurrent layers".into());
            }
            if cache.shape != first.shape {
                return refused(number, format!("it is {:?}, not {:?}", cache.shape, first.shape));
            }
            let (dtype, of_first) = (cache.config.dtype, first.config.dtype);
            if dtype != of_first {
                let name = |dtype: Option<DType>| match dtype {
                    Some(dtype) => format!("{dtype:?}"),
                    None => "the type of its first keys".to_owned(),
                };
                return refused(
                    number,
                    format!("it holds {}, not {}", name(dtype), name(of_first)),
                );
            }
            if !cache.config.scores_as(&first.config) {
                return refused(number, "its weights are computed in another way".into());
            }
            if cache.devices != first.devices {
                return refused(
                    number,
                    format!("it is on {}, not {}", cache.devices, first.devices),
                );
            }
        }
        let times = SharedTimes { all: Duration::ZERO, each: vec![Duration::ZERO; caches.len()] };
        let mut shared = Self { caches, columns, is_timed: false, times };
        let begun =
            shared.caches.iter_mut().try_for_each(|cache| cache.begin_prompt(prompt.clone()));
        if let Err(error) = begun {
            shared.reset();
            return Err(error);
        }
        Ok(shared)
    }

    /// Measures the time of each cache, and waits for the device before and after each of them.
    pub fn timed(self) -> Self {
        Self { is_timed: true, ..self }
    }

    /// Time spent in the caches so far, if it is [measured](Self::timed).
    pub fn times(&self) -> Option<&SharedTimes> {
        self.is_timed.then_some(&self.times)
    }

    /// Calls [`KvCache::attend`] of all caches, with the whole prompt at once and layers from the
    /// first to the last. Returns the attention, which is the same for every cache.
    ///
    /// # Errors
    /// As [`KvCache::attend`], and [`Error::TensorShape`] for a part of the prompt. All caches are
    /// then empty.
    pub fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let attended = self.attend_all(layer, &Projections { queries, keys, values }, encoding);
        if attended.is_err() {
            self.reset();
        }
        attended
    }

    fn attend_all(
        &mut self,
        layer: usize,
        new: &Projections,
        encoding: &dyn PositionEncoding,
    ) -> Result<Tensor<4>> {
        let [batch, heads, columns, width] = new.queries.dims();
        if columns != self.columns {
            return Err(Error::TensorShape {
                tensor: "queries",
                expected: format!("[{batch}, {heads}, {}, {width}], the prompt", self.columns),
                found: new.queries.dims().into(),
            });
        }
        let device = self.caches.first().map(|cache| cache.device_of(layer).clone());
        let clock = Clock(device.filter(|_| self.is_timed));
        let shared = SharedAttention::new(clock.clone());
        let mut output = None;
        for (cache, each) in self.caches.iter_mut().zip(&mut self.times.each) {
            let start = clock.now();
            let Attention(attended) = cache.call(layer, new.clone(), encoding, Some(&shared))?;
            let took = clock.now() - start;
            self.times.all += took;
            *each += took + shared.saved.take();
            output.get_or_insert(attended);
        }
        output.ok_or_else(|| Error::SharedPrefill { cache: 0, reason: "there is none".into() })
    }

    /// Empties all caches, for example after the model has failed between two layers.
    pub fn reset(&mut self) {
        self.caches.iter_mut().for_each(KvCache::reset);
    }
}

impl Policy {
    /// Whether the attention of a whole prompt is the same under this policy as under others: true
    /// without sparse attention.
    pub fn can_share_prefill(&self) -> bool {
        self.sparse_prefill().is_none()
    }
}
