use burn::tensor::f16;

/// The numbers of a quantized matrix on the host, row by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantizedParts {
    /// Levels, `[outputs, words]`: four of eight bits a word, the first lowest; of four bits the
    /// 16 bytes of a block have its first 16 weights in their lower halves and the others in the
    /// upper ones.
    pub words: Vec<i32>,
    /// Scale of each group, `[outputs, groups]`.
    pub scales: Vec<f16>,
    /// Minimum of each group, `[outputs, groups]`, where the format has them.
    pub mins: Vec<f16>,
    /// Factors of each group, those of the scale and behind them those of the minimum, if there is
    /// one, a byte each, `[outputs, words]`, where the format has them.
    pub factors: Vec<i32>,
}
