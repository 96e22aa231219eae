//! Rotation on the host, a row in one pass.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{
    attention::rotary::RotaryTables,
    error::Result,
    host::{
        HostInput, computes,
        rows::{turn, write},
    },
};

const INPUT: HostInput = HostInput("rotate");

/// The rotated rows, where the host computes in f32; `None` elsewhere.
pub(in crate::attention) fn rotate(
    x: &Tensor<4>,
    rotary: &RotaryTables,
) -> Result<Option<Tensor<4>>> {
    let RotaryTables { cosines, sines, positions } = rotary;
    let is_f32 = |table: &Tensor<2>| table.dtype() == DType::F32;
    if !computes(x) || !is_f32(cosines) || !is_f32(sines) {
        return Ok(None);
    }
    let dims @ [batch, heads, tokens, head_dim] = x.dims();
    let [rows, half] = cosines.dims();
    let lists = positions.dims()[1];
    INPUT.shape("sines", sines.dims(), [rows, half])?;
    INPUT.value("channels", head_dim, head_dim == 2 * half, format!("{}", 2 * half))?;
    INPUT.shape(
        "positions",
        positions.dims(),
        [batch, if lists == 1 { 1 } else { heads }, tokens],
    )?;
    // Padding stands at −1: any row of the table will do.
    let positions =
        INPUT.at_most("positions", &positions.clone().clamp_min(0), rows.saturating_sub(1))?;
    let device = x.device();
    let (x, cosines, sines) =
        (INPUT.view::<f32, _>(x)?, INPUT.view::<f32, _>(cosines)?, INPUT.view::<f32, _>(sines)?);
    let rotated = write(batch * heads * tokens, head_dim, |row, rotated| {
        let (list, token) = (row / tokens, row % tokens);
        let list = if lists == 1 { list / heads } else { list };
        let place = positions[list * tokens + token] * half;
        let (cosines, sines) = (&cosines[place..][..half], &sines[place..][..half]);
        turn(cosines, sines, &x[row * head_dim..][..head_dim], rotated);
    });
    let rotated = TensorData::new(rotated, dims);
    Ok(Some(Tensor::from_data(rotated, (&device, DType::F32))))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Int};

    use super::*;
    use crate::{OpError, attention};

    fn random<const D: usize>(dims: [usize; D], device: &Device) -> Tensor<D> {
        Tensor::random(dims, Distribution::Default, (device, DType::F32))
    }

    /// Positions of all heads and of each, padding among them.
    #[test]
    fn rows_are_those_of_tensor_operations() {
        let device = Device::flex();
        device.seed(2026);
        let (batch, heads, half) = (2, 3, 9);
        for (tokens, lists) in [(1, 1), (7, 1), (7, heads), (900, 1)] {
            let positions = Tensor::<1, Int>::arange(0..(batch * lists * tokens) as i64, &device);
            let positions = positions.remainder_scalar(40) - 1;
            let rotary = RotaryTables {
                cosines: random([64, half], &device),
                sines: random([64, half], &device),
                positions: positions.reshape([batch, lists, tokens]),
            };
            // Heads as a projection has them, token by token.
            let x = random([batch, tokens, heads, 2 * half], &device).swap_dims(1, 2);
            let found = rotate(&x, &rotary).unwrap().unwrap();
            let off = (found - attention::rotate(x, rotary)).abs().max().into_scalar::<f32>();
            assert!(off <= 1e-6, "{tokens} tokens, {lists} lists: {off}");
        }
    }

    #[test]
    fn positions_behind_the_tables_are_refused() {
        let device = Device::flex();
        let tables = random([4, 2], &device);
        let positions = Tensor::from_ints([[[3, 4]]], &device);
        let rotary = RotaryTables { cosines: tables.clone(), sines: tables, positions };
        let error = rotate(&random([1, 1, 2, 4], &device), &rotary).unwrap_err();
        assert!(matches!(error, OpError::Value { .. }), "{error}");
    }
}
