use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions, StoreQuery,
    dense::write_tracks,
    layout::Layout,
    segmented::{Body, Packing, Segmented},
};
use crate::{
    Result,
    device::buffer_bytes,
    ops::{AttentionOutput, ClusteredKv, KvLayout, Tail},
    ops::{AttentionStatistics, Entries, Sharing},
    prefix::Parts,
    stage::statistics,
    state::{StateTensor, StateVisitor, visit_sharing, visit_tracks},
};

/// Entries that tokens share (EMS): each entry is a row of keys and one of values, held once; each token is a column
/// of a table with the entry it belongs to, the norm of its own key and its position.
///
/// Tokens that have come since the last compression lie as they are behind the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {}

impl StoreBuilder for Shared {
    fn name(&self) -> &str {
        "shared"
    }

    fn holds_ragged_heads(&self) -> bool {
        true
    }

    fn packs_heads(&self) -> bool {
        true
    }

    fn holds_shared_entries(&self) -> bool {
        true
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        Box::new(Segmented::<SharedBody>::new(options))
    }

    fn restore(&self, options: StoreOptions, parts: Parts) -> Result<Option<Box<dyn Store>>> {
        Ok(Some(Box::new(Segmented::<SharedBody>::restore(options, parts)?)))
    }
}

#[derive(Clone, Debug)]
struct SharedBody {
    /// Where the rows of each head lie in the lists of them.
    rows: Layout,
    /// Keys of all entries, `[all entries, head_dim]`.
    keys: Tensor<2>,
    /// `[all entries, head_dim]`
    values: Tensor<2>,
    /// `[batch, kv_heads, columns]`, −1 at fillers.
    positions: Tensor<3, Int>,
    tracks: AttentionStatistics,
    sharing: Sharing,
    bytes: usize,
}

impl SharedBody {
    fn bytes_held(&self, options: &StoreOptions) -> usize {
        let Sharing { entry, norms, centers, members, none, .. } = &self.sharing;
        let of = |x: &Tensor<3, Int>| buffer_bytes(x, options.rows);
        buffer_bytes(&self.keys, options.rows)
            + buffer_bytes(&self.values, options.rows)
            + self.tracks.stacked().map_or(0, |tracks| buffer_bytes(tracks, options.rows))
            + self.rows.bytes(options.rows)
            + [entry, centers, members, &self.positions].map(of).iter().sum::<usize>()
            + buffer_bytes(norms, options.rows)
            + buffer_bytes(none, options.rows)
    }
}

impl Body for SharedBody {
    const SHARES: bool = true;

