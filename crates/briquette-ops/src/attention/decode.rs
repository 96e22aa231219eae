use burn::tensor::{Int, Tensor};

use super::{
    prefill::{AttentionInput, AttentionOutput},
    rotary::RotaryTables,
    scoring::Scoring,
    visibility::Visibility,
};

/// Decode step of a layer: one query per head, or a few, over all keys and values of the layer.
#[derive(Clone, Debug)]
pub struct DecodeInput {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`. Only [`KvLayout::Dense`]
    /// takes more than one per head; they belong to the last of the entries.
    pub queries: Tensor<4>,
    /// Keys and values.
    pub kv: KvLayout,
    /// How query-key products become weights. Only [`KvLayout::Dense`] has the positions that some
    /// read.
    pub scoring: Scoring,
    /// Whether to return [`DecodeOutput::weights`].
    pub weights: bool,
}

impl DecodeInput {
    /// Returns attention as a decode step, with weights if sums are wanted.
    pub fn of(input: &AttentionInput) -> Self {
        let AttentionInput { queries, keys, values, visibility, scoring, .. } = input.clone();
        let entries = keys.dims()[2];
        Self {
            queries,
            kv: KvLayout::Dense(DenseKv { keys, values, entries, counts: None, visibility }),
            scoring,
            weights: input.column_sums || input.column_squares,
        }
    }
}

/// Memory layout of the keys and values of a layer.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum KvLayout {
    /// Every head has the same number of entries, in buffers with room for more.
    Dense(DenseKv),
    /// Heads have different numbers of entries, one head after another without padding (AdaKV,
    /// HeadKV, KVMerger).
    Ragged(RaggedKv),
    /// Tokens share keys and values: a cluster has one key direction and one value (EMS).
    Clustered(ClusteredKv),
    /// Keys and values are pages of numbers of a few bits (KIVI, FP8).
    Quantized(QuantizedKv),
}

/// Keys and values of heads with the same number of entries.
#[derive(Clone, Debug)]
pub struct DenseKv {
    /// Keys, positions encoded, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, value_dim]`.
    pub values: Tensor<4>,
    /// Number of entries of each head: the first rows of the buffers.
    pub entries: usize,
    /// Number of entries of each batch row and kv head, `[batch · kv_heads]`, where only the device
    /// knows: no more than `entries`. For one query, and not where weights are wanted.
    pub counts: Option<Tensor<1, Int>>,
    /// Visibility of entries to queries; there may be as many positions of entries as the capacity.
    pub visibility: Visibility,
}

/// Entries in full precision behind those of another layout: the same number for every head,
/// visible to every query.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Keys, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, value_dim]`.
    pub values: Tensor<4>,
    /// Number of entries of each head: the first rows of the buffers.
    pub entries: usize,
}

/// Keys and values of heads with different numbers of entries. Every query sees every entry of its
/// head, and no slot that is free.
#[derive(Clone, Debug)]
pub struct RaggedKv {
    /// Keys of all heads one after another, positions encoded, `[total, head_dim]`.
    pub keys: Tensor<2>,
    /// Values, `[total, value_dim]`.
    pub values: Tensor<2>,
    /// Offset of the first of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Number of columns of these entries in the weights, at least the entries of the longest head;
    /// the columns of a head with fewer begin with padding.
    pub width: usize,
    /// Position of each column, `[batch, kv_heads, width]`, below zero at slots that are free;
    /// `None` if none is.
    pub positions: Option<Tensor<3, Int>>,
    /// Entries behind these.
    pub tail: Tail,
    /// Entries of the tail of each batch row and kv head, `[batch · kv_heads]`, where only the
    /// device knows: no more than the tail's own number. Not where slots are free, or weights are
    /// wanted.
    pub tail_counts: Option<Tensor<1, Int>>,
}

