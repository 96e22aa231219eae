//! Caches of models that have recurrent layers beside those of attention.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, RecurrentShape,
    RecurrentState, Result, SharedPrefill, WarmUp, position::NoPositionEncoding, state::Replay,
};
use briquette_tests::{backends::host, inputs::Noise};
use burn::tensor::{DType, Tensor};

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 8 };
const STATE: RecurrentShape =
    RecurrentShape { channels: 5, columns: 3, heads: 2, key_dim: 4, value_dim: 6 };
const BYTES: usize = (5 * 3 + 2 * 4 * 6) * 4;

fn config() -> CacheConfig {
    CacheConfig::default().with_recurrent_layers(vec![STATE; 2])
}

fn cache(policy: Policy, config: CacheConfig) -> Result<KvCache> {
    KvCache::with_config(SHAPE, policy, config, &host())
}

fn full() -> KvCache {
    cache(Policy::full(), config()).unwrap()
}

/// Adds to the state how many tokens have come, and returns the padding.
fn count(cache: &mut KvCache, layer: usize, dims: [usize; 2]) -> Result<Vec<usize>> {
    cache.update_state(layer, dims, |state, padding| {
        let counts: Vec<f32> = padding.iter().map(|padding| (dims[1] - padding) as f32).collect();
        let counts = Tensor::<1>::from_data(&counts[..], &host()).reshape([dims[0] as i32, 1, 1]);
        let inputs = state.inputs + counts.clone();
        let memory = state.memory + counts.unsqueeze_dim::<4>(3);
        Ok((padding.to_vec(), RecurrentState { inputs, memory }))
    })
}

fn attend(cache: &mut KvCache, [rows, columns]: [usize; 2]) -> Result<()> {
    let mut noise = Noise::new(5);
    let mut random = |heads| noise.tensor([rows, heads, columns, SHAPE.head_dim], &host());
    let (q, k, v) = (random(SHAPE.query_heads), random(SHAPE.kv_heads), random(SHAPE.kv_heads));
    cache.attend(0, q, k, v, &NoPositionEncoding).map(drop)
}

/// A recurrent layer, one of attention, and a recurrent one.
fn step(cache: &mut KvCache, dims: [usize; 2]) -> Result<Vec<usize>> {
    let padding = count(cache, 0, dims)?;
    attend(cache, dims)?;
    assert_eq!(count(cache, 1, dims)?, padding);
    Ok(padding)
}

/// The tokens that a layer has counted in each row.
fn counted(cache: &KvCache, layer: usize) -> Vec<f32> {
    let Some(RecurrentState { inputs, memory }) = cache.recurrent_state(layer).unwrap() else {
        return Vec::new();
    };
    let [of_inputs, of_memory] = [
        inputs.clone().try_into_vec_as::<f32>().unwrap(),
        memory.clone().try_into_vec_as::<f32>().unwrap(),
    ];
    let first = |all: &[f32], numbers| all.chunks(numbers).map(|row| row[0]).collect::<Vec<_>>();
    assert_eq!(first(&of_inputs, 15), first(&of_memory, 48));
    first(&of_memory, 48)
}

fn both(cache: &KvCache) -> [Vec<f32>; 2] {
    [counted(cache, 0), counted(cache, 1)]
}

#[test]
fn states_follow_prompts_padding_and_rows() {
    let mut cache = full();
    assert!(cache.recurrent_state(0).unwrap().is_none());
    cache.begin_prompt(Prompt::new(9).left_padding(vec![0, 6])).unwrap();
    assert_eq!(step(&mut cache, [2, 4]).unwrap(), [0, 4]);
    assert_eq!(step(&mut cache, [2, 5]).unwrap(), [0, 2]);
    assert_eq!(step(&mut cache, [2, 1]).unwrap(), [0, 0]);
    assert_eq!(cache.tokens_seen(), [10, 4]);
    assert_eq!(both(&cache), [[10.0, 4.0], [10.0, 4.0]]);
    assert_eq!(cache.bytes_full(), 14 * SHAPE.token_bytes(DType::F32) + 4 * BYTES);

    let copy = cache.fork();
    cache.select_rows(&[1, 1, 0]).unwrap();
    cache.append_rows(&copy).unwrap();
    assert_eq!(both(&cache), [[4.0, 4.0, 10.0, 10.0, 4.0], [4.0, 4.0, 10.0, 10.0, 4.0]]);
    step(&mut cache, [5, 1]).unwrap();
    assert_eq!(counted(&cache, 1), [5.0, 5.0, 11.0, 11.0, 5.0]);
    assert_eq!(both(&copy), [[10.0, 4.0], [10.0, 4.0]]);

    cache.reset();
    assert_eq!((both(&cache), cache.bytes_held()), ([vec![], vec![]], 0));
}

