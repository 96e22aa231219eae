//! Operations whose gradient is written by hand, so that the backward pass reads and writes each
//! large tensor once and keeps nothing that it can compute again.

use burn::{
    backend::{
        Autodiff, Backend, Dispatch, TensorMetadata,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind, unary},
        },
        backend_extension,
        tensor::FloatTensor,
    },
    tensor::{DType, FloatDType, Slice, Tensor},
};

/// Divides each row by the root of its mean square (RMSNorm of Zhang and Sennrich, 2019, without
/// its weight).
///
/// # Shapes
/// - `x`: `[.., channels]`, f32
/// - returns the same, in `dtype`
pub(crate) fn normalise<const D: usize>(x: Tensor<D>, epsilon: f32, dtype: DType) -> Tensor<D> {
    let half = dtype == DType::BF16;
    Tensor::from_dispatch(Dispatch::normalise(x.into_dispatch(), epsilon, half))
}

/// `silu(gate) · up` (Shazeer, 2020), computed in f32 and returned in the type of `gate`.
///
/// # Shapes
/// - `gate`, `up`: the same
pub(crate) fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::swiglu(gate.into_dispatch(), up.into_dispatch()))
}

/// Rotary position embedding (Su et al., 2021), halves rotated against each other as Llama's
/// checkpoints have them. Computed in f32 and returned in the type of `x`.
///
/// # Shapes
/// - `x`: `[batch, tokens, heads, head_dim]`
/// - `cos`, `sin`: `[1, tokens, 1, head_dim / 2]`, f32
pub(crate) fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let [x, cos, sin] = [x, cos, sin].map(Tensor::into_dispatch);
    Tensor::from_dispatch(Dispatch::rotate(x, cos, sin))
}

/// The operations, forward; every backend makes them of its own.
#[backend_extension(
    Cube: cfg(feature = "kernels"),
    Flex: cfg(feature = "flex"),
    Autodiff,
    Fusion: cfg(feature = "fusion")
)]
trait TrainingBackend: Backend {
    /// See [`normalise`]; bf16 if `half`, else f32.
    #[fusion(default)]
    fn normalise(x: FloatTensor<Self>, epsilon: f32, half: bool) -> FloatTensor<Self> {
        let scale = inverse_root_mean_square::<Self>(x.clone(), epsilon);
        Self::float_cast(Self::float_mul(x, scale), compute_type(half))
    }

    /// See [`swiglu`].
    #[fusion(default)]
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = gate.dtype().into();
        let gate = wide::<Self>(gate);
        let silu = Self::float_mul(sigmoid::<Self>(gate.clone()), gate);
        Self::float_cast(Self::float_mul(silu, wide::<Self>(up)), dtype)
    }

    /// See [`rotate`].
    #[fusion(default)]
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        turn::<Self>(x, cos, sin)
    }
}

#[cfg(feature = "kernels")]
impl TrainingBackend for burn_cubecl::CubeBackend {}

#[cfg(feature = "flex")]
impl TrainingBackend for burn::backend::Flex {}

impl<B: TrainingBackend, C: CheckpointStrategy> TrainingBackend for Autodiff<B, C> {
    fn normalise(x: FloatTensor<Self>, epsilon: f32, half: bool) -> FloatTensor<Self> {
        match Normalise.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let x = x.into_primitive();
                prep.finish((x.clone(), epsilon), B::normalise(x, epsilon, half))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::normalise(x.into_primitive(), epsilon, half))
            }
        }
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        match SwiGlu.prepare::<C>([gate.node(), up.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (gate, up) = (gate.into_primitive(), up.into_primitive());
                prep.finish((gate.clone(), up.clone()), B::swiglu(gate, up))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::swiglu(gate.into_primitive(), up.into_primitive()))
            }
        }
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        // The tables are constants.
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        match Rotate.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish((cos.clone(), sin.clone()), B::rotate(x.into_primitive(), cos, sin))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::rotate(x.into_primitive(), cos, sin)),
        }
    }
}

