use burn::{
    optim::{AdamW, AdamWConfig, AdamWState, Optimizer as _},
    tensor::Tensor,
};

use crate::{Plan, model::Parameters};

/// Moments of the optimiser, of the matrices and of the norms.
pub(crate) type Memory = [AdamWState<1>; 2];

/// AdamW over the two flat vectors of the weights: the matrices with decay, the norms without.
pub(crate) struct Optimizer {
    matrices: AdamW,
    norms: AdamW,
    clip: f64,
    /// Its moments, `None` before the first step.
    pub(crate) state: Option<Memory>,
}

impl Optimizer {
    pub(crate) fn new(plan: &Plan) -> Self {
        let config = AdamWConfig::new()
            .with_beta_1(plan.betas[0] as f32)
            .with_beta_2(plan.betas[1] as f32)
            .with_epsilon(1e-8);
        let build = |decay: f64| config.clone().with_weight_decay(decay as f32).build();
        Self { matrices: build(plan.weight_decay), norms: build(0.0), clip: plan.clip, state: None }
    }

    /// Makes one step. Returns the weights and the norm of all gradients before clipping, `[1]`.
    pub(crate) fn step(
        &mut self,
        rate: f64,
        parameters: Parameters,
        gradients: Parameters,
    ) -> (Parameters, Tensor<1>) {
        let squares = |x: &Tensor<1>| x.clone().square().sum();
        let norm = (squares(&gradients.matrices) + squares(&gradients.norms)).sqrt();
        let scale = (norm.clone().add_scalar(1e-6).recip() * self.clip).clamp_max(1.0);
        let [matrices, norms] = [gradients.matrices, gradients.norms].map(|x| x * scale.clone());
        let (of_matrices, of_norms) = match self.state.take() {
            Some([a, b]) => (Some(a), Some(b)),
            None => (None, None),
        };
        let (matrices, of_matrices) =
            self.matrices.step(rate, parameters.matrices, matrices, of_matrices);
        let (norms, of_norms) = self.norms.step(rate, parameters.norms, norms, of_norms);
        self.state = of_matrices.zip(of_norms).map(|(a, b)| [a, b]);
        (Parameters { matrices, norms }, norm)
    }
}
