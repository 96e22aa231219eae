//! Selection that rewrites no entry: the best of the new entries, and whole pages of the others.

use burn::tensor::{Int, Tensor};

use crate::{
    Error, LayerView, Result,
    ops::{SelectInput, Selection, iota, offset_per_head, slice_per_head},
    policy::AppendOnly,
};

/// Pages of the entries of a head.
struct Head {
    /// The column of its first entry.
    first: usize,
    /// Full pages.
    pages: usize,
    /// Full pages that stay.
    kept: usize,
    /// Entries behind the full pages, in a page that is not full.
    open: usize,
}

/// Returns the entries that stay; `None` if all do. The last `new` entries of each head have come
/// since the last compression, and a head may hold its number of `shares`. Heads that differ are
/// right-aligned, as everywhere.
pub(in crate::cache) fn select(
    view: &LayerView<'_>,
    append: AppendOnly,
    new: usize,
    shares: &[usize],
) -> Result<Option<Selection>> {
    let AppendOnly { page, keep } = append;
    let sinks = view.protect.sinks;
    let scores = view.scores("append-only")?;
    let [_, _, columns] = scores.dims();
    // Every head has received as many tokens.
    let new = view.lengths.iter().copied().min().unwrap_or(0).min(new);
    let appended = keep.min(new);
    // The last `new` entries are in no page yet, and `appended` of them will be.
    let of_head = |(&held, &share): (&usize, &usize)| {
        let old = held - new;
        let pages = old / page;
        let droppable = pages.saturating_sub(sinks.div_ceil(page));
        let over = (old + appended).saturating_sub(share);
        let kept = pages - over.div_ceil(page).min(droppable);
        Head { first: columns - held, pages, kept, open: old % page }
    };
    let heads: Vec<Head> = view.lengths.iter().zip(shares).map(of_head).collect();
    if appended == new && heads.iter().all(|head| head.kept == head.pages) {
        return Ok(None);
    }

    let recent = |&share: &usize| view.protect.recent_tokens(share).min(appended);
    let recent: Vec<usize> = shares.iter().map(recent).collect();
    let newest = best(
        view,
        &scores.clone().narrow(2, columns - new, new),
        (&vec![new; heads.len()], &vec![appended; heads.len()]),
        0,
        &recent,
    )?;
    let newest = newest.indices + (columns - new) as i64;

    let open = heads.iter().map(|head| head.open).max().unwrap_or(0);
    let mut columns_of_parts = Vec::new();
    let mut wide = 0;
    let most = heads.iter().map(|head| head.pages).max().unwrap_or(0);
    if heads.iter().any(|head| head.kept > 0) {
        let paged = of_pages(view, scores, &heads, page, most)?;
        wide = paged.dims()[2];
        columns_of_parts.push(paged);
    }
    if open > 0 {
        let [batch, kv_heads, _] = newest.dims();
        let opened = iota([batch, kv_heads, open], &scores.device());
        columns_of_parts.push(opened + (columns - new - open) as i64);
    }
    columns_of_parts.push(newest);
    let all = Tensor::cat(columns_of_parts, 2);
    // Fillers stand before what is kept of each part: of the whole they come first.
    let kept = |head: &Head| {
        let paged = wide - head.kept * page..wide;
        let opened = wide + open - head.open..wide + open;
        paged.chain(opened).chain(wide + open..wide + open + appended).collect()
    };
    let lists: Vec<Vec<usize>> = heads.iter().map(kept).collect();
    let joined = Selection::of_heads(&lists, view.shape.kv_heads, &all.device());
    if joined.is_full() && joined.width() == all.dims()[2] {
        return Ok(Some(Selection { indices: all, counts: joined.counts }));
    }
    Ok(Some(Selection { indices: all.gather(2, joined.indices), counts: joined.counts }))
}

/// Returns the columns of the pages that stay, `[batch, kv_heads, pages · page]`; heads that keep
/// fewer begin with arbitrary columns.
fn of_pages(
    view: &LayerView<'_>,
    scores: &Tensor<3>,
    heads: &[Head],
    page: usize,
    most: usize,
) -> Result<Tensor<3, Int>> {
    let [batch, kv_heads, _] = scores.dims();
    // The full pages of every head end where those of the others do.
    let begins = |head: &Head| (head.first + head.pages * page) as i64 - (most * page) as i64;
    let from: Vec<i64> = heads.iter().map(begins).collect();
    let paged: Tensor<4> =
        slice_per_head(scores.clone(), &from, most * page).reshape([batch, kv_heads, most, page]);
    let means: Tensor<3> = paged.mean_dim(3).squeeze_dim(3);
    let held: Vec<usize> = heads.iter().map(|head| head.pages).collect();
    let keep: Vec<usize> = heads.iter().map(|head| head.kept).collect();
    let sinks = view.protect.sinks.div_ceil(page);
    let chosen = best(view, &means, (&held, &keep), sinks, &vec![0; heads.len()])?.indices;
    let [_, _, kept] = chosen.dims();
    let device = chosen.device();
    let within = iota([1, 1, page], &device).reshape([1, 1, 1, page]);
    let first: Tensor<4, Int> = (chosen * page as i64).unsqueeze_dim(3);
    let columns =
        first.expand([batch, kv_heads, kept, page]) + within.expand([batch, kv_heads, kept, page]);
    Ok(offset_per_head(columns.reshape([batch, kv_heads, kept * page]), &from))
}

fn best(
    view: &LayerView<'_>,
    scores: &Tensor<3>,
    (held, keep): (&[usize], &[usize]),
    sinks: usize,
    recent: &[usize],
) -> Result<Selection> {
    let input = SelectInput { scores, lengths: held, keep, sinks, recent, check: view.check };
    view.ops.select(input).map_err(|error| Error::of_layer(error, view.layer))
}
