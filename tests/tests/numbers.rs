//! Numbers at the edges: nothing to attend to, equal and empty keys, products beyond a type, one
//! token. Results are defined, and the same on every backend.

use briquette::{
    CacheConfig, CacheShape, InputCheck, KvCache, Policy, Prompt, Schedule,
    position::NoPositionEncoding,
};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    profiles::profile,
};
use burn::tensor::{DType, Device, Tensor, TensorData};

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 64 };
const BUDGET: usize = 40;
const ROWS: usize = 2;

/// All methods on the host, of each kind one elsewhere.
fn policies(backend: &Backend) -> Vec<Policy> {
    let few = ["h2o", "adakv", "ems", "kivi"];
    let all = in_one_pass(BUDGET).filter(|policy| !policy.takes_budget() || policy.holds_budget());
    let some = all.filter(|policy| backend.is_quick() || few.contains(&policy.name()));
    let always = |policy: Policy| match policy.takes_budget() {
        true => policy.with_schedule(Schedule::always(1)),
        false => policy,
    };
    some.map(|policy| always(policy).with_profile(profile(SHAPE))).collect()
}

fn cache(policy: Policy, dtype: DType, device: &Device) -> KvCache {
    let config = CacheConfig::default().with_dtype(dtype);
    KvCache::with_config(SHAPE, policy, config, device).unwrap()
}

fn constant(number: f32, heads: usize, tokens: usize, device: &Device) -> Tensor<4> {
    Tensor::full([ROWS, heads, tokens, SHAPE.head_dim], number, device)
}

fn qkv(noise: &mut Noise, tokens: usize, device: &Device) -> [Tensor<4>; 3] {
    [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
        .map(|heads| noise.tensor([ROWS, heads, tokens, SHAPE.head_dim], device))
}

fn host_numbers(tensor: Tensor<4>) -> Vec<f32> {
    tensor.try_into_vec_as::<f32>().unwrap()
}

/// Gives these tokens, in one call.
fn give(cache: &mut KvCache, [q, k, v]: [Tensor<4>; 3]) -> Vec<f32> {
    let name = cache.policy().name().to_owned();
    let output = cache.attend(0, q, k, v, &NoPositionEncoding);
    host_numbers(output.unwrap_or_else(|error| panic!("{name}: {error}")))
}

fn holds(cache: &KvCache, what: &str) {
    for row in cache.kept_by_head(0).unwrap() {
        let held: usize = row.iter().sum();
        let all = cache.policy().budget().is_none() || cache.policy().reducer().makes_clusters();
        assert!(all || held <= BUDGET * SHAPE.kv_heads, "{what}: {held}");
    }
}

/// Keys that are all zero, or all one key: every query attends to all alike, so an output is the
/// mean of the values seen.
#[test]
fn equal_keys_are_attended_to_alike() {
    for backend in backends() {
        let device = &backend.device;
        let dtypes = backend.dtypes().into_iter();
        for dtype in dtypes.take(if backend.is_quick() { 3 } else { 1 }) {
            for policy in policies(&backend) {
                for key in [0.0, 1.5] {
                    let what = format!("{}, {dtype:?}, {}, key {key}", backend.name, policy.name());
                    let mut cache = cache(policy.clone(), dtype, device);
                    let tokens = BUDGET + 24;
                    let mut noise = Noise::new(1);
                    let mut outputs = Vec::new();
                    for new in [tokens, 1, 1, 1, 1] {
                        let qkv = [
                            noise.tensor([ROWS, SHAPE.query_heads, new, SHAPE.head_dim], device),
                            constant(key, SHAPE.kv_heads, new, device),
                            constant(0.25, SHAPE.kv_heads, new, device),
                        ];
                        outputs.extend(give(&mut cache, qkv));
                    }
                    // Merged values are sums with weights that add up to one, or in CaM's case to
                    // more.
                    let mean = policy.name() != "cam";
                    for found in outputs {
                        assert!(found.is_finite(), "{what}: {found}");
                        assert!(!mean || (found - 0.25).abs() < 1e-2, "{what}: {found}");
                    }
                    holds(&cache, &what);
                }
            }
        }
    }
}

/// Products of queries and keys beyond what f16 holds (65,504): the largest decides, and nothing is
/// lost.
#[test]
fn products_beyond_half_precision_decide() {
    for backend in backends() {
        let device = &backend.device;
        for dtype in backend.dtypes() {
            for policy in policies(&backend) {
                let what = format!("{}, {dtype:?}, {}", backend.name, policy.name());
                let mut cache = cache(policy, dtype, device);
                let tokens = 24;
                // 200 · 200 · 64 = 2,560,000; the last key is the largest each query sees.
                let rising: Vec<f32> =
                    (0..tokens).map(|token| 100.0 + 4.0 * token as f32).collect();
                let one_hot: Vec<f32> = (0..tokens).map(|token| token as f32 / 32.0).collect();
                let of = |numbers: &[f32], heads: usize| -> Tensor<4> {
                    let column = TensorData::new(numbers.to_vec(), [1, 1, tokens, 1]);
                    let column = Tensor::<4>::from_data(column, device);
                    column.expand([ROWS, heads, tokens, SHAPE.head_dim])
                };
                let qkv = [
                    constant(200.0, SHAPE.query_heads, tokens, device),
                    of(&rising, SHAPE.kv_heads),
                    of(&one_hot, SHAPE.kv_heads),
                ]
                .map(|tensor| tensor.cast(dtype));
                let outputs = give(&mut cache, qkv);
                for (at, found) in outputs.iter().enumerate() {
                    let token = at / SHAPE.head_dim % tokens;
                    assert!(
                        (found - one_hot[token]).abs() < 1e-2,
                        "{what}, token {token}: {found}"
                    );
                }
            }
        }
    }
}

/// Columns of padding have nothing to attend to: what comes out of them is a number, and nothing of
/// it reaches a token.
#[test]
fn rows_that_are_masked_whole_are_numbers() {
    for backend in backends() {
        let device = &backend.device;
        for policy in policies(&backend) {
            let what = format!("{}, {}", backend.name, policy.name());
            let mut cache = cache(policy, DType::F32, device);
            cache.begin_prompt(Prompt::new(50).left_padding(vec![49, 3])).unwrap();
            let mut noise = Noise::new(2);
            for tokens in [20, 30, 1, 1] {
                let outputs = give(&mut cache, qkv(&mut noise, tokens, device));
                assert!(outputs.iter().all(|found| found.is_finite()), "{what}");
            }
            assert_eq!(cache.tokens_seen(), [3, 49], "{what}");
            holds(&cache, &what);
        }
    }
}

/// A prompt of one token, and all that follows one by one until the budget is passed: as the host
/// does it.
#[test]
fn prompts_of_one_token() {
    let play = |policy: Policy, device: &Device| {
        let mut cache = cache(policy, DType::F32, device);
        let mut noise = Noise::new(3);
        let mut outputs = Vec::new();
        for _ in 0..BUDGET + 6 {
            outputs.extend(give(&mut cache, qkv(&mut noise, 1, device)));
        }
        (outputs, cache.kept_positions(0).unwrap())
    };
    for backend in backends() {
        for policy in policies(&backend) {
            let what = format!("{}, {}", backend.name, policy.name());
            let (expected, kept) = play(policy.clone(), &host());
            let (found, found_kept) = play(policy, &backend.device);
            assert_eq!(kept, found_kept, "{what}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-4 && found.is_finite(),
                    "{what}: {found} {expected}"
                );
            }
        }
    }
}

