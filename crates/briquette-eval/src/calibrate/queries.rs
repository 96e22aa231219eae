//! Statistics of queries for Q-Filter, TriAttention and DuoAttention. They depend on no
//! question, and no answer is looked at.

use briquette::{CacheShape, KvCache, Policy, QueryStatistics, position::PositionEncoding};
use briquette_models::{Attend, Model};
use burn::tensor::{DType, FloatDType, Int, Tensor, activation::softmax};

use crate::{Result, tensors::row};

/// Positions that DuoAttention repeats the mean query and the mean key at.
const REPEATED: usize = 500;

/// Sums over the texts of what their queries and keys are.
struct Watched {
    cache: KvCache,
    layers: Vec<Sums>,
}

/// Sums of one layer; heads of queries one after the other.
#[derive(Clone, Default)]
struct Sums {
    tokens: usize,
    texts: usize,
    /// Queries as they came, `[query_heads · head_dim]`.
    plain: Vec<f64>,
    /// Lengths of their pairs of channels, `[query_heads · head_dim / 2]`.
    lengths: Vec<f64>,
    /// Queries with positions encoded, `[query_heads · head_dim]`.
    encoded: Vec<f64>,
    /// Their products with themselves, `[query_heads · head_dim · head_dim]`.
    products: Vec<f64>,
    /// DuoAttention's area under the curve, one a text, `[query_heads]`.
    reach: Vec<f64>,
}

pub(super) fn statistics(model: &Model, texts: &[&[u32]]) -> Result<QueryStatistics> {
    let shape = model.cache_shape();
    let mut watched = Watched {
        cache: model.cache(Policy::full())?,
        layers: vec![Sums::default(); shape.layers],
    };
    for text in texts {
        watched.cache.reset();
        model.forward_last_through(row(text, model), &mut watched)?;
    }
    Ok(of(&watched.layers, shape))
}

impl Attend for Watched {
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> briquette::Result<Tensor<4>> {
        self.layers[layer].add(queries.clone(), keys.clone(), encoding)?;
        self.cache.attend(layer, queries, keys, values, encoding)
    }
}

