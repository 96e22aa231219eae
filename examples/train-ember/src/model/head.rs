//! The tied head and the loss, with their gradients by hand: the matrix of logits is the largest
//! tensor of a step, and this way no part of it outlives the loss.

use burn::tensor::{DType, Int, Tensor};

/// Result of [`loss`].
pub(super) struct HeadGradients {
    /// The weighted sum of the tokens' losses, `[1]`, f32.
    pub(super) loss: Tensor<1>,
    /// The gradient of the hidden states, in their shape and type.
    pub(super) hidden: Tensor<3>,
    /// The gradient of the head, `[vocabulary, channels]`, f32.
    pub(super) weight: Tensor<2>,
}

/// Cross entropy of the next token, each token by its weight, with its gradients.
///
/// # Shapes
/// - `hidden`: `[strips, rows, channels]`, the last norm's output
/// - `head`: `[vocabulary, channels]`, in the type of `hidden`
/// - `targets`, `weights`: `[strips, rows, 1]`
pub(super) fn loss(
    hidden: Tensor<3>,
    head: &Tensor<2>,
    targets: Tensor<3, Int>,
    weights: Tensor<3>,
) -> HeadGradients {
    let dtype = hidden.dtype();
    let logits = logits(hidden.clone(), head);
    let log_sum = log_sum_exp(logits.clone());
    let right = logits.clone().gather(2, targets.clone()).cast(DType::F32);
    let loss = ((log_sum.clone() - right) * weights.clone()).sum();
    // softmax − one-hot, by the weight.
    let share = (logits.cast(DType::F32) - log_sum).exp();
    let slope = ((share - one_hot(targets, head.dims()[0], DType::F32)) * weights).cast(dtype);
    let of_hidden = slope.clone().matmul(head.clone().unsqueeze());
    let of_weight = slope.swap_dims(1, 2).matmul(hidden);
    HeadGradients { loss, hidden: of_hidden, weight: sum_strips(of_weight) }
}

/// Cross entropy of each next token, `[strips, rows, 1]`, f32. Shapes as in [`loss`].
pub(super) fn token_losses(
    hidden: Tensor<3>,
    head: &Tensor<2>,
    targets: Tensor<3, Int>,
) -> Tensor<3> {
    let logits = logits(hidden, head);
    let right = logits.clone().gather(2, targets).cast(DType::F32);
    log_sum_exp(logits) - right
}

/// The gradient of the embedding from that of the tokens' vectors, `[strips, rows, channels]`, f32:
/// a product with the one-hot matrix, since adding rows up where tokens repeat would be done one
/// after the other.
///
/// # Shapes
/// - `tokens`: `[strips, rows, 1]`
/// - returns `[vocabulary, channels]`, f32
pub(super) fn of_embedding(
    gradient: Tensor<3>,
    tokens: Tensor<3, Int>,
    vocabulary: usize,
    dtype: DType,
) -> Tensor<2> {
    let chosen = one_hot(tokens, vocabulary, dtype).swap_dims(1, 2);
    sum_strips(chosen.matmul(gradient.cast(dtype)))
}

/// `[strips, rows, vocabulary]`
pub(super) fn logits(hidden: Tensor<3>, head: &Tensor<2>) -> Tensor<3> {
    hidden.matmul(head.clone().transpose().unsqueeze())
}

/// `[strips, rows, 1]`, f32.
fn log_sum_exp(logits: Tensor<3>) -> Tensor<3> {
    let most = logits.clone().max_dim(2).cast(DType::F32);
    let sum = (logits.cast(DType::F32) - most.clone()).exp().sum_dim(2);
    sum.log() + most
}

fn one_hot(tokens: Tensor<3, Int>, vocabulary: usize, dtype: DType) -> Tensor<3> {
    let [strips, rows, _] = tokens.dims();
    let every = Tensor::<1, Int>::arange(0..vocabulary as i64, &tokens.device());
    let every = every.cast(tokens.dtype()).reshape([1, 1, vocabulary]);
    let shape = [strips, rows, vocabulary];
    tokens.expand(shape).equal(every.expand(shape)).float().cast(dtype)
}

fn sum_strips(x: Tensor<3>) -> Tensor<2> {
    x.cast(DType::F32).sum_dim(0).squeeze_dim(0)
}
