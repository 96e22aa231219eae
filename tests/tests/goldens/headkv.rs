//! HeadKV's published code, and the clusters of AdaKV and PyramidKV in it.

use std::sync::Arc;

use briquette::{
    Budget, CacheShape, HeadScoreKind, HeadScores, Policy, Profile,
    allocate::{HeadAdaptive, HeadProfile, Pyramid},
    score::Pool,
};
use serde::Deserialize;

use super::{Compressed, Prompt, counts_of_length, fixture, model};

#[derive(Deserialize)]
struct HeadKv {
    capacities: Vec<Capacity>,
    prompts: Vec<PromptCase>,
    adaptive: Vec<Adaptive>,
    pyramids: Vec<PyramidCase>,
}

/// HeadKV's capacities of heads; the window is not counted.
#[derive(Deserialize)]
struct Capacity {
    heads: Unit,
    params: Params,
    agrees: bool,
    table: Vec<Vec<f64>>,
    head_capacity: Vec<Vec<usize>>,
    head_capacity_here: Vec<Vec<usize>>,
}

/// Which heads HeadKV was told about.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Unit {
    Kv,
    Query,
}

#[derive(Deserialize)]
struct PromptCase {
    params: Params,
    agrees: bool,
    n_tokens: usize,
    table: Vec<Vec<f64>>,
    head_capacity: Vec<Vec<usize>>,
    head_capacity_here: Vec<Vec<usize>>,
    kept_per_head: Vec<Vec<usize>>,
    #[serde(flatten)]
    prompt: Option<Prompt>,
}

#[derive(Debug, Deserialize)]
struct Params {
    base_capacity: usize,
    window_size: usize,
    #[serde(default = "one")]
    kernel_size: usize,
    #[serde(default = "average")]
    pooling: String,
    beta: f64,
    /// The power that scores are raised to.
    temp: f64,
}

fn one() -> usize {
    1
}

fn average() -> String {
    "avgpool".to_owned()
}

#[derive(Deserialize)]
struct Adaptive {
    params: AdaptiveParams,
    agrees: bool,
    tokens: Vec<u32>,
    kept_per_head: Vec<Vec<usize>>,
    kept_per_head_here: Vec<Vec<usize>>,
}

#[derive(Debug, Deserialize)]
struct AdaptiveParams {
    base_capacity: usize,
    window_size: usize,
    kernel_size: usize,
    pooling: String,
    floor: f64,
    normalize: bool,
    skip: usize,
}

#[derive(Deserialize)]
struct PyramidCase {
    params: PyramidParams,
    agrees: bool,
    n_tokens: usize,
    kept_per_layer: Vec<usize>,
    kept_per_layer_here: Vec<usize>,
}

#[derive(Debug, Deserialize)]
struct PyramidParams {
    max_capacity_prompt: usize,
    window_size: usize,
    beta: f64,
}

fn policy(params: &Params, profile: Arc<Profile>) -> Policy {
    assert_eq!((params.pooling.as_str(), params.temp), ("avgpool", 1.0));
    Policy::headkv(Budget::Tokens(params.base_capacity))
        .with_window(params.window_size)
        .with_pool(Pool::avg(params.kernel_size))
        .with_allocator(HeadProfile { beta: params.beta, by: HeadScoreKind::Headkv })
        .with_profile(profile)
}

/// A profile with these head scores, `[layer][head]`: of query heads, or of kv heads whose query
/// heads all score alike.
fn profile(shape: CacheShape, table: &[Vec<f64>]) -> Arc<Profile> {
    let of_layer = |heads: &Vec<f64>| {
        let alike = shape.query_heads / heads.len();
        heads.iter().flat_map(|&score| std::iter::repeat_n(score, alike)).collect()
    };
    let none = || vec![vec![0.0; shape.query_heads]; shape.layers];
    let headkv = table.iter().map(of_layer).collect();
    let heads = HeadScores { semantic: none(), copy_paste: none(), headkv };
    Arc::new(Profile::new(shape, heads, vec![0.0; shape.layers]))
}

/// A small cache with heads as in a table of `heads`.
fn shape(heads: &[Vec<f64>], kv_heads: &[Vec<usize>]) -> CacheShape {
    let (query_heads, kv_heads) = (heads[0].len(), kv_heads[0].len());
    CacheShape { layers: heads.len(), query_heads, kv_heads, head_dim: 2 }
}

