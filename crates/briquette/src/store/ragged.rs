use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Eviction, Store, StoreBuilder, StoreOptions, StoreQuery,
    layout::Layout,
    segmented::{Body, Packing, Segmented, no_tail},
    tokens::Tokens,
};
use crate::{
    Result,
    ops::{
        AttentionOutput, AttentionStatistics, Entries, KvLayout, RaggedKv, Selection, SlotRows,
        Tail, gather_entries,
    },
    prefix::Parts,
    state::{StateTensor, StateVisitor},
};

/// Holds the entries of all heads in one list, without padding, and the places of the heads in it.
///
/// For policies that give heads budgets of their own (AdaKV, HeadKV, KVMerger), or rows of a batch
/// (CAKE, D2O). Every head has the same number of entries since the last compression; buffers
/// behind the list hold them. If all heads have the same length, such buffers hold all entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ragged {}

impl StoreBuilder for Ragged {
    fn name(&self) -> &str {
        "ragged"
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn packs_heads(&self) -> bool {
        true
    }

    fn holds_value_dims(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(Segmented::<RaggedBody>::new(options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(Segmented::<RaggedBody>::restore(options, parts)?)))
    }
}

#[derive(Clone, Debug)]
struct RaggedBody {
    tokens: Tokens,
    /// `[total, head_dim]`
    keys: Tensor<2>,
    /// `[total, value_dim]`
    values: Tensor<2>,
    bytes: usize,
}

impl RaggedBody {
    fn new(tokens: Tokens, [keys, values]: [Tensor<2>; 2], options: &StoreOptions) -> Self {
        let row = options.pair_bytes() / (options.batch * options.shape.kv_heads);
        let bytes = tokens.layout.total() * row + tokens.bytes(options.rows);
        Self { tokens, keys, values, bytes }
    }
}

impl Body for RaggedBody {
    const CLUSTERED: bool = false;
    const COUNTS_TAIL: bool = true;

    fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    fn tokens_mut(&mut self) -> &mut Tokens {
        &mut self.tokens
    }

    fn rows(&self) -> [&Tensor<2>; 2] {
        [&self.keys, &self.values]
    }

    fn evict(
        &mut self,
        token: Entries,
        eviction: &Eviction,
        counted: AttentionStatistics,
        options: &StoreOptions,
    ) -> Result<Option<Tensor<2>>> {
        let Self { tokens: Tokens { layout, positions, statistics }, keys, values, .. } = self;
        let rows = SlotRows::Ragged {
            keys,
            values,
            offsets: layout.offsets(),
            counts: &layout.counts,
            new_keys: token.keys,
            new_values: token.values,
            new_positions: token.positions,
        };
        let input = eviction.input(rows, positions, statistics, counted);
        eviction.run(input, options.ops.as_ref())
    }

    fn ordered(&self, options: &StoreOptions) -> Result<Self> {
        let Tokens { layout, positions, statistics } = self.tokens.clone();
        let order = Selection::by_position(positions.clone());
        let [keys, values] = self.pad(no_tail(options), options)?;
        let entries = Entries { keys, values, positions, statistics, clustering: None };
        let counts = &self.tokens.layout.counts;
        match Self::pack(gather_entries(entries, &order), counts, Some(layout), options)? {
            Packing::Packed(body) => Ok(body),
            Packing::AsTheyAre(_) => Ok(self.clone()),
        }
    }

    fn pack(
        entries: Entries,
        counts: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Result<Packing<Self>> {
        if counts.iter().all(|&count| count == entries.columns()) {
            return Ok(Packing::AsTheyAre(Box::new(entries)));
        }
        let StoreOptions { dtype, ref ops, .. } = *options;
        let tokens = Tokens::pack(entries.positions, entries.statistics, counts, before, options);
        let both = [entries.keys.cast(dtype), entries.values.cast(dtype)];
        let both = tokens.layout.pack(both, ops.as_ref())?;
        Ok(Packing::Packed(Self::new(tokens, both, options)))
    }

    /// Keys that are encoded in every call are laid out for it. The weights of one query are its
    /// sums.
    fn attend(
        &self,
        (tail, tail_counts): (Tail, Option<Tensor<1, Int>>),
        input: &StoreQuery<'_>,
        has_free_slots: bool,
    ) -> Result<Option<AttentionOutput>> {
        if input.encode.is_some() {
            return Ok(None);
        }
        input.decode(KvLayout::Ragged(RaggedKv {
            keys: self.keys.clone(),
            values: self.values.clone(),
            offsets: self.tokens.layout.offsets(),
            width: self.tokens.layout.width,
            positions: has_free_slots.then(|| self.tokens.positions.clone()),
            tail,
            tail_counts,
        }))
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        self.tokens.visit_state(visitor);
        visitor.tensor(StateTensor::Float2(&mut self.keys));
        visitor.tensor(StateTensor::Float2(&mut self.values));
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn save(&self) -> Result<Parts> {
        let (mut parts, mut tokens) = (Parts::default(), Parts::default());
        tokens.put_numbers("counts", &self.tokens.layout.counts[..]);
        tokens.put_numbers("width", [self.tokens.layout.width]);
        self.tokens.put(&mut tokens)?;
        parts.put_parts("tokens", tokens);
        parts.put("keys", &self.keys)?;
        parts.put("values", &self.values)?;
        Ok(parts)
    }

    fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, value_dim, batch, ref device, .. } = *options;
        let mut of_tokens = parts.take_parts("tokens");
        let counts = of_tokens.take_list("counts", batch * shape.kv_heads)?;
        let layout = Layout::new(batch, shape.kv_heads, &counts, None, device);
        let layout = layout.of_width(of_tokens.take_number("width")?)?;
        let (width, total) = (layout.width, layout.total());
        let tokens = Tokens::take(layout, width, &mut of_tokens, options)?;
        of_tokens.finish()?;
        let mut rows = |name, channels| parts.take_float(name, [total, channels], device);
        let both = [rows("keys", shape.head_dim)?, rows("values", value_dim)?];
        parts.finish()?;
        Ok(Self::new(tokens, both, options))
    }

    fn select_rows(&self, rows: &[usize], options: &StoreOptions) -> Self {
        let (tokens, places) = self.tokens.select_rows(rows);
        let both = self.rows().map(|x| x.clone().select(0, places.clone()));
        Self::new(tokens, both, options)
    }

    fn bytes_of(
        options: &StoreOptions,
        _entries: usize,
        columns: usize,
        width: fn(usize) -> usize,
    ) -> usize {
        let pairs = columns.saturating_mul(options.pair_bytes());
        pairs.saturating_add(Tokens::bytes_of(options, width(columns)))
    }
}
