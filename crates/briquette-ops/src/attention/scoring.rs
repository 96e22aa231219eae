use burn::tensor::{DType, FloatDType, Int, Tensor, activation::softmax};

use super::local_window::Window;

/// How query-key products become attention weights: times `scale`, capped, biased, and then the
/// softmax over the entries that a query sees.
#[derive(Clone, Debug)]
pub struct Scoring {
    /// Factor of query-key products.
    pub scale: f64,
    /// Limit of the scores: x becomes cap · tanh(x / cap) (Gemma 2). It applies behind `scale`, and
    /// before everything else.
    pub softcap: Option<f64>,
    /// A learned logit per query head, `[query_heads]`. It takes part in the sum that weights are
    /// divided by, and has no value (gpt-oss).
    pub sinks: Option<Tensor<1>>,
    /// A slope per query head, `[query_heads]`: scores get slope · (entry's position − query's
    /// position) added (ALiBi).
    pub slopes: Option<Tensor<1>>,
    /// The positions that a query sees; entries before them are hidden.
    pub window: Option<Window>,
}

impl Scoring {
    /// Returns the softmax of products times `scale`, and nothing else.
    pub fn plain(scale: f64) -> Self {
        Self { scale, softcap: None, sinks: None, slopes: None, window: None }
    }

    /// Returns the name of a field that makes it more than plain; `None` if none does.
    pub fn beyond_plain(&self) -> Option<&'static str> {
        let Self { scale: _, softcap, sinks, slopes, window } = self;
        let is_given = [
            ("softcap", softcap.is_some()),
            ("sinks", sinks.is_some()),
            ("slopes", slopes.is_some()),
            ("window", window.is_some()),
        ];
        is_given.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// Whether weights are the softmax of scaled products, and nothing else.
    pub fn is_plain(&self) -> bool {
        self.beyond_plain().is_none()
    }

    /// Whether weights depend on positions beyond the order of the entries.
    pub fn reads_positions(&self) -> bool {
        self.slopes.is_some() || self.window.is_some()
    }

    /// Caps scaled products.
    pub fn capped(&self, scores: Tensor<4>) -> Tensor<4> {
        match self.softcap {
            Some(cap) => (scores / cap).tanh() * cap,
            None => scores,
        }
    }

    /// Returns the weights of scores, `[batch, query_heads, rows, columns]`, in which what is not
    /// seen is far below zero.
    pub fn softmax(&self, scores: Tensor<4>) -> Tensor<4> {
        let Some(sinks) = &self.sinks else { return softmax(scores, 3) };
        let [batch, heads, rows, columns] = scores.dims();
        let sinks = sinks.clone().cast(DType::F32).reshape([1, heads, 1, 1]);
        let sinks = sinks.expand([batch, heads, rows, 1]);
        softmax(Tensor::cat(vec![scores, sinks], 3), 3).narrow(3, 0, columns)
    }

    /// Returns what slopes add to scores, `[batch, kv_heads, group, rows, columns]`, f32; `None`
    /// without slopes. Positions are `[batch, 1, rows, 1]` and `[batch, kv_heads, 1, columns]`.
    pub(super) fn bias(
        &self,
        queries: &Tensor<4, Int>,
        entries: &Tensor<4, Int>,
    ) -> Option<Tensor<5>> {
        let slopes = self.slopes.clone()?.cast(DType::F32);
        let [batch, kv_heads, _, columns] = entries.dims();
        let (rows, group) = (queries.dims()[2], slopes.dims()[0] / kv_heads);
        let shape = [batch, kv_heads, rows, columns];
        let distances = entries.clone().expand(shape) - queries.clone().expand(shape);
        let shape = [batch, kv_heads, group, rows, columns];
        let distances = distances.cast(FloatDType::F32).unsqueeze_dim::<5>(2).expand(shape);
        Some(distances * slopes.reshape([1, kv_heads, group, 1, 1]).expand(shape))
    }
}
