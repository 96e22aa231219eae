use cubecl::prelude::*;

use crate::{
    common::{
        nvidia::{exp2::exp2, reciprocal::reciprocal},
        tile::mma::Pair,
    },
    model::gated::{Curve, activated},
};

/// Two sums of one side of a gated feed-forward network, times the activation of the same of the
/// gate. Sums are rounded, and the activation, as an operation of its own would do.
#[cube]
pub(super) fn gated_pair<E: Float>(
    gate: Pair<f32>,
    up: Pair<f32>,
    #[comptime] curve: Curve,
) -> Pair<E> {
    let gate = Pair::<f32>::cast_from(Pair::<E>::cast_from(gate));
    let up = Pair::<f32>::cast_from(Pair::<E>::cast_from(up));
    let active = match comptime!(curve) {
        Curve::Silu => {
            let mut active = Pair::<f32>::empty();
            #[unroll]
            for side in 0..2usize {
                active.insert(side, silu(gate.extract(side)));
            }
            active
        }
        _ => activated::<Const<2>>(gate, curve),
    };
    let rounded = Pair::<f32>::cast_from(Pair::<E>::cast_from(active));
    Pair::<E>::cast_from(rounded * up)
}

/// Units multiply nothing meanwhile: by the instructions that NVIDIA has for it.
#[cube]
fn silu(x: f32) -> f32 {
    let power = exp2(x * comptime!(-std::f32::consts::LOG2_E));
    x * reciprocal(1.0 + power)
}
