//! Features of a cache that meet in one life: a prompt that comes rotated and in chunks, or in one
//! prefill for several caches; files, drafts that are taken back, rows that leave, and entries for
//! the model's own attention. The end is that of a plain cache. On every device of the build.

use briquette::{
    CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, SharedPrefill, VisibleEntries,
    position::{PositionEncoding, RotaryEmbedding, Rotated},
    store::{Fp8, KeyChannels, Quantized, TurboQuant},
};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::tensor::{
    Device, Int, Tensor, TensorData, module::attention, ops::AttentionModuleOptions,
};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 40;
const PROMPT: usize = 64;
const PADDING: [usize; 3] = [0, 21, 9];

type Qkv = [Tensor<4>; 3];

/// Tokens of three rows, and the encoding of their positions.
struct Tokens {
    layers: Vec<Qkv>,
    rope: RotaryEmbedding,
}

/// How the tokens of a step reach the cache.
#[derive(Clone, Copy, Debug)]
enum Door {
    /// `attend`, before positions are encoded.
    Plain,
    /// `attend`, rotated by the model.
    Rotated,
    /// `update_with`, rotated by the model.
    Update,
}

impl Tokens {
    fn new(seed: u64, device: &Device) -> Self {
        let mut noise = Noise::new(seed);
        let mut random = |heads| noise.tensor([3, heads, 160, SHAPE.head_dim], device);
        let layer = |_| [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random);
        let layers = (0..SHAPE.layers).map(layer).collect();
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap();
        Self { layers, rope }
    }

    fn columns(&self, layer: usize, rows: &[usize], at: &[usize]) -> Qkv {
        self.layers[layer].clone().map(|x| {
            let rows = rows.iter().map(|&row| x.clone().narrow(0, row, 1)).collect();
            let x = Tensor::cat(rows, 0);
            Tensor::cat(at.iter().map(|&at| x.clone().narrow(2, at, 1)).collect(), 2)
        })
    }

    /// Gives the columns `at` of some rows to all layers; the first of them stands at `column`.
    fn give(
        &self,
        cache: &mut KvCache,
        rows: (&[usize], usize),
        at: &[usize],
        door: Door,
    ) -> Vec<Tensor<4>> {
        self.give_by(rows, at, door, |layer, [q, k, v], told| match door {
            Door::Update => cache.update_with(layer, q, k, v, told).map(own_attention),
            Door::Plain | Door::Rotated => cache.attend(layer, q, k, v, told),
        })
    }

    /// As [`give`](Self::give), to whatever takes queries, keys and values of a layer as they come
    /// through this door, and the encoding that goes with them.
    fn give_by(
        &self,
        (rows, column): (&[usize], usize),
        at: &[usize],
        door: Door,
        mut call: impl FnMut(usize, Qkv, &dyn PositionEncoding) -> briquette::Result<Tensor<4>>,
    ) -> Vec<Tensor<4>> {
        let turn = |x: Tensor<4>| {
            let of_row = |&row: &usize| {
                let first = column as i64 - PADDING[row] as i64;
                (first..first + at.len() as i64).map(|position| position.max(0))
            };
            let positions: Vec<i64> = rows.iter().flat_map(of_row).collect();
            let positions = TensorData::new(positions, [rows.len(), 1, at.len()]);
            self.rope.encode(x.clone(), Tensor::<3, Int>::from_data(positions, &x.device()))
        };
        let told = Rotated::by(&self.rope);
        let of_layer = |layer| {
            let [q, k, v] = self.columns(layer, rows, at);
            let output = match door {
                Door::Plain => call(layer, [q, k, v], &self.rope),
                Door::Rotated | Door::Update => call(layer, [turn(q), turn(k), v], &told),
            };
            output.unwrap_or_else(|error| panic!("{door:?}, layer {layer}: {error}"))
        };
        (0..SHAPE.layers).map(of_layer).collect()
    }
}

/// Attention as a model computes it from entries.
fn own_attention(entries: VisibleEntries) -> Tensor<4> {
    let VisibleEntries { queries, keys, values, mask, .. } = entries;
    let repeat = |x: Tensor<4>| {
        let [batch, heads, columns, width] = x.dims();
        let x = x.unsqueeze_dim::<5>(2).expand([batch, heads, SHAPE.group(), columns, width]);
        x.reshape([batch, heads * SHAPE.group(), columns, width])
    };
    let options = AttentionModuleOptions { is_causal: mask.is_none(), ..Default::default() };
    attention(queries.unwrap(), repeat(keys), repeat(values), mask, None, options)
}

