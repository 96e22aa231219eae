use burn::tensor::{DType, Int, Tensor, TensorData};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{
    Store, StoreBuilder, StoreOptions, StoreQuery,
    segmented::{Body, Segmented, Tail},
    tokens::Tokens,
};
use crate::{
    cache::{Entries, Sharing, Tracks},
    device::buffer_bytes,
    ops::{AttentionOutput, SharedInput, norm},
};

/// Entries that tokens share (EMS): each entry is a key direction and a value, held once; each token is a row
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
}

#[derive(Clone, Debug)]
struct SharedBody {
    /// Directions of keys, unit length, `[all entries, head_dim]`.
    directions: Tensor<2>,
    /// `[all entries, head_dim]`
    values: Tensor<2>,
    tokens: Tokens,
    /// The entry of each token, `[all tokens]`.
    entry: Tensor<1, Int>,
    /// The tokens in the order of their entries, `[all tokens]`.
    members: Tensor<1, Int>,
    /// Where the tokens of each batch row and head begin, and where the last end, `[batch · kv_heads + 1]`.
    offsets: Tensor<1, Int>,
    /// The norm of the key of each token, f32, `[all tokens]`.
    norms: Tensor<1>,
    sharing: Sharing,
    bytes: usize,
}

/// Entries and the tokens that belong to them, as lists over all heads.
struct Table {
    /// For each entry the place of its center in a rectangle.
    centers: Vec<i64>,
    /// For each token its entry.
    entry: Vec<i64>,
    /// The tokens in the order of their entries.
    members: Vec<i64>,
}

impl Table {
    fn new(sharing: &Sharing, counts: &[usize], width: usize) -> Self {
        let heads = counts.par_iter().zip(&sharing.centers);
        let heads: Vec<Self> =
            heads.map(|(&count, known)| Self::of_head(known, count, width)).collect();
        let mut table = Self { centers: Vec::new(), entry: Vec::new(), members: Vec::new() };
        for (head, of_head) in heads.into_iter().enumerate() {
            let (places, entries, tokens) =
                ((head * width) as i64, table.centers.len() as i64, table.entry.len() as i64);
            table.centers.extend(of_head.centers.into_iter().map(|place| places + place));
            table.entry.extend(of_head.entry.into_iter().map(|entry| entries + entry));
            table.members.extend(of_head.members.into_iter().map(|token| tokens + token));
        }
        table
    }

    /// The same of one head, everything counted from its own first. `known` are the centers of the first of its `count`
    /// tokens.
    fn of_head(known: &[usize], count: usize, width: usize) -> Self {
        // A token that belongs to none that is a center is its own.
        let is_center =
            |token: usize| token < count && known.get(token).is_none_or(|&center| center == token);
        let center = |token: usize| {
            known.get(token).copied().filter(|&center| is_center(center)).unwrap_or(token)
        };
        let mut centers = Vec::new();
        let mut entry_of_center = vec![0; count];
        for token in (0..count).filter(|&token| center(token) == token) {
            entry_of_center[token] = centers.len() as i64;
            centers.push((width - count + token) as i64);
        }
        let entry: Vec<i64> = (0..count).map(|token| entry_of_center[center(token)]).collect();
        // Each token to the next free place of its entry.
        let mut place = vec![0; centers.len() + 1];
        entry.iter().for_each(|&entry| place[entry as usize + 1] += 1);
        (1..place.len()).for_each(|entry| place[entry] += place[entry - 1]);
        let mut members = vec![0; count];
        for (token, &entry) in entry.iter().enumerate() {
            members[place[entry as usize]] = token as i64;
            place[entry as usize] += 1;
        }
        Self { centers, entry, members }
    }
}

