use burn::{
    module::Module,
    tensor::{IndexingUpdateOp, Int, Tensor, TensorData},
};

use crate::{
    Architecture, ExpertsConfig, Result,
    nn::{
        blocks::GatedFeedForward,
        build::Build,
        projection::{Projection, Projections, within},
    },
};

/// A mixture of experts (Shazeer et al., 2017,
/// [arXiv:1701.06538](https://arxiv.org/abs/1701.06538)): a token goes through the few networks
/// whose gates are highest, and their outputs are added with the gates' softmax as weights.
///
/// The gates are read to the host, which waits for the device once per layer: there each expert's
/// tokens are collected, so an expert computes for these only.
#[derive(Module, Debug)]
pub(crate) struct Experts {
    gate: Projection,
    experts: Vec<GatedFeedForward>,
    experts_per_token: usize,
    norm_topk_prob: bool,
}

impl Experts {
    pub(crate) fn new(build: Build<'_>, experts: &ExpertsConfig) -> Self {
        let expert = |_| GatedFeedForward::new(build, experts.intermediate_size);
        let bias = build.config.architecture == Architecture::GptOss;
        Self {
            gate: build.linear(build.config.hidden_size, experts.experts, bias),
            experts: (0..experts.experts).map(expert).collect(),
            experts_per_token: experts.experts_per_token,
            norm_topk_prob: experts.norm_topk_prob,
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let experts = self.experts.iter_mut().enumerate();
        let experts = experts.flat_map(|(number, expert)| {
            within(&format!("experts.{number}"), expert.projections())
        });
        [("gate".into(), &mut self.gate)].into_iter().chain(experts).collect()
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        let shape = x.dims();
        let [batch, tokens, channels] = shape;
        let rows = x.reshape([batch * tokens, channels]);
        let gates = self.gate.forward(rows.clone())?.try_into_vec_as::<f32>()?;
        let (device, dtype) = (rows.device(), rows.dtype());
        let mut sum = rows.zeros_like();
        for (expert, routed) in self.experts.iter().zip(self.route(&gates)) {
            if routed.is_empty() {
                continue;
            }
            let count = routed.len();
            let (places, weights): (Vec<i64>, Vec<f32>) = routed.into_iter().unzip();
            let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device);
            let weights = TensorData::new(weights, [count, 1]);
            let weights = Tensor::<2>::from_data(weights, (&device, dtype));
            let output = expert.forward(rows.clone().select(0, places.clone()))? * weights;
            sum = sum.select_assign(0, places, output, IndexingUpdateOp::Add);
        }
        Ok(sum.reshape(shape))
    }

    /// The tokens of each expert, with the weights of its output. Of equal gates the first expert's
    /// wins.
    fn route(&self, gates: &[f32]) -> Vec<Vec<(i64, f32)>> {
        let mut routed = vec![Vec::new(); self.experts.len()];
        for (token, gates) in (0..).zip(gates.chunks_exact(self.experts.len())) {
            let highest = gates.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = gates.iter().map(|gate| (gate - highest).exp()).collect();
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
            order.truncate(self.experts_per_token);
            let chosen: f32 = order.iter().map(|expert| weights[*expert]).sum();
            let total = if self.norm_topk_prob { chosen } else { weights.iter().sum() };
            for expert in order {
                routed[expert].push((token, weights[expert] / total));
            }
        }
        routed
    }
}
