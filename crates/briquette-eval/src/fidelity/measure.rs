//! One policy beside the full cache.

use briquette::{KvCache, Policy};
use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    capture::Capture,
    divergence::{agreement, kl_divergence},
    kept::share_of_heads,
    oracle,
    reference::{Reference, attend, continued_logits},
};
use crate::{
    Error, Result,
    calibrate::errors,
    record::{CacheBytes, KeptTokens, Outcome, not_finite},
    tensors::numbers,
};

/// The result of one policy in one window. The definitions stand at [the module](super).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// The output error of each layer, each on what the full run gave it.
    pub output_error: Vec<f64>,
    /// The output error of each layer in the run on the compressed cache.
    pub end_to_end_error: Vec<f64>,
    /// KL(full ‖ compressed) in nats, one a compared token: all continued ones, unless the
    /// reference compares fewer.
    pub kl: Vec<f32>,
    /// The share of compared tokens after which both runs hold the same token most likely.
    pub agreement: f64,
    /// The share of what a head keeps that the oracle keeps too, `[layer][kv_head]`; a layer that
    /// drops nothing is empty, and so is the whole where no layer drops anything.
    pub overlap: Vec<Vec<f64>>,
    /// The positions of the prompt each head holds at its end, ascending, `[layer][kv_head]`.
    pub kept: Vec<Vec<Vec<usize>>>,
    /// The cache at the end of the prompt.
    pub cache_after_prompt: CacheBytes,
    /// The cache behind the last continued token.
    pub cache: CacheBytes,
}

impl Reference<'_> {
    /// Measures a policy on this window.
    ///
    /// # Errors
    /// Errors of the policy or its cache, failures of the model, and [`Error::NotFinite`].
    pub fn measure(&self, policy: Policy) -> Result<Measured> {
        let cache = self.filled(policy)?;
        let cache_after_prompt = CacheBytes::of(&cache);
        let kept = (0..self.layers.len())
            .map(|layer| Ok(cache.kept_positions(layer)?.pop().unwrap_or_default()))
            .collect::<Result<Vec<Vec<Vec<usize>>>>>()?;

        let output_error = self.isolated(cache.clone())?;
        let mut run = Capture::new(cache, false);
        let logits = continued_logits(self.model, self.continued(), &mut run)?;
        let end_to_end_error = run
            .layers
            .into_iter()
            .zip(&self.layers)
            .map(|(passed, full)| error(passed.outputs, &full.outputs))
            .collect::<Result<_>>()?;

        let compared = |&at: &usize| Some((self.logits.get(at)?, logits.get(at)?));
        let pairs = || self.compared.iter().filter_map(compared);
        let agreed = pairs().filter(|(full, compressed)| agreement(full, compressed)).count();
        let measured = Measured {
            prompt: self.prompt,
            output_error,
            end_to_end_error,
            kl: pairs().map(|(full, compressed)| kl_divergence(full, compressed) as f32).collect(),
            agreement: agreed as f64 / pairs().count().max(1) as f64,
            overlap: self.overlap(&kept),
            kept,
            cache_after_prompt,
            cache: CacheBytes::of(&run.cache),
        };
        let errors = measured.output_error.iter().chain(&measured.end_to_end_error);
        match not_finite(&measured.kl, errors) {
            Some(what) => Err(Error::NotFinite { what }),
            None => Ok(measured),
        }
    }

    /// The output error of each layer of a filled cache, on the queries, keys and values of the
    /// full run.
    fn isolated(&self, mut cache: KvCache) -> Result<Vec<f64>> {
        let mut outputs = vec![Vec::new(); self.layers.len()];
        for token in 0..self.continued().len() {
            for (index, (layer, outputs)) in self.layers.iter().zip(&mut outputs).enumerate() {
                outputs.push(attend(&mut cache, index, &layer.continued[token], self.model)?);
            }
        }
        let layers = outputs.into_iter().zip(&self.layers);
        layers.map(|(outputs, layer)| error(outputs, &layer.outputs)).collect()
    }

    fn overlap(&self, kept: &[Vec<Vec<usize>>]) -> Vec<Vec<f64>> {
        let drops = |heads: &[Vec<usize>]| heads.iter().any(|head| head.len() < self.prompt);
        if !kept.iter().any(|heads| drops(heads)) {
            return Vec::new();
        }
        let of_layer = |(heads, attention): (&Vec<Vec<usize>>, &Vec<Vec<f32>>)| {
            if !drops(heads) {
                return Vec::new();
            }
            let heads = heads.iter().zip(attention);
            heads.map(|(kept, attention)| oracle::overlap(kept, attention)).collect()
        };
        kept.iter().zip(&self.attention).map(of_layer).collect()
    }
}

impl Measured {
    /// The mean KL over the compared tokens, in nats.
    pub fn mean_kl(&self) -> f64 {
        mean(self.kl.iter().map(|kl| f64::from(*kl))).unwrap_or(0.0)
    }

    /// The mean overlap over the heads that drop something; `None` if none does.
    pub fn mean_overlap(&self) -> Option<f64> {
        let heads = self.overlap.iter().zip(&self.kept).flat_map(|(overlap, kept)| {
            overlap.iter().zip(kept).filter(|(_, kept)| kept.len() < self.prompt)
        });
        mean(heads.map(|(overlap, _)| *overlap))
    }

    /// The outcome of a run. `texts` are those of the prompt's tokens, as
    /// [`token_texts`](super::token_texts) gives them.
    pub fn outcome(self, texts: Vec<String>) -> Outcome {
        let heads = |layer: &Vec<Vec<usize>>| layer.iter().map(Vec::len).collect();
        let kept = KeptTokens {
            share: share_of_heads(&self.kept, texts.len()),
            heads: self.kept.iter().map(heads).collect(),
            tokens: texts,
        };
        let Self { output_error, kl, agreement, overlap, cache, .. } = self;
        Outcome::Fidelity { output_error, kl, agreement, overlap, kept, cache }
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0_usize), |(sum, count), x| (sum + x, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// The mean over the tokens of ‖full − compressed‖_F / (‖full‖_F + 1e-6). `outputs` are one call
/// each.
fn error(outputs: Vec<Tensor<4>>, full: &Tensor<4>) -> Result<f64> {
    let compressed = Tensor::cat(outputs, 2).cast(DType::F32);
    let tokens = full.dims()[2];
    let norms = |x: Tensor<4>| numbers(x.square().sum_dim(3).sum_dim(1).sqrt());
    let (difference, norm) = (norms(compressed - full.clone())?, norms(full.clone())?);
    Ok(errors::relative(&difference, &norm) / tokens.max(1) as f64)
}
