use std::fmt::Debug;

use burn::tensor::{DType, Device, Int, Tensor};

use super::{
    AttentionStatistics,
    append::{self, AppendInput},
    count::{self, CountInput},
    quantize::{self, QuantizeInput},
    quantize_fp8, ranks,
};
use crate::{
    attention::{PackedGroups, PackedVectors},
    error::Result,
};

/// Buffers of the entries of a layer, and changes that every decoded token makes to them.
pub trait EntryOps: Debug + Send + Sync {
    /// Runs `allocate`, so that each tensor that it makes has device memory of its own, which the
    /// device has back once nobody holds the tensor. Where memory is not kept in pages that is so
    /// anyway.
    ///
    /// It is for a few large tensors: each costs calls of the driver.
    fn allocate_apart(&self, device: &Device, allocate: &mut (dyn FnMut() + Send)) {
        let _ = device;
        allocate();
    }

    /// Writes a new token per head behind the entries of a layer, in tensors that nobody else holds
    /// without copying any. See [`AppendInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit. Nothing is changed then.
    fn append(&self, input: AppendInput<'_>) -> Result<()> {
        append::append(input);
        Ok(())
    }

    /// Adds the attention that entries have received to their statistics. See [`CountInput`] for
    /// shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn count(&self, input: CountInput<'_>) -> Result<AttentionStatistics> {
        Ok(count::count(input))
    }

    /// Counts how many tokens of a head come before each. Returns the ranks, −1 at padding.
    ///
    /// # Shapes
    /// - `positions`: position of each entry, in any order, `[batch, heads, columns]`, −1 at
    ///   padding, the others of a head distinct
    /// - returns `[batch, heads, columns]`, of the type of `positions`
    ///
    /// Ranks do not depend on `sinks`, the number of first tokens that heads hold. Where a head
    /// holds its last tokens besides and no others, a kernel need not compare all with all.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if positions cannot be read or a kernel cannot be launched.
    fn ranks(&self, positions: Tensor<3, Int>, sinks: usize) -> Result<Tensor<3, Int>> {
        let _ = sinks;
        ranks::ranks(positions)
    }

    /// Quantizes numbers to a few bits between the minimum and the maximum of their group, and
    /// packs them into words (KIVI). See [`QuantizeInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) of a kernel for shapes that do not fit.
    fn quantize(&self, input: QuantizeInput) -> Result<PackedGroups> {
        Ok(quantize::quantize(input))
    }

    /// Rounds vectors to 8-bit floating point, E4M3 (Micikevicius et al., 2022), and packs them
    /// into words. Each is divided by its largest magnitude over 448 first, rounded to `dtype`;
    /// numbers are rounded to the nearest, halves to even.
    ///
    /// # Shapes
    /// - `x`: `[pages, rows, channels]`, a vector a row
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) of a kernel for shapes that do not fit.
    fn quantize_fp8(&self, x: Tensor<3>, dtype: DType) -> Result<PackedVectors> {
        Ok(quantize_fp8::quantize_fp8(x, dtype))
    }
}
