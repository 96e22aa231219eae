//! The states of recurrent layers, which a cache keeps beside its entries.

use burn::tensor::{DType, Device, Tensor};

use super::{
    Prompt,
    progress::{InputSpan, Progress},
};
use crate::{
    Error, Result, check,
    device::{Rows, buffer_bytes},
    prefix::Parts,
    rows::{append_rows, select_list, select_rows},
};

/// Maximum of a dimension, so that bytes of a state can be multiplied.
const MOST: usize = 1 << 20;

/// Dimensions of the state of a recurrent layer: linear attention, or another recurrence with a
/// matrix per head, behind a causal convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentShape {
    /// Number of channels that the convolution reads.
    pub channels: usize,
    /// Number of columns before a token that the convolution reads: its kernel less one.
    pub columns: usize,
    /// Number of heads with a matrix.
    pub heads: usize,
    /// Number of rows of a matrix, the channels of a key.
    pub key_dim: usize,
    /// Number of columns of a matrix, the channels of a value.
    pub value_dim: usize,
}

/// State of a recurrent layer, in f32.
#[derive(Clone, Debug)]
pub struct RecurrentState {
    /// The last inputs of the convolution, `[batch, channels, columns]`.
    pub inputs: Tensor<3>,
    /// The matrix of each head, `[batch, heads, key_dim, value_dim]`.
    pub memory: Tensor<4>,
}

impl RecurrentShape {
    /// Bytes of the state of a batch row.
    pub fn bytes(&self) -> usize {
        self.bytes_in(|numbers| numbers.saturating_mul(DType::F32.size()))
    }

    /// Bytes of the state of a batch row on a device of this layout.
    pub(super) fn bytes_on(&self, rows: Rows) -> usize {
        self.bytes_in(|numbers| rows.bytes(numbers, DType::F32.size()))
    }

    fn bytes_in(&self, of_last: impl Fn(usize) -> usize) -> usize {
        let Self { channels, columns, heads, key_dim, value_dim } = *self;
        let inputs = channels.saturating_mul(of_last(columns));
        let memory = heads.saturating_mul(key_dim).saturating_mul(of_last(value_dim));
        inputs.saturating_add(memory)
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { channels, columns, heads, key_dim, value_dim } = *self;
        let dims = [
            ("channels of a recurrent layer", channels),
            ("columns of a recurrent layer", columns),
            ("heads of a recurrent layer", heads),
            ("key_dim of a recurrent layer", key_dim),
            ("value_dim of a recurrent layer", value_dim),
        ];
        match dims.into_iter().find(|(_, dim)| !(1..=MOST).contains(dim)) {
            Some((name, dim)) => check::refuse(name, dim, format!("at least 1 and at most {MOST}")),
            None => Ok(()),
        }
    }

    fn inputs_dims(&self, batch: usize) -> [usize; 3] {
        [batch, self.channels, self.columns]
    }

    fn memory_dims(&self, batch: usize) -> [usize; 4] {
        [batch, self.heads, self.key_dim, self.value_dim]
    }
}

impl RecurrentState {
    /// The state before the first token.
    fn zeros(shape: RecurrentShape, batch: usize, device: &Device) -> Self {
        Self {
            inputs: Tensor::zeros(shape.inputs_dims(batch), (device, DType::F32)),
            memory: Tensor::zeros(shape.memory_dims(batch), (device, DType::F32)),
        }
    }

    fn bytes(&self, rows: Rows) -> usize {
        buffer_bytes(&self.inputs, rows) + buffer_bytes(&self.memory, rows)
    }

    /// Refuses a state that is not of this shape, in f32, on this device.
    pub(super) fn check(&self, shape: RecurrentShape, batch: usize, device: &Device) -> Result<()> {
        let (inputs, memory) = (shape.inputs_dims(batch), shape.memory_dims(batch));
        check_tensor("inputs of a recurrent state", &self.inputs, inputs, device)?;
        check_tensor("memory of a recurrent state", &self.memory, memory, device)
    }

    fn select_rows(&self, rows: &[usize]) -> Self {
        let Self { inputs, memory } = self.clone();
        Self { inputs: select_rows(inputs, rows), memory: select_rows(memory, rows) }
    }

    fn append_rows(&self, more: &Self) -> Self {
        let (own, more) = (self.clone(), more.clone());
        Self {
            inputs: append_rows(own.inputs, more.inputs),
            memory: append_rows(own.memory, more.memory),
        }
    }
}

