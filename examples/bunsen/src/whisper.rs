//! Whisper's text decoder: beams that branch, and attention over the audio.

use briquette::{
    Budget, CacheShape, KvCache, Policy, Result, nn::CachedAttention, position::NoPositionEncoding,
};
use bunsen::{
    burner::module::ModuleInit,
    kits::speech::whisper::blocks::{TextDecoder, TextDecoderConfig, TextDecoderMeta},
    ops::{embedding::unembed, transformers::attention::split_heads},
};
use burn::{
    nn::attention::MultiHeadAttention,
    tensor::{Device, Distribution, Int, Tensor, TensorData},
};

use crate::{POLICIES, PROMPT, TOKENS, VOCABULARY, apart, calls, policy, print, print_head};

const BEAMS: usize = 3;
/// Frames of audio, that the encoder would have made.
const FRAMES: usize = 50;
const WIDTH: usize = 128;

/// Beams of one audio.
struct Beams<'a> {
    decoder: &'a TextDecoder,
    /// The tokens of each beam.
    text: KvCache,
    /// The audio, one row for all beams.
    audio: KvCache,
}

impl<'a> Beams<'a> {
    fn new(
        decoder: &'a TextDecoder,
        audio: &Tensor<3>,
        (of_text, of_audio): (Policy, Policy),
    ) -> Result<Self> {
        let heads = decoder.n_heads();
        let shape = CacheShape {
            layers: decoder.n_layers(),
            query_heads: heads,
            kv_heads: heads,
            head_dim: decoder.d_model() / heads,
        };
        let text = KvCache::new(shape, of_text, &audio.device())?;
        let mut frames = KvCache::new(shape, of_audio, &audio.device())?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            let (keys, values) = block.cross_kv(audio.clone());
            frames.update(layer, keys, values)?;
        }
        Ok(Self { decoder, text, audio: frames })
    }

    /// Computes the logits of new tokens, `[beams, new]`.
    fn forward(&mut self, tokens: Tensor<2, Int>) -> Result<Tensor<3>> {
        let start = self.text.tokens_seen().first().copied().unwrap_or(0);
        let new = tokens.dims()[1];
        let TextDecoder { token_embedding, positional_embedding, blocks, ln } = self.decoder;
        let positions = positional_embedding.val().narrow(0, start, new).unsqueeze::<3>();
        let mut x = token_embedding.forward(tokens) + positions;
        for (layer, block) in blocks.iter().enumerate() {
            let normed = block.attn_norm.forward(x.clone());
            x = x + block.attn.forward_with(normed, self.text.layer(layer)?)?;
            let normed = block.cross_attn_norm.forward(x.clone());
            x = x + self.over_audio(layer, &block.cross_attn, normed)?;
            x = x.clone() + block.mlp.forward(block.mlp_norm.forward(x));
        }
        Ok(unembed(token_embedding, ln.forward(x)))
    }

    /// All beams are one row of queries here: the audio is not repeated for them.
    fn over_audio(
        &self,
        layer: usize,
        attention: &MultiHeadAttention,
        x: Tensor<3>,
    ) -> Result<Tensor<3>> {
        let dims = x.dims();
        let x = x.reshape([1, dims[0] * dims[1], WIDTH]);
        let queries = split_heads(attention, attention.query.forward(x));
        let heads = self.audio.read(layer, queries, &NoPositionEncoding)?;
        Ok(attention.output.forward(heads.swap_dims(1, 2).reshape(dims)))
    }
}

/// The tokens of a call, other ones in each beam.
fn tokens((start, new): (usize, usize), device: &Device) -> Tensor<2, Int> {
    let ids = (0..BEAMS * new).map(|at| ((start * 13 + at * 7) % VOCABULARY) as i64).collect();
    Tensor::from_data(TensorData::new(ids, [BEAMS, new]), device)
}

/// The beam that each beam goes on from, before the token at `start`; `None` before the prompt.
fn sources(start: usize) -> Option<[usize; BEAMS]> {
    (start >= PROMPT).then_some([start % BEAMS, (start / 2 + 1) % BEAMS, 1])
}

pub(crate) fn run(device: &Device) -> Result<()> {
    let decoder: TextDecoder = TextDecoderConfig::new(VOCABULARY, WIDTH, TOKENS, 3).init(device);
    let normal = Distribution::Normal(0.0, 1.0);
    let audio = Tensor::<3>::random([1, FRAMES, WIDTH], normal, device);

    let mut own = decoder.new_cache_grouped(audio.clone(), BEAMS);
    let own_logits = |call: (usize, usize)| {
        if let Some(sources) = sources(call.0) {
            own.reorder(&sources);
        }
        decoder.forward_cached(tokens(call, device), &mut own)
    };
    let expected: Vec<Tensor<3>> = calls().map(own_logits).collect();
    let decode = |name: &str, policies: (Policy, Policy)| -> Result<()> {
        let mut beams = Beams::new(&decoder, &audio, policies)?;
        let mut off = Vec::new();
        for (call, expected) in calls().zip(&expected) {
            if let Some(sources) = sources(call.0) {
                beams.text.select_rows(&sources)?;
            }
            off.push(apart(beams.forward(tokens(call, device))?, expected.clone())?);
        }
        print(name, &beams.text, &off)
    };

    print_head("Whisper, three beams");
    decode("full", (Policy::full(), Policy::full()))?;
    for name in POLICIES {
        decode(name, (policy(name)?, Policy::full()))?;
    }
    decode("half of the audio, h2o", (policy("h2o")?, Policy::knorm(Budget::Tokens(FRAMES / 2))))
}
