use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::recurrent::RecurrentShape;
use crate::{
    Budget, CacheShape, Error, LayerShape, Policy, PrefillCompression, Result, Schedule, check,
    ops::{Ops, Scoring, Window, best},
};

/// The settings a cache needs beyond the model's shape and the policy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheConfig {
    /// The type keys and values are held in: f32, f16 or bf16; `None` is the type of the first
    /// keys. Later queries, keys and values may come in another; scores and sums are always f32.
    pub dtype: Option<DType>,
    /// Number of columns to make room for at the start, if it is known.
    pub capacity: Option<usize>,
    /// The factor of query-key products; `None` is `1 / √head_dim`.
    pub softmax_scale: Option<f64>,
    /// The limit of attention scores; `None` sets none.
    pub softcap: Option<f64>,
    /// The learned sink logit of each query head, `[query_heads]` per layer.
    pub sinks: Option<Arc<[Tensor<1>]>>,
    /// The ALiBi slope of each query head, `[query_heads]`.
    pub slopes: Option<Tensor<1>>,
    /// The positions that a query sees in each layer; `None` is all up to its own.
    pub windows: Option<Arc<[Option<Window>]>>,
    /// The device of each layer of attention, and behind them of each recurrent one; `None` is that
    /// of the cache for all.
    pub devices: Option<Arc<[Device]>>,
    /// Number of channels of a value; `None` is that of a key.
    pub value_dim: Option<usize>,
    /// Whether values are the first channels of keys.
    pub values_in_keys: bool,
    /// The dimensions of each layer; `None` is those of the cache.
    pub layer_shapes: Option<Arc<[LayerShape]>>,
    /// The states of recurrent layers, which the shape of the cache does not count.
    pub recurrent_layers: Option<Arc<[RecurrentShape]>>,
    /// When queries, keys and values are checked for NaN and infinity.
    pub input_check: InputCheck,
    /// The output projection of each layer, `[query_heads · value_dim, hidden]`, for policies that
    /// [read them](Policy::reads_output_weights).
    pub output_weights: Option<Arc<[Tensor<2>]>>,
    /// Identity of the model among others of its shape, such as a hash of its weights. A
    /// [prefix](crate::Prefix) loads only for the model it was saved for.
    pub model: Option<String>,
    /// Maximum number of bytes [held](crate::KvCache::bytes_held); `None` sets no limit.
    pub memory_ceiling: Option<usize>,
    /// The hot operations.
    pub ops: Arc<dyn Ops>,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            dtype: None,
            capacity: None,
            softmax_scale: None,
            softcap: None,
            sinks: None,
            slopes: None,
            windows: None,
            devices: None,
            value_dim: None,
            values_in_keys: false,
            layer_shapes: None,
            recurrent_layers: None,
            input_check: InputCheck::default(),
            output_weights: None,
            model: None,
            memory_ceiling: None,
            ops: best(),
        }
    }
}

/// When queries, keys and values are checked for NaN and infinity, and scores for NaN when entries
/// are selected. A check reads a few numbers back from the device. On an accelerator that is one
/// round trip per layer, which is negligible for a prompt but not for a decoded token.
///
/// Scores that are selected on the host are always checked, since they are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputCheck {
    /// In every call.
    Always,
    /// While a prompt arrives.
    #[default]
    Prompt,
    /// Never. A NaN is then left to the model; an entry whose score is NaN is evicted first.
    Never,
}

impl InputCheck {
    /// Whether a call is checked: one with tokens of a `prompt`, or one with a decoded token.
    pub(crate) fn applies(self, prompt: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Prompt => prompt,
            Self::Never => false,
        }
    }
}

