//! Calls of a cache in any order, of every method: positions stay in order and below what was seen,
//! and a call that fails changes nothing.
#![no_main]

use arbitrary::Arbitrary;
use briquette::{
    Budget, CacheShape, KvCache, Policy, Prompt, Schedule, methods, position::NoPositionEncoding,
};
use burn::tensor::{Tensor, TensorData};
use libfuzzer_sys::fuzz_target;

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 2, kv_heads: 1, head_dim: 32 };

#[derive(Arbitrary, Debug)]
struct Calls {
    method: u8,
    budget: u8,
    decode_every: Option<u8>,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Begin { columns: u8, padding: Option<Vec<u8>> },
    Attend { layer: u8, columns: u8, rows: u8, seed: u8 },
    Step { columns: u8, seed: u8 },
    Reset,
}

fn state(cache: &KvCache) -> (Vec<usize>, usize, Vec<Vec<Vec<Vec<usize>>>>) {
    let kept = (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect();
    (cache.tokens_seen(), cache.bytes_held(), kept)
}

fuzz_target!(|calls: Calls| {
    let device = briquette::device::open("flex").unwrap();
    let all = methods();
    let method = &all[calls.method as usize % all.len()];
    let budget = Budget::Tokens(calls.budget.into());
    let mut policy = Policy::named(&method.name, None).unwrap().with_default_budget(budget);
    if let Some(every) = calls.decode_every {
        policy = policy.with_schedule(Schedule::always(every.into()));
    }
    let Ok(mut cache) = KvCache::new(SHAPE, policy, &device) else { return };
    let tensor = |heads: usize, rows: usize, columns: usize, seed: u8| {
        let dims = [rows, heads, columns, SHAPE.head_dim];
        let count = dims.iter().product::<usize>();
        let number = |at: usize| ((at * 31 + usize::from(seed) * 17) % 255) as f32 / 64.0 - 2.0;
        let numbers: Vec<f32> = (0..count).map(number).collect();
        Tensor::<4>::from_data(TensorData::new(numbers, dims), &device)
    };
    let attend = |cache: &mut KvCache, layer: usize, rows: usize, columns: usize, seed: u8| {
        let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
            .map(|heads| tensor(heads, rows, columns, seed));
        cache.attend(layer, q, k, v, &NoPositionEncoding).map(drop)
    };
    for call in calls.calls.iter().take(24) {
        let before = state(&cache);
        let failed = match call {
            Call::Begin { columns, padding } => {
                let mut prompt = Prompt::new((*columns).into());
                if let Some(padding) = padding {
                    prompt = prompt.left_padding(padding.iter().map(|&p| p.into()).collect());
                }
                cache.begin_prompt(prompt).is_err()
            }
            Call::Attend { layer, columns, rows, seed } => {
                let (columns, rows) = (usize::from(columns % 48), usize::from(rows % 3));
                attend(&mut cache, (layer % 3).into(), rows, columns, *seed).is_err()
            }
            Call::Step { columns, seed } => {
                let columns = usize::from(columns % 48);
                let rows = before.0.len().max(1);
                for layer in 0..SHAPE.layers {
                    let _ = attend(&mut cache, layer, rows, columns, *seed);
                }
                false
            }
            Call::Reset => {
                cache.reset();
                false
            }
        };
        let after = state(&cache);
        if failed {
            assert_eq!(before, after, "{call:?} failed and changed the cache");
        }
        for kept in after.2.iter().flatten().flatten() {
            assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "{kept:?}");
        }
    }
});
