use burn::tensor::{Bool, DType, IndexingUpdateOp, Int, Tensor};

use crate::entries::{AttentionStatistics, counted, fillers, moved};

/// Columns, each of which belongs to a row, and what becomes of the rows.
#[derive(Clone, Debug)]
pub struct ClassifyInput<'a> {
    /// The row of each column, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// How many rows there are.
    pub height: usize,
    /// The row that is each entry from now on, ascending, any at the fillers that heads of fewer begin with,
    /// `[batch, kv_heads, entries]`.
    pub left: Tensor<3, Int>,
    /// Entries of each batch row and kv head, rows first.
    pub entries: &'a [usize],
    /// Rows that may be merged into entries; all others are in none.
    pub merged: Option<MergedRows<'a>>,
    /// The column at the center of each entry, any at fillers, `[batch, kv_heads, entries]`.
    pub centers: Tensor<3, Int>,
    /// −1 where a column holds nothing, `[batch, kv_heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// What columns are ranked by, f32, `[batch, kv_heads, columns]`.
    pub scores: Tensor<3>,
}

/// Rows that are merged into an entry if they are like it.
#[derive(Clone, Debug)]
pub struct MergedRows<'a> {
    /// The rows, ascending, any at the fillers that heads of fewer begin with, `[batch, kv_heads, merged]`.
    pub rows: Tensor<3, Int>,
    /// How many of them each batch row and kv head has, rows first.
    pub counts: &'a [usize],
    /// The entry each is most like, `[batch, kv_heads, merged]`.
    pub nearest: Tensor<3, Int>,
    /// From what number on the entries of each batch row and kv head are counted there, rows first.
    pub first: &'a [usize],
    /// How like it is, f32, `[batch, kv_heads, merged]`.
    pub similarity: Tensor<3>,
    /// What the similarity must be more than.
    pub threshold: f64,
}

/// Which columns stay, and what is known of all there were.
#[derive(Clone, Debug)]
pub struct RegroupInput<'a> {
    /// The columns that stay, any at the fillers that heads of fewer begin with, `[batch, kv_heads, width]`.
    pub columns: Tensor<3, Int>,
    /// The entry each of them is in now, counted from 0; −1 is none, as at fillers. `[batch, kv_heads, width]`
    pub classes: Tensor<3, Int>,
    /// In what order they go on, as places of `columns`, `[batch, kv_heads, width]`.
    pub order: Tensor<3, Int>,
    /// Columns that stay of each batch row and kv head, rows first.
    pub counts: &'a [usize],
    /// The column at the center of each entry, any at the fillers of heads of fewer, `[batch, kv_heads, entries]`. It
    /// stays, in that entry.
    pub centers: Tensor<3, Int>,
    /// Entries of each batch row and kv head, rows first.
    pub entries: &'a [usize],
    /// The row of each column there was, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// What the row was multiplied by, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The length of each row, f32, `[batch, kv_heads, rows]`.
    pub lengths: Tensor<3>,
    /// `[batch, kv_heads, columns]`
    pub positions: Tensor<3, Int>,
    /// What was counted of each column.
    pub tracks: AttentionStatistics,
}

/// What is known of the columns that stay.
#[derive(Clone, Debug)]
pub struct RegroupOutput {
    /// −1 where a column is in no entry, `[batch, kv_heads, width]`.
    pub positions: Tensor<3, Int>,
    /// The entry of each column, 0 where it is in none, `[batch, kv_heads, width]`.
    pub entry: Tensor<3, Int>,
    /// The place of the center of each entry among the columns of its head, fillers not counted; 0 at fillers.
    /// `[batch, kv_heads, entries]`
    pub centers: Tensor<3, Int>,
    /// What an entry of unit length is multiplied by, f32, `[batch, kv_heads, width]`; 0 in no entry.
    pub norms: Tensor<3>,
    /// 0 in no entry.
    pub tracks: AttentionStatistics,
}

/// What has become of columns.
#[derive(Clone, Debug)]
pub struct ClassifyOutput {
    /// The entry each column is in now, counted from 0, or −1, `[batch, kv_heads, columns]`.
    pub classes: Tensor<3, Int>,
    /// What it is ranked by: a center `f32::MAX`, others their score, those in no entry `f32::MIN`.
    /// `[batch, kv_heads, columns]`
    pub ranks: Tensor<3>,
}

/// Where `[batch, heads, width]` holds nothing, if heads hold so many; `None` if all hold as many as there are.
fn nothing_at(counts: &[usize], like: &Tensor<3, Int>) -> Option<Tensor<3, Bool>> {
    let width = like.dims()[2];
    let differ = counts.iter().any(|&count| count != width);
    differ.then(|| fillers(counts.iter().map(|count| width - count), like.dims(), &like.device()))
}

