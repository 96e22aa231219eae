use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::rms_norm`]. One cube per row, one unit for every `UNITS` vectors.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn rms_norm<E: Float, N: Size>(
    x: &Tensor<Vector<E, N>>,
    residual: &Tensor<Vector<E, N>>,
    weight: &Tensor<E>,
    sum: &mut Tensor<Vector<E, N>>,
    normal: &mut Tensor<Vector<E, N>>,
    epsilon: f32,
    #[comptime] adds: bool,
    #[comptime] weight_less_one: bool,
    #[define(E)] _type: ElemType,
) {
    let row = CUBE_POS;
    let unit = UNIT_POS as usize;
    let mut squares = Shared::<[f32]>::new_slice(UNITS);
    if row < x.shape(0) {
        let width = x.vector_size();
        let channels = x.shape(1);
        let vectors = channels / width;
        let of_x = row * x.stride(0);
        let of_residual = row * residual.stride(0);
        let of_sum = row * sum.stride(0);
        let of_normal = row * normal.stride(0);

        let mut own = f32::new(0.0);
        let mut vector = unit;
        while vector < vectors {
            let channel = vector * width;
            let mut here = x[(of_x + channel * x.stride(1)) / width];
            if comptime!(adds) {
                let added = residual[(of_residual + channel * residual.stride(1)) / width];
                // Rounded as a sum of its own would be.
                here = Vector::cast_from(
                    Vector::<f32, N>::cast_from(here) + Vector::<f32, N>::cast_from(added),
                );
                let to = of_sum + channel * sum.stride(1);
                sum[to / width] = here;
            }
            let wide = Vector::<f32, N>::cast_from(here);
            #[unroll]
            for index in 0..width {
                let number = wide.extract(index);
                own += number * number;
            }
            vector += UNITS;
        }
        squares[unit] = own;
        sync_cube();
        let mut half = comptime!(UNITS / 2).runtime();
        while half > 0 {
            if unit < half {
                let other = squares[unit + half];
                squares[unit] += other;
            }
            sync_cube();
            half /= 2;
        }
        let root = (squares[0] / f32::cast_from(channels) + epsilon).sqrt();

        let mut vector = unit;
        while vector < vectors {
            let channel = vector * width;
            let mut here = x[(of_x + channel * x.stride(1)) / width];
            if comptime!(adds) {
                here = sum[(of_sum + channel * sum.stride(1)) / width];
            }
            let wide = Vector::<f32, N>::cast_from(here);
            let mut found = Vector::<E, N>::new(E::new(0.0));
            #[unroll]
            for index in 0..width {
                let of_channel = weight[(channel + index) * weight.stride(0)];
                let own = wide.extract(index) / root;
                if comptime!(weight_less_one) {
                    found.insert(index, E::cast_from((f32::cast_from(of_channel) + 1.0) * own));
                } else {
                    found.insert(index, of_channel * E::cast_from(own));
                }
            }
            let to = of_normal + channel * normal.stride(1);
            normal[to / width] = found;
            vector += UNITS;
        }
    }
}
