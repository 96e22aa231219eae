use burn::tensor::{DType, Int, Tensor};

use crate::entries::{aligned, counted, moved};

/// Which entry each token of a head belongs to, and how many tokens with an entry of their
/// own have come since.
#[derive(Clone, Debug)]
pub struct ExtendInput<'a> {
    /// The entry of each token, counted from the first of its head, `[batch, kv_heads, width]`. Heads of fewer begin with
    /// fillers, here and everywhere.
    pub entry: Tensor<3, Int>,
    /// What its row is multiplied by, f32, `[batch, kv_heads, width]`.
    pub norms: Tensor<3>,
    /// The token at the center of each entry, counted from the first of its head, `[batch, kv_heads, entries]`.
    pub centers: Tensor<3, Int>,
    /// Tokens, entries, and tokens behind them, of each batch row and kv head, rows first.
    pub counts: &'a [[usize; 3]],
    /// Columns of all tokens together.
    pub columns: usize,
    /// Rows of all entries together.
    pub rows: usize,
}

/// The table of all tokens. At padding stands any number there is.
#[derive(Clone, Debug)]
pub struct ExtendOutput {
    /// The row of each column, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// What the row is multiplied by, f32, 1 for a token with a row of its own, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The column at the center of each row, `[batch, kv_heads, rows]`.
    pub centers: Tensor<3, Int>,
}

/// What is described moved in line with the columns and rows, and behind it what is not.
pub(super) fn extend(input: ExtendInput<'_>) -> ExtendOutput {
    let ExtendInput { entry, norms, centers, counts, columns, rows } = input;
    let [batch, heads, width] = entry.dims();
    let height = centers.dims()[2];
    let device = entry.device();
    let most = counts.iter().map(|[_, _, own]| *own).max().unwrap_or(0);
    let of_heads = |f: &dyn Fn([i64; 3]) -> i64| {
        counts.iter().map(|count| f(count.map(|n| n as i64))).collect()
    };
    let signed = |x: usize| x as i64;
    // What stands at the fillers of a head that holds nothing stays within the columns, too.
    let by_entries: Vec<i64> = of_heads(&|[_, entries, own]| signed(rows) - (entries + own).max(1));
    let by_tokens: Vec<i64> = of_heads(&|[tokens, _, own]| signed(columns) - (tokens + own).max(1));
    let extended = |x: Tensor<3, Int>, all: usize| match most {
        0 => x,
        _ => {
            let first: Vec<i64> = of_heads(&|[_, _, own]| signed(all) - own);
            let behind = moved(counted([batch, heads, most], &device), &first);
            Tensor::cat(vec![x, behind], 2)
        }
    };
    let norms = match most {
        0 => norms,
        _ => {
            let ones = Tensor::ones([batch, heads, most], (&device, DType::F32));
            Tensor::cat(vec![norms, ones], 2)
        }
    };
    let in_line = |width: usize, all: usize| -> Vec<i64> {
        of_heads(&|[_, _, own]| signed(width) + own - signed(all))
    };
    let of_columns = extended(moved(entry, &by_entries), rows);
    let of_rows = extended(moved(centers, &by_tokens), columns);
    ExtendOutput {
        rows: aligned(of_columns, &in_line(width, columns), columns),
        norms: aligned(norms, &in_line(width, columns), columns),
        centers: aligned(of_rows, &in_line(height, rows), rows),
    }
}
