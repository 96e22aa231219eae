//! Attention, and the rotation of queries and keys.

use std::ops::Range;

use briquette::ops::Visibility;
use briquette_ops::{Scoring, Window};
use briquette_tests::{backends::host, reference::Kind};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::common::{floats, integers};

mod decode;
mod kinds;
mod prefill;
mod rotary;
mod sparse;
mod window;

/// The visibility of entries in so many columns to queries in some: positions are of a batch row
/// and a column.
fn by_position(
    [batch, kv_heads]: [usize; 2],
    queries: Range<usize>,
    columns: usize,
    position: impl Fn(usize, usize) -> i64,
    device: &Device,
) -> Visibility {
    let of_rows = |columns: Range<usize>, heads: usize| -> Tensor<3, Int> {
        let mut all: Vec<i64> = Vec::new();
        for head in 0..batch * heads {
            all.extend(columns.clone().map(|column| position(head / heads, column)));
        }
        integers(&all, [batch, heads, columns.len()], device)
    };
    Visibility::Positions { queries: of_rows(queries, 1), entries: of_rows(0..columns, kv_heads) }
}

/// What a kernel is told of a kind.
fn scoring(kind: &Kind, scale: f64, device: &Device) -> Scoring {
    let of_heads = |list: &[f64]| {
        let list: Vec<f32> = list.iter().map(|&number| number as f32).collect();
        (!list.is_empty()).then(|| floats(&list, [list.len()], device))
    };
    Scoring {
        scale,
        softcap: kind.softcap,
        sinks: of_heads(&kind.sinks),
        slopes: of_heads(&kind.slopes),
        window: kind.window.map(Window::Sliding).or(kind.chunk.map(Window::Chunk)),
    }
}

/// Cosines and sines of so many positions and pairs of channels, on the host.
fn rotary_tables(positions: usize, pairs: usize, dtype: DType) -> [Tensor<2>; 2] {
    let angle = |place: usize| (place / pairs) as f64 / (1.0 + (place % pairs) as f64);
    let functions: [fn(f64) -> f64; 2] = [f64::cos, f64::sin];
    functions.map(|of| {
        let numbers: Vec<f32> =
            (0..positions * pairs).map(|place| of(angle(place)) as f32).collect();
        floats(&numbers, [positions, pairs], &host()).cast(dtype)
    })
}

/// A row turned to a position.
fn rotated(row: &[f64], position: usize, [cosines, sines]: &[Vec<f64>; 2]) -> Vec<f64> {
    let half = row.len() / 2;
    let mut turned = row.to_vec();
    for i in 0..half {
        let (cosine, sine) = (cosines[position * half + i], sines[position * half + i]);
        turned[i] = row[i] * cosine - row[i + half] * sine;
        turned[i + half] = row[i + half] * cosine + row[i] * sine;
    }
    turned
}
