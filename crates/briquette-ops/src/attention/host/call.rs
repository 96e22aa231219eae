//! A call of one query per head: what it asks, read and checked, and its answer.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{
    attention::decode::{DecodeInput, DecodeOutput},
    error::Result,
    host::HostInput,
};

/// The queries of a call, and what their scores are made with.
pub(super) struct Call<'a> {
    input: &'a DecodeInput,
    /// Scaled, `[lists, group, head_dim]`.
    pub(super) queries: Vec<f32>,
    /// Queries of a kv head.
    pub(super) group: usize,
    sinks: Option<Vec<f32>>,
    slopes: Option<Vec<f32>>,
}

impl<'a> Call<'a> {
    /// Reads a call over so many batch rows, kv heads and channels of a key, and so many columns of
    /// weights.
    pub(super) fn read(
        input: &'a DecodeInput,
        check: HostInput,
        [batch, kv_heads, head_dim]: [usize; 3],
        columns: usize,
    ) -> Result<Self> {
        let DecodeInput { queries, scoring, .. } = input;
        let query_heads = queries.dims()[1];
        check.shape("queries", queries.dims(), [batch, query_heads, 1, head_dim])?;
        let whole = kv_heads > 0 && query_heads.is_multiple_of(kv_heads);
        check.value("query_heads", query_heads, whole, format!("a multiple of {kv_heads}"))?;
        let some = query_heads > 0 && head_dim > 0 && columns > 0;
        check.value("columns", columns, some, "1 or more, as channels and heads")?;
        let of_heads = |tensor: &Option<Tensor<1>>, name| -> Result<Option<Vec<f32>>> {
            let Some(tensor) = tensor else { return Ok(None) };
            check.shape(name, tensor.dims(), [query_heads])?;
            check.floats(tensor).map(Some)
        };
        let (sinks, slopes) =
            (of_heads(&scoring.sinks, "sinks")?, of_heads(&scoring.slopes, "slopes")?);
        let mut queries = check.floats(queries)?;
        queries.iter_mut().for_each(|number| *number *= scoring.scale as f32);
        Ok(Self { input, queries, group: query_heads / kv_heads, sinks, slopes })
    }

    fn of_head(&self, numbers: &Option<Vec<f32>>, list: usize, head: usize) -> Option<f32> {
        let numbers = numbers.as_ref()?;
        Some(numbers[(list * self.group + head) % numbers.len()])
    }

    /// The sink of a query head of a list.
    pub(super) fn sink(&self, list: usize, head: usize) -> Option<f32> {
        self.of_head(&self.sinks, list, head)
    }

    /// Caps scores, if they are capped.
    #[inline(always)]
    pub(super) fn cap(&self, scores: &mut [f32]) {
        if let Some(cap) = self.input.scoring.softcap.map(|cap| cap as f32) {
            scores.iter_mut().for_each(|score| *score = (*score / cap).tanh() * cap);
        }
    }

    /// The answer: rows of channels for each query head, and of columns where weights are wanted.
    pub(super) fn answer(&self, output: Vec<f32>, weights: Vec<f32>) -> DecodeOutput {
        let DecodeInput { queries, weights: wanted, .. } = self.input;
        let [batch, query_heads, ..] = queries.dims();
        let device = queries.device();
        let tensor = |numbers: Vec<f32>, dtype| {
            let dims = [batch, query_heads, 1, numbers.len() / (batch * query_heads)];
            Tensor::from_data(TensorData::new(numbers, dims), (&device, dtype))
        };
        DecodeOutput {
            output: tensor(output, queries.dtype()),
            weights: wanted.then(|| tensor(weights, DType::F32)),
        }
    }
}

/// What only entries that have positions read.
impl Call<'_> {
    /// The slope of a query head of a list, 0 without slopes.
    pub(super) fn slope(&self, list: usize, head: usize) -> f32 {
        self.of_head(&self.slopes, list, head).unwrap_or(0.0)
    }

    /// The first position that a query at this one sees.
    pub(super) fn first_seen(&self, query: i64) -> i64 {
        self.input.scoring.window.map_or(0, |window| window.first_seen(query).max(0))
    }
}
