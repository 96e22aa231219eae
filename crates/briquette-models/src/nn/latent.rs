use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use crate::{
    LatentConfig, Result,
    nn::{
        attend::LayerAttention,
        blocks::split_heads,
        build::Build,
        projection::{Projection, Projections},
        rms_norm::RmsNorm,
    },
};

/// How the path of the weights ends that each head reads its part of. They stay as they are stored,
/// output by output.
pub(crate) const READ_BY_HEADS: &str = ".kv_b_proj";

/// Latent attention ([arXiv:2405.04434](https://arxiv.org/abs/2405.04434)) with absorbed
/// projections: queries are taken to the latent in place of the latent to keys, and what heads find
/// is taken to values behind the attention. So one entry of a cache serves all heads.
#[derive(Module, Debug)]
pub(crate) struct LatentAttention {
    /// Queries in one product; in place of the three below.
    q_proj: Option<Projection>,
    q_a_proj: Option<Projection>,
    q_a_layernorm: Option<RmsNorm>,
    q_b_proj: Option<Projection>,
    /// The latent, and behind it the rotated channels of keys.
    kv_a_proj_with_mqa: Projection,
    kv_a_layernorm: RmsNorm,
    /// From the latent to the keys of each head without a position, and to its values.
    kv_b_proj: Projection,
    o_proj: Projection,
    heads: usize,
    #[module(skip)]
    dims: LatentConfig,
}

impl LatentAttention {
    pub(crate) fn new(build: Build<'_>, dims: LatentConfig) -> Self {
        let config = build.config;
        let (hidden, heads, bias) =
            (config.hidden_size, config.num_attention_heads, config.attention_bias);
        let LatentConfig { q_lora_rank, kv_lora_rank, qk_nope_head_dim, v_head_dim, .. } = dims;
        let queries = heads * dims.query_dim();
        // Whatever the configuration says of the other norms.
        let norm = |channels| build.rms_norm(channels).with_epsilon(1e-6);
        let whole = q_lora_rank.is_none().then(|| build.linear(hidden, queries, false));
        Self {
            q_proj: whole,
            q_a_proj: q_lora_rank.map(|rank| build.linear(hidden, rank, bias)),
            q_a_layernorm: q_lora_rank.map(norm),
            q_b_proj: q_lora_rank.map(|rank| build.linear(rank, queries, false)),
            kv_a_proj_with_mqa: build.linear(hidden, dims.key_dim(), bias),
            kv_a_layernorm: norm(kv_lora_rank),
            kv_b_proj: build.linear(kv_lora_rank, heads * (qk_nope_head_dim + v_head_dim), false),
            o_proj: build.linear(heads * v_head_dim, hidden, config.output_bias),
            heads,
            dims,
        }
    }