impl CacheConfig {
    /// Sets the type that keys and values are held in.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the number of columns to make room for at the start.
    pub fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = Some(capacity);
        self
    }

    /// Sets when to check for NaN and infinity.
    pub fn with_input_check(mut self, input_check: InputCheck) -> Self {
        self.input_check = input_check;
        self
    }

    /// Sets the factor of query-key products.
    pub fn with_softmax_scale(mut self, scale: f64) -> Self {
        self.softmax_scale = Some(scale);
        self
    }

    /// Sets the limit of attention scores: x becomes cap · tanh(x / cap), behind the factor of
    /// query-key products and before the mask (Gemma 2).
    pub fn with_softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Sets the learned sink logits, one tensor per layer, `[query_heads]`: a logit takes part in
    /// the sum that a query's weights are divided by, and has no value (gpt-oss).
    pub fn with_sinks(mut self, sinks: Vec<Tensor<1>>) -> Self {
        self.sinks = Some(sinks.into());
        self
    }

    /// Sets the slopes of ALiBi, `[query_heads]`, the same in every layer: slope · (entry's
    /// position − query's position) is added to a score. Positions are those that tokens were
    /// written at, whatever was evicted between them.
    pub fn with_slopes(mut self, slopes: Tensor<1>) -> Self {
        self.slopes = Some(slopes);
        self
    }

    /// Sets the window of each layer: a number of positions, a query's own and those before, or
    /// [chunks](Window::Chunk). A layer with `None` attends to all.
    ///
    /// A layer with a window holds the tokens that the next one may see, in full precision: the
    /// policy compresses the other layers only, and its budget is theirs.
    pub fn with_windows(mut self, windows: Vec<Option<impl Into<Window>>>) -> Self {
        self.windows = Some(windows.into_iter().map(|window| window.map(Into::into)).collect());
        self
    }

    /// Sets the device of each layer, on which its queries, keys and values will come: for models
    /// whose layers lie on several. Those of recurrent layers come behind. What a layer needs lies
    /// there too, such as its sinks.
    ///
    /// Policies that repeat prompts are refused, recorded steps are launched.
    pub fn with_devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = Some(devices.into());
        self
    }

    /// Sets the weights that the model multiplies the output of attention by, one tensor per layer,
    /// `[query_heads · value_dim, hidden]`: the `weight` of a Burn `Linear`.
    pub fn with_output_weights(mut self, weights: Vec<Tensor<2>>) -> Self {
        self.output_weights = Some(weights.into());
        self
    }

    /// Checks that the output projections of a model of this shape are given, if the policy reads
    /// them.
    pub(crate) fn check_output_weights(&self, policy: &Policy, shape: CacheShape) -> Result<()> {
        if !policy.reads_output_weights() {
            return Ok(());
        }
        let found = self.output_weights.as_deref().unwrap_or_default();
        let inputs = |layer: usize| {
            let LayerShape { query_heads, value_dim, .. } = self.layer_shape(shape, layer);
            query_heads * value_dim
        };
        let given = |layer: usize| found.get(layer).map(|weight| weight.dims()[0]);
        let misfit = (0..shape.layers).find(|&layer| given(layer) != Some(inputs(layer)));
        let Some(layer) = misfit.or((found.len() > shape.layers).then_some(0)) else {
            return Ok(());
        };
        Err(Error::OutputWeights {
            policy: policy.name().to_owned(),
            layers: shape.layers,
            layer,
            inputs: inputs(layer),
            found: found.iter().map(Tensor::dims).collect(),
        })
    }

    /// The factor of query-key products of a layer of this shape.
    pub(super) fn scale(&self, shape: CacheShape) -> f64 {
        self.softmax_scale.unwrap_or(1.0 / (shape.head_dim as f64).sqrt())
    }

    /// How query-key products of a layer become weights; `shape` is the layer's.
    pub(super) fn scoring(&self, shape: CacheShape, layer: usize) -> Scoring {
        let Self { softcap, ref sinks, ref slopes, .. } = *self;
        Scoring {
            softcap,
            sinks: sinks.as_ref().and_then(|all| all.get(layer).cloned()),
            slopes: slopes.clone(),
            window: self.window(layer),
            ..Scoring::plain(self.scale(shape))
        }
    }

    /// The positions that a query sees in a layer; `None` is all.
    pub(crate) fn window(&self, layer: usize) -> Option<Window> {
        self.windows.as_ref().and_then(|all| all.get(layer).copied().flatten())
    }

    /// Checks that windows are those of a model of this shape, and that the policy goes layer by
    /// layer, so that it can leave some out.
    pub(crate) fn check_windows(&self, shape: CacheShape, policy: &Policy) -> Result<()> {
        let Some(windows) = &self.windows else { return Ok(()) };
        if windows.len() != shape.layers {
            let must_be = format!("of {} layers, as the cache", shape.layers);
            return check::refuse("windows", format!("of {} layers", windows.len()), must_be);
        }
        if windows.iter().flatten().any(|window| window.size() == 0) {
            return check::refuse("windows", 0, "at least 1 in a layer that has one");
        }
        if windows.iter().all(Option::is_none) {
            return Ok(());
        }
        let Some(reason) = policy.looks_at_all_layers() else { return Ok(()) };
        let found = format!("`{}`, which {reason}", policy.name());
        check::refuse(
            "the policy of a model that has layers with a window",
            found,
            "one that goes layer by layer",
        )
    }

    /// The policy of each layer with a window, which keeps the tokens that the next one may see:
    /// those of a chunk that has ended go one by one.
    pub(super) fn window_policies(&self) -> Arc<[Option<Policy>]> {
        let schedule = Schedule::always(1).with_prefill(PrefillCompression::EveryChunk);
        let of_window = |window: Window| {
            let before = window.size().saturating_sub(1).max(1);
            Policy::local_window(Budget::Tokens(before)).with_schedule(schedule)
        };
        let windows = self.windows.as_deref().unwrap_or_default();
        windows.iter().map(|window| window.map(of_window)).collect()
    }

    /// Checks that sinks and slopes are those of a model of this shape, on this device.
    pub(crate) fn check_scoring<'a>(
        &self,
        shape: CacheShape,
        device_of: impl Fn(usize) -> &'a Device,
    ) -> Result<()> {
        let layers = shape.layers;
        let fits = |tensor: &'static str, x: &Tensor<1>, layer: usize| {
            let query_heads = self.layer_shape(shape, layer).query_heads;
            let device = device_of(layer);
            if x.device() != *device {
                return Err(Error::WrongDevice {
                    tensor,
                    expected: format!("{device:?}"),
                    found: format!("{:?}", x.device()),
                });
            }
            if x.dims() != [query_heads] {
                return Err(Error::TensorShape {
                    tensor,
                    expected: format!(
                        "[{query_heads}], one number per query head of layer {layer}"
                    ),
                    found: x.dims().to_vec(),
                });
            }
            Ok(())
        };
        if let Some(sinks) = &self.sinks {
            if sinks.len() != layers {
                let found = format!("of {} layers", sinks.len());
                return check::refuse("sinks", found, format!("of {layers} layers, as the cache"));
            }
            let mut sinks = sinks.iter().enumerate();
            sinks.try_for_each(|(layer, sinks)| fits("sinks", sinks, layer))?;
        }
        let Some(slopes) = &self.slopes else { return Ok(()) };
        (0..layers).try_for_each(|layer| fits("slopes", slopes, layer))
    }

    /// Whether the same queries and keys have the same weights under another configuration, as far
    /// as the host can tell.
    pub(super) fn scores_as(&self, other: &Self) -> bool {
        self.softmax_scale == other.softmax_scale
            && self.softcap == other.softcap
            && self.sinks.is_some() == other.sinks.is_some()
            && self.slopes.is_some() == other.slopes.is_some()
            && self.windows == other.windows
            && self.shape_texts() == other.shape_texts()
    }

    /// Sets the identity of the model among others of its shape.
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets the maximum number of bytes [held](crate::KvCache::bytes_held) between two calls, in
    /// prompts and in decoding.
    ///
    /// A call that needs more fails with [`Error::MemoryCeiling`]. It fails before anything is
    /// written if its need is known ahead, and is undone otherwise: either way the cache is as it
    /// was.
    ///
    /// During a call more memory is in use: the tensors of the model, the entries of a prompt that
    /// is compressed at its end, and both the old and the new entries of the layer at hand.
    pub fn with_memory_ceiling(mut self, bytes: usize) -> Self {
        self.memory_ceiling = Some(bytes);
        self
    }

    /// Sets the implementations of the hot operations.
    pub fn with_ops(mut self, ops: Arc<dyn Ops>) -> Self {
        self.ops = ops;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some(dtype) = self.dtype.filter(|&dtype| !is_cache_type(dtype)) {
            return Err(Error::DataType {
                what: "the cache",
                dtype,
                expected: "F32, F16 or BF16".into(),
            });
        }
        self.capacity.map_or(Ok(()), |capacity| check::columns("capacity", capacity))?;
        for (parameter, number) in
            [("softmax_scale", self.softmax_scale), ("softcap", self.softcap)]
        {
            if let Some(number) = number.filter(|number| !(number.is_finite() && *number > 0.0)) {
                return check::refuse(parameter, number, "a positive number");
            }
        }
        Ok(())
    }
}

/// Whether keys and values can be held, or handed over, in this type.
pub(crate) fn is_cache_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}
