//! What stages want to know of the attention.

/// What a stage wants the attention pass to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttentionRequest {
    /// For each entry, the sum of its attention weights over all queries since it was written.
    pub column_sums: bool,
    /// For each entry, the sum of their squares.
    pub column_squares: bool,
    /// The attention weights of the last so many queries.
    pub window: usize,
    /// For each entry, the sum of its weights over the window of so many queries before this one, and over this
    /// one so far; at the end of a prompt over its last so many queries. Brings the column sums with it.
    pub local: usize,
    /// For each entry, the sum of what the queries of its own chunk of so many tokens give it: a softmax over the chunk
    /// without a mask and without a scale. Chunks are counted from the first token behind the sinks; tokens that come in
    /// after a compression are not in one chunk with those before it. Such a policy holds the queries in between.
    pub chunk: usize,
    /// The queries since the last compression, before their positions are encoded. They are held in between: those of a
    /// prompt until it is complete, and decoded ones if the policy compresses in decoding.
    pub queries: bool,
    /// The encoding of positions to come, for [`LayerView::queries_ahead`](crate::LayerView::queries_ahead) and
    /// [`LayerView::mean_rotation`](crate::LayerView::mean_rotation). A model that rotates queries and keys itself has none to
    /// give.
    pub ahead: bool,
    /// Whether sums are held for each query head or for each kv head, where they are the mean of its group.
    pub heads: ObservedHeads,
    /// What the queries of a second pass over the prompt attend to, in which the model repeats it. Nothing is compressed
    /// before [`KvCache::compress_by`](crate::KvCache::compress_by).
    pub second_pass: Option<Repeat>,
}

/// How a prompt is repeated in a second pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Tokens repeated at a time.
    pub tokens: usize,
    /// Whether an attention weight is divided by the length of the hidden state that asks, and multiplied by that of the
    /// value behind the output projection.
    pub normalize: bool,
    /// Whether the prompt is read again as it is: without a word before it, each weight of a softmax over all of it, and of the query
    /// heads that share a kv head the mean. Else the model is told to repeat it, and the most of them counts.
    pub reread: bool,
}

/// The heads sums are held for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObservedHeads {
    /// The mean over the query heads that share a kv head.
    #[default]
    Kv,
    /// Each query head.
    Query,
}

impl AttentionRequest {
    /// Nothing: the stage looks at keys, values or positions only.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Sums over all queries, the mean of a group.
    pub fn column_sums() -> Self {
        Self { column_sums: true, ..Self::default() }
    }

    /// Sums over all queries, each query head.
    pub fn column_sums_of_query_heads() -> Self {
        Self { heads: ObservedHeads::Query, ..Self::column_sums() }
    }

    /// Sums and sums of squares over all queries, each query head.
    pub fn moments() -> Self {
        Self { column_squares: true, ..Self::column_sums_of_query_heads() }
    }

    /// The weights of the last `queries` queries.
    pub fn window(queries: usize) -> Self {
        Self { window: queries, ..Self::default() }
    }

    /// Sums over all queries and over a moving window of so many, the mean of a group.
    pub fn local(queries: usize) -> Self {
        Self { local: queries, ..Self::default() }
    }

    /// Sums over the queries of an entry's own chunk of so many tokens, the mean of a group.
    pub fn chunk(tokens: usize) -> Self {
        Self { chunk: tokens, ..Self::default() }
    }

    /// The queries since the last compression.
    pub fn queries() -> Self {
        Self { queries: true, ..Self::default() }
    }

    /// The encoding of positions to come.
    pub fn ahead() -> Self {
        Self { ahead: true, ..Self::default() }
    }

    /// What the queries of a second pass attend to.
    pub fn second_pass(repeat: Repeat) -> Self {
        Self { second_pass: Some(repeat), ..Self::default() }
    }

    /// Whether queries are held from one compression to the next.
    pub(crate) fn holds_queries(self) -> bool {
        self.queries || self.chunk > 0
    }

    /// What two stages want.
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