/// The entry each row is in now, counted from 1; 0 where it is in none. `[batch, kv_heads, rows]`
fn entry_of_rows(input: &ClassifyInput<'_>) -> Tensor<3, Int> {
    let ClassifyInput { rows, height, left, entries, merged, .. } = input;
    let [batch, heads, width] = left.dims();
    let device = rows.device();
    // No two go to one place, and fillers count nothing.
    let add = IndexingUpdateOp::Add;
    let first: Vec<i64> = entries.iter().map(|&count| 1 + count as i64 - width as i64).collect();
    let number = moved(counted([batch, heads, width], &device), &first).clamp_min(0);
    let entry = Tensor::<3, Int>::zeros([batch, heads, *height], &device);
    let entry = entry.scatter(2, left.clone(), number, add);
    let Some(merged) = merged else { return entry };
    let MergedRows { rows, counts, nearest, first, similarity, threshold } = merged;
    let first: Vec<i64> = first.iter().map(|&first| 1 - first as i64).collect();
    let stays = similarity.clone().greater_scalar(*threshold).bool_not();
    let stays = match nothing_at(counts, rows) {
        None => stays,
        Some(fillers) => stays.bool_or(fillers),
    };
    let number = moved(nearest.clone(), &first).mask_fill(stays, 0);
    entry.scatter(2, rows.clone(), number, add)
}

/// By a mark at each center.
pub(super) fn classify(input: ClassifyInput<'_>) -> ClassifyOutput {
    let entry = entry_of_rows(&input);
    let ClassifyInput { rows, entries, centers, positions, scores, .. } = input;
    let dims = rows.dims();
    let nothing = positions.lower_scalar(0);
    let classes = entry.gather(2, rows).mask_fill(nothing, 0).sub_scalar(1);
    let device = classes.device();
    let one = Tensor::ones(centers.dims(), &device);
    let (centers, one) = match nothing_at(entries, &centers) {
        None => (centers, one),
        Some(fillers) => (centers.mask_fill(fillers.clone(), 0), one.mask_fill(fillers, 0)),
    };
    let is_center = Tensor::<3, Int>::zeros(dims, &device);
    let is_center = is_center.scatter(2, centers, one, IndexingUpdateOp::Add);
    let ranks = scores.mask_fill(is_center.greater_scalar(0), f32::MAX);
    let ranks = ranks.mask_fill(classes.clone().lower_scalar(0), f32::MIN);
    ClassifyOutput { classes, ranks }
}

/// By one gather after another.
pub(super) fn regroup(input: RegroupInput<'_>) -> RegroupOutput {
    let RegroupInput { columns, classes, order, counts, centers, entries, .. } = input;
    let RegroupInput { rows, norms, lengths, positions, tracks, .. } = input;
    let [batch, heads, width] = columns.dims();
    let device = columns.device();
    let entry = classes.gather(2, order.clone());
    let columns = columns.gather(2, order);
    let nothing = entry.clone().lower_scalar(0);
    let norms = norms * lengths.gather(2, rows.clone());
    let norms = norms.gather(2, columns.clone()).mask_fill(nothing.clone(), 0.0);
    let tracks = tracks.map(|tracks| {
        let [rows, of_heads, _] = tracks.dims();
        let like = |x: Tensor<3, Int>| {
            let x: Tensor<5, Int> = x.reshape([1, batch, heads, 1, width]);
            let all = x.expand([rows / batch, batch, heads, of_heads / heads, width]);
            all.reshape([rows, of_heads, width])
        };
        let nothing = like(nothing.clone().int()).bool();
        tracks.gather(2, like(columns.clone())).mask_fill(nothing, 0.0)
    });

    // Where the columns of centers have gone.
    let place = counted([batch, heads, width], &device).mask_fill(nothing.clone(), 0);
    let gone = Tensor::<3, Int>::zeros(rows.dims(), &device);
    let gone = gone.scatter(2, columns.clone(), place, IndexingUpdateOp::Add);
    let fillers = nothing_at(entries, &centers);
    let back: Vec<i64> = counts.iter().map(|&count| count as i64 - width as i64).collect();
    let centers = gone.gather(2, centers.clamp(0, rows.dims()[2] as i64 - 1));
    let centers = moved(centers, &back).clamp_min(0);
    let centers = match fillers {
        None => centers,
        Some(fillers) => centers.mask_fill(fillers, 0),
    };
    RegroupOutput {
        positions: positions.gather(2, columns).mask_fill(nothing, -1),
        entry: entry.clamp_min(0),
        centers,
        norms: norms.cast(DType::F32),
        tracks,
    }
}