fn cache(policy: &Policy, device: &Device) -> KvCache {
    KvCache::new(SHAPE, policy.clone(), device).unwrap()
}

/// Saves the cache, and loads it from the file.
fn through_a_file(cache: &KvCache) -> KvCache {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.prefix");
    cache.save(&path).unwrap();
    let (policy, config) = (cache.policy().clone(), CacheConfig::default());
    KvCache::load(&path, SHAPE, policy, config, cache.device()).unwrap()
}

fn prompt(rows: &[usize]) -> Prompt {
    Prompt::new(PROMPT).left_padding(rows.iter().map(|&row| PADDING[row]).collect())
}

/// A draft of two right and two wrong tokens, of which the wrong ones are taken back. Where decoded
/// tokens are compressed, a draft of right tokens: what is dropped for wrong ones stays dropped.
fn draft(tokens: &Tokens, cache: &mut KvCache, rows: &[usize], next: usize, door: Door) {
    let compresses = cache.policy().schedule().decode_every.is_some();
    if compresses && cache.policy().reducer().makes_clusters() {
        // Takes none.
        for token in [next, next + 1] {
            tokens.give(cache, (rows, token), &[token], door);
        }
        return;
    }
    let wrong = if compresses { vec![] } else { vec![150, 151] };
    let columns = [vec![next, next + 1], wrong].concat();
    cache.begin_decode(columns.len()).unwrap();
    tokens.give(cache, (rows, next), &columns, door);
    cache.truncate(next + 2).unwrap();
}

fn policies(backend: &Backend) -> Vec<Policy> {
    let few = ["full", "snapkv", "keydiff", "adakv", "ems", "kivi", "streaming-llm"];
    let all = in_one_pass(BUDGET).filter(|it| backend.is_quick() || few.contains(&it.name()));
    let with_profile = |policy: Policy| match policy.reads_profile() {
        true => policy.with_profile(profile(SHAPE)),
        false => policy,
    };
    all.map(with_profile).collect()
}

/// Kept positions and counts of what has been seen.
fn state(cache: &KvCache) -> String {
    let kept = (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap());
    format!("{:?} {:?}", kept.collect::<Vec<_>>(), (cache.tokens_seen(), cache.columns_seen()))
}

/// Gives both caches the tokens `next..next + 5` and a prompt, and compares outputs and entries.
fn compare(
    tokens: &Tokens,
    [busy, plain]: [&mut KvCache; 2],
    rows: &[usize],
    next: usize,
    door: Door,
    what: &str,
) {
    let (schedule, store) = (plain.policy().schedule(), plain.policy().store());
    // A draft is dropped for at its end, not token by token.
    let exact = schedule.decode_every.is_none();
    let tolerance = if store.repacks_entries() { 0.1 } else { 2e-3 };
    for token in next..next + 5 {
        let found = tokens.give(busy, (rows, token), &[token], door);
        let expected = tokens.give(plain, (rows, token), &[token], Door::Plain);
        for (found, expected) in found.into_iter().zip(expected).filter(|_| exact) {
            let off: f32 = (found - expected).abs().max().try_into_scalar().unwrap();
            assert!(off < tolerance, "{what}, token {token}: {off}");
        }
    }
    assert!(!exact || state(busy) == state(plain), "{what}");
    assert_eq!(busy.tokens_seen(), plain.tokens_seen(), "{what}");
}

/// The plain cache: one prompt of its rows, and tokens one by one.
fn plain(tokens: &Tokens, policy: &Policy, rows: &[usize], to: usize, device: &Device) -> KvCache {
    let mut cache = cache(policy, device);
    cache.begin_prompt(prompt(rows)).unwrap();
    let columns: Vec<usize> = (0..PROMPT).collect();
    tokens.give(&mut cache, (rows, 0), &columns, Door::Plain);
    for token in PROMPT..to {
        tokens.give(&mut cache, (rows, token), &[token], Door::Plain);
    }
    cache
}

