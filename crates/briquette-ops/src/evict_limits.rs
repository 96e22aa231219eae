use burn::tensor::{Device, Int, Tensor};

use crate::constant::constant_ints;

/// Numbers that evictions at consecutive tokens go by, on the device, so that a recorded launch
/// finds its own by the position of the new token.
#[derive(Clone, Debug)]
pub struct EvictLimits {
    table: Tensor<2, Int>,
    numbers: usize,
}

impl EvictLimits {
    /// Of heads, per batch row and kv head. `first` is the position of the first new token of each,
    /// `sinks` how many first tokens stay; then numbers for each token:
    ///
    /// - of [`EvictInput`](crate::EvictInput): how many last tokens stay, and 1 where a free slot
    ///   is taken;
    /// - of [`EvictClusterInput`](crate::EvictClusterInput): how many last clusters stay, 1 where a
    ///   free row is taken, the clusters before, and the most tokens before and afterwards.
    pub fn new<const N: usize>(
        first: &[usize],
        sinks: &[usize],
        tokens: &[Vec<[usize; N]>],
        device: &Device,
    ) -> Self {
        let of_head = |head: usize| {
            let of_token = move |heads: &Vec<[usize; N]>| heads[head];
            [first[head], sinks[head]].into_iter().chain(tokens.iter().flat_map(of_token))
        };
        let (heads, width) = (first.len(), 2 + N * tokens.len());
        let table = (0..heads).flat_map(of_head).map(|number| number as i64).collect();
        let table = constant_ints("eviction limits", table, [heads, width], device);
        Self { table, numbers: N }
    }

    /// Position of the first new token, number of first tokens that stay, and the numbers of each
    /// token one after another: `[batch · kv_heads, 2 + numbers · tokens]`.
    pub fn table(&self) -> Tensor<2, Int> {
        self.table.clone()
    }

    /// Numbers of a token.
    pub fn numbers(&self) -> usize {
        self.numbers
    }
}
