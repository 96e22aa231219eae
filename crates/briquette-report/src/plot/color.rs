use plotters::style::RGBColor;

pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const GREY: RGBColor = RGBColor(0x70, 0x70, 0x70);
pub(super) const GRID: RGBColor = RGBColor(0xe0, 0xe0, 0xe0);
pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// The colour of a share, 0 to 1: from dark blue over green to light yellow. Lightness in OKLab
/// grows linearly, so order is seen without telling the hues apart.
pub(super) fn ramp(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let lightness = 0.30 + 0.62 * share;
    let hue = (285.0 - 180.0 * share).to_radians();
    // The middle of the ramp can be no more colourful inside sRGB.
    let chroma = 0.105 + 0.045 * share;
    oklab(lightness, chroma * hue.cos(), chroma * hue.sin())
}

/// Ink that can be read on [`ramp`].
pub(super) fn ink_on_ramp(share: f64) -> RGBColor {
    if share < 0.4 { PAPER } else { RGBColor(0, 0, 0) }
}

/// Colours of unordered things, told apart also with the usual colour blindnesses (Okabe and
/// Ito, 2008).
pub(super) fn category(index: usize) -> RGBColor {
    const PALETTE: [RGBColor; 6] = [
        RGBColor(0x00, 0x72, 0xb2),
        RGBColor(0xd5, 0x5e, 0x00),
        RGBColor(0x00, 0x9e, 0x73),
        RGBColor(0xcc, 0x79, 0xa7),
        RGBColor(0xe6, 0x9f, 0x00),
        RGBColor(0x56, 0xb4, 0xe9),
    ];
    PALETTE[index % PALETTE.len()]
}

/// OKLab (Ottosson, 2020) to sRGB, clipped.
fn oklab(lightness: f64, a: f64, b: f64) -> RGBColor {
    let l = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let m = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let s = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    let channel = |linear: f64| {
        let linear = linear.clamp(0.0, 1.0);
        let encoded = if linear <= 0.003_130_8 {
            12.92 * linear
        } else {
            1.055 * linear.powf(1.0 / 2.4) - 0.055
        };
        (encoded * 255.0).round() as u8
    };
    RGBColor(
        channel(4.076_741_662_1 * l - 3.307_711_591_3 * m + 0.230_969_929_2 * s),
        channel(-1.268_438_004_6 * l + 2.609_757_401_1 * m - 0.341_319_396_5 * s),
        channel(-0.004_196_086_3 * l - 0.703_418_614_7 * m + 1.707_614_701_0 * s),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG).
    fn luminance(RGBColor(r, g, b): RGBColor) -> f64 {
        let linear = |channel: u8| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    }

    #[test]
    fn ramp_grows_lighter_all_the_way() {
        let lightness: Vec<f64> = (0..=20).map(|i| luminance(ramp(f64::from(i) / 20.0))).collect();
        assert!(lightness.windows(2).all(|pair| pair[1] > pair[0]), "{lightness:?}");
    }

    #[test]
    fn every_value_can_be_read() {
        for i in 0..=100 {
            let share = f64::from(i) / 100.0;
            let (a, b) = (luminance(ramp(share)) + 0.05, luminance(ink_on_ramp(share)) + 0.05);
            assert!(f64::max(a / b, b / a) >= 4.5, "{share}: {}", f64::max(a / b, b / a));
        }
    }

    #[test]
    fn oklab_knows_white_and_black() {
        assert_eq!(oklab(1.0, 0.0, 0.0), RGBColor(255, 255, 255));
        assert_eq!(oklab(0.0, 0.0, 0.0), RGBColor(0, 0, 0));
    }
}