#[test]
fn rotated_chunks_files_drafts_rows_and_updates_in_one_life() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(1, device);
        for policy in policies(&backend) {
            // One that compresses every chunk has another prompt in chunks.
            if policy.name() == "streaming-llm" {
                continue;
            }
            let what = format!("{} on {}", policy.name(), backend.name);
            let updates = match policy.needs_queries().is_none() {
                true => Door::Update,
                false => Door::Rotated,
            };
            let all = [0, 1, 2];
            let mut busy = cache(&policy, device);
            busy.begin_prompt(prompt(&all)).unwrap();
            let (first, second): (Vec<usize>, Vec<usize>) =
                ((0..30).collect(), (30..PROMPT).collect());
            tokens.give(&mut busy, (&all, 0), &first, Door::Rotated);
            tokens.give(&mut busy, (&all, 30), &second, Door::Update);
            let mut busy = through_a_file(&busy);
            draft(&tokens, &mut busy, &all, PROMPT, updates);
            busy.select_rows(&[2, 0]).unwrap();
            let rows = [2, 0];
            draft(&tokens, &mut busy, &rows, PROMPT + 2, Door::Rotated);
            let mut busy = through_a_file(&busy);
            draft(&tokens, &mut busy, &rows, PROMPT + 4, Door::Rotated);
            let next = PROMPT + 6;
            let mut plain = plain(&tokens, &policy, &rows, next, device);
            compare(&tokens, [&mut busy, &mut plain], &rows, next, updates, &what);
        }
    }
}

#[test]
fn one_prefill_for_several_caches_then_files_drafts_and_rows() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(2, device);
        let all = policies(&backend).into_iter().filter(Policy::can_share_prefill);
        for policy in all {
            let what = format!("{} on {}", policy.name(), backend.name);
            let mut caches = [cache(&policy, device), cache(&Policy::full(), device)];
            let rows = [0, 1, 2];
            let mut prefill = SharedPrefill::new(&mut caches, prompt(&rows)).unwrap();
            let columns: Vec<usize> = (0..PROMPT).collect();
            for layer in 0..SHAPE.layers {
                let [q, k, v] = tokens.columns(layer, &rows, &columns);
                prefill.attend(layer, q, k, v, &tokens.rope).unwrap();
            }
            let mut busy = through_a_file(&caches[0]);
            busy.select_rows(&[1, 2]).unwrap();
            let rows = [1, 2];
            draft(&tokens, &mut busy, &rows, PROMPT, Door::Plain);
            let next = PROMPT + 2;
            let mut plain = plain(&tokens, &policy, &rows, next, device);
            compare(&tokens, [&mut busy, &mut plain], &rows, next, Door::Plain, &what);
        }
    }
}

/// Queries and keys that the model has rotated, in one prefill for several caches.
#[test]
fn one_prefill_of_rotated_keys_for_several_caches() {
    for backend in backends() {
        let device = &backend.device;
        let tokens = Tokens::new(4, device);
        let rows = [0, 1, 2];
        let columns: Vec<usize> = (0..PROMPT).collect();
        for policy in policies(&backend).into_iter().filter(Policy::can_share_prefill) {
            let what = format!("{} on {}", policy.name(), backend.name);
            let mut caches = [cache(&Policy::full(), device), cache(&policy, device)];
            let mut prefill = SharedPrefill::new(&mut caches, prompt(&rows)).unwrap();
            tokens.give_by((&rows, 0), &columns, Door::Rotated, |layer, [q, k, v], told| {
                prefill.attend(layer, q, k, v, told)
            });
            let [_, mut busy] = caches;
            let mut plain = plain(&tokens, &policy, &rows, PROMPT, device);
            assert_eq!(state(&busy), state(&plain), "{what}");
            compare(&tokens, [&mut busy, &mut plain], &rows, PROMPT, Door::Rotated, &what);
        }
    }
}

/// One policy among several that needs keys before they are rotated.
#[test]
fn rotated_keys_that_one_cache_cannot_take_are_refused_for_all() {
    let device = host();
    let tokens = Tokens::new(4, &device);
    let policy = named("streaming-llm", briquette::Budget::Tokens(BUDGET));
    let mut caches = [cache(&Policy::full(), &device), cache(&policy, &device)];
    let mut prefill = SharedPrefill::new(&mut caches, prompt(&[0, 1, 2])).unwrap();
    let [q, k, v] = tokens.columns(0, &[0, 1, 2], &(0..PROMPT).collect::<Vec<_>>());
    let error = prefill.attend(0, q, k, v, &Rotated).unwrap_err();
    assert!(matches!(error, Error::RotatedKeys { .. }), "{error}");
    assert!(error.to_string().contains("Rotated::by"), "{error}");
    assert!(caches.iter().all(|cache| cache.tokens_seen().is_empty()));
}