#[derive(Debug)]
struct Normalise;

impl<B: Backend> Backward<B, 1> for Normalise {
    type State = (FloatTensor<B>, f32);

    /// With `r` the inverse root mean square and `y = r · x`: `r · (g − y · mean(g · y))`.
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (x, epsilon) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            let scale = inverse_root_mean_square::<B>(x.clone(), epsilon);
            let y = B::float_mul(x, scale.clone());
            let grad = wide::<B>(grad);
            let last = y.shape().num_dims() - 1;
            let mean = B::float_mean_dim(B::float_mul(grad.clone(), y.clone()), last);
            B::float_mul(B::float_sub(grad, B::float_mul(y, mean)), scale)
        });
    }
}

#[derive(Debug)]
struct SwiGlu;

impl<B: Backend> Backward<B, 2> for SwiGlu {
    type State = (FloatTensor<B>, FloatTensor<B>);

    /// With `s = sigmoid(gate)`: `g · up · s · (1 + gate · (1 − s))` and `g · gate · s`.
    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (gate, up) = ops.state;
        let dtype = gate.dtype().into();
        let grad = wide::<B>(grads.consume::<B>(&ops.node));
        let (gate, up) = (wide::<B>(gate), wide::<B>(up));
        let s = sigmoid::<B>(gate.clone());
        let silu = B::float_mul(gate.clone(), s.clone());
        let rest = B::float_add_scalar(B::float_neg(s.clone()), 1.0.into());
        let slope = B::float_mul(s, B::float_add_scalar(B::float_mul(gate, rest), 1.0.into()));
        let of_gate = B::float_mul(B::float_mul(grad.clone(), up), slope);
        let of_up = B::float_mul(grad, silu);
        let [gate, up] = ops.parents;
        for (node, grad) in [(gate, of_gate), (up, of_up)] {
            if let Some(node) = node {
                grads.register::<B>(node.id, B::float_cast(grad, dtype));
            }
        }
    }
}

#[derive(Debug)]
struct Rotate;

impl<B: Backend> Backward<B, 1> for Rotate {
    type State = (FloatTensor<B>, FloatTensor<B>);

    /// The gradient turned back.
    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (cos, sin) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| turn::<B>(grad, cos, B::float_neg(sin)));
    }
}

fn wide<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    if x.dtype() == DType::F32 { x } else { B::float_cast(x, FloatDType::F32) }
}

fn compute_type(half: bool) -> FloatDType {
    if half { FloatDType::BF16 } else { FloatDType::F32 }
}

fn inverse_root_mean_square<B: Backend>(x: FloatTensor<B>, epsilon: f32) -> FloatTensor<B> {
    let last = x.shape().num_dims() - 1;
    let mean = B::float_mean_dim(B::float_mul(x.clone(), x), last);
    B::float_recip(B::float_sqrt(B::float_add_scalar(mean, epsilon.into())))
}

fn sigmoid<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_recip(B::float_add_scalar(B::float_exp(B::float_neg(x)), 1.0.into()))
}

fn turn<B: Backend>(x: FloatTensor<B>, cos: FloatTensor<B>, sin: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = x.dtype().into();
    let shape = x.shape();
    let half = shape[3] / 2;
    let part = |from: usize| {
        let mut slices: Vec<Slice> = (0..3).map(|dim| Slice::from(0..shape[dim])).collect();
        slices.push(Slice::from(from..from + half));
        wide::<B>(B::float_slice(x.clone(), &slices))
    };
    let (low, high) = (part(0), part(half));
    let turned_low = B::float_sub(
        B::float_mul(low.clone(), cos.clone()),
        B::float_mul(high.clone(), sin.clone()),
    );
    let turned_high = B::float_add(B::float_mul(high, cos), B::float_mul(low, sin));
    let turned = [turned_low, turned_high].map(|part| B::float_cast(part, dtype));
    B::float_cat(turned.into(), 3)
}