impl Sums {
    /// Takes in the queries and keys of one text, `[1, heads, tokens, head_dim]`.
    fn add(
        &mut self,
        queries: Tensor<4>,
        keys: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> briquette::Result<()> {
        let (queries, keys) = (queries.cast(DType::F32), keys.cast(DType::F32));
        let [_, heads, tokens, channels] = queries.dims();
        let (kv_heads, half) = (keys.dims()[1], channels / 2);
        let device = queries.device();
        let upto =
            |end: usize| Tensor::<1, Int>::arange(0..end as i64, &device).reshape([1, 1, end]);
        let encoded = encoding.encode(queries.clone(), upto(tokens));
        let squares = queries.clone().square();
        let lengths = (squares.clone().narrow(3, 0, half) + squares.narrow(3, half, half)).sqrt();

        let repeated = encoding.max_positions().map_or(REPEATED, |end| end.min(REPEATED));
        let spread =
            |x: Tensor<4>| encoding.encode(x.mean_dim(2).repeat_dim(2, repeated), upto(repeated));
        let last = spread(queries.clone()).narrow(2, repeated - 1, 1);
        let last = last.reshape([1, kv_heads, heads / kv_heads, channels]);
        let scores = last.matmul(spread(keys).swap_dims(2, 3)) / (channels as f64).sqrt();
        // The mean of the running sums: a weight counts in all sums from its own on.
        let counts = upto(repeated).cast(FloatDType::F32).neg() + repeated as f64;
        let counts = counts.reshape([1, 1, 1, repeated]) / repeated as f64;
        let reach = (softmax(scores, 3) * counts).sum_dim(3);

        let products = encoded.clone().swap_dims(2, 3).matmul(encoded.clone());
        for (sums, new) in [
            (&mut self.plain, queries.sum_dim(2)),
            (&mut self.lengths, lengths.sum_dim(2)),
            (&mut self.encoded, encoded.sum_dim(2)),
            (&mut self.products, products),
            (&mut self.reach, reach),
        ] {
            let new = new.try_into_vec_as::<f32>()?;
            sums.resize(new.len(), 0.0);
            sums.iter_mut().zip(new).for_each(|(sum, new)| *sum += f64::from(new));
        }
        self.tokens += tokens;
        self.texts += 1;
        Ok(())
    }
}

fn of(layers: &[Sums], shape: CacheShape) -> QueryStatistics {
    let CacheShape { head_dim, .. } = shape;
    let group = shape.query_heads / shape.kv_heads;
    let means = |sums: &[f64], width: usize, tokens: usize| -> Vec<Vec<f64>> {
        let mean = |head: &[f64]| head.iter().map(|sum| sum / tokens.max(1) as f64).collect();
        sums.chunks(width).map(mean).collect()
    };
    let directions = |sums: &Sums| {
        let heads = sums.products.chunks(head_dim * head_dim).zip(sums.encoded.chunks(head_dim));
        let of_heads: Vec<Vec<f64>> =
            heads.map(|(products, sum)| direction(products, sum)).collect();
        let mean = |heads: &[Vec<f64>]| {
            let channel = |c: usize| heads.iter().map(|head| head[c]).sum::<f64>() / group as f64;
            (0..head_dim).map(channel).collect()
        };
        of_heads.chunks(group).map(mean).collect()
    };
    let reach = |sums: &Sums| {
        let mean = |heads: &[f64]| heads.iter().sum::<f64>() / (group * sums.texts.max(1)) as f64;
        sums.reach.chunks(group).map(mean).collect()
    };
    QueryStatistics {
        directions: layers.iter().map(directions).collect(),
        means: layers.iter().map(|sums| means(&sums.plain, head_dim, sums.tokens)).collect(),
        lengths: layers
            .iter()
            .map(|sums| means(&sums.lengths, head_dim / 2, sums.tokens))
            .collect(),
        reach: layers.iter().map(reach).collect(),
    }
}

/// The first right singular vector of the rows whose products with themselves are `products`,
/// `[width · width]`, turned so that their `sum` points along it.
fn direction(products: &[f64], sum: &[f64]) -> Vec<f64> {
    /// Enough for singular values that differ by one in ten thousand.
    const STEPS: usize = 100_000;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let unit = |x: Vec<f64>| -> Vec<f64> {
        let length = dot(&x, &x).sqrt();
        if length > 0.0 { x.into_iter().map(|x| x / length).collect() } else { x }
    };
    // Nothing about the start is special but that it is no eigenvector of what models make.
    let mut found = unit((0..sum.len()).map(|c| 1.0 + c as f64 / sum.len() as f64).collect());
    for _ in 0..STEPS {
        let next = unit(products.chunks(sum.len()).map(|row| dot(row, &found)).collect());
        let moved = next.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        found = next;
        if moved < 1e-13 {
            break;
        }
    }
    if dot(&found, sum) < 0.0 { found.into_iter().map(|x| -x).collect() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with what kvpress's DuoAttentionPress computes from these texts.
    #[test]
    fn reach_is_that_of_kvpress() {
        #[derive(serde::Deserialize)]
        struct Fixture {
            duo: Duo,
        }
        #[derive(serde::Deserialize)]
        struct Duo {
            texts: Vec<Vec<u32>>,
            reach: Vec<Vec<f64>>,
        }
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text =
            std::fs::read_to_string(root.join("tests/fixtures/kvpress_passes.json")).unwrap();
        let Fixture { duo } = serde_json::from_str(&text).unwrap();
        let device = briquette::device::open("flex").unwrap();
        let model = Model::load(root.join("models/ember-7m"), &device, DType::F32).unwrap();
        let texts: Vec<&[u32]> = duo.texts.iter().map(Vec::as_slice).collect();
        let found = statistics(&model, &texts).unwrap();
        assert!(found.reach.len() == duo.reach.len() && texts.len() > 1);
        for (found, expected) in found.reach.iter().flatten().zip(duo.reach.iter().flatten()) {
            assert!((found - expected).abs() < 1e-4, "{found} of {expected}");
        }
        // Lengths of means are no longer than means of lengths, and directions at most of length
        // one.
        for (means, lengths) in found.means.iter().flatten().zip(found.lengths.iter().flatten()) {
            let half = lengths.len();
            for (pair, length) in lengths.iter().enumerate() {
                assert!(means[pair].hypot(means[pair + half]) <= length + 1e-9);
            }
        }
        for direction in found.directions.iter().flatten() {
            let length = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!((0.1..=1.0 + 1e-9).contains(&length), "{length}");
        }
    }

    #[test]
    fn a_direction_of_three_rows() {
        // (3, 4), (−6, −8) and (0.4, −0.3): 5² + 10² along (0.6, 0.8), 0.5² across.
        let rows = [[3.0, 4.0], [-6.0, -8.0], [0.4, -0.3]];
        let mut products = [0.0; 4];
        for row in rows {
            for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                products[2 * i + j] += row[i] * row[j];
            }
        }
        // They sum to (−2.6, −4.3).
        let found = direction(&products, &[-2.6, -4.3]);
        assert!((found[0] + 0.6).abs() < 1e-9 && (found[1] + 0.8).abs() < 1e-9, "{found:?}");
    }
}
