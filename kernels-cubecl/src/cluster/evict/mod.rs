mod backend;
mod find;
mod head;
mod operands;
mod table;

use briquette_ops::{Clustering, EvictClusterInput, EvictLimits, Result, constant_floats};
use burn::{backend::Dispatch, tensor::Tensor};

use self::{
    backend::EvictClusterBackend,
    operands::{Changed, Limits, Read},
};
use crate::common::{
    check::Check,
    eviction::{limits::check_limits, weakest::UNITS},
    rows::cubes_of_rows,
    statistics,
};

/// Evicts the weakest cluster of each head, or merges it into the one that it is most redundant
/// with, and gives its row to a new token: EMS (Li et al., 2024, section 4.2), for one decoded
/// token at a budget. A head that has free rows, and takes one for the token, evicts nothing. Rows
/// stay where they are; tokens move in their columns, which stay in the order of positions.
///
/// Tensors that nobody else holds are changed in place, others copied before. Two launches, a cube
/// of 256 units a head each. The first finds the cluster that goes by the scores of representatives
/// and reads all directions and values once, two rows a unit at a time, for the most redundant one.
/// The second reads the table of tokens into registers and writes it back in its new columns: of
/// `T` tokens 16 bytes each besides statistics, and three rows of keys and values. Tokens by
/// cluster are kept sorted by what they were: nothing is sorted anew.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, heads have more than 8 192
/// columns, or the device has no kernels or cannot launch so much. Nothing is changed then.
pub fn evict_cluster(input: EvictClusterInput<'_>) -> Result<()> {
    check_evict_cluster(&input)?;
    evict_cluster_checked(input);
    Ok(())
}

/// As [`evict_cluster`], of an input that [`check_evict_cluster`] has let through.
pub(crate) fn evict_cluster_checked(input: EvictClusterInput<'_>) {
    let is_tracked = !input.statistics.is_empty();
    let limits = limits(&input);
    let EvictClusterInput { keys, values, clustering, positions, statistics, scores, .. } = input;
    // What is not looked at: another tensor stands in.
    let mut none = constant_floats("no statistics", vec![0.0], [1, 1, 1], &scores.device());
    let of_statistics = statistics.stacked_mut().unwrap_or(&mut none);
    let counted = input.counted.stacked().unwrap_or(&scores).clone().into_dispatch();
    let Clustering {
        clustered_tokens,
        cluster_of_token,
        norms,
        representatives,
        tokens_by_cluster,
        padding_columns,
        ..
    } = clustering;
    let ints = positions.dtype();
    let changed = Changed::<Dispatch> {
        directions: keys.extract().into_dispatch(),
        values: values.extract().into_dispatch(),
        positions: positions.extract().into_dispatch(),
        clusters: cluster_of_token.extract().into_dispatch(),
        norms: norms.extract().into_dispatch(),
        representatives: representatives.extract().into_dispatch(),
        tokens_by_cluster: tokens_by_cluster.extract().into_dispatch(),
        padding_columns: padding_columns.extract().into_dispatch(),
        statistics: of_statistics.extract().into_dispatch(),
        is_tracked,
    };
    let read = Read {
        counted,
        scores: scores.into_dispatch(),
        offsets: input.offsets.cast(ints).into_dispatch(),
        new_keys: input.new_keys.into_dispatch(),
        new_values: input.new_values.into_dispatch(),
        new_positions: input.new_positions.into_dispatch(),
        limits,
    };
    let changed = Dispatch::evict_cluster(changed, read, input.threshold as f32);
    *keys = Tensor::from_dispatch(changed.directions);
    *values = Tensor::from_dispatch(changed.values);
    *positions = Tensor::from_dispatch(changed.positions);
    *cluster_of_token = Tensor::from_dispatch(changed.clusters);
    *norms = Tensor::from_dispatch(changed.norms);
    *representatives = Tensor::from_dispatch(changed.representatives);
    *tokens_by_cluster = Tensor::from_dispatch(changed.tokens_by_cluster);
    *padding_columns = Tensor::from_dispatch(changed.padding_columns);
    *of_statistics = Tensor::from_dispatch(changed.statistics);
    *clustered_tokens = input.most_tokens.to_vec();
}

