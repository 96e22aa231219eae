//! Caches that are looked at while a model runs: wrappers of the operations a cache calls. A
//! forward pass calls the attention once a layer, in order.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use briquette::{
    CacheConfig, KvCache, Policy,
    ops::{AttentionOutput, HeadPattern, OpError, Ops},
    position::NoPositionEncoding,
};
use briquette_models::Model;
use briquette_ops::{
    AttentionInput, AttentionOps, ClusterOps, EntryOps, MergeOps, ModelOps, SelectOps, WindowInput,
    closest_patterns,
};
use burn::tensor::{DType, Tensor, TensorData};

use crate::{Result, tensors::numbers};

/// An empty cache for the model, as [`Model::cache`] makes it, with other operations.
pub(crate) fn cache(model: &Model, policy: Policy, ops: Arc<dyn Ops>) -> Result<KvCache> {
    let config = model.cache_config(&policy)?.with_ops(ops);
    Ok(KvCache::with_config(model.cache_shape(), policy, config, &model.device())?)
}

/// The operations under a wrapper.
fn inner() -> Arc<dyn Ops> {
    CacheConfig::default().ops
}

/// Locks a mutex, also after a panic: its value is only ever replaced or added to, so it is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the weights of the queries of one forward pass.
#[derive(Debug)]
pub(crate) struct Weights {
    inner: Arc<dyn Ops>,
    /// One tensor a layer while a pass is watched.
    watched: Mutex<Option<Vec<Tensor<4>>>>,
}

impl Weights {
    pub(crate) fn new() -> Self {
        Self { inner: inner(), watched: Mutex::new(None) }
    }

    /// Watches what is run from now on.
    pub(crate) fn watch(&self) {
        *lock(&self.watched) = Some(Vec::new());
    }

    /// The weights since then, one `[batch][query_heads][queries][entries]` a layer.
    pub(crate) fn take(&self) -> Result<Vec<Vec<f32>>> {
        let layers = lock(&self.watched).take().unwrap_or_default();
        layers.into_iter().map(numbers).collect()
    }
}

/// A wrapper of attention; all else is done by tensor operations.
macro_rules! wraps_attention {
    ($($wrapper:ty),*) => {$(
        impl EntryOps for $wrapper {}
        impl SelectOps for $wrapper {}
        impl MergeOps for $wrapper {}
        impl ClusterOps for $wrapper {}
        impl ModelOps for $wrapper {}
        impl Ops for $wrapper {}
    )*};
}
wraps_attention!(Weights, Compared, Masked, Patterns);

impl AttentionOps for Weights {
    fn attention(&self, input: AttentionInput) -> std::result::Result<AttentionOutput, OpError> {
        if let Some(layers) = lock(&self.watched).as_mut() {
            layers.push(self.inner.window_weights(WindowInput {
                queries: input.queries.clone(),
                keys: input.keys.clone(),
                visibility: input.visibility.clone(),
                scoring: input.scoring.clone(),
            })?);
        }
        self.inner.attention(input)
    }
}

/// Gives the queries, keys and values of every call to a second cache too, and compares what the
/// two return.
#[derive(Debug)]
pub(crate) struct Compared {
    inner: Arc<dyn Ops>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    second: KvCache,
    /// Output projection of each layer, applied before outputs are compared,
    /// `[query_heads * head_dim, hidden_size]`.
    projections: Vec<Tensor<2>>,
    calls: usize,
    /// Norms of the differences and of the outputs while a pass is watched, one pair a layer, each
    /// `[tokens]`.
    watched: Option<Vec<[Tensor<1>; 2]>>,
    /// The first failure of the second cache, which an operation cannot return.
    failure: Option<briquette::Error>,
}

impl Compared {
    pub(crate) fn new(model: &Model, second: Policy) -> Result<Self> {
        let second = model.cache(second)?;
        let projections = model.output_projections();
        let state = State { second, projections, calls: 0, watched: None, failure: None };
        Ok(Self { inner: inner(), state: Mutex::new(state) })
    }

    /// Watches what is run from now on.
    pub(crate) fn watch(&self) {
        lock(&self.state).watched = Some(Vec::new());
    }

    /// Norms since [`watch`](Self::watch), one pair per layer: for each token the Frobenius norm of
    /// the difference of the projected outputs, and that of the first cache's.
    pub(crate) fn take(&self) -> Result<Vec<[Vec<f32>; 2]>> {
        let mut state = lock(&self.state);
        if let Some(failure) = state.failure.take() {
            return Err(failure.into());
        }
        let layers = state.watched.take().unwrap_or_default();
        let read = |[difference, norm]: [Tensor<1>; 2]| Ok([numbers(difference)?, numbers(norm)?]);
        layers.into_iter().map(read).collect()
    }
}

