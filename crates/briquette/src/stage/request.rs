//! Requests of the stages to the attention pass.

/// Statistics, weights and queries that a stage needs from the attention pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttentionRequest {
    /// Sum of the attention weights of each entry over all queries since it was written.
    pub column_sums: bool,
    /// Sum of the squares of these weights per entry.
    pub column_squares: bool,
    /// Number of last queries for which attention weights are reported.
    pub window: usize,
    /// Number of queries of a local window. Each entry's weights are summed over the window before
    /// this one, and over this one so far; at the end of a prompt over its last `local` queries.
    /// The column sums come with it.
    pub local: usize,
    /// Number of tokens of a chunk. For each entry, the weights that the queries of its own chunk
    /// give it are summed, in a softmax over the chunk without mask or scale. Chunks are counted
    /// from the first token behind the sinks, and a compression ends a chunk. The cache then holds
    /// the queries between compressions.
    pub chunk: usize,
    /// Queries since the last compression, before their positions are encoded. The cache holds them
    /// in between: those of a prompt until it is complete, and decoded ones if the policy
    /// compresses in decoding.
    pub queries: bool,
    /// Encoding of future positions, for
    /// [`LayerView::queries_ahead`](crate::LayerView::queries_ahead) and
    /// [`LayerView::mean_rotation`](crate::LayerView::mean_rotation). A model that rotates queries
    /// and keys itself does not have it.
    pub ahead: bool,
    /// Heads for which sums are held.
    pub heads: ObservedHeads,
    /// Attention of the queries of a second pass over the prompt, in which the model repeats it.
    /// Nothing is compressed before [`KvCache::compress_by`](crate::KvCache::compress_by).
    pub second_pass: Option<Repeat>,
}

/// Way in which a prompt is repeated in a second pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Number of tokens repeated at a time.
    pub tokens: usize,
    /// Whether an attention weight is divided by the length of the hidden state of its query, and
    /// multiplied by that of the value behind the output projection.
    pub normalize: bool,
    /// Whether the model reads the prompt again as it is, without an instruction before it. The
    /// weights then come from a softmax over the whole prompt, and the mean over the query heads
    /// that share a kv head counts. Otherwise the model is told to repeat the prompt, and the
    /// largest weight counts.
    pub reread: bool,
}

/// Heads for which sums are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ObservedHeads {
    /// Each kv head: the mean over the query heads that share it.
    #[default]
    Kv,
    /// Each query head.
    Query,
}

impl AttentionRequest {
    /// Requests nothing: the stage looks at keys, values or positions only.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Requests sums over all queries, the mean of each group.
    pub fn column_sums() -> Self {
        Self { column_sums: true, ..Self::default() }
    }

    /// Requests sums over all queries for each query head.
    pub fn column_sums_of_query_heads() -> Self {
        Self { heads: ObservedHeads::Query, ..Self::column_sums() }
    }

    /// Requests sums and sums of squares over all queries for each query head.
    pub fn moments() -> Self {
        Self { column_squares: true, ..Self::column_sums_of_query_heads() }
    }

    /// Requests the weights of the last `queries` queries.
    pub fn window(queries: usize) -> Self {
        Self { window: queries, ..Self::default() }
    }

    /// Requests sums over all queries and over a moving window of `queries`, the mean of each
    /// group.
    pub fn local(queries: usize) -> Self {
        Self { local: queries, ..Self::default() }
    }

    /// Requests sums over the queries of an entry's own chunk of `tokens` tokens, the mean of each
    /// group.
    pub fn chunk(tokens: usize) -> Self {
        Self { chunk: tokens, ..Self::default() }
    }

    /// Requests the queries since the last compression.
    pub fn queries() -> Self {
        Self { queries: true, ..Self::default() }
    }

    /// Requests the encoding of future positions.
    pub fn ahead() -> Self {
        Self { ahead: true, ..Self::default() }
    }

    /// Requests the attention of a second pass over the prompt.
    pub fn second_pass(repeat: Repeat) -> Self {
        Self { second_pass: Some(repeat), ..Self::default() }
    }

    /// Whether each query, decoded ones too, adds to the statistics of entries. Sums over chunks do
    /// not count: they are made when entries are compressed.
    pub(crate) fn counts_queries(self) -> bool {
        self.column_sums || self.column_squares || self.local > 0
    }

    /// Whether queries are held from one compression to the next.
    pub(crate) fn holds_queries(self) -> bool {
        self.queries || self.chunk > 0
    }

    /// Combines the requests of two stages.
    pub fn and(self, other: Self) -> Self {
        Self {
            column_sums: self.column_sums || other.column_sums,
            column_squares: self.column_squares || other.column_squares,
            window: self.window.max(other.window),
            local: self.local.max(other.local),
            chunk: self.chunk.max(other.chunk),
            queries: self.queries || other.queries,
            ahead: self.ahead || other.ahead,
            heads: self.heads.max(other.heads),
            second_pass: self.second_pass.or(other.second_pass),
        }
    }
}