    pub(crate) fn projections(&mut self) -> Projections<'_> {
        let Self { q_proj, q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj, .. } = self;
        let queries = [("q_proj", q_proj), ("q_a_proj", q_a_proj), ("q_b_proj", q_b_proj)];
        let queries = queries.into_iter().filter_map(|(name, one)| Some((name, one.as_mut()?)));
        let others = [
            ("kv_a_proj_with_mqa", kv_a_proj_with_mqa),
            ("kv_b_proj", kv_b_proj),
            ("o_proj", o_proj),
        ];
        queries.chain(others).map(|(name, one)| (name.into(), one)).collect()
    }

    /// `[batch, tokens, hidden_size]` -> the same
    pub(crate) fn forward(&self, x: Tensor<3>, at: LayerAttention<'_>) -> Result<Tensor<3>> {
        at.attend.hidden_states(&x);
        let LatentConfig { kv_lora_rank: rank, qk_nope_head_dim, qk_rope_head_dim, .. } = self.dims;
        let [to_keys, to_values] = self.expansions(x.dtype());

        let queries = split_heads(self.queries(x.clone())?, self.dims.query_dim());
        let rotated = queries.clone().narrow(3, qk_nope_head_dim, qk_rope_head_dim);
        let absorbed = queries.narrow(3, 0, qk_nope_head_dim).matmul(to_keys);
        let queries = Tensor::cat(vec![absorbed, rotated], 3);

        let keys = self.kv_a_proj_with_mqa.forward(x)?;
        let rotated = keys.clone().narrow(2, rank, qk_rope_head_dim);
        let latent = self.kv_a_layernorm.forward(keys.narrow(2, 0, rank))?;
        let keys = Tensor::cat(vec![latent, rotated], 2).unsqueeze_dim(1);

        let found = at.attend.attend_keys(at.layer, queries, keys, at.positions)?;
        let values = found.matmul(to_values.swap_dims(2, 3));
        let [batch, heads, tokens, channels] = values.dims();
        self.o_proj.forward(values.swap_dims(1, 2).reshape([batch, tokens, heads * channels]))
    }

    /// `[batch, tokens, hidden_size]` -> `[batch, tokens, heads * query_dim]`
    fn queries(&self, mut x: Tensor<3>) -> Result<Tensor<3>> {
        if let (Some(first), Some(norm)) = (&self.q_a_proj, &self.q_a_layernorm) {
            x = norm.forward(first.forward(x)?)?;
        }
        [&self.q_proj, &self.q_b_proj].into_iter().flatten().try_fold(x, |x, one| one.forward(x))
    }

    /// What takes the latent to the keys and to the values of each head, `[1, heads, channels,
    /// kv_lora_rank]`.
    fn expansions(&self, dtype: DType) -> [Tensor<4>; 2] {
        let LatentConfig { kv_lora_rank, qk_nope_head_dim, v_head_dim, .. } = self.dims;
        let both = self.kv_b_proj.weight(dtype).transpose();
        let both = both.reshape([1, self.heads, qk_nope_head_dim + v_head_dim, kv_lora_rank]);
        [both.clone().narrow(2, 0, qk_nope_head_dim), both.narrow(2, qk_nope_head_dim, v_head_dim)]
    }

    /// The output projection of what heads find in the latent, `[heads * kv_lora_rank,
    /// hidden_size]`.
    pub(crate) fn output_weight(&self, dtype: DType) -> Tensor<2> {
        let LatentConfig { kv_lora_rank, v_head_dim, .. } = self.dims;
        let [_, to_values] = self.expansions(dtype);
        let output = self.o_proj.weight(dtype);
        let hidden = output.dims()[1];
        let output = output.reshape([1, self.heads, v_head_dim, hidden]);
        let folded = to_values.swap_dims(2, 3).matmul(output);
        folded.reshape([self.heads * kv_lora_rank, hidden])
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use briquette::{CacheConfig, KvCache, Policy, ops::best, position::NoPositionEncoding};
    use burn::tensor::{Bool, Device, Distribution, activation::softmax};

    use super::*;
    use crate::ModelConfig;

    /// Attention without a position, and without a low rank of queries if not asked for.
    fn attention(q_lora_rank: Option<usize>, device: &Device) -> (ModelConfig, LatentAttention) {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let config = ModelConfig::from_file(fixtures.join("deepseek-v3/config.json")).unwrap();
        let latent = LatentConfig { q_lora_rank, ..config.latent.unwrap() };
        let config = ModelConfig { num_hidden_layers: 1, latent: Some(latent), ..config };
        let ops = best();
        let build = Build { config: &config, device, ops: &ops };
        let attention = LatentAttention::new(build, latent);
        (config, attention)
    }

    fn assert_close<const D: usize>(found: Tensor<D>, expected: Tensor<D>) {
        assert_eq!(found.dims(), expected.dims());
        let (off, size) = ((found - expected.clone()).abs().max(), expected.abs().max());
        let [off, size] = [off, size].map(|x| x.into_scalar::<f32>());
        assert!(off <= 1e-5 * size && size > 0.0, "{off} of {size}");
    }

    #[test]
    fn absorbed_projections_attend_as_the_keys_and_values_of_all_heads_do() {
        let device = Device::flex();
        for q_lora_rank in [None, Some(12)] {
            device.seed(2026);
            let (config, attention) = attention(q_lora_rank, &device);
            let x = Tensor::<3>::random([2, 7, 32], Distribution::Normal(0.0, 1.0), &device);
            let settings = config.with_attention(CacheConfig::default());
            let shape = config.cache_shape();
            let mut cache = KvCache::with_config(shape, Policy::full(), settings, &device).unwrap();
            let positions = &NoPositionEncoding;
            let at = LayerAttention { layer: 0, positions, attend: &mut cache };
            let found = attention.forward(x.clone(), at).unwrap();

            let queries = split_heads(attention.queries(x.clone()).unwrap(), 24);
            let both = attention.kv_a_proj_with_mqa.forward(x).unwrap();
            let latent = attention.kv_a_layernorm.forward(both.clone().narrow(2, 0, 20)).unwrap();
            let heads = split_heads(attention.kv_b_proj.forward(latent).unwrap(), 32);
            let shared = both.narrow(2, 20, 8).unsqueeze_dim::<4>(1).expand([2, 4, 7, 8]);
            let keys = Tensor::cat(vec![heads.clone().narrow(3, 0, 16), shared], 3);
            let scores = queries.matmul(keys.swap_dims(2, 3)) * config.softmax_scale.unwrap();
            let future = Tensor::<2, Bool>::tril_mask([7, 7], 0, &device);
            let scores = scores.mask_fill(future.unsqueeze::<4>().expand([2, 4, 7, 7]), -1e30);
            let values = softmax(scores, 3).matmul(heads.narrow(3, 16, 16));
            let values = values.swap_dims(1, 2).reshape([2, 7, 64]);
            assert_close(found, attention.o_proj.forward(values).unwrap());
        }
    }

    #[test]
    fn the_output_projection_of_the_latent_is_both_one_behind_the_other() {
        let device = Device::flex();
        device.seed(2026);
        let (_, attention) = attention(None, &device);
        let found = Tensor::<4>::random([1, 4, 3, 20], Distribution::Default, &device);
        let [_, to_values] = attention.expansions(DType::F32);
        let values = found.clone().matmul(to_values.swap_dims(2, 3));
        let apart = attention.o_proj.forward(values.swap_dims(1, 2).reshape([1, 3, 64])).unwrap();
        let flat = found.swap_dims(1, 2).reshape([3, 80]);
        assert_close(flat.matmul(attention.output_weight(DType::F32)), apart.squeeze_dim(0));
    }
}
