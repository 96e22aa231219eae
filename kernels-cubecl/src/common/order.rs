use cubecl::prelude::*;

/// The order of a score's bits: the higher the score, the lower the number; NaN comes last.
///
/// It tells −0 from +0 as `f32::total_cmp` does. It goes by bits, since comparisons of numbers may
/// flush small ones.
#[cube]
pub(crate) fn order(bits: u32) -> u32 {
    let negative = bits >> 31;
    let magnitude = bits & 0x7fff_ffff;
    let mut order = 0x7fff_ffff - magnitude;
    if negative == 1 {
        order = bits;
    }
    if magnitude > 0x7f80_0000 {
        order = 0xffff_ffff;
    }
    order
}
