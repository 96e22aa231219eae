use burn::tensor::{Device, Int, Tensor};

/// Rotary position embedding, as a model without Briquette would hold it.
pub(crate) struct Rope {
    /// `[positions, head_dim / 2]`
    cos: Tensor<2>,
    /// `[positions, head_dim / 2]`
    sin: Tensor<2>,
}

impl Rope {
    pub(crate) fn new(head_dim: usize, positions: usize, theta: f64, device: &Device) -> Self {
        let count = |to: usize| Tensor::<1, Int>::arange(0..to as i64, device).float();
        let frequencies = (count(head_dim / 2) * (-2.0 * theta.ln() / head_dim as f64)).exp();
        let angles = count(positions).unsqueeze_dim::<2>(1) * frequencies.unsqueeze_dim(0);
        Self { cos: angles.clone().cos(), sin: angles.sin() }
    }

    /// Rotates `x`, `[batch, heads, tokens, head_dim]`, whose first token stands at position
    /// `start`.
    pub(crate) fn apply(&self, x: Tensor<4>, start: usize) -> Tensor<4> {
        let [_, _, tokens, head_dim] = x.dims();
        let cos = self.cos.clone().narrow(0, start, tokens).unsqueeze::<4>();
        let sin = self.sin.clone().narrow(0, start, tokens).unsqueeze::<4>();
        let low = x.clone().narrow(3, 0, head_dim / 2);
        let high = x.narrow(3, head_dim / 2, head_dim / 2);
        let rotated_low = low.clone() * cos.clone() - high.clone() * sin.clone();
        Tensor::cat(vec![rotated_low, high * cos + low * sin], 3)
    }
}