#[test]
fn states_count_as_bytes() {
    let mut with = full();
    let mut without = cache(Policy::full(), CacheConfig::default()).unwrap();
    step(&mut with, [3, 7]).unwrap();
    attend(&mut without, [3, 7]).unwrap();
    assert_eq!(with.bytes_held() - without.bytes_held(), 2 * 3 * BYTES);
    assert_eq!(with.bytes_spare(), without.bytes_spare());
    let planned = full().bytes_after_prompt(3, 7).unwrap();
    assert_eq!(planned, without.bytes_after_prompt(3, 7).unwrap() + 2 * 3 * BYTES);

    let needed = with.bytes_held();
    let limited = |bytes| cache(Policy::full(), config().with_memory_ceiling(bytes)).unwrap();
    step(&mut limited(needed), [3, 7]).unwrap();
    let mut cache = limited(needed - 1);
    let error = step(&mut cache, [3, 7]).unwrap_err();
    assert!(matches!(error, Error::MemoryCeiling { .. }), "{error}");
    assert_eq!(both(&cache), [vec![7.0; 3], vec![]]);
}

#[test]
fn a_failed_call_leaves_the_state() {
    let mut cache = full();
    step(&mut cache, [2, 7]).unwrap();
    let device = host();
    type Change = fn(RecurrentState) -> RecurrentState;
    let wrong: [(Change, &str); 3] = [
        (|state| RecurrentState { memory: state.memory.narrow(2, 0, 3), ..state }, "memory"),
        (|state| RecurrentState { inputs: state.inputs.narrow(0, 0, 1), ..state }, "inputs"),
        (|state| RecurrentState { inputs: state.inputs.cast(DType::F16), ..state }, "F16"),
    ];
    for (change, named) in wrong {
        let error = cache.update_state(0, [2, 1], |state, _| Ok(((), change(state)))).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    let error = cache.update_state(0, [2, 1], |_, _| -> Result<((), _)> {
        Err(Error::Execution("of the step".into()))
    });
    assert!(matches!(error, Err(Error::Execution(_))));
    for (dims, layer) in [([3, 1], 0), ([0, 1], 0), ([2, 0], 0), ([2, 1], 2)] {
        count(&mut cache, layer, dims).unwrap_err();
    }
    assert_eq!((both(&cache), cache.tokens_seen()), ([vec![7.0; 2], vec![7.0; 2]], vec![7; 2]));

    // The last layer fails, or the one of attention does.
    for keys in [2, 3] {
        let failed: Result<()> = cache.transaction(|cache| {
            count(cache, 0, [2, 1])?;
            let x = |heads| Tensor::<4>::zeros([2, heads, 1, 8], &device);
            cache.attend(0, x(4), x(keys), x(2), &NoPositionEncoding)?;
            count(cache, 1, [2, 5]).map(drop)?;
            Err(Error::Execution("of the next".into()))
        });
        failed.unwrap_err();
        assert_eq!(both(&cache), [vec![7.0; 2], vec![7.0; 2]]);
        step(&mut cache.fork(), [2, 1]).unwrap();
    }
}

#[test]
fn an_abandoned_prompt_takes_its_state_along() {
    for first in [0, 3] {
        let mut cache = full();
        if first > 0 {
            step(&mut cache, [1, first]).unwrap();
        }
        let before = (both(&cache), cache.tokens_seen());
        cache.begin_prompt(Prompt::new(5)).unwrap();
        step(&mut cache, [1, 2]).unwrap();
        // All but the last layer have the whole prompt.
        count(&mut cache, 0, [1, 3]).unwrap();
        let error = cache.begin_prompt(Prompt::new(5)).unwrap_err();
        assert!(matches!(error, Error::PromptUnfinished { .. }), "{error}");
        cache.abandon_prompt().unwrap();
        assert_eq!((both(&cache), cache.tokens_seen()), before);
        step(&mut cache, [1, 5]).unwrap();
        assert_eq!(both(&cache), [[(first + 5) as f32], [(first + 5) as f32]]);
    }
    // Nothing arrived, and a second prompt whose last layer is missing.
    let mut cache = full();
    step(&mut cache, [1, 3]).unwrap();
    cache.begin_prompt(Prompt::new(5)).unwrap();
    cache.abandon_prompt().unwrap();
    cache.begin_prompt(Prompt::new(2)).unwrap();
    count(&mut cache, 0, [1, 2]).unwrap();
    attend(&mut cache, [1, 2]).unwrap();
    let error = cache.abandon_prompt().unwrap_err();
    assert!(matches!(error, Error::PromptNotReversible { .. }), "{error}");
    count(&mut cache, 1, [1, 2]).unwrap();
    assert_eq!(both(&cache), [[5.0], [5.0]]);
}

#[test]
fn every_layer_is_called_once_per_step() {
    let behind = |error: Result<Vec<usize>>| error.unwrap_err().to_string();
    let mut cache = full();
    count(&mut cache, 0, [1, 3]).unwrap();
    let text = behind(count(&mut cache, 0, [1, 1]));
    assert!(text.starts_with("recurrent layer 0 has seen 3 columns, but layer 0 has seen 0"));
    assert!(cache.begin_prompt(Prompt::new(2)).is_err());
    attend(&mut cache, [1, 3]).unwrap();
    let error = attend(&mut cache, [1, 1]).unwrap_err().to_string();
    assert!(error.starts_with("layer 0 has seen 3 columns, but recurrent layer 1 has seen 0"));
    let error = cache.select_rows(&[0]).unwrap_err();
    assert!(matches!(error, Error::StateOutOfStep { .. }), "{error}");
    assert!(cache.tokens_seen().is_empty());
    count(&mut cache, 1, [1, 3]).unwrap();
    step(&mut cache, [1, 1]).unwrap();
}

#[test]
fn what_cannot_go_beside_states_is_refused() {
    let mut cache = full();
    step(&mut cache, [1, 6]).unwrap();
    let error = cache.truncate(4).unwrap_err();
    assert!(matches!(error, Error::TruncateTooFar { columns: 4, least: 6 }), "{error}");
    cache.truncate(6).unwrap();
    let error = cache.begin_decode(2).unwrap_err();
    assert!(matches!(error, Error::DraftRefused { .. }), "{error}");
    assert!(cache.fallback_reason().is_some_and(|reason| reason.contains("recurrent")));
    assert_eq!((cache.step_kind(), cache.open_columns()), (None, None));

    let error = SharedPrefill::new(&mut [full()], Prompt::new(3)).unwrap_err();
    assert!(error.to_string().contains("recurrent layers"), "{error}");
    let error = KvCache::per_layer(SHAPE, &Policy::full(), &config(), &host()).unwrap_err();
    assert!(matches!(error, Error::LayersTogether { .. }), "{error}");
    let error = self::cache(Policy::kvzip(Budget::Tokens(8)), config()).unwrap_err();
    let named = "recurrent_layers";
    assert!(matches!(error, Error::InvalidParameter { parameter, .. } if parameter == named));
    for wrong in
        [RecurrentShape { columns: 0, ..STATE }, RecurrentShape { heads: 1 << 21, ..STATE }]
    {
        let config = CacheConfig::default().with_recurrent_layers(vec![STATE, wrong]);
        let error = self::cache(Policy::full(), config).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    }
    let mut plain = self::cache(Policy::full(), CacheConfig::default()).unwrap();
    attend(&mut plain, [1, 6]).unwrap();
    for error in [cache.append_rows(&plain).unwrap_err(), plain.append_rows(&cache).unwrap_err()] {
        assert!(matches!(error, Error::RowsDiffer { what: "recurrent layers", .. }), "{error}");
    }
    let error = count(&mut plain, 0, [1, 1]).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
}

#[test]
fn kernels_are_compiled_beside_states() {
    let warm_up = WarmUp { rows: vec![2], prompts: vec![3] };
    let cache = full();
    cache.warm(&warm_up, DType::F32, &NoPositionEncoding, |_, _| {}).unwrap();
    assert!(cache.tokens_seen().is_empty());
}
