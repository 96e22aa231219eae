/// Inputs whose levels lie together, and share a scale in most formats.
pub(super) const BLOCK: usize = 32;

/// How weights are quantized: a weight is a level of a few bits times the scale of its group, plus
/// the group's minimum where there is one. Scales and minima are f16.
///
/// Those of blocks of 32 are
/// [ggml's](https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c), which GGUF files hold;
/// those of groups of 128 take fewer bytes, and are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Eight bits, a scale for 32 weights: `scale · level`, levels from -128 to 127.
    Q8_0,
    /// Four bits, a scale for 32 weights: `scale · (level - 8)`.
    Q4_0,
    /// Four bits, a scale and a minimum for 32 weights: `scale · level + min`.
    Q4_1,
    /// Four bits, a scale and a minimum for 256 weights, and a factor of six bits of each for 32:
    /// `scale · factor · level - min · factor`.
    Q4K,
    /// Eight bits for levels of five, a scale and a minimum for 32 weights: `scale · level + min`.
    Q5_1,
    /// Eight bits for levels of five, and the rest as [`Q4K`](Self::Q4K) has it.
    Q5K,
    /// Eight bits for levels of six, a scale for 256 weights, and a signed factor of eight bits for
    /// 16: `scale · factor · level`.
    Q6K,
    /// Eight bits, a scale for 128 weights.
    Q8Group128,
    /// Four bits, a scale for 128 weights: `scale · (level - 8)`.
    Q4Group128,
}

impl WeightFormat {
    /// Bits that a level takes.
    pub fn bits(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q5_1 | Self::Q5K | Self::Q6K | Self::Q8Group128 => 8,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K | Self::Q4Group128 => 4,
        }
    }

    /// Weights that share an f16 scale. The inputs of a matrix are a multiple of them.
    pub fn group(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_1 => BLOCK,
            Self::Q8Group128 | Self::Q4Group128 => 128,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Whether groups have a minimum.
    pub fn has_min(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q4K | Self::Q5_1 | Self::Q5K)
    }

    /// Whether each block has a factor of the scale of its group, and of the minimum where there is
    /// one. Without a minimum they are signed.
    pub fn has_factors(self) -> bool {
        matches!(self, Self::Q4K | Self::Q5K | Self::Q6K)
    }

    /// Weights that share all but their level.
    pub fn block(self) -> usize {
        if self == Self::Q6K { 16 } else { BLOCK }
    }

    /// The level that stands for zero.
    pub fn zero(self) -> i32 {
        match self {
            Self::Q4_0 | Self::Q4Group128 => 8,
            _ => 0,
        }
    }

    /// 32-bit words that the levels of so many weights of a row take.
    pub fn words(self, inputs: usize) -> usize {
        inputs * self.bits() / 32
    }

    /// 32-bit words that the factors of so many weights of a row take.
    pub fn factor_words(self, inputs: usize) -> usize {
        if self.has_factors() { inputs / self.group() * self.factor_words_of_group() } else { 0 }
    }

    /// Words of the factors of a group: those of the scale, and behind them those of the minimum.
    pub fn factor_words_of_group(self) -> usize {
        let measures = if self.has_min() { 2 } else { 1 };
        self.group() / self.block() * measures / 4
    }
}
