use briquette_kernels as kernels;
use burn::tensor::Tensor;

use super::super::{
    AttentionInput, AttentionOutput, DecodeInput, DecodeOutput, RaggedInput, Visibility,
};

/// Queries a head that decode attention takes: it keeps the products of a few in registers and reads keys once for
/// them. More share keys in tiles.
const FEW_QUERIES: usize = 8;

pub(super) fn attention(input: &AttentionInput) -> kernels::Result<AttentionOutput> {
    let few = decode(&DecodeInput {
        queries: input.queries.clone(),
        entries: input.keys.dims()[2],
        keys: input.keys.clone(),
        values: input.values.clone(),
        visibility: input.visibility.clone(),
        scale: input.scale,
        column_sums: input.column_sums,
        column_squares: input.column_squares,
    });
    few.unwrap_or_else(|| prefill(input))
}

/// Attention of many queries, and from its log-sum-exp what is wanted of the columns.
fn prefill(input: &AttentionInput) -> kernels::Result<AttentionOutput> {
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

/// Attention of a few queries, whose weights are few enough to be written; `None` for more.
pub(super) fn decode(input: &DecodeInput) -> Option<kernels::Result<AttentionOutput>> {
    (input.queries.dims()[2] <= FEW_QUERIES).then(|| decode_few(input))
}

fn decode_few(input: &DecodeInput) -> kernels::Result<AttentionOutput> {
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

pub(super) fn ragged(input: &RaggedInput) -> kernels::Result<DecodeOutput> {
    let input = input.clone();
    let found = kernels::decode_attention(kernels::DecodeAttention {
        queries: input.queries,
        list: Some(kernels::EntryList {
            keys: input.keys,
            values: input.values,
            offsets: input.offsets,
            width: input.width,
        }),
        keys: input.tail_keys,
        values: input.tail_values,
        entries: input.tail,
        visibility: kernels::Visibility::Causal,
        scale: input.scale,
        weights: input.weights,
    })?;
    let weights = found.weights.map(|weights| weights.squeeze_dim(2));
    Ok(DecodeOutput { output: found.output, weights })
}