impl AttentionOps for Compared {
    fn attention(&self, input: AttentionInput) -> std::result::Result<AttentionOutput, OpError> {
        let (entries, new) = (input.keys.dims()[2], input.queries.dims()[2]);
        let queries = input.queries.clone();
        let [keys, values] =
            [&input.keys, &input.values].map(|x| x.clone().narrow(2, entries - new, new));
        let output = self.inner.attention(input)?;
        lock(&self.state).compare([queries, keys, values], &output.output);
        Ok(output)
    }
}

impl State {
    /// Positions are encoded already.
    fn compare(&mut self, [queries, keys, values]: [Tensor<4>; 3], first: &Tensor<4>) {
        let layer = self.calls % self.second.shape().layers;
        self.calls += 1;
        match self.second.attend(layer, queries, keys, values, &NoPositionEncoding) {
            Ok(second) => {
                if let Some(layers) = &mut self.watched {
                    let first = first.clone().cast(DType::F32);
                    let difference = second.cast(DType::F32) - first.clone();
                    let projection = self.projections[layer].clone().cast(DType::F32);
                    layers.push([difference, first].map(|x| norms(x, projection.clone())));
                }
            }
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }
}

/// The Frobenius norm of each token after the projection: `[1, heads, tokens, head_dim]` becomes
/// `[tokens]`.
fn norms(x: Tensor<4>, projection: Tensor<2>) -> Tensor<1> {
    let [_, heads, tokens, head_dim] = x.dims();
    let projected = x.swap_dims(1, 2).reshape([tokens, heads * head_dim]).matmul(projection);
    projected.square().sum_dim(1).sqrt().reshape([tokens])
}

/// Searches the pattern of sparse attention of each head that is closest to its dense attention, in
/// the first pass over the layers: MInference's search.
#[derive(Debug)]
pub(crate) struct Patterns {
    inner: Arc<dyn Ops>,
    candidates: Vec<HeadPattern>,
    /// `[layers][query_heads]`, as far as the pass has come.
    layers: Mutex<Vec<Vec<HeadPattern>>>,
}

impl Patterns {
    pub(crate) fn new(candidates: &[HeadPattern]) -> Self {
        Self { inner: inner(), candidates: candidates.to_vec(), layers: Mutex::default() }
    }

    /// The patterns found, `[layers][query_heads]`.
    pub(crate) fn take(&self) -> Vec<Vec<HeadPattern>> {
        std::mem::take(&mut lock(&self.layers))
    }
}

impl AttentionOps for Patterns {
    fn attention(&self, input: AttentionInput) -> std::result::Result<AttentionOutput, OpError> {
        let found = closest_patterns(self.inner.as_ref(), input.clone(), &self.candidates)?;
        lock(&self.layers).push(found);
        self.inner.attention(input)
    }
}

/// Silences heads: their attention returns zeros.
#[derive(Debug)]
pub(crate) struct Masked {
    inner: Arc<dyn Ops>,
    /// `[1, query_heads, 1, 1]` a layer, 0 for a silent head, else 1; `None` where no head is.
    layers: Vec<Option<Tensor<4>>>,
    calls: AtomicUsize,
}

impl Masked {
    /// `silent` are layers and query heads.
    pub(crate) fn new(model: &Model, silent: &[(usize, usize)]) -> Self {
        let shape = model.cache_shape();
        let mask = |layer| {
            let mut mask = vec![1.0_f32; shape.query_heads];
            for (_, head) in silent.iter().filter(|(of, _)| *of == layer) {
                mask[*head] = 0.0;
            }
            let data = TensorData::new(mask, [1, shape.query_heads, 1, 1]);
            let some = silent.iter().any(|(of, _)| *of == layer);
            some.then(|| Tensor::from_data(data, (&model.device(), model.dtype())))
        };
        let layers = (0..shape.layers).map(mask).collect();
        Self { inner: inner(), layers, calls: AtomicUsize::new(0) }
    }
}

impl AttentionOps for Masked {
    fn attention(&self, input: AttentionInput) -> std::result::Result<AttentionOutput, OpError> {
        let layer = self.calls.fetch_add(1, Ordering::Relaxed) % self.layers.len();
        let mut output = self.inner.attention(input)?;
        if let Some(mask) = &self.layers[layer] {
            // Layers may lie on several devices.
            let mask = mask.clone().to_device(&output.output.device());
            output.output = output.output * mask;
        }
        Ok(output)
    }
}
