use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;

/// See [`super::rotate`]. A unit turns `N` pairs of one row; cubes along x go through the pairs of
/// a head, those along y are heads, those along z batch rows.
#[cube(launch)]
pub(super) fn rotate<E: Float, T: Float, I: Int, N: Size>(
    x: &Tensor<Vector<E, N>>,
    cosines: &Tensor<Vector<T, N>>,
    sines: &Tensor<Vector<T, N>>,
    positions: &Tensor<I>,
    turned: &mut Tensor<Vector<E, N>>,
    vectors: usize,
    #[define(E, T, I)] _types: [ElemType; 3],
) {
    turn::<E, T, I, N>(x, cosines, sines, positions, turned, CUBE_POS_Y as usize, vectors);
}

/// See [`super::rotate_both`]. The cubes of keys are behind those of queries along y.
#[cube(launch)]
#[allow(clippy::too_many_arguments)]
pub(super) fn rotate_both<E: Float, T: Float, I: Int, N: Size>(
    queries: &Tensor<Vector<E, N>>,
    keys: &Tensor<Vector<E, N>>,
    cosines: &Tensor<Vector<T, N>>,
    sines: &Tensor<Vector<T, N>>,
    positions: &Tensor<I>,
    turned_queries: &mut Tensor<Vector<E, N>>,
    turned_keys: &mut Tensor<Vector<E, N>>,
    vectors: usize,
    #[define(E, T, I)] _types: [ElemType; 3],
) {
    let head = CUBE_POS_Y as usize;
    let query_heads = queries.shape(1);
    if head < query_heads {
        turn::<E, T, I, N>(queries, cosines, sines, positions, turned_queries, head, vectors);
    } else {
        let head = head - query_heads;
        turn::<E, T, I, N>(keys, cosines, sines, positions, turned_keys, head, vectors);
    }
}

/// Turns the pairs of a head that are this unit's.
#[cube]
fn turn<E: Float, T: Float, I: Int, N: Size>(
    x: &Tensor<Vector<E, N>>,
    cosines: &Tensor<Vector<T, N>>,
    sines: &Tensor<Vector<T, N>>,
    positions: &Tensor<I>,
    turned: &mut Tensor<Vector<E, N>>,
    head: usize,
    vectors: usize,
) {
    let place = CUBE_POS_X as usize * UNITS + UNIT_POS as usize;
    let token = place / vectors;
    if token < x.shape(2) {
        let width = x.vector_size();
        let batch = CUBE_POS_Z as usize;
        let mut of_position = batch * positions.stride(0) + token * positions.stride(2);
        if positions.shape(1) > 1 {
            of_position += head * positions.stride(1);
        }
        // Padding stands at −1.
        let position = usize::cast_from(max(positions[of_position], I::new(0)));
        let position = position.min(cosines.shape(0) - 1);
        let channel = place % vectors * width;
        let of_cosine = position * cosines.stride(0) + channel * cosines.stride(1);
        let of_sine = position * sines.stride(0) + channel * sines.stride(1);
        let cosine = Vector::<f32, N>::cast_from(cosines[of_cosine / width]);
        let sine = Vector::<f32, N>::cast_from(sines[of_sine / width]);
        let half = vectors * width;
        let row = batch * x.stride(0) + head * x.stride(1) + token * x.stride(2);
        let low = Vector::<f32, N>::cast_from(x[(row + channel * x.stride(3)) / width]);
        let high = Vector::<f32, N>::cast_from(x[(row + (channel + half) * x.stride(3)) / width]);
        let row = batch * turned.stride(0) + head * turned.stride(1) + token * turned.stride(2);
        let step = turned.stride(3);
        turned[(row + channel * step) / width] = Vector::cast_from(low * cosine - high * sine);
        turned[(row + (channel + half) * step) / width] =
            Vector::cast_from(high * cosine + low * sine);
    }
}
