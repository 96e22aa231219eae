use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData, activation::sigmoid},
};

use crate::{
    Architecture, ExpertsConfig, Result, Routing,
    nn::{
        blocks::GatedFeedForward,
        build::Build,
        projection::{Projection, Projections, within},
        router::choose,
    },
};

/// A mixture of experts (Shazeer et al., 2017,
/// [arXiv:1701.06538](https://arxiv.org/abs/1701.06538)): a token goes through the few networks
/// whose gates are highest, and their outputs are added with weights, as its
/// [`Routing`] says.
///
/// The gates are read to the host, which waits for the device once per layer: there each expert's
/// tokens are collected, so an expert computes for these only.
#[derive(Module, Debug)]
pub(crate) struct Experts {
    gate: Projection,
    experts: Vec<GatedFeedForward>,
    /// What every token goes through beside its experts.
    shared_experts: Option<GatedFeedForward>,
    /// How much of that a token takes, if it is not all.
    shared_expert_gate: Option<Projection>,
    /// Added to gates for the choice of experts.
    e_score_correction_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: ExpertsConfig,
}

impl Experts {
    pub(crate) fn new(build: Build<'_>, config: &ExpertsConfig) -> Self {
        let expert = |_| GatedFeedForward::new(build, config.intermediate_size);
        let shared = |inner| GatedFeedForward::new(build, inner);
        let correction = || Initializer::Zeros.init([config.experts], build.device);
        let biased = build.config.architecture == Architecture::GptOss;
        let gated = build.config.architecture == Architecture::Qwen3Next;
        Self {
            gate: build.linear(build.config.hidden_size, config.experts, biased),
            experts: (0..config.experts).map(expert).collect(),
            shared_experts: config.shared_intermediate_size.map(shared),
            shared_expert_gate: gated.then(|| build.linear(build.config.hidden_size, 1, false)),
            e_score_correction_bias: config.routing.is_corrected().then(correction),
            config: config.clone(),
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let experts = self.experts.iter_mut().enumerate();
        let experts = experts.flat_map(|(number, expert)| {
            within(&format!("experts.{number}"), expert.projections())
        });
        let shared = self.shared_experts.iter_mut();
        let shared = shared.flat_map(|shared| within("shared_experts", shared.projections()));
        let shared_gate = self.shared_expert_gate.iter_mut();
        let gates = [("gate".into(), &mut self.gate)].into_iter();
        let gates = gates.chain(shared_gate.map(|gate| ("shared_expert_gate".into(), gate)));
        gates.chain(experts).chain(shared).collect()
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>) -> Result<Tensor<3>> {
        let shape = x.dims();
        let [batch, tokens, channels] = shape;
        let rows = x.reshape([batch * tokens, channels]);
        let routed = self.route(rows.clone())?;
        let (device, dtype) = (rows.device(), rows.dtype());
        let mut sum = match &self.shared_experts {
            Some(shared) => shared.forward(rows.clone())?,
            None => rows.zeros_like(),
        };
        if let Some(gate) = &self.shared_expert_gate {
            sum = sum * sigmoid(gate.forward(rows.clone())?);
        }
        for (expert, routed) in self.experts.iter().zip(routed) {
            if routed.is_empty() {
                continue;
            }
            let count = routed.len();
            let (places, weights): (Vec<i64>, Vec<f32>) = routed.into_iter().unzip();
            let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device);
            let weights = TensorData::new(weights, [count, 1]);
            let weights = Tensor::<2>::from_data(weights, (&device, dtype));
            let own = rows.clone().select(0, places.clone());
            let output = match self.config.routing {
                Routing::InputSigmoid => expert.forward(own * weights)?,
                _ => expert.forward(own)? * weights,
            };
            sum = sum.select_assign(0, places, output, IndexingUpdateOp::Add);
        }
        Ok(sum.reshape(shape))
    }

    /// The tokens of each expert, with its weights of them.
    fn route(&self, rows: Tensor<2>) -> Result<Vec<Vec<(i64, f32)>>> {
        let count = rows.dims()[0] * self.experts.len();
        let gates = match &self.e_score_correction_bias {
            None => self.gate.forward(rows)?,
            // In f32, as is the choice; the correction is read with the gates.
            Some(correction) => {
                let weight = self.gate.weight(DType::F32).cast(DType::F32);
                let gates = rows.cast(DType::F32).matmul(weight);
                Tensor::cat(vec![gates, correction.val().cast(DType::F32).unsqueeze()], 0)
            }
        };
        let gates = gates.try_into_vec_as::<f32>()?;
        let (gates, correction) = gates.split_at(count);
        let mut routed = vec![Vec::new(); self.experts.len()];
        for (token, gates) in (0..).zip(gates.chunks_exact(self.experts.len())) {
            for (expert, weight) in choose(&self.config, gates, correction) {
                routed[expert].push((token, weight));
            }
        }
        Ok(routed)
    }
}