/// Keys and values that tokens share. Every query sees every token of its head. The key of a token
/// is its norm times the direction of its cluster, and its value is that of its cluster.
#[derive(Clone, Debug)]
pub struct ClusteredKv {
    /// Directions of keys, head after head, `[clusters, head_dim]`.
    pub directions: Tensor<2>,
    /// Values, `[clusters, head_dim]`.
    pub values: Tensor<2>,
    /// Columns of each head sorted by cluster; each cluster has at least one.
    /// `[batch, kv_heads, width]`. Padding comes first, here and in the other two.
    pub tokens_by_cluster: Tensor<3, Int>,
    /// Cluster index of each token within its head, `[batch, kv_heads, width]`.
    pub cluster_of_token: Tensor<3, Int>,
    /// Factor of the direction of each token's key, f32, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// Number of padding columns per batch row and kv head, `[batch · kv_heads]`. Only the device
    /// need know.
    pub padding_columns: Tensor<1, Int>,
    /// Offset of the first cluster of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Rotary encoding of the keys, those of the tail too; `None` if their positions are encoded.
    pub rotary: Option<RotaryTables>,
    /// Entries behind these.
    pub tail: Tail,
}

/// Keys and values of a few bits. Every query sees every token of its head: those of its pages,
/// oldest first, then those of its tail.
#[derive(Clone, Debug)]
pub struct QuantizedKv {
    /// Keys, positions encoded, and values of all pages.
    pub numbers: PackedNumbers,
    /// Number of tokens of a page.
    pub group: usize,
    /// Indices of the pages of all heads one after another, oldest first, `[all pages]`.
    pub pages: Tensor<1, Int>,
    /// Offset of the first of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Number of pages of the head with the most.
    pub most_pages: usize,
    /// Entries behind these.
    pub tail: Tail,
    /// Number of first entries of the tail that are padding per batch row and kv head,
    /// `[batch · kv_heads]`.
    pub tail_padding: Tensor<1, Int>,
    /// Number of tokens of the longest head, and of columns of the weights; the columns of the
    /// other heads begin with padding.
    pub columns: usize,
}

/// Keys and values of pages, and the format of their numbers.
// As of layouts, there are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum PackedNumbers {
    /// Levels between the minimum and the maximum of a group (KIVI).
    Levels {
        /// Keys: the rows of a page are channels, and the numbers of a row are the tokens of the
        /// page, which are one group.
        keys: PackedGroups,
        /// Values: the rows of a page are tokens, and the numbers of a row are channels.
        values: PackedGroups,
        /// Bits per number: 1, 2, 4 or 8.
        bits: usize,
    },
    /// 8-bit floating point, E4M3 (Micikevicius et al., 2022).
    Fp8 {
        /// Keys.
        keys: PackedVectors,
        /// Values.
        values: PackedVectors,
    },
}

/// Numbers of a few bits in 32-bit words, from the lowest bit on, and the scale and minimum of each
/// group of them: a number is its level times `scale`, plus `min`.
#[derive(Clone, Debug)]
pub struct PackedGroups {
    /// Packed levels, `[pages, rows · words]`.
    pub words: Tensor<2, Int>,
    /// Scale of each group, `[pages, rows · groups]`.
    pub scale: Tensor<2>,
    /// Minimum of each group, `[pages, rows · groups]`.
    pub min: Tensor<2>,
}

/// Vectors of E4M3 bytes in 32-bit words, from the lowest byte on, and the scale of each vector: a
/// channel is its number times `scale`. No byte is NaN.
#[derive(Clone, Debug)]
pub struct PackedVectors {
    /// Bytes of the tokens of a page, one token after another, each in whole words,
    /// `[pages, tokens · words]`.
    pub words: Tensor<2, Int>,
    /// Scale of each token, `[pages, tokens]`.
    pub scale: Tensor<2>,
}

/// Output of a decode step.
#[derive(Clone, Debug)]
pub struct DecodeOutput {
    /// Attention output, `[batch, query_heads, new, value_dim]`, of the type of the queries; zero
    /// where a query sees nothing.
    pub output: Tensor<4>,
    /// Attention weight of each column, the tail last, `[batch, query_heads, new, columns]`, f32;
    /// zero at padding.
    pub weights: Option<Tensor<4>>,
}

impl DecodeOutput {
    /// Sums the weights over the queries if `sums`, and their squares if `squares`.
    pub fn with_column_sums(self, sums: bool, squares: bool) -> AttentionOutput {
        let over_queries = |weights: Tensor<4>| -> Tensor<3> {
            match weights.dims()[2] {
                1 => weights.squeeze_dim(2),
                _ => weights.sum_dim(2).squeeze_dim(2),
            }
        };
        let squared = self.weights.clone().filter(|_| squares).map(|weights| weights.square());
        AttentionOutput {
            output: self.output,
            column_sums: self.weights.filter(|_| sums).map(over_queries),
            column_squares: squared.map(over_queries),
        }
    }
}
