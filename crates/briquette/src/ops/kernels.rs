use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::{
    AttentionInput, AttentionOutput, DecodeInput, Ops, RaggedInput, RaggedOutput, Reference,
    SelectInput, Selection, Visibility, select,
};
use crate::{Error, Result, cache::Entries};

/// Queries a head that decode attention takes: it keeps the products of a few in registers and reads keys once for
/// them. More share keys in tiles.
const FEW_QUERIES: usize = 8;

/// CubeCL kernels where the device runs them and can launch so much at once, Burn's tensor operations elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels;

impl Ops for Kernels {
    fn attention(&self, input: AttentionInput) -> AttentionOutput {
        let found = if input.queries.dims()[2] <= FEW_QUERIES {
            decode_attention(&DecodeInput {
                queries: input.queries.clone(),
                entries: input.keys.dims()[2],
                keys: input.keys.clone(),
                values: input.values.clone(),
                visibility: input.visibility.clone(),
                scale: input.scale,
                column_sums: input.column_sums,
                column_squares: input.column_squares,
            })
        } else {
            attention(&input)
        };
        found.unwrap_or_else(|_| Reference.attention(input))
    }

    fn decode_attention(&self, input: &DecodeInput) -> Option<AttentionOutput> {
        if input.queries.dims()[2] > FEW_QUERIES {
            return None;
        }
        decode_attention(input).ok()
    }

    fn ragged_attention(&self, input: &RaggedInput) -> Option<RaggedOutput> {
        let input = input.clone();
        let found = kernels::decode_attention(kernels::DecodeAttention {
            queries: input.queries,
            list: Some(kernels::EntryList {
                keys: input.keys,
                values: input.values,
                offsets: input.offsets,
                longest: input.longest,
            }),
            keys: input.tail_keys,
            values: input.tail_values,
            entries: input.tail,
            visibility: kernels::Visibility::Causal,
            scale: input.scale,
            weights: input.weights,
        })
        .ok()?;
        let weights = found.list_weights.zip(found.weights.map(|weights| weights.squeeze_dim(2)));
        Some(RaggedOutput { output: found.output, weights })
    }

    /// On the device, with nothing read back but the counts of NaN that are asked for. On the host where there is no
    /// kernel, for more than one takes, and where nothing is to be kept.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        let SelectInput { layer, scores, held, keep, sinks, recent, check } = input.clone();
        let scores = scores.clone();
        let call = kernels::Select { scores, held, keep, sinks, recent };
        let Ok(found) = kernels::select(call) else { return select::select(input) };
        if check {
            let counts = found.nan.try_into_vec_as::<i64>()?;
            if let Some(&count) = counts.iter().find(|&&count| count > 0) {
                return Err(Error::NotFinite { what: "scores", layer, count: count as usize });
            }
        }
        Ok(Selection { indices: found.indices, counts: found.counts })
    }

    /// In one launch. By tensor operations where there is no kernel, for more than one takes, and where nothing is kept.
    fn compact_entries(&self, entries: Entries, selection: &Selection) -> Entries {
        let call = kernels::CompactEntries {
            keys: entries.keys.clone(),
            values: entries.values.clone(),
            positions: entries.positions.clone(),
            tracks: entries.tracks.iter().cloned().collect(),
        };
        let indices = selection.indices.clone();
        let Ok(found) = kernels::compact(call, indices, &selection.counts) else {
            return Reference.compact_entries(entries, selection);
        };
        let mut tracks = found.tracks.into_iter();
        Entries {
            keys: found.keys,
            values: found.values,
            positions: found.positions,
            // As many come back as went in.
            tracks: entries.tracks.map(|track| tracks.next().unwrap_or(track)),
            sharing: None,
        }
    }
}

/// Attention of many queries, and from its log-sum-exp what is wanted of the columns.
fn attention(input: &AttentionInput) -> kernels::Result<AttentionOutput> {
    let visibility = visibility(&input.visibility);
    let kernels::AttentionOutput { output, log_sum_exp } =
        kernels::attention(kernels::Attention {
            queries: input.queries.clone(),
            keys: input.keys.clone(),
            values: input.values.clone(),
            visibility: visibility.clone(),
            scale: input.scale,
        })?;
    if !input.column_sums && !input.column_squares {
        return Ok(AttentionOutput { output, column_sums: None, column_squares: None });
    }
    let columns = kernels::column_scores(kernels::ColumnScores {
        queries: input.queries.clone(),
        keys: input.keys.clone(),
        log_sum_exp,
        visibility,
        scale: input.scale,
        local: 0,
        squares: input.column_squares,
    })?;
    Ok(AttentionOutput {
        output,
        column_sums: input.column_sums.then_some(columns.sums),
        column_squares: columns.squares,
    })
}

/// Attention of a few queries, whose weights are few enough to be written.
fn decode_attention(input: &DecodeInput) -> kernels::Result<AttentionOutput> {
    let found = kernels::decode_attention(kernels::DecodeAttention {
        queries: input.queries.clone(),
        list: None,
        keys: input.keys.clone(),
        values: input.values.clone(),
        entries: input.entries,
        visibility: visibility(&input.visibility),
        scale: input.scale,
        weights: input.column_sums || input.column_squares,
    })?;
    let columns = |weights: Tensor<4>| -> Tensor<3> {
        match weights.dims()[2] {
            1 => weights.squeeze_dim(2),
            _ => weights.sum_dim(2).squeeze_dim(2),
        }
    };
    let squares = found.weights.clone().filter(|_| input.column_squares);
    Ok(AttentionOutput {
        output: found.output,
        column_sums: found.weights.filter(|_| input.column_sums).map(columns),
        column_squares: squares.map(|weights| columns(weights.square())),
    })
}

fn visibility(visibility: &Visibility) -> kernels::Visibility {
    let Visibility { queries, entries, by_position } = visibility.clone();
    if by_position {
        kernels::Visibility::Positions { queries, entries }
    } else {
        kernels::Visibility::Causal
    }
}