/// What a second pass keeps of packed pages, and what is decoded behind them.
#[test]
fn packed_pages_take_a_second_pass() {
    const REPEATS: [usize; 3] = [9, 4, 7];
    let device = host();
    let tokens = Tokens::new(5, &device);
    let rows = [0, 1, 2];
    let columns: Vec<usize> = (0..PROMPT).collect();
    let begun = |policy: &Policy, chunks: &[&[usize]], by_file: bool| {
        let mut cache = cache(policy, &device);
        cache.begin_prompt(prompt(&rows)).unwrap();
        for chunk in chunks {
            tokens.give(&mut cache, (&rows, chunk[0]), chunk, Door::Plain);
        }
        if by_file {
            cache = through_a_file(&cache);
        }
        if policy.store().repacks_entries() {
            assert!(cache.tokens_packed(0).unwrap().unwrap()[0] > 0, "{policy:?}");
        }
        let mut pass = cache.reconstruction().unwrap().unwrap();
        pass.begin(0..PROMPT, &REPEATS).unwrap();
        let again: Vec<usize> = (100..109).collect();
        for layer in 0..SHAPE.layers {
            let [q, k, v] = tokens.columns(layer, &rows, &again);
            pass.attend(layer, q, k, v, &tokens.rope).unwrap();
        }
        let given = pass.finish();
        cache.compress_by(&given).unwrap();
        (cache, given)
    };
    let kvzip = named("kvzip", briquette::Budget::Tokens(BUDGET));
    let (mut dense, of_dense) = begun(&kvzip, &[&columns], false);
    let kivi = Quantized { bits: 8, group: 8, residual: 8 };
    let all = [
        (kvzip.clone().with_store(Fp8 {}), 0.1),
        (kvzip.clone().with_store(kivi), 0.02),
        (kvzip.clone().with_store(TurboQuant::new(4, 4)), 0.5),
        (kvzip.clone().with_store(KeyChannels::new(0.25)), 0.5),
    ];
    let next = PROMPT;
    let expected = tokens.give(&mut dense, (&rows, next), &[next], Door::Plain);
    for (policy, tolerance) in all {
        let what = policy.store().name().to_owned();
        let (mut plain, given) = begun(&policy, &[&columns], false);
        for (found, expected) in given.iter().zip(&of_dense) {
            let off: f32 =
                (found.clone() - expected.clone()).abs().max().try_into_scalar().unwrap();
            assert!(off < tolerance, "{what}: {off}");
        }
        let (mut busy, _) = begun(&policy, &[&columns[..20], &columns[20..]], true);
        assert_eq!(state(&busy), state(&plain), "{what}");
        let outputs = tokens.give(&mut busy.fork(), (&rows, next), &[next], Door::Plain);
        println!("{what}");
        for (found, expected) in outputs.into_iter().zip(&expected) {
            let off: f32 = (found - expected.clone()).abs().mean().try_into_scalar().unwrap();
            assert!(off < tolerance, "{what}: {off}");
        }
        draft(&tokens, &mut busy, &rows, next, Door::Rotated);
        for token in [next, next + 1] {
            tokens.give(&mut plain, (&rows, token), &[token], Door::Plain);
        }
        compare(&tokens, [&mut busy, &mut plain], &rows, next + 2, Door::Rotated, &what);
    }
}

#[test]
fn drafts_behind_a_second_pass_are_those_of_a_plain_cache() {
    let device = host();
    let tokens = Tokens::new(3, &device);
    let policy = named("kvzip", briquette::Budget::Tokens(BUDGET));
    let rows = [0, 1, 2];
    let columns: Vec<usize> = (0..PROMPT).collect();
    let begun = |chunks: &[&[usize]]| {
        let mut cache = cache(&policy, &device);
        cache.begin_prompt(prompt(&rows)).unwrap();
        for chunk in chunks {
            tokens.give(&mut cache, (&rows, chunk[0]), chunk, Door::Rotated);
        }
        // The weights of a second pass, whatever they are.
        let given = (0..SHAPE.layers).map(|layer| {
            let entries = cache.entries(layer).unwrap().unwrap();
            let shape = [3, SHAPE.kv_heads, entries.positions.dims()[2]];
            tokens.layers[layer][1].clone().narrow(2, 0, shape[2]).abs().mean_dim(3).reshape(shape)
        });
        let given: Vec<Tensor<3>> = given.collect();
        cache.compress_by(&given).unwrap();
        cache
    };
    let (mut busy, mut plain) = (begun(&[&columns[..20], &columns[20..]]), begun(&[&columns]));
    assert_eq!(state(&busy), state(&plain));
    draft(&tokens, &mut busy, &rows, PROMPT, Door::Update);
    for token in [PROMPT, PROMPT + 1] {
        tokens.give(&mut plain, (&rows, token), &[token], Door::Plain);
    }
    compare(&tokens, [&mut busy, &mut plain], &rows, PROMPT + 2, Door::Update, "kvzip");
}