fn limits(input: &EvictClusterInput<'_>) -> Limits<Dispatch> {
    let of_head = |head: usize| {
        let (sinks, recent) = input.protected(head);
        [sinks, recent, input.clustering.clustered_tokens[head], input.most_tokens[head]]
    };
    let of_table = |limits: &EvictLimits| {
        let table = limits.table().cast(input.positions.dtype());
        Limits::Differ { table: table.into_dispatch() }
    };
    if let Some(limits) = input.limits {
        return of_table(limits);
    }
    let lists = input.recent.len();
    let numbers = of_head(0);
    if input.free_rows.is_empty() && (1..lists).all(|head| of_head(head) == numbers) {
        return Limits::Alike { numbers };
    }
    let sinks: Vec<usize> = (0..lists).map(|head| input.protected(head).0).collect();
    let numbers = |head: usize| {
        let [_, recent, before, most] = of_head(head);
        [recent, usize::from(input.takes_free(head)), input.clusters(head), before, most]
    };
    let token = (0..lists).map(numbers).collect();
    of_table(&EvictLimits::new(&vec![0; lists], &sinks, &[token], &input.scores.device()))
}

/// Refuses what [`evict_cluster`] does.
pub(crate) fn check_evict_cluster(input: &EvictClusterInput<'_>) -> Result<()> {
    let check = Check::new("evict_cluster", &input.scores.device())?;
    let [batch, heads, columns] = input.positions.dims();
    let [total, channels] = input.keys.dims();
    let lists = batch * heads;
    check.some([
        ("batch", batch),
        ("heads", heads),
        ("columns", columns),
        ("channels", channels),
    ])?;
    input.check_heads()?;
    if let Some(limits) = input.limits {
        check_limits(&check, limits, lists, head::NUMBERS)?;
    }
    let clustering = &*input.clustering;
    check.equal("the rows of keys", total, clustering.cluster_counts.iter().sum())?;
    let of_tokens = [batch, heads, columns];
    check.shape("values", input.values.dims(), [total, channels])?;
    check.shape("offsets", input.offsets.dims(), [lists + 1])?;
    check.shape("cluster_of_token", clustering.cluster_of_token.dims(), of_tokens)?;
    check.shape("norms", clustering.norms.dims(), of_tokens)?;
    check.shape("tokens_by_cluster", clustering.tokens_by_cluster.dims(), of_tokens)?;
    check.shape("padding_columns", clustering.padding_columns.dims(), [batch, heads])?;
    let height = clustering.representatives.dims()[2];
    check.shape("representatives", clustering.representatives.dims(), [batch, heads, height])?;
    for &count in &clustering.cluster_counts {
        check.value("cluster_counts", count, count <= height, format!("at most {height}"))?;
    }
    check.shape("scores", input.scores.dims(), [batch, heads, columns + 1])?;
    let new = [batch, heads, 1, channels];
    check.shape("new_keys", input.new_keys.dims(), new)?;
    check.shape("new_values", input.new_values.dims(), new)?;
    check.shape("new_positions", input.new_positions.dims(), [batch, heads, 1])?;
    let (floats, ints) = (input.keys.dtype(), input.positions.dtype());
    check.same_type("values", input.values.dtype(), floats)?;
    check.same_type("new_keys", input.new_keys.dtype(), floats)?;
    check.same_type("new_values", input.new_values.dtype(), floats)?;
    for (name, tensor) in [
        ("new_positions", &input.new_positions),
        ("cluster_of_token", &clustering.cluster_of_token),
        ("representatives", &clustering.representatives),
        ("tokens_by_cluster", &clustering.tokens_by_cluster),
    ] {
        check.same_type(name, tensor.dtype(), ints)?;
    }
    check.same_type("padding_columns", clustering.padding_columns.dtype(), ints)?;
    check.f32("norms", clustering.norms.dtype())?;
    check.f32("scores", input.scores.dtype())?;
    let dims = [batch, heads, columns, columns + 1];
    statistics::check_counted(&check, input.statistics, &input.counted, dims)?;
    check.countable("keys", &input.keys.dims())?;
    check.countable("scores", &input.scores.dims())?;
    check.at_most("the number of columns", columns, table::MOST_COLUMNS)?;
    // Words of the units, and of the columns.
    check.shared_bytes((4 * UNITS + table::share(columns) * UNITS) * 4)?;
    check.tensors(18)?;
    check.cubes(cubes_of_rows(lists))
}
