//! What the author of a Burn model has without a cache of ours: keys and values are appended with
//! `cat`, heads repeated, and attention is computed with Burn's operations
//! (`examples/attention-module`).

use std::time::Instant;

use anyhow::{Result, anyhow};
use briquette::position::PositionEncoding;
use briquette_models::Attend;
use briquette_ops::most_likely;
use burn::tensor::{Bool, Int, Tensor, activation::softmax};

use super::{Point, Report, Runner, WARM_UP, ms};
use crate::settings::Setting;

/// The name among methods.
pub(super) const PLAIN: &str = "plain";

/// Keys and values of each layer, `[batch, kv_heads, tokens, head_dim]`.
#[derive(Default)]
struct Plain {
    layers: Vec<(Tensor<4>, Tensor<4>)>,
}

impl Plain {
    /// Appends, and returns all of the layer.
    fn append(&mut self, layer: usize, keys: Tensor<4>, values: Tensor<4>) -> [Tensor<4>; 2] {
        match self.layers.get_mut(layer) {
            None => self.layers.push((keys, values)),
            Some((k, v)) => {
                *k = Tensor::cat(vec![k.clone(), keys], 2);
                *v = Tensor::cat(vec![v.clone(), values], 2);
            }
        }
        let (keys, values) = self.layers[layer].clone();
        [keys, values]
    }
}

impl Attend for Plain {
    fn attend(
        &mut self,
        layer: usize,
        queries: Tensor<4>,
        keys: Tensor<4>,
        values: Tensor<4>,
        encoding: &dyn PositionEncoding,
    ) -> briquette::Result<Tensor<4>> {
        let [batch, heads, new, head_dim] = queries.dims();
        let seen = self.layers.get(layer).map_or(0, |(keys, _)| keys.dims()[2]);
        let device = queries.device();
        let range = seen as i64..(seen + new) as i64;
        let positions = Tensor::<1, Int>::arange(range, &device).reshape([1, 1, new]);
        let positions = positions.expand([batch, 1, new]);
        let queries = encoding.encode(queries, positions.clone());
        let [keys, values] = self.append(layer, encoding.encode(keys, positions), values);
        let group = heads / keys.dims()[1];
        let (keys, values) = (repeat_heads(keys, group), repeat_heads(values, group));
        let scores = queries.matmul(keys.swap_dims(2, 3)) / (head_dim as f64).sqrt();
        let future = Tensor::<2, Bool>::tril_mask([new, seen + new], seen as i64, &device);
        let future = future.unsqueeze::<4>().expand(scores.dims());
        Ok(softmax(scores.mask_fill(future, f32::NEG_INFINITY), 3).matmul(values))
    }
}

/// `[batch, kv_heads, tokens, head_dim]` -> `[batch, kv_heads * group, tokens, head_dim]`
fn repeat_heads(x: Tensor<4>, group: usize) -> Tensor<4> {
    let [batch, heads, tokens, head_dim] = x.dims();
    let x = x.unsqueeze_dim::<5>(2).expand([batch, heads, group, tokens, head_dim]);
    x.reshape([batch, heads * group, tokens, head_dim])
}

impl Runner {
    /// Prefill and decoding without a cache of ours. Tokens are read back in every step, as an
    /// author's loop does.
    pub(super) fn measure_plain(&self, setting: Setting, report: &mut Report) -> Result<()> {
        let Setting { batch, prompt, new } = setting;
        let begin = || -> Result<_> {
            let started = Instant::now();
            let mut cache = Plain::default();
            let logits =
                self.model.forward_last_through(self.random_tokens(setting), &mut cache)?;
            let next = most_likely(logits);
            self.sync()?;
            Ok((started.elapsed().as_secs_f64(), cache, next))
        };
        report.first_prefill_s = begin()?.0;
        let (prefill_s, mut cache, mut next) = begin()?;
        (report.prefill_s, report.prefill_warm, report.prefill_rows) = (prefill_s, true, batch);
        let steps = self.points.map_or(new, |points| new.min(3 * points));
        let mut point = Point { seen: prompt, ..Point::default() };
        let mut begun = Instant::now();
        for step in 0..WARM_UP + steps {
            if step == WARM_UP {
                self.sync()?;
                begun = Instant::now();
            }
            next = most_likely(self.model.forward_last_through(next, &mut cache)?);
        }
        self.sync()?;
        (point.steps, point.launched_ms) = (steps, ms(begun.elapsed()) / steps as f64);
        point.host_ms = point.launched_ms;
        report.points.push(point);
        let (keys, _) = cache.layers.first().ok_or_else(|| anyhow!("the model has no layer"))?;
        report.bytes_held = keys.dims()[2] * batch * self.dimensions.token_bytes(self.dtype);
        report.bytes_full = batch * (prompt + new) * self.dimensions.token_bytes(self.dtype);
        report.bytes_in_use = self.in_use();
        report.finish();
        Ok(())
    }
}