/// Where nobody looks for NaN, one costs no other row or head its numbers, and no count of what is
/// held.
#[test]
fn a_nan_that_nobody_looks_for_stays_in_its_row() {
    for backend in backends() {
        let device = &backend.device;
        for policy in policies(&backend) {
            let what = format!("{}, {}", backend.name, policy.name());
            let config = CacheConfig::default().with_input_check(InputCheck::Never);
            let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
            let mut noise = Noise::new(4);
            for (call, tokens) in [BUDGET + 20, 1, 1, 1].into_iter().enumerate() {
                let [q, k, v] = qkv(&mut noise, tokens, device);
                // A query of the first row, which nothing but its own output and scores come of.
                let q = match call {
                    1 => q.slice_assign(
                        [0..1, 0..1, 0..1, 0..1],
                        Tensor::full([1, 1, 1, 1], f32::NAN, device),
                    ),
                    _ => q,
                };
                let before = cache.bytes_held();
                let name = cache.policy().name().to_owned();
                match cache.attend(0, q, k, v, &NoPositionEncoding) {
                    Ok(output) => {
                        let second = host_numbers(output.narrow(0, 1, 1));
                        assert!(
                            second.iter().all(|found| found.is_finite()),
                            "{what}, call {call}"
                        );
                    }
                    // Scores that are selected on the host are looked at there.
                    Err(error) => {
                        assert!(error.to_string().contains("NaN"), "{name}: {error}");
                        assert_eq!(cache.bytes_held(), before, "{what}");
                    }
                }
            }
            holds(&cache, &what);
        }
    }
}

/// A prompt behind one token, of which the first call brings padding in every row: more queries
/// than there are entries.
#[test]
fn padding_alone_behind_fewer_tokens() {
    for backend in backends() {
        let device = &backend.device;
        for policy in policies(&backend) {
            let what = format!("{}, {}", backend.name, policy.name());
            let mut noise = Noise::new(8);
            let [first, padding, rest, next] =
                [1, 2, 6, 1].map(|tokens| qkv(&mut noise, tokens, device));
            let mut found = cache(policy.clone(), DType::F32, device);
            let mut expected = cache(policy, DType::F32, device);
            give(&mut found, first.clone());
            give(&mut expected, first);

            found.begin_prompt(Prompt::new(8).left_padding(vec![2; ROWS])).unwrap();
            let nothing = give(&mut found, padding);
            assert!(nothing.iter().all(|&number| number == 0.0), "{what}: {nothing:?}");
            expected.begin_prompt(Prompt::new(6)).unwrap();
            for qkv in [rest, next] {
                let both = [&mut found, &mut expected].map(|cache| give(cache, qkv.clone()));
                for (found, expected) in both[0].iter().zip(&both[1]) {
                    assert!((found - expected).abs() < 1e-4, "{what}: {found}, {expected}");
                }
            }
            assert_eq!(found.kept_positions(0).unwrap(), expected.kept_positions(0).unwrap());
        }
    }
}
