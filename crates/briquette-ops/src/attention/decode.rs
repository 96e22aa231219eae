use burn::tensor::{Int, Tensor};

use super::{prefill::AttentionOutput, rotary::RotaryTables, visibility::Visibility};

/// A decode step of a layer: one query a head, or a few, over all keys and values the layer holds.
#[derive(Clone, Debug)]
pub struct DecodeInput {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`. Only [`KvLayout::Dense`]
    /// takes more than one a head; they belong to the last of the entries.
    pub queries: Tensor<4>,
    /// Keys and values.
    pub kv: KvLayout,
    /// Factor of query-key products before the softmax.
    pub scale: f64,
    /// Whether [`DecodeOutput::weights`] are wanted.
    pub weights: bool,
}

/// How the keys and values of a layer lie in memory.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum KvLayout {
    /// Every head holds the same number of entries, in buffers with room for more.
    Dense(DenseKv),
    /// Heads hold different numbers of entries, one head after another without padding (AdaKV,
    /// HeadKV, KVMerger).
    Ragged(RaggedKv),
    /// Tokens share keys and values: a cluster has one of each (EMS).
    Clustered(ClusteredKv),
    /// Pages of numbers of a few bits (KIVI).
    Quantized(QuantizedKv),
}

/// Keys and values of heads that hold the same number of entries.
#[derive(Clone, Debug)]
pub struct DenseKv {
    /// Keys, positions encoded, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, head_dim]`.
    pub values: Tensor<4>,
    /// How many rows of the buffers are entries: the first.
    pub entries: usize,
    /// Which entry each query sees; positions of entries may be as many as the capacity.
    pub visibility: Visibility,
}

/// Entries in full precision behind those of another layout: the same number for every head, seen
/// by every query.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Keys, `[batch, kv_heads, capacity, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, capacity, head_dim]`.
    pub values: Tensor<4>,
    /// How many rows of the buffers are entries: the first.
    pub entries: usize,
}

/// Keys and values of heads that hold different numbers of entries. Every query sees every entry of
/// its head.
#[derive(Clone, Debug)]
pub struct RaggedKv {
    /// The keys of all heads one after another, positions encoded, `[total, head_dim]`.
    pub keys: Tensor<2>,
    /// The values, `[total, head_dim]`.
    pub values: Tensor<2>,
    /// Offset of the first of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Columns of the list among the weights, at least as many as the longest head has entries;
    /// those of a head that holds fewer begin with padding.
    pub width: usize,
    /// Entries behind them.
    pub tail: Tail,
}

/// Keys and values that tokens share. Every query sees every token of its head. The key of a token
/// is its norm times the direction of its cluster, its value that of its cluster.
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
    /// How keys are to be encoded, those of the tail too, if they are held as they came.
    pub rotary: Option<RotaryTables>,
    /// Entries behind them.
    pub tail: Tail,
}

/// Keys and values of a few bits. Every query sees every token of its head: those of its pages,
/// oldest first, and behind them those of its tail.
#[derive(Clone, Debug)]
pub struct QuantizedKv {
    /// Keys, positions encoded: rows of a page are channels, numbers of a row its tokens, which are
    /// one group.
    pub keys: PackedGroups,
    /// Values: rows of a page are tokens, numbers of a row channels.
    pub values: PackedGroups,
    /// Bits a number: 2, 4 or 8.
    pub bits: usize,
    /// Tokens of a page.
    pub group: usize,
    /// The pages of all heads one after another, oldest first, `[all pages]`.
    pub pages: Tensor<1, Int>,
    /// Offset of the first of each batch row and kv head, and behind the last their number,
    /// `[batch · kv_heads + 1]`.
    pub offsets: Tensor<1, Int>,
    /// Pages of the head that has most.
    pub most_pages: usize,
    /// Entries behind them.
    pub tail: Tail,
    /// How many of the tail's entries are padding in each batch row and kv head: the first of the
    /// first. `[batch · kv_heads]`
    pub tail_fillers: Tensor<1, Int>,
    /// Tokens of the longest head. Columns of the others begin with padding.
    pub columns: usize,
}

/// Numbers of a few bits in 32-bit words, from the lowest bit on, and the line each group of them
/// lies on: a number is its level times `scale`, plus `min`.
#[derive(Clone, Debug)]
pub struct PackedGroups {
    /// `[pages, rows · words]`
    pub words: Tensor<2, Int>,
    /// `[pages, rows · groups]`
    pub scale: Tensor<2>,
    /// `[pages, rows · groups]`
    pub min: Tensor<2>,
}

/// Attention of a decode step.
#[derive(Clone, Debug)]
pub struct DecodeOutput {
    /// `[batch, query_heads, new, head_dim]`, of the type of the queries; zero where a query sees
    /// nothing.
    pub output: Tensor<4>,
    /// The weight of each column, the tail last, `[batch, query_heads, new, columns]`, f32; zero at
    /// padding.
    pub weights: Option<Tensor<4>>,
}

impl DecodeOutput {
    /// The output, with the sums over queries that are wanted of the weights.
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
