mod backend;
mod mma;
mod plan;
mod portable;

use briquette_ops::{MomentsInput, MomentsOutput, Result, Visibility, WindowInput, constant_ints};
use burn::{backend::Dispatch, tensor::Tensor};

use self::{backend::WindowBackend, plan::WindowPlan, portable::Kind};
use crate::{
    attention::visible::Visible,
    common::{
        check::Check,
        tile::product::{SIDE, UNITS, shared_bytes},
    },
};

/// The attention weights of a few queries over the entries of a layer,
/// `[batch, query_heads, queries, entries]`, f32. A query sees the entries written at its position
/// or before, padding excepted; one that sees nothing weights all alike, and the weights of one
/// that is padding, or has nothing in its window, are zero. Scorers that look at single weights
/// need them.
///
/// The same as [`window_moments`], but that it writes 4 · batch · query_heads · queries · entries
/// bytes.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, a tensor is empty, or the device has
/// no kernels or cannot launch so much.
pub fn window_weights(window: WindowInput) -> Result<Tensor<4>> {
    let [batch, heads, queries, _] = window.queries.dims();
    let check = check(&window, "window_weights")?;
    check.countable("weights", &[batch, heads, queries, window.keys.dims()[2]])?;
    let [weights, ..] = run(window, vec![queries; batch], Kind::Weights);
    Ok(weights)
}

/// Sum of each entry's attention weights over a few queries, and their deviations and entropies,
/// without keeping the weights: SnapKV, CompressKV, TOVA, EMS and CAKE score entries by them. See
/// [`window_weights`] for which entries a query sees.
///
/// Where the device multiplies tiles of 16-bit numbers, queries and keys are of one such type,
/// head_dim is a multiple of 32 up to 128 and there are at most 256 queries, a plane takes 32 keys
/// at a time straight from memory to registers, and multiplies them with all query rows that share
/// them, which stay in shared memory. A first pass over the entries, split among cubes, keeps the
/// highest score of each row and the sum of exponentials; in a second one each cube merges what it
/// needs of them in the order of the splits, makes the scores again, and sums weights in registers.
/// Products are exact in f32.
///
/// Elsewhere a cube of 256 units makes the scores of up to 128 query rows, which are those of all
/// heads that share the keys, and 128 entries (fewer if there are few): 16 channels at a time in
/// shared memory, scores in registers. A first pass over the entries, split among cubes, keeps the
/// highest score of each row and the sum of exponentials, and a small kernel merges splits in their
/// order. A second pass makes the scores again, turns them into weights, and sums them over
/// queries, 16 entries at a time, in the order of the queries.
///
/// With `rows` = query_heads · queries it multiplies and adds 4 · batch · rows · entries · head_dim
/// times. It reads the keys twice for every 128 rows of a kv head, the second time in part from the
/// cache of the device, takes two exponentials per score, and writes 4 bytes per entry, query head
/// and sum.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, a tensor is empty, or the device has
/// no kernels or cannot launch so much.
pub fn window_moments(input: MomentsInput) -> Result<MomentsOutput> {
    let MomentsInput { window, own: counted, deviations, entropies } = input;
    let check = check(&window, "window_moments")?;
    let [batch, heads, queries, _] = window.queries.dims();
    let entries = window.keys.dims()[2];
    check.shape("counted", [counted.len()], [batch])?;
    for &counted in &counted {
        check.value("counted", counted, counted <= queries, format!("at most {queries}"))?;
    }
    let kind = Kind::Moments { deviations, entropies };
    let [sums, squares, scatter] = run(window, counted, kind);
    let of = |sums: Tensor<4>| sums.reshape([batch, heads, entries]);
    Ok(MomentsOutput {
        sums: of(sums),
        deviations: deviations.then(|| of(squares)),
        entropies: entropies.then(|| of(scatter)),
    })
}

fn check(window: &WindowInput, operation: &'static str) -> Result<Check> {
    let check = Check::new(operation, &window.queries.device())?;
    let [batch, heads, queries, head_dim] = window.queries.dims();
    let [_, kv_heads, entries, _] = window.keys.dims();
    check.some([("batch", batch), ("query_heads", heads), ("queries", queries)])?;
    check.some([("head_dim", head_dim), ("kv_heads", kv_heads), ("entries", entries)])?;
    check.shape("keys", window.keys.dims(), [batch, kv_heads, entries, head_dim])?;
    if let Visibility::Positions { queries: of_queries, entries: of_entries } = &window.visibility {
        check.shape("the queries' positions", of_queries.dims(), [batch, 1, queries])?;
        check.shape("the entries' positions", of_entries.dims(), [batch, kv_heads, entries])?;
    }
    let grouped = heads.is_multiple_of(kv_heads);
    check.value("query_heads", heads, grouped, format!("a multiple of {kv_heads}"))?;
    check.scoring(&window.scoring, heads)?;
    check.countable("queries", &window.queries.dims())?;
    check.countable("keys", &window.keys.dims())?;
    check.countable("sums", &[batch, heads, entries])?;
    let (lists, group) = (batch * kv_heads, heads / kv_heads);
    let WindowPlan { tile, blocks, parts, tiles, splits, .. } =
        WindowPlan::new([lists, group, queries], entries);
    check.countable("splits", &[splits, batch, heads, queries])?;
    // The second pass has more of it: of each row two numbers and sixteen weights besides what it
    // sees.
    let of_rows = tile[0] * SIDE * (4 + 8 + 4 * SIDE);
    let of_both = tile.map(shared_bytes).iter().sum::<usize>();
    check.shared_bytes(of_both + of_rows + 4 * tile[1] * SIDE)?;
    check.cubes([tiles.max(splits), blocks * parts, lists])?;
    check.cubes([(group * queries).div_ceil(UNITS), lists, 1])?;
    Ok(check)
}

fn run(window: WindowInput, counted: Vec<usize>, kind: Kind) -> [Tensor<4>; 3] {
    let batch = counted.len();
    let counted = counted.into_iter().map(|counted| counted as i64).collect::<Vec<_>>();
    let counted = constant_ints("window", counted, [batch], &window.queries.device());
    let visible = match window.visibility {
        Visibility::Positions { queries, entries } => {
            // Kernels read all of them as one type.
            let ints = counted.dtype();
            let [queries, entries] =
                [queries, entries].map(|positions| positions.cast(ints).into_dispatch());
            Visible::Positions { queries, entries }
        }
        Visibility::Causal => Visible::Causal,
    };
    let (first, squares, scatter) = Dispatch::window(
        window.queries.into_dispatch(),
        window.keys.into_dispatch(),
        visible,
        counted.into_dispatch(),
        window.scoring.into(),
        kind,
    );
    [first, squares, scatter].map(Tensor::from_dispatch)
}
