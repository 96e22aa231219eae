use briquette_ops::Activation;
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::gated`]. A unit has `N` numbers of a row; cubes are numbered through all vectors.
#[cube(launch)]
pub(super) fn gated<E: Float, N: Size>(
    gate: &Tensor<Vector<E, N>>,
    up: &Tensor<Vector<E, N>>,
    output: &mut Tensor<Vector<E, N>>,
    vectors: usize,
    #[comptime] activation: Activation,
    #[define(E)] _type: ElemType,
) {
    let place = CUBE_POS * UNITS + UNIT_POS as usize;
    let row = place / vectors;
    if row < output.shape(0) {
        let width = gate.vector_size();
        let channel = place % vectors * width;
        let of_gate = gate[(row * gate.stride(0) + channel * gate.stride(1)) / width];
        let of_up = up[(row * up.stride(0) + channel * up.stride(1)) / width];
        let active = activated::<N>(Vector::cast_from(of_gate), activation);
        // Rounded in between, as two operations do.
        let rounded = Vector::<f32, N>::cast_from(Vector::<E, N>::cast_from(active));
        let product = rounded * Vector::<f32, N>::cast_from(of_up);
        let to = row * output.stride(0) + channel * output.stride(1);
        output[to / width] = Vector::cast_from(product);
    }
}

#[cube]
fn activated<N: Size>(x: Vector<f32, N>, #[comptime] activation: Activation) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0);
    let half = Vector::<f32, N>::new(0.5);
    match comptime!(activation) {
        Activation::Silu => x / (one + (-x).exp()),
        Activation::Gelu => {
            let root = Vector::<f32, N>::new(comptime!(std::f32::consts::FRAC_1_SQRT_2));
            half * x * (one + (x * root).erf())
        }
        Activation::GeluTanh => {
            let scale = Vector::<f32, N>::new(comptime!(0.797_884_6_f32));
            let cubic = Vector::<f32, N>::new(comptime!(0.044_715_f32));
            half * x * (one + (scale * (x + cubic * x * x * x)).tanh())
        }
    }
}
