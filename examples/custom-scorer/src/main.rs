//! A scorer of one's own: the lower the L2 norm of its key, the longer a token is kept
//! (Devoto et al., 2024).

use briquette::{Budget, CacheShape, KvCache, LayerView, Policy, Result, Scorer};
use briquette::{policy::Recent, position::NoPositionEncoding};
use burn::tensor::{DType, Distribution, Tensor};

#[derive(Debug)]
struct KeyNorm;

impl Scorer for KeyNorm {
    fn name(&self) -> &str {
        "key-norm"
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        // Keys are held with their positions encoded. RoPE is a rotation and changes no norm.
        let squares = view.keys()?.cast(DType::F32).square();
        Ok(squares.sum_dim(3).sqrt().neg().squeeze_dim(3))
    }
}

fn main() -> Result<()> {
    let device = briquette::device::open("flex")?;
    let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    let policy = Policy::custom("key-norm", Budget::Tokens(12), KeyNorm);
    let mut cache = KvCache::new(shape, policy.with_recent(Recent::Tokens(4)), &device)?;

    // 64 random tokens. The keys of tokens 20 to 27 are ten times shorter than the others.
    let random =
        |heads| Tensor::random([1, heads, 64, 16], Distribution::Normal(0.0, 1.0), &device);
    let (q, k, v): (Tensor<4>, Tensor<4>, Tensor<4>) = (random(4), random(2), random(2));
    let short = k.clone().narrow(2, 20, 8) / 10.0;
    let k = k.slice_assign([0..1, 0..2, 20..28, 0..16], short);
    cache.attend(0, q, k, v, &NoPositionEncoding)?;

    println!("{} of {} tokens kept", cache.tokens_kept(0)?[0], cache.tokens_seen()[0]);
    println!("kv head 0: {:?}", cache.kept_positions(0)?[0][0]);
    Ok(())
}
