use crate::{
    Result,
    setting::{check_positive, check_positive_number, invalid},
};

/// How the experts of a token are chosen by its gates, and what weighs them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Routing {
    /// The highest gates, with the softmax of all gates as weights (Shazeer et al., 2017).
    Softmax,
    /// The highest sums of a gate's sigmoid and a learned correction, among the experts of the best
    /// groups, with the sigmoids as weights (DeepSeek V3).
    Sigmoid {
        /// Groups of neighbouring experts.
        groups: usize,
        /// Groups that a token's experts are of.
        groups_per_token: usize,
        /// Factor of the weights.
        scale: f64,
    },
    /// The highest gates, with their sigmoids as factors of what experts are given, and not of
    /// their outputs (Llama 4).
    InputSigmoid,
}

impl Routing {
    /// Whether a learned correction takes part in the choice.
    pub(crate) fn is_corrected(self) -> bool {
        matches!(self, Self::Sigmoid { .. })
    }

    /// `key` is that of the number of experts.
    pub(crate) fn check(self, key: &'static str, experts: usize) -> Result<()> {
        let Self::Sigmoid { groups, groups_per_token, scale } = self else { return Ok(()) };
        check_positive("n_group", groups)?;
        if !experts.is_multiple_of(groups) || experts / groups < 2 {
            let must_be = format!("a divisor of {key} = {experts} with two experts in a group");
            return Err(invalid("n_group", groups, must_be));
        }
        if !(1..=groups).contains(&groups_per_token) {
            let must_be = format!("from 1 to n_group = {groups}");
            return Err(invalid("topk_group", groups_per_token, must_be));
        }
        check_positive_number("routed_scaling_factor", scale)
    }
}