fn check_tensor<const D: usize>(
    tensor: &'static str,
    x: &Tensor<D>,
    dims: [usize; D],
    device: &Device,
) -> Result<()> {
    let (found, dtype) = (x.dims().to_vec(), x.dtype());
    if found != dims {
        return Err(Error::TensorShape { tensor, expected: format!("{dims:?}"), found });
    }
    if dtype != DType::F32 {
        return Err(Error::DataType { what: tensor, dtype, expected: "F32".into() });
    }
    if x.device() != *device {
        let [expected, found] = [device, &x.device()].map(|device| format!("{device:?}"));
        return Err(Error::WrongDevice { tensor, expected, found });
    }
    Ok(())
}

/// A recurrent layer of a cache between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct RecurrentLayer {
    pub(super) progress: Progress,
    /// `None` before the first token.
    pub(super) state: Option<RecurrentState>,
    /// The layer as it was before the prompt that is arriving.
    mark: Option<Box<Self>>,
}

impl RecurrentLayer {
    pub(super) fn begin_prompt(&mut self, prompt: Prompt) {
        let mut before = Self { mark: None, ..self.clone() };
        before.progress.withdraw();
        self.mark = Some(Box::new(before));
        self.progress.begin(prompt);
    }

    /// The layer as it was before the prompt that is arriving, if one is.
    pub(super) fn before_prompt(&self) -> Self {
        self.mark.as_deref().unwrap_or(self).clone()
    }

    pub(super) fn forget_mark(&mut self) {
        self.mark = None;
    }

    /// The state that the next tokens go on from.
    pub(super) fn state_or_zeros(
        &self,
        shape: RecurrentShape,
        batch: usize,
        device: &Device,
    ) -> RecurrentState {
        self.state.clone().unwrap_or_else(|| RecurrentState::zeros(shape, batch, device))
    }

    /// The layer behind the tokens of this span, which have left this state.
    pub(super) fn after(&self, span: InputSpan, state: RecurrentState) -> Self {
        let (progress, mark) = (span.into_progress(false), self.mark.clone());
        Self { progress, state: Some(state), mark }
    }

    pub(super) fn bytes(&self, rows: Rows) -> usize {
        // A prompt of which nothing has arrived has left the state as it was.
        let count = self.progress.count();
        let before = self.mark.as_ref().filter(|before| before.progress.count() < count);
        let states = [self.state.as_ref(), before.and_then(|before| before.state.as_ref())];
        states.into_iter().flatten().map(|state| state.bytes(rows)).sum()
    }

    pub(super) fn select_rows(&self, rows: &[usize]) -> Self {
        let batch = self.progress.seen().len();
        let of_rows = |all: &[usize]| select_list(all, batch, rows);
        let (seen, columns) = (of_rows(self.progress.seen()), of_rows(self.progress.columns()));
        Self {
            progress: Progress::after(seen, columns, self.progress.decoded()),
            state: self.state.as_ref().map(|state| state.select_rows(rows)),
            mark: None,
        }
    }

    pub(super) fn append_rows(&self, more: &Self) -> Self {
        let seen = [self.progress.seen(), more.progress.seen()].concat();
        let columns = [self.progress.columns(), more.progress.columns()].concat();
        let states = self.state.as_ref().zip(more.state.as_ref());
        Self {
            progress: Progress::after(seen, columns, self.progress.decoded()),
            state: states.map(|(own, more)| own.append_rows(more)),
            mark: None,
        }
    }

    pub(super) fn save(&self) -> Result<Parts> {
        let mut parts = Parts::default();
        parts.put_numbers("columns", self.progress.columns());
        parts.put_numbers("decoded", [self.progress.decoded()]);
        if let Some(RecurrentState { inputs, memory }) = &self.state {
            parts.put("inputs", inputs)?;
            parts.put("memory", memory)?;
        }
        Ok(parts)
    }

    pub(super) fn restore(
        mut parts: Parts,
        seen: &[usize],
        shape: RecurrentShape,
        device: &Device,
    ) -> Result<Self> {
        let batch = seen.len();
        let columns = parts.take_list("columns", batch)?;
        let progress = Progress::after(seen.to_vec(), columns, parts.take_number("decoded")?);
        let state = RecurrentState {
            inputs: parts.take_float("inputs", shape.inputs_dims(batch), device)?,
            memory: parts.take_float("memory", shape.memory_dims(batch), device)?,
        };
        state.check(shape, batch, device)?;
        parts.finish()?;
        Ok(Self { progress, state: Some(state), mark: None })
    }
}