    /// The sharing describes all there is: what a reducer leaves, and what padding was moved in.
    fn pack(
        mut entries: Entries,
        _: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Result<Packing<Self>> {
        let Some(sharing) = entries.sharing.take() else {
            return Ok(Packing::AsTheyAre(Box::new(entries)));
        };
        let StoreOptions { shape, batch, dtype, ref device, ref ops, .. } = *options;
        let rows = Layout::new(batch, shape.kv_heads, &sharing.entries, before, device);
        let both = [entries.keys.cast(dtype), entries.values.cast(dtype)];
        let [keys, values] = rows.pack(both, ops.as_ref())?;
        let body = Self {
            keys,
            values,
            rows,
            positions: entries.positions,
            tracks: entries.tracks,
            sharing,
            bytes: 0,
        };
        Ok(Packing::Packed(Self { bytes: body.bytes_held(options), ..body }))
    }

    fn layout(&self) -> &Layout {
        &self.rows
    }

    fn pad(&self, tail: Tail, options: &StoreOptions) -> Result<[Tensor<4>; 2]> {
        self.rows.pad([self.keys.clone(), self.values.clone()], tail, options.ops.as_ref())
    }

    fn sharing(&self) -> Option<Sharing> {
        Some(self.sharing.clone())
    }

    /// Directions and values are read once an entry; keys that are held as they came are encoded on the way.
    fn attend(&self, tail: Tail, input: &StoreQuery<'_>) -> Result<Option<AttentionOutput>> {
        let rotary = match &input.encode {
            None => None,
            Some(encode) => match encode.rotary(self.keys.dtype()) {
                None => return Ok(None),
                rotary => rotary,
            },
        };
        input.decode(KvLayout::Clustered(ClusteredKv {
            directions: self.keys.clone(),
            values: self.values.clone(),
            members: self.sharing.members.clone(),
            entry: self.sharing.entry.clone(),
            norms: self.sharing.norms.clone(),
            fillers: self.sharing.none.clone().flatten(0, 1),
            offsets: self.rows.offsets(),
            rotary,
            tail,
        }))
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.positions.clone()
    }

    fn tracks(&self) -> AttentionStatistics {
        self.tracks.clone()
    }

    fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    fn set_tracks(&mut self, tracks: AttentionStatistics) {
        write_tracks(&mut self.tracks, tracks, 0);
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        let Self { rows, keys, values, positions, tracks, sharing, .. } = self;
        rows.visit_state(visitor);
        visitor.tensor(StateTensor::Float2(keys));
        visitor.tensor(StateTensor::Float2(values));
        visitor.tensor(StateTensor::Int3(positions));
        visit_tracks(tracks, visitor);
        visit_sharing(sharing, visitor);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn save(&self) -> Result<Parts> {
        let Sharing { tokens, entries, own, entry, norms, centers, members, none } = &self.sharing;
        let mut parts = Parts::default();
        parts.put_numbers("columns", [self.columns()]);
        parts.put_numbers("centers", [centers.dims()[2]]);
        parts.put_numbers("tokens", &tokens[..]);
        parts.put_numbers("entries", &entries[..]);
        parts.put_numbers("own", &own[..]);
        for (name, x) in [("entry", entry), ("centers", centers), ("members", members)] {
            parts.put(name, x)?;
        }
        parts.put("norms", norms)?;
        parts.put("none", none)?;
        parts.put("keys", &self.keys)?;
        parts.put("values", &self.values)?;
        parts.put("positions", &self.positions)?;
        statistics::save(&self.tracks, &mut parts)?;
        Ok(parts)
    }

    fn restore(mut parts: Parts, options: &StoreOptions) -> Result<Self> {
        let StoreOptions { shape, batch, observes, ref device, .. } = *options;
        let heads = shape.kv_heads;
        let [columns, centers] = [parts.take_number("columns")?, parts.take_number("centers")?];
        let mut list = |name| parts.take_list(name, batch * heads);
        let [tokens, entries, own] = [list("tokens")?, list("entries")?, list("own")?];
        let rows = Layout::new(batch, heads, &entries, None, device);
        let mut of = |name, width| parts.take_int(name, [batch, heads, width], None, device);
        let sharing = Sharing {
            tokens,
            entries,
            own,
            entry: of("entry", columns)?,
            centers: of("centers", centers)?,
            members: of("members", columns)?,
            norms: parts.take_float("norms", [batch, heads, columns], device)?,
            none: parts.take_int("none", [batch, heads], None, device)?,
        };
        let dims = [rows.total(), shape.head_dim];
        let none = statistics::zeros(observes, shape, batch, columns, device);
        let body = Self {
            keys: parts.take_float("keys", dims, device)?,
            values: parts.take_float("values", dims, device)?,
            positions: parts.take_int("positions", [batch, heads, columns], None, device)?,
            tracks: statistics::restore(none, &mut parts, device)?,
            rows,
            sharing,
            bytes: 0,
        };
        parts.finish()?;
        Ok(Self { bytes: body.bytes_held(options), ..body })
    }

    fn repeated(&self, options: &StoreOptions) -> Self {
        let rows = options.batch;
        let ints = |x: &Tensor<3, Int>| x.clone().repeat_dim(0, rows);
        let Sharing { tokens, entries, own, entry, norms, centers, members, none } = &self.sharing;
        let body = Self {
            rows: self.rows.repeated(rows),
            keys: self.keys.clone().repeat_dim(0, rows),
            values: self.values.clone().repeat_dim(0, rows),
            positions: ints(&self.positions),
            tracks: statistics::repeated(self.tracks.clone(), rows),
            sharing: Sharing {
                tokens: tokens.repeat(rows),
                entries: entries.repeat(rows),
                own: own.repeat(rows),
                entry: ints(entry),
                norms: norms.clone().repeat_dim(0, rows),
                centers: ints(centers),
                members: ints(members),
                none: none.clone().repeat_dim(0, rows),
            },
            bytes: 0,
        };
        Self { bytes: body.bytes_held(options), ..body }
    }

    fn bytes_of(options: &StoreOptions, entries: usize, columns: usize) -> usize {
        let heads = options.batch * options.shape.kv_heads;
        let ints = |numbers| heads * options.rows.bytes(numbers, options.int_bytes());
        let wide = Layout::most_width(columns);
        let norms = heads * options.rows.bytes(wide, DType::F32.size());
        let sums = [
            entries.saturating_mul(options.pair_bytes()),
            options.scalar_row_bytes(wide),
            options.most_padding(),
            // Entry and member of each token, the center of each entry.
            2 * ints(wide),
            ints(Layout::most_width(entries)),
            norms,
            4 * heads * options.rows.most_padding(),
            // Fillers of a head, and where its rows begin.
            ints(1),
            options.offset_bytes(),
        ];
        sums.into_iter().fold(0, usize::saturating_add)
    }
}
