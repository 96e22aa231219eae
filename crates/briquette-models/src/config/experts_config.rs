use std::collections::BTreeSet;

use crate::{
    Result, Routing,
    setting::{check_positive, invalid},
};

/// The feed-forward networks of a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// Experts per layer.
    pub experts: usize,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Channels inside an expert.
    pub intermediate_size: usize,
    /// Channels inside the network that every token goes through beside its experts, if there is
    /// one.
    pub shared_intermediate_size: Option<usize>,
    /// How the experts of a token are chosen.
    pub routing: Routing,
    /// Whether the weights of a token's experts are made to sum to 1.
    pub norm_topk_prob: bool,
    /// Layers that have one network, as wide as `intermediate_size` of the configuration, instead.
    pub dense_layers: BTreeSet<usize>,
}

impl ExpertsConfig {
    /// `experts` and `inner` are the keys of the file that say how many there are, and how wide.
    pub(crate) fn check(&self, experts: &'static str, inner: &'static str) -> Result<()> {
        for (key, value) in [(experts, self.experts), (inner, self.intermediate_size)] {
            check_positive(key, value)?;
        }
        if !(1..=self.experts).contains(&self.experts_per_token) {
            let must_be = format!("from 1 to {experts} = {}", self.experts);
            return Err(invalid("num_experts_per_tok", self.experts_per_token, must_be));
        }
        self.routing.check(experts, self.experts)
    }
}
