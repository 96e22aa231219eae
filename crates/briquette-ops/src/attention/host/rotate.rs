//! Rotation on the host, a row in one pass.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{
    attention::rotary::RotaryTables,
    error::Result,
    host::{HostInput, computes, rows::write},
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
        let (low, high) = x[row * head_dim..][..head_dim].split_at(half);
        let (to_low, to_high) = rotated.split_at_mut(half);
        for pair in 0..half {
            to_low[pair] = low[pair] * cosines[pair] - high[pair] * sines[pair];
            to_high[pair] = high[pair] * cosines[pair] + low[pair] * sines[pair];
        }
    });
    let rotated = TensorData::new(rotated, dims);
    Ok(Some(Tensor::from_data(rotated, (&device, DType::F32))))
}
