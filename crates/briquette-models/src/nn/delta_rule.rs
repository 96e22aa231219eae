//! The gated delta rule (Yang et al., 2024,
//! [arXiv:2412.06464](https://arxiv.org/abs/2412.06464)): the matrix S of a head decays, and a
//! token writes into it what its key did not find there yet:
//!
//! `S ← exp(g) · S`, `S ← S + k · (β · (v − Sᵀ k))ᵀ`, output `Sᵀ q`.

use burn::tensor::{Bool, Device, Tensor, TensorData};

/// Tokens that are computed together.
const CHUNK: usize = 64;
/// Tokens whose products of pairs are held at once.
const AT_ONCE: usize = 32 * CHUNK;

/// New tokens of all heads, in f32.
#[derive(Clone, Debug)]
pub(crate) struct DeltaInput {
    /// `[batch, heads, tokens, key_dim]`
    pub(crate) queries: Tensor<4>,
    /// `[batch, heads, tokens, key_dim]`
    pub(crate) keys: Tensor<4>,
    /// `[batch, heads, tokens, value_dim]`
    pub(crate) values: Tensor<4>,
    /// β, the strength of writing, `[batch, heads, tokens, 1]`.
    pub(crate) strength: Tensor<4>,
    /// g, the logarithm of what S keeps, at most 0, `[batch, heads, tokens, 1]`.
    pub(crate) decay: Tensor<4>,
}

impl DeltaInput {
    fn tokens(&self) -> usize {
        self.keys.dims()[2]
    }

    fn map(self, change: impl Fn(Tensor<4>) -> Tensor<4>) -> Self {
        Self {
            queries: change(self.queries),
            keys: change(self.keys),
            values: change(self.values),
            strength: change(self.strength),
            decay: change(self.decay),
        }
    }

    fn narrow(&self, start: usize, tokens: usize) -> Self {
        self.clone().map(|x| x.narrow(2, start, tokens))
    }
}

/// Goes through new tokens from `memory`, `[batch, heads, key_dim, value_dim]`. Returns the output,
/// `[batch, heads, tokens, value_dim]`, and the memory behind them.
pub(crate) fn gated_delta_rule(input: DeltaInput, memory: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    if input.tokens() == 1 {
        return one_token(input, memory);
    }
    let (mut outputs, mut memory) = (Vec::new(), memory);
    for start in (0..input.tokens()).step_by(AT_ONCE) {
        let tokens = AT_ONCE.min(input.tokens() - start);
        let output;
        (output, memory) = in_chunks(input.narrow(start, tokens), memory);
        outputs.push(output);
    }
    (Tensor::cat(outputs, 2), memory)
}

fn one_token(input: DeltaInput, memory: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let DeltaInput { queries, keys, values, strength, decay } = input;
    let memory = memory * decay.exp();
    let missing = (values - keys.clone().matmul(memory.clone())) * strength;
    let memory = memory + keys.swap_dims(2, 3) * missing;
    (queries.matmul(memory.clone()), memory)
}

