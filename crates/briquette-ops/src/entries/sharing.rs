use burn::tensor::{Int, Tensor};

/// Which tokens share a key and a value (EMS): the key of a token is its norm times the row of its entry.
///
/// It describes the first tokens each head holds. Which of them are left only the device knows: those that are none have
/// position −1 and come first. Tokens behind them have rows of their own.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Tokens described, one number a batch row and kv head, those that are none included.
    pub tokens: Vec<usize>,
    /// Entries they belong to, the same.
    pub entries: Vec<usize>,
    /// Tokens behind them, the same.
    pub own: Vec<usize>,
    /// The entry of each, counted from the first of its head, `[batch, kv_heads, columns]`.
    pub entry: Tensor<3, Int>,
    /// What the row of the entry is multiplied by, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The token at the center of each entry, counted from the first of its head, `[batch, kv_heads, entries]`.
    pub centers: Tensor<3, Int>,
    /// The columns: those that hold no token, then entry by entry, `[batch, kv_heads, columns]`.
    pub members: Tensor<3, Int>,
    /// How many columns hold no token, `[batch, kv_heads]`.
    pub none: Tensor<2, Int>,
}

impl Sharing {
    /// Entries of each batch row and kv head, tokens behind those described included.
    pub fn all_entries(&self) -> Vec<usize> {
        self.entries.iter().zip(&self.own).map(|(entries, own)| entries + own).collect()
    }

    /// With as many more tokens behind each head.
    pub fn followed_by(mut self, tokens: usize) -> Self {
        self.own.iter_mut().for_each(|own| *own += tokens);
        self
    }
}