impl Body for SharedBody {
    fn pack(entries: Entries, counts: &[usize], options: &StoreOptions) -> Self {
        let StoreOptions { batch, dtype, ref device, .. } = *options;
        let [_, heads, width, head_dim] = entries.keys.dims();
        let (tokens, packing) = Tokens::pack(entries.positions, entries.tracks, counts, options);
        let sharing =
            entries.sharing.unwrap_or(Sharing { centers: vec![Vec::new(); counts.len()] });
        let table = Table::new(&sharing, counts, width);
        let upload = |list: Vec<i64>| {
            let length = list.len();
            Tensor::<1, Int>::from_data(TensorData::new(list, [length]), device)
        };
        let (all_entries, all_tokens) = (table.centers.len(), table.entry.len());
        let centers = upload(table.centers);
        let of_centers =
            |x: Tensor<4>| x.reshape([batch * heads * width, head_dim]).select(0, centers.clone());

        let keys = entries.keys.cast(DType::F32);
        let norms = norm(keys.clone());
        let center_norms =
            norms.clone().reshape([batch * heads * width, 1]).select(0, centers.clone());
        // The direction of a zero key is zero.
        let directions = of_centers(keys) / center_norms.clamp_min(f32::MIN_POSITIVE);

        let offsets = tokens.layout.offsets(device);
        let bytes = all_entries * 2 * options.rows.bytes(head_dim, dtype.size())
            + all_tokens * (2 * options.int_bytes() + DType::F32.size())
            + tokens.bytes(options.rows)
            + buffer_bytes(&offsets, options.rows);
        Self {
            directions: directions.cast(dtype),
            values: of_centers(entries.values),
            entry: upload(table.entry),
            members: upload(table.members),
            offsets,
            norms: packing.pack(norms).squeeze_dim(1),
            tokens,
            sharing,
            bytes,
        }
    }

    fn takes(entries: &Entries, _: &[usize]) -> bool {
        entries.sharing.is_some()
    }

    /// Every token a column of its own: its norm times the direction of its entry, and the value of its entry.
    fn entries(&self, _: &StoreOptions) -> Entries {
        let of_tokens = |x: &Tensor<2>| x.clone().select(0, self.entry.clone());
        let keys =
            of_tokens(&self.directions).cast(DType::F32) * self.norms.clone().unsqueeze_dim(1);
        Entries {
            keys: self.tokens.layout.unpack(keys),
            values: self.tokens.layout.unpack(of_tokens(&self.values)),
            positions: self.positions(),
            tracks: self.tracks(),
            sharing: Some(self.sharing.clone()),
        }
    }

    /// Directions and values are read once an entry; keys that are held as they came are encoded on the way.
    fn attend(&self, tail: Tail, input: &StoreQuery<'_>) -> Option<AttentionOutput> {
        let rotary = match &input.encode {
            None => None,
            Some(encode) => Some(encode.rotary()?),
        };
        let found = input.ops.shared_attention(&SharedInput {
            queries: input.queries.clone(),
            directions: self.directions.clone(),
            values: self.values.clone(),
            members: self.members.clone(),
            entry: self.entry.clone(),
            norms: self.norms.clone(),
            offsets: self.offsets.clone(),
            width: self.columns(),
            rotary,
            tail_keys: tail.keys,
            tail_values: tail.values,
            tail: tail.columns,
            scale: input.scale,
            weights: input.column_sums || input.column_squares,
        })?;
        Some(input.output(found.output, found.weights))
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.tokens.positions()
    }

    fn tracks(&self) -> Tracks {
        self.tokens.tracks()
    }

    fn columns(&self) -> usize {
        self.tokens.layout.width()
    }

    fn set_tracks(&mut self, tracks: Tracks) {
        self.tokens.set_tracks(tracks);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn bytes_of(options: &StoreOptions, entries: usize, columns: usize) -> usize {
        let heads = options.batch * options.shape.kv_heads;
        let of_table = heads * (2 * options.int_bytes() + DType::F32.size());
        entries * options.pair_bytes()
            + columns * of_table
            + Tokens::bytes_of(options, columns)
            + options.offset_bytes()
    }
}
