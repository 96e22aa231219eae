//! The weights that queries of a chunk of tokens give to the entries of the same chunk.

use burn::tensor::{Bool, DType, Int, Tensor, TensorData, activation::softmax};

use crate::{
    Result,
    cache::context::Context,
    ops::{Entries, Selection, expand_clusters, gather_rows, precise_product, send},
    policy::PositionMode,
    position::{encode, encode_queries},
    view::HeldQueries,
};

/// Tokens of a batch row with held queries, and the chunks they are in.
struct Row {
    /// The columns of the queries, in order.
    columns: Vec<usize>,
    /// The position of the first token that counts.
    start: usize,
    /// The position that the chunk of `start` begins at.
    base: usize,
    /// One more than the last position.
    end: usize,
}

/// Sums softmax(q · k), without mask or scale, over the queries of each entry's chunk:
/// `[batch, query_heads, columns]`, f32. Also returns which entries have a sum, those whose query
/// is held: `[batch, 1, columns]`. `None` if there are none.
pub(in crate::cache) fn chunk_sums(
    context: Context<'_>,
    queries: &HeldQueries,
    seen: &[usize],
    entries: &Entries,
) -> Result<Option<(Tensor<3>, Tensor<3, Bool>)>> {
    let Context { shape, policy, config, encoding, observes, .. } = context;
    let device = context.device();
    let (ops, size, sinks) = (config.ops.as_ref(), observes.chunk, policy.protect().sinks);
    let entries = expand_clusters(entries.clone(), ops)?;
    let [batch, heads, columns] = entries.positions.dims();
    let row = |(row, &end): (&Vec<i64>, &usize)| {
        let columns: Vec<usize> = (0..row.len()).filter(|&column| row[column] >= 0).collect();
        let start = (end - columns.len()).max(sinks).min(end);
        let base = start - start.saturating_sub(sinks) % size;
        Row { columns, start, base, end }
    };
    let rows: Vec<Row> = queries.positions.iter().zip(seen).map(row).collect();
    let chunks = rows.iter().map(|row| (row.end - row.base).div_ceil(size)).max().unwrap_or(0);
    if chunks == 0 {
        return Ok(None);
    }

    let group = shape.group();
    let end = rows.iter().map(|row| row.end).max().unwrap_or(0);
    let mut sums = Vec::with_capacity(chunks);
    for chunk in 0..chunks {
        let (mut of_queries, mut of_keys, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            for position in row.base + chunk * size..row.base + (chunk + 1) * size {
                let there = (row.start..row.end).contains(&position);
                let back = row.end.saturating_sub(position);
                let column = || row.columns[row.columns.len() - back] as i64;
                of_queries.push(if there { column() } else { 0 });
                of_keys.push(if there { (columns - back) as i64 } else { 0 });
                positions.push(if there { position as i64 } else { -1 });
            }
        }
        let tensor = |list: Vec<i64>| {
            send::<3, Int>("places of chunks", TensorData::new(list, [batch, 1, size]), device)
        };
        let positions = tensor(positions);
        let rows_of = |x: &Tensor<4>, list: Vec<i64>| {
            let heads = x.dims()[1];
            let indices = tensor(list).expand([batch, heads, size]);
            gather_rows(x.clone(), &Selection { indices, counts: vec![size; batch * heads] })
        };
        let asked = rows_of(&queries.queries, of_queries);
        let asked = encode_queries(encoding, asked, positions.clone(), end, ops)?;
        let mut keys = rows_of(&entries.keys, of_keys);
        if policy.positions() != PositionMode::Written {
            keys = encode(encoding, keys, positions.clone(), end, ops)?;
        }
        let head_dim = shape.head_dim;
        let asked = asked.cast(DType::F32).reshape([batch, heads, group * size, head_dim]);
        let products = precise_product(asked, keys.cast(DType::F32).swap_dims(2, 3));
        let none = positions.lower_scalar(0).unsqueeze_dim::<4>(2);
        let products =
            products.mask_fill(none.clone().expand([batch, heads, group * size, size]), -1e30);
        let weights = softmax(products, 3).reshape([batch, heads * group, size, size]);
        let no_query = none.swap_dims(2, 3).expand([batch, heads * group, size, size]);
        sums.push(weights.mask_fill(no_query, 0.0).sum_dim(2).squeeze_dim::<3>(2));
    }
    let sums = Tensor::cat(sums, 2);

    let (mut places, mut new) = (Vec::new(), Vec::new());
    for row in &rows {
        for column in 0..columns {
            let position = (row.end + column).checked_sub(columns).filter(|&it| it >= row.start);
            places.push(position.map_or(0, |position| (position - row.base) as i64));
            new.push(position.is_some());
        }
    }
    let dims = [batch, heads * group, columns];
    let data = TensorData::new(places, [batch, 1, columns]);
    let places = send::<3, Int>("places of chunks", data, device).expand(dims);
    let data = TensorData::new(new, [batch, 1, columns]);
    let new = send::<3, Bool>("places of chunks", data, device);
    Ok(Some((sums.gather(2, places), new)))
}