/// The same sums chunk by chunk: what the tokens of a chunk write depends on each other by a
/// triangular system, and on S at its beginning.
fn in_chunks(input: DeltaInput, mut memory: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let device = memory.device();
    let tokens = input.tokens();
    let length = tokens.next_power_of_two().min(CHUNK);
    let chunks = tokens.div_ceil(length);
    // Zeros behind the last token neither write nor decay.
    let split = |x: Tensor<4>| -> Tensor<5> {
        let [batch, heads, _, channels] = x.dims();
        let more = chunks * length - tokens;
        let x = match more {
            0 => x,
            _ => {
                let zeros = Tensor::zeros([batch, heads, more, channels], (&device, x.dtype()));
                Tensor::cat(vec![x, zeros], 2)
            }
        };
        x.reshape([batch, heads, chunks, length, channels])
    };
    let [queries, keys, values] = [input.queries, input.keys, input.values].map(split);
    let [strength, decay] = [input.strength, input.decay].map(split);
    // What is left of S from the beginning of a chunk, and from one of its tokens to another.
    let since = decay.cumsum(3);
    let future = Tensor::<2, Bool>::tril_mask([length, length], 0, &device);
    let between: Tensor<5> = since.clone() - since.clone().swap_dims(3, 4);
    let future = future.reshape([1, 1, 1, length, length]).expand(between.dims());
    let between = between.mask_fill(future, f32::NEG_INFINITY).exp();

    let (across, writes) = (keys.clone().swap_dims(3, 4), keys.clone() * strength.clone());
    let solved = inverse(writes.clone().matmul(across.clone()) * between.clone(), &device);
    let values = solved.clone().matmul(values * strength);
    let reads = solved.matmul(writes * since.clone().exp());
    let weights = queries.clone().matmul(across) * between;
    let queries = queries * since.clone().exp();
    let whole = since.clone().narrow(3, length - 1, 1);
    let keys = (keys * (whole.clone() - since).exp()).swap_dims(3, 4);
    let whole = whole.exp();

    let mut outputs = Vec::with_capacity(chunks);
    for chunk in 0..chunks {
        let of = |x: &Tensor<5>| x.clone().narrow(2, chunk, 1).squeeze_dim::<4>(2);
        let missing = of(&values) - of(&reads).matmul(memory.clone());
        let output = of(&queries).matmul(memory.clone());
        outputs.push(output + of(&weights).matmul(missing.clone()));
        memory = memory * of(&whole) + of(&keys).matmul(missing);
    }
    (Tensor::cat(outputs, 2).narrow(2, 0, tokens), memory)
}

/// The inverse of I + L, where L is below the diagonal of `x`, `[.., length, length]`, and `length`
/// a power of two: from blocks of the diagonal to blocks twice as wide, as forward substitution.
fn inverse(x: Tensor<5>, device: &Device) -> Tensor<5> {
    let dims = x.dims();
    let length = dims[4];
    let mask = |holds: &dyn Fn(usize, usize) -> bool| -> Tensor<5> {
        let numbers = (0..length * length).map(|at| holds(at / length, at % length));
        let numbers: Vec<f32> = numbers.map(|holds| if holds { 1.0 } else { 0.0 }).collect();
        Tensor::from_data(TensorData::new(numbers, [1, 1, 1, length, length]), device)
    };
    let mut found = mask(&|row, column| row == column).expand(dims);
    let mut width = 1;
    while width < length {
        let second_by_first =
            |row: usize, column: usize| row / width == column / width + 1 && row / width % 2 == 1;
        let between = x.clone() * mask(&second_by_first);
        found = found.clone() - found.clone().matmul(between).matmul(found);
        width *= 2;
    }
    found
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    fn assert_close(found: Tensor<4>, expected: Tensor<4>) {
        let off = (found - expected.clone()).abs().max().into_scalar::<f32>();
        let size = expected.abs().max().into_scalar::<f32>();
        assert!(off <= 2e-5 * size && size > 0.0, "{off} of {size}");
    }

    fn input(tokens: usize, device: &Device) -> DeltaInput {
        let random = |channels, distribution| {
            Tensor::<4>::random([2, 3, tokens, channels], distribution, device)
        };
        let normal = Distribution::Normal(0.0, 1.0);
        let unit = |x: Tensor<4>| x.clone() / x.square().sum_dim(3).sqrt();
        DeltaInput {
            queries: unit(random(8, normal)),
            // All alike, so that each token finds what the ones before it wrote.
            keys: unit(random(8, Distribution::Uniform(0.5, 1.0))),
            values: random(12, normal),
            strength: random(1, Distribution::Uniform(0.0, 1.0)),
            decay: random(1, Distribution::Uniform(-0.5, 0.0)),
        }
    }

    #[test]
    fn chunks_are_token_by_token() {
        let device = Device::flex();
        device.seed(2026);
        for tokens in [2, 5, 64, 65, 200, AT_ONCE + 70] {
            let input = input(tokens, &device);
            let start = Tensor::<4>::random([2, 3, 8, 12], Distribution::Default, &device);
            let (found, behind) = gated_delta_rule(input.clone(), start.clone());
            let (mut outputs, mut memory) = (Vec::new(), start);
            for token in 0..tokens {
                let output;
                (output, memory) = one_token(input.narrow(token, 1), memory);
                outputs.push(output);
            }
            assert_close(found, Tensor::cat(outputs, 2));
            assert_close(behind, memory);
        }
    }
}