fn with_window(capacity: &[Vec<usize>], window: usize) -> Vec<Vec<usize>> {
    capacity.iter().map(|heads| heads.iter().map(|head| window + head).collect()).collect()
}

#[test]
fn capacities_of_headkv() {
    let headkv: HeadKv = fixture("headkv.json");
    assert_eq!(headkv.capacities.len(), 7);
    for case in headkv.capacities {
        let place = format!("{:?} heads, {:?}", case.heads, case.params);
        let Capacity { table, head_capacity: there, head_capacity_here: here, .. } = case;
        let group = table[0].len() / here[0].len();
        assert_eq!(case.heads == Unit::Query, group > 1, "{place}");
        let of_group = |&count: &usize| std::iter::repeat_n(count, group);
        let of_heads: Vec<Vec<usize>> =
            here.iter().map(|heads| heads.iter().flat_map(of_group).collect()).collect();
        assert_eq!(of_heads == there, case.agrees, "{place}");

        // The numbers are those of a prompt that no head could keep whole.
        let window = case.params.window_size;
        let most = here.iter().flatten().max().unwrap();
        let shape = shape(&table, &here);
        let policy = policy(&case.params, profile(shape, &table));
        let kept = counts_of_length(policy, shape, window + most + 1);
        assert_eq!(kept, with_window(&here, window), "{place}");
    }
}

#[test]
fn prompts_of_headkv() {
    let headkv: HeadKv = fixture("headkv.json");
    assert_eq!(headkv.prompts.len(), 3);
    for case in headkv.prompts {
        let place = format!("{:?}, {} tokens", case.params, case.n_tokens);
        let window = case.params.window_size;
        let here = with_window(&case.head_capacity_here, window);
        assert_eq!(case.head_capacity == case.head_capacity_here, case.agrees, "{place}");
        assert_eq!(case.kept_per_head == here, case.agrees, "{place}");
        assert_eq!(case.prompt.is_some(), case.agrees, "{place}");

        let small = shape(&case.table, &here);
        let of_small = policy(&case.params, profile(small, &case.table));
        assert_eq!(counts_of_length(of_small, small, case.n_tokens), here, "{place}");

        let Some(prompt) = case.prompt else { continue };
        let policy = policy(&case.params, profile(model().cache_shape(), &case.table));
        let compressed = Compressed::new(&policy, &prompt.tokens);
        assert_eq!(compressed.counts(), here, "{place}");
        compressed.assert_kept(&prompt, &place);
    }
}

#[test]
fn adakv_in_headkv() {
    let headkv: HeadKv = fixture("headkv.json");
    assert_eq!(headkv.adaptive.len(), 2);
    for case in headkv.adaptive {
        let place = format!("{:?}, {} tokens", case.params, case.tokens.len());
        let AdaptiveParams { base_capacity, window_size, kernel_size, floor, .. } = case.params;
        let AdaptiveParams { pooling, normalize, skip, .. } = case.params;
        assert_eq!((pooling.as_str(), normalize, skip), ("avgpool", false, 0), "{place}");
        let policy = Policy::adakv(Budget::Tokens(base_capacity))
            .with_window(window_size)
            .with_pool(Pool::avg(kernel_size))
            .with_allocator(HeadAdaptive { floor, ..Default::default() });
        let kept = Compressed::new(&policy, &case.tokens).counts();
        assert_eq!(kept, case.kept_per_head_here, "{place}");
        assert_eq!(kept == case.kept_per_head, case.agrees, "{place}");
    }
}

#[test]
fn pyramid_in_headkv() {
    let headkv: HeadKv = fixture("headkv.json");
    assert_eq!(headkv.pyramids.len(), 2);
    for case in headkv.pyramids {
        let place = format!("{:?}, {} tokens", case.params, case.n_tokens);
        let PyramidParams { max_capacity_prompt, window_size, beta } = case.params;
        let policy = Policy::pyramidkv(Budget::Tokens(max_capacity_prompt))
            .with_window(window_size)
            .with_allocator(Pyramid { beta });
        let layers = case.kept_per_layer_here.len();
        let shape = CacheShape { layers, query_heads: 1, kv_heads: 1, head_dim: 2 };
        let kept = counts_of_length(policy, shape, case.n_tokens).concat();
        assert_eq!(kept, case.kept_per_layer_here, "{place}");
        assert_eq!(kept == case.kept_per_layer, case.agrees, "{place}");
    }
}
