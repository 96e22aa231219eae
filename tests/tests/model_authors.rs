//! Calls that a model author makes beside `attend`: entries for the model's own attention, layers
//! as objects, reads, and prompts that are taken back. On every device of the build.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, SparsePrefill, VisibleEntries,
    ops::HeadPattern,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding, Rotated},
};
use briquette_tests::{
    backends::{Backend, backends, host},
    in_one_pass,
    inputs::Noise,
    named,
    profiles::profile,
};
use burn::{
    nn::RotaryEncodingConfig,
    tensor::{
        DType, Device, Int, Tensor, TensorData, module::attention, ops::AttentionModuleOptions,
    },
};

const SHAPE: CacheShape = CacheShape { layers: 3, query_heads: 4, kv_heads: 2, head_dim: 16 };
const BUDGET: usize = 40;

type Qkv = [Tensor<4>; 3];

/// Queries, keys and values of each layer, `[rows, heads, tokens, head_dim]`.
fn layers(seed: u64, rows: usize, tokens: usize, device: &Device) -> Vec<Qkv> {
    let mut noise = Noise::new(seed);
    let mut random = |heads| noise.tensor([rows, heads, tokens, SHAPE.head_dim], device);
    let layer = |_| [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(&mut random);
    (0..SHAPE.layers).map(layer).collect()
}

fn columns(layer: &Qkv, start: usize, length: usize) -> Qkv {
    layer.clone().map(|x| x.narrow(2, start, length))
}

fn row(layer: &Qkv, row: usize) -> Qkv {
    layer.clone().map(|x| x.narrow(0, row, 1))
}

fn numbers(x: Tensor<4>) -> Vec<f32> {
    x.cast(DType::F32).try_into_vec_as().unwrap()
}

fn farthest(a: Tensor<4>, b: Tensor<4>) -> f32 {
    (a - b).abs().max().try_into_scalar().unwrap()
}

/// Every method that compresses by itself, on accelerators a few of each kind.
fn policies(backend: &Backend) -> Vec<Policy> {
    let few = ["full", "h2o", "snapkv", "knorm", "streaming-llm", "adakv", "d2o", "ems", "fp8"];
    let all = in_one_pass(BUDGET).filter(|it| backend.is_quick() || few.contains(&it.name()));
    let with_profile = |policy: Policy| match policy.reads_profile() {
        true => policy.with_profile(profile(SHAPE)),
        false => policy,
    };
    all.map(with_profile).collect()
}

fn cache(policy: &Policy, device: &Device) -> KvCache {
    KvCache::new(SHAPE, policy.clone(), device).unwrap()
}

/// Positions that all layers hold, bytes, and tokens seen.
fn state(cache: &KvCache) -> String {
    let kept = (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap());
    let kept: Vec<_> = kept.collect();
    format!("{kept:?} {:?} {:?}", cache.tokens_seen(), cache.columns_seen())
}

fn step(
    cache: &mut KvCache,
    layers: &[Qkv],
    start: usize,
    length: usize,
    encoding: &dyn PositionEncoding,
) -> Vec<Tensor<4>> {
    let call = |(layer, qkv): (usize, &Qkv)| {
        let [q, k, v] = columns(qkv, start, length);
        cache.attend(layer, q, k, v, encoding).unwrap()
    };
    layers.iter().enumerate().map(call).collect()
}

/// Attention as the model of `update` computes it.
fn own_attention(queries: Tensor<4>, entries: VisibleEntries) -> Tensor<4> {
    let group = SHAPE.group();
    let repeat = |x: Tensor<4>| {
        let [batch, heads, columns, width] = x.dims();
        let x = x.unsqueeze_dim::<5>(2).expand([batch, heads, group, columns, width]);
        x.reshape([batch, heads * group, columns, width])
    };
    let options =
        AttentionModuleOptions { is_causal: entries.mask.is_none(), ..Default::default() };
    attention(queries, repeat(entries.keys), repeat(entries.values), entries.mask, None, options)
}

#[test]
fn a_models_own_attention_over_what_it_may_see_is_the_caches() {
    const PROMPT: usize = 70;
    const DECODED: usize = 9;
    for backend in backends() {
        let device = &backend.device;
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap();
        let layers = layers(3, 2, PROMPT + DECODED, device);
        for policy in policies(&backend) {
            let what = format!("{} on {}", policy.name(), backend.name);
            let (mut first, mut second) = (cache(&policy, device), cache(&policy, device));
            let padding = [0, 17];
            for cache in [&mut first, &mut second] {
                cache.begin_prompt(Prompt::new(PROMPT).left_padding(padding.to_vec())).unwrap();
            }
            let pieces = [(0, 40), (40, PROMPT - 40)];
            let tokens = (PROMPT..PROMPT + DECODED).map(|token| (token, 1));
            for (start, length) in pieces.into_iter().chain(tokens) {
                for (layer, qkv) in layers.iter().enumerate() {
                    let [q, k, v] = columns(qkv, start, length);
                    let expected =
                        first.attend(layer, q.clone(), k.clone(), v.clone(), &rope).unwrap();
                    let entries = second.update_with(layer, q, k, v, &rope).unwrap();
                    assert_eq!(entries.keys.dims(), entries.values.dims(), "{what}");
                    let found = own_attention(entries.queries.clone().unwrap(), entries);
                    for (row, padding) in padding.into_iter().enumerate() {
                        let from = padding.saturating_sub(start).min(length - 1);
                        let of_row = |x: &Tensor<4>| {
                            x.clone().narrow(0, row, 1).narrow(2, from, length - from)
                        };
                        let off = farthest(of_row(&found), of_row(&expected));
                        // A codec's pages are read by the kernel, and are laid out for the model.
                        assert!(off < 2e-3, "{what}, layer {layer}, {start}: {off}");
                    }
                }
                assert_eq!(state(&first), state(&second), "{what}, {start}");
            }
        }
    }
}

#[test]
fn update_without_queries_serves_every_policy_that_looks_at_none() {
    let device = host();
    let layers = layers(4, 1, 60, &device);
    let mut served = Vec::new();
    for method in briquette::methods() {
        let policy = named(&method.name, Budget::Tokens(BUDGET));
        let policy =
            if policy.reads_profile() { policy.with_profile(profile(SHAPE)) } else { policy };
        if policy.reads_output_weights() {
            continue;
        }
        let (mut first, mut second) = (cache(&policy, &device), cache(&policy, &device));
        let [_, k, v] = columns(&layers[0], 0, 50);
        match (second.update(0, k, v), policy.needs_queries(), policy.needs_unrotated()) {
            (Ok(_), None, None) => served.push(method.name.clone()),
            (Err(Error::QueriesMissing { policy, .. }), Some(_), _)
            | (Err(Error::RotatedKeys { policy, .. }), None, Some(_)) => {
                assert_eq!(policy, method.name);
                assert_eq!(second.bytes_held(), 0, "{policy}");
                continue;
            }
            (found, needs, unrotated) => {
                panic!("{}: {found:?}, {needs:?}, {unrotated:?}", method.name)
            }
        }
        step(&mut first, &layers, 0, 50, &Rotated);
        for (layer, [_, k, v]) in layers.iter().map(|qkv| columns(qkv, 0, 50)).enumerate().skip(1) {
            second.update(layer, k, v).unwrap();
        }
        if policy.second_pass().is_none() {
            for token in 50..60 {
                let expected = step(&mut first, &layers, token, 1, &Rotated);
                for (layer, expected) in expected.into_iter().enumerate() {
                    let [q, k, v] = columns(&layers[layer], token, 1);
                    let entries = second.update(layer, k, v).unwrap();
                    assert!(entries.queries.is_none());
                    let off = farthest(own_attention(q, entries), expected);
                    assert!(off < 2e-3, "{}, token {token}: {off}", method.name);
                }
            }
        }
        assert_eq!(state(&first), state(&second), "{}", method.name);
    }
    for name in ["full", "local-window", "knorm", "keydiff", "lagkv", "random", "fp8", "kivi"] {
        assert!(served.iter().any(|served| served.starts_with(name)), "{name}: {served:?}");
    }
}

#[test]
fn sparse_attention_over_prompts_is_not_left_to_the_model() {
    let device = host();
    let [q, k, v] = columns(&layers(5, 1, 9, &device)[0], 0, 9);
    let pattern = HeadPattern::AShape { first: 2, recent: 4 };
    let policy = Policy::full().with_sparse_prefill(SparsePrefill::of_all(pattern));
    let mut cache = cache(&policy, &device);
    let error = cache.update_with(0, q, k.clone(), v.clone(), &Rotated).unwrap_err();
    assert!(matches!(error, Error::AttentionOwned { .. }), "{error}");
    let error = cache.update(0, k, v).unwrap_err();
    assert!(matches!(error, Error::QueriesMissing { .. }), "{error}");
    assert_eq!(cache.bytes_held(), 0);
}

#[test]
fn what_is_read_is_the_attention_over_all_entries() {
    for backend in backends() {
        let device = &backend.device;
        let all = layers(6, 2, 80, device);
        for policy in policies(&backend) {
            let what = format!("{} on {}", policy.name(), backend.name);
            let mut cache = cache(&policy, device);
            let error = cache.read(0, all[0][0].clone(), &NoPositionEncoding).unwrap_err();
            assert!(matches!(error, Error::NothingHeld { layer: 0 }), "{error}");
            cache.begin_prompt(Prompt::new(60).left_padding(vec![25, 0])).unwrap();
            step(&mut cache, &all, 0, 60, &NoPositionEncoding);
            for token in 60..70 {
                step(&mut cache, &all, token, 1, &NoPositionEncoding);
            }
            let before = state(&cache);
            for new in [1, 7] {
                for (layer, qkv) in all.iter().enumerate() {
                    let [q, ..] = columns(qkv, 70, new);
                    let found = cache.read(layer, q.clone(), &NoPositionEncoding).unwrap();
                    let entries = cache.entries(layer).unwrap().unwrap();
                    let [batch, heads, columns] = entries.positions.dims();
                    let group = SHAPE.group();
                    let hidden =
                        entries.positions.lower_scalar(0).reshape([batch, heads, 1, 1, columns]);
                    let hidden = hidden.expand([batch, heads, group, new, columns]);
                    let hidden = hidden.reshape([batch, heads * group, new, columns]);
                    let repeat = |x: Tensor<4>| {
                        let x = x.cast(DType::F32).unsqueeze_dim::<5>(2);
                        x.expand([batch, heads, group, columns, SHAPE.head_dim]).reshape([
                            batch,
                            heads * group,
                            columns,
                            SHAPE.head_dim,
                        ])
                    };
                    let (keys, values) = (repeat(entries.keys), repeat(entries.values));
                    let options = AttentionModuleOptions::default();
                    let expected = attention(q, keys, values, Some(hidden), None, options);
                    let off = farthest(found, expected);
                    assert!(off < 2e-3, "{what}, layer {layer}, {new} queries: {off}");
                }
            }
            assert_eq!(state(&cache), before, "{what}");
        }
    }
}

#[test]
fn reads_stand_behind_the_last_token() {
    // A query that is read sees what a decoded token would see, besides itself.
    let device = host();
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, &device).unwrap();
    let all = layers(7, 1, 61, &device);
    for policy in policies(&Backend { name: "flex".to_owned(), device: device.clone() }) {
        let mut cache = cache(&policy, &device);
        step(&mut cache, &all, 0, 60, &rope);
        let [q, _, _] = columns(&all[0], 60, 1);
        let found = cache.read(0, q.clone(), &rope).unwrap();
        // The new token's own weight is nothing: its key is far against the query.
        let key = q.clone().narrow(1, 0, SHAPE.kv_heads).zeros_like();
        let value = key.clone();
        let decoded = cache.update_with(0, q, key, value, &rope).unwrap();
        let columns = decoded.keys.dims()[2] - 1;
        let entries = VisibleEntries::clone(&decoded);
        let queries = decoded.queries.unwrap();
        let cut = |x: Tensor<4>| x.narrow(2, 0, columns);
        let mask = entries.mask.map(|mask| mask.narrow(3, 0, columns));
        let group = SHAPE.group();
        let repeat = |x: Tensor<4>| {
            let x = cut(x).unsqueeze_dim::<5>(2);
            x.expand([1, SHAPE.kv_heads, group, columns, SHAPE.head_dim]).reshape([
                1,
                SHAPE.query_heads,
                columns,
                SHAPE.head_dim,
            ])
        };
        let options = AttentionModuleOptions::default();
        let (keys, values) = (repeat(entries.keys), repeat(entries.values));
        let expected = attention(queries, keys, values, mask, None, options);
        let off = farthest(found, expected);
        assert!(off < 2e-3, "{}: {off}", policy.name());
    }
}

#[test]
fn a_layer_that_is_called_twice_is_refused() {
    let device = host();
    let all = layers(8, 1, 20, &device);
    let mut cache = cache(&Policy::full(), &device);
    step(&mut cache, &all, 0, 10, &Rotated);
    let [q, k, v] = columns(&all[0], 10, 1);
    let call = |cache: &mut KvCache, layer| {
        cache.attend(layer, q.clone(), k.clone(), v.clone(), &Rotated).map(drop)
    };
    call(&mut cache, 1).unwrap();
    let before = state(&cache);
    let error = call(&mut cache, 1).unwrap_err();
    assert!(
        matches!(error, Error::LayerOutOfStep { layer: 1, seen: 11, behind: 0, others: 10 }),
        "{error}"
    );
    assert_eq!(state(&cache), before);
    // The others may come in any order.
    call(&mut cache, 2).unwrap();
    call(&mut cache, 0).unwrap();
    assert_eq!(cache.tokens_seen(), [11]);
    call(&mut cache, 1).unwrap();
    // A model whose layers all say 0 is refused at its second layer, not at its second token.
    let mut cache = self::cache(&Policy::full(), &device);
    call(&mut cache, 0).unwrap();
    let error = call(&mut cache, 0).unwrap_err();
    assert!(matches!(error, Error::LayerOutOfStep { seen: 1, others: 0, .. }), "{error}");
}

#[test]
fn a_model_that_rotates_a_padded_batch_from_one_start_counts_columns() {
    let device = host();
    let rope = RotaryEncodingConfig::new(256, SHAPE.head_dim).init(&device);
    let (prompt, decoded) = (40, 6);
    let padding = [24, 0];
    let all = layers(9, 2, prompt + decoded, &device);
    let attend = |cache: &mut KvCache, layer: usize, [q, k, v]: Qkv, start: usize| {
        let (q, k) = (rope.apply(q, start), rope.apply(k, start));
        cache.attend(layer, q, k, v, &Rotated).unwrap()
    };
    // Each row alone, without padding.
    let alone = |row_number: usize| -> Vec<Vec<f32>> {
        let mut cache = cache(&Policy::full(), &device);
        let mut outputs = Vec::new();
        let padding = padding[row_number];
        let tokens = (prompt..prompt + decoded).map(|token| (token, 1));
        for (start, length) in [(padding, prompt - padding)].into_iter().chain(tokens) {
            let seen = cache.tokens_seen().first().copied().unwrap_or(0);
            for (layer, qkv) in all.iter().enumerate() {
                let own = columns(&row(qkv, row_number), start, length);
                outputs.push(numbers(attend(&mut cache, layer, own, seen)));
            }
        }
        outputs.split_off(SHAPE.layers)
    };
    // The batch, from the start that `count` says.
    let batch = |count: &dyn Fn(&KvCache) -> usize| -> Vec<[Vec<f32>; 2]> {
        let mut cache = cache(&Policy::full(), &device);
        cache.begin_prompt(Prompt::new(prompt).left_padding(padding.to_vec())).unwrap();
        let mut outputs = Vec::new();
        let tokens = (prompt..prompt + decoded).map(|token| (token, 1));
        for (start, length) in [(0, prompt)].into_iter().chain(tokens) {
            let from = count(&cache);
            for (layer, qkv) in all.iter().enumerate() {
                let output = attend(&mut cache, layer, columns(qkv, start, length), from);
                outputs.push([0, 1].map(|row| numbers(output.clone().narrow(0, row, 1))));
            }
        }
        assert_eq!(cache.columns_seen(), [prompt + decoded; 2]);
        assert_eq!(cache.tokens_seen(), padding.map(|padding| prompt + decoded - padding));
        outputs.split_off(SHAPE.layers)
    };
    let off = |found: &[[Vec<f32>; 2]], row: usize| -> f32 {
        let pairs = found.iter().zip(alone(row)).flat_map(|(found, expected)| {
            let pairs = found[row].iter().zip(expected).map(|(a, b)| (a - b).abs());
            pairs.collect::<Vec<_>>()
        });
        pairs.fold(0.0, f32::max)
    };
    let first = |seen: Vec<usize>| seen.first().copied().unwrap_or(0);
    let by_columns = batch(&|cache| first(cache.columns_seen()));
    for row in [0, 1] {
        assert!(off(&by_columns, row) < 1e-5, "row {row}: {}", off(&by_columns, row));
    }
    // By the tokens of the first row, the prompt and the tokens behind it stand elsewhere.
    let by_tokens = batch(&|cache| first(cache.tokens_seen()));
    assert!(off(&by_tokens, 0) > 0.05, "{}", off(&by_tokens, 0));
}

#[test]
fn a_cache_holds_the_type_of_its_first_keys() {
    let device = host();
    let full = CacheShape { layers: 1, ..SHAPE }.token_bytes(DType::F32);
    for (dtype, bytes) in [(DType::F32, full), (DType::F16, full / 2), (DType::BF16, full / 2)] {
        let shape = CacheShape { layers: 1, ..SHAPE };
        let mut cache = KvCache::new(shape, Policy::full(), &device).unwrap();
        assert_eq!(cache.dtype(), DType::F32);
        let [q, k, v] = layers(10, 1, 64, &device).remove(0).map(|x| x.cast(dtype));
        cache.attend(0, q.clone(), k.clone(), v.clone(), &NoPositionEncoding).unwrap();
        assert_eq!(cache.dtype(), dtype);
        assert_eq!(cache.bytes_full(), 64 * bytes);
        let entries = cache.entries(0).unwrap().unwrap();
        assert_eq!([entries.keys.dtype(), entries.values.dtype()], [dtype; 2]);
        // Later ones are cast, until the cache is emptied.
        let other = columns(&[q, k, v], 0, 1).map(|x| x.cast(DType::F32));
        let [q, k, v] = other.clone();
        cache.attend(0, q, k, v, &NoPositionEncoding).unwrap();
        assert_eq!(cache.dtype(), dtype);
        cache.reset();
        let [q, k, v] = other;
        cache.attend(0, q, k, v, &NoPositionEncoding).unwrap();
        assert_eq!(cache.dtype(), DType::F32);
        // A type that is named stays.
        let config = CacheConfig::default().with_dtype(DType::F16);
        let cache = KvCache::with_config(shape, Policy::full(), config, &device).unwrap();
        assert_eq!(cache.dtype(), DType::F16);
    }
}

#[test]
fn an_abandoned_prompt_leaves_no_trace() {
    let device = host();
    let all = layers(11, 2, 140, &device);
    let mut irreversible = Vec::new();
    for policy in policies(&Backend { name: "flex".to_owned(), device: device.clone() }) {
        let name = policy.name().to_owned();
        let [mut cache, mut other] = [cache(&policy, &device), cache(&policy, &device)];
        let begin = |cache: &mut KvCache, columns, padding: [usize; 2]| {
            cache.begin_prompt(Prompt::new(columns).left_padding(padding.to_vec())).unwrap();
        };
        // The first prompt, abandoned between two layers.
        begin(&mut cache, 90, [5, 0]);
        step(&mut cache, &all, 100, 20, &NoPositionEncoding);
        let [q, k, v] = columns(&all[0], 120, 20);
        cache.attend(0, q, k, v, &NoPositionEncoding).unwrap();
        let error = cache.begin_prompt(Prompt::new(3)).unwrap_err();
        assert!(error.to_string().contains("`abandon_prompt`"), "{error}");
        cache.abandon_prompt().unwrap();
        assert_eq!(cache.bytes_held(), 0, "{name}");
        // Nothing to abandon, and one of which nothing has come.
        cache.abandon_prompt().unwrap();
        begin(&mut cache, 90, [5, 0]);
        cache.abandon_prompt().unwrap();

        for cache in [&mut cache, &mut other] {
            begin(cache, 60, [20, 0]);
            step(cache, &all, 0, 60, &NoPositionEncoding);
            for token in 60..66 {
                step(cache, &all, token, 1, &NoPositionEncoding);
            }
        }
        // One behind other tokens.
        begin(&mut cache, 50, [0, 0]);
        step(&mut cache, &all, 70, 20, &NoPositionEncoding);
        step(&mut cache, &all, 90, 5, &NoPositionEncoding);
        let before = state(&cache);
        match cache.abandon_prompt() {
            Ok(()) => {}
            Err(Error::PromptNotReversible { arrived: 25, .. }) => {
                assert_eq!(state(&cache), before, "{name}");
                irreversible.push(name);
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        }
        assert_eq!(state(&cache), state(&other), "{name}");
        for token in 66..70 {
            let outputs = [&mut cache, &mut other]
                .map(|cache| step(cache, &all, token, 1, &NoPositionEncoding));
            let [found, expected] = outputs;
            // Entries that were decoded in place lie by position now, and sum in another order.
            for (found, expected) in found.into_iter().zip(expected) {
                let off = farthest(found, expected);
                assert!(off < 1e-5, "{name}, token {token}: {off}");
            }
        }
        for cache in [&mut cache, &mut other] {
            begin(cache, 20, [0, 0]);
            step(cache, &all, 70, 20, &NoPositionEncoding);
        }
        assert_eq!(state(&cache), state(&other), "{name}");
    }
    // Those that compress every chunk.
    assert_eq!(irreversible, ["streaming-llm"]);
}

#[test]
fn a_layer_is_an_object_and_a_cache_per_layer_is_the_same() {
    let device = host();
    let all = layers(12, 1, 60, &device);
    let config = CacheConfig::default();
    let (mut apart, mut refused) = (Vec::new(), Vec::new());
    for policy in policies(&Backend { name: "flex".to_owned(), device: device.clone() }) {
        let (mut one, mut lent) = (cache(&policy, &device), cache(&policy, &device));
        let mut own = match KvCache::per_layer(SHAPE, &policy, &config, &device) {
            Ok(caches) => {
                apart.push(policy.name().to_owned());
                Some(caches)
            }
            Err(Error::LayersTogether { policy, .. }) => {
                refused.push(policy);
                None
            }
            Err(error) => panic!("{}: {error}", policy.name()),
        };
        for (start, length) in [(0, 50), (50, 1), (51, 1), (52, 1)] {
            let expected = step(&mut one, &all, start, length, &NoPositionEncoding);
            for (number, qkv) in all.iter().enumerate() {
                let mut layer = lent.layer(number).unwrap();
                let seen = if start == 0 { vec![] } else { vec![start] };
                assert_eq!([layer.tokens_seen(), layer.columns_seen()], [&seen[..]; 2]);
                let [q, k, v] = columns(qkv, start, length);
                let found = layer.attend(q, k, v, &NoPositionEncoding).unwrap();
                assert_eq!(layer.tokens_seen(), [start + length]);
                let name = policy.name();
                assert_eq!(numbers(found), numbers(expected[number].clone()), "{name}");
                // Draws differ from layer to layer.
                let draws = ["random", "cam", "leverage", "compactor"].contains(&name);
                if let Some(own) = own.as_mut().filter(|_| !draws) {
                    let [q, k, v] = columns(qkv, start, length);
                    let mut layer = own[number].layer(0).unwrap();
                    let found = layer.attend(q, k, v, &NoPositionEncoding).unwrap();
                    assert_eq!(numbers(found), numbers(expected[number].clone()), "{name}");
                }
            }
        }
    }
    let has = |names: &[String], name: &str| names.iter().any(|it| it == name);
    assert!(["full", "snapkv", "h2o", "ems", "kivi"].iter().all(|name| has(&apart, name)));
    assert!(["pyramidkv", "cake", "d2o", "headkv"].iter().all(|name| has(&refused, name)));
    let error = cache(&Policy::full(), &device).layer(3).map(drop).unwrap_err();
    assert!(matches!(error, Error::LayerOutOfRange { layer: 3, layers: 3 }), "{error}");
}

/// Tokens of a model that rotates them itself, at these positions of each row.
fn rotated(
    qkv: &Qkv,
    rope: &dyn PositionEncoding,
    positions: impl Fn(usize) -> std::ops::Range<i64>,
) -> Qkv {
    let [rows, _, tokens, _] = qkv[0].dims();
    let positions: Vec<i64> = (0..rows).flat_map(positions).collect();
    let positions = TensorData::new(positions, [rows, 1, tokens]);
    let positions = Tensor::<3, Int>::from_data(positions, &qkv[0].device());
    // Where padding stands does not matter.
    let turn = |x: &Tensor<4>| rope.encode(x.clone(), positions.clone().clamp_min(0));
    [turn(&qkv[0]), turn(&qkv[1]), qkv[2].clone()]
}

#[test]
fn keys_that_come_rotated_are_turned_back() {
    let padding = [24_usize, 0];
    for backend in backends() {
        let device = &backend.device;
        let frequencies = RotaryEmbedding::inverse_frequencies(SHAPE.head_dim, 10_000.0);
        let scaled =
            RotaryEmbedding::with_inverse_frequencies(&frequencies, 256, 1.2, device).unwrap();
        let burns = RotaryEncodingConfig::new(256, SHAPE.head_dim).init(device);
        let ropes: [&dyn PositionEncoding; 2] = [&scaled, &burns];
        let all = layers(13, 2, 70, device);
        for dtype in backend.dtypes() {
            let all: Vec<Qkv> = all.iter().map(|qkv| qkv.clone().map(|x| x.cast(dtype))).collect();
            let (tolerance, least_shared) = match dtype {
                DType::F32 => (1e-4, 1.0),
                DType::F16 => (2e-2, 0.9),
                _ => (1e-1, 0.8),
            };
            let policies = policies(&backend).into_iter();
            let policies = policies.filter(|policy| policy.needs_unrotated().is_some());
            let mut tried = 0;
            for (policy, rope) in
                policies.flat_map(|policy| ropes.map(|rope| (policy.clone(), rope)))
            {
                tried += 1;
                for over_columns in [false, true] {
                    let what = format!("{} in {dtype:?} on {}", policy.name(), backend.name);
                    let [mut cache, mut plain] = [cache(&policy, device), cache(&policy, device)];
                    for cache in [&mut cache, &mut plain] {
                        let prompt = Prompt::new(60).left_padding(padding.to_vec());
                        cache.begin_prompt(prompt).unwrap();
                    }
                    let mut off = 0.0_f32;
                    for (start, length) in [(0, 60)].into_iter().chain((60..70).map(|at| (at, 1))) {
                        for (layer, qkv) in all.iter().enumerate() {
                            let [q, k, v] = columns(qkv, start, length);
                            let expected = plain.attend(layer, q, k, v, rope).unwrap();
                            let places = |row: usize| {
                                let before = if over_columns { 0 } else { padding[row] as i64 };
                                start as i64 - before..(start + length) as i64 - before
                            };
                            let [q, k, v] = rotated(&columns(qkv, start, length), rope, places);
                            let told = Rotated::by(rope);
                            let told = if over_columns { told.over_columns() } else { told };
                            let found = cache.attend(layer, q, k, v, &told).unwrap();
                            // What is dropped then may differ by rounding.
                            if start == 0 || dtype == DType::F32 {
                                let cast = |x: Tensor<4>| x.cast(DType::F32);
                                off = off.max(farthest(cast(found), cast(expected)));
                            }
                        }
                    }
                    assert!(off < tolerance, "{what}: {off}");
                    let kept = [&cache, &plain].map(|cache| {
                        let kept = (0..SHAPE.layers).map(|it| cache.kept_positions(it).unwrap());
                        kept.flatten().flatten().collect::<Vec<_>>()
                    });
                    let (mut shared, mut total) = (0, 0);
                    for (found, expected) in kept[0].iter().zip(&kept[1]) {
                        shared += expected.iter().filter(|it| found.contains(it)).count();
                        total += expected.len();
                    }
                    let shared = shared as f64 / total as f64;
                    assert!(shared >= least_shared, "{what}: {shared}");
                }
            }
            assert!(tried >= 4, "{tried}");
        }
    }
}

#[test]
fn a_rotation_that_cannot_be_taken_back_is_said() {
    #[derive(Debug)]
    struct Own;
    impl PositionEncoding for Own {
        fn encode(&self, x: Tensor<4>, _: Tensor<3, Int>) -> Tensor<4> {
            x
        }
        fn max_positions(&self) -> Option<usize> {
            Some(50)
        }
    }
    let device = host();
    let [q, k, v] = columns(&layers(14, 1, 60, &device)[0], 0, 60);
    let [first_q, first_k, first_v] = [&q, &k, &v].map(|x| x.clone().narrow(2, 0, 20));
    let mut cache = cache(&Policy::streaming_llm(Budget::Tokens(BUDGET)), &device);
    let refused = cache.attend(0, first_q, first_k, first_v, &Rotated::by(&Own)).unwrap_err();
    assert!(matches!(&refused, Error::EncodingNotReversible { encoding } if encoding == "Own"));
    let refused = cache.attend(0, q, k, v, &Rotated::by(&Own)).unwrap_err();
    assert!(matches!(refused, Error::PositionOverflow { position: 59, max: 50 }), "{refused}");
    assert_eq!(cache.bytes_held(), 0);
}

/// Keys without positions, and queries that grow with theirs.
#[derive(Debug)]
struct Growing;

impl Growing {
    fn grown(x: Tensor<4>, positions: Tensor<3, Int>) -> Tensor<4> {
        let factors = (positions + 1).float().cast(DType::F32) * 0.125;
        x * factors.unsqueeze_dim::<4>(3)
    }
}

impl PositionEncoding for Growing {
    fn encode(&self, x: Tensor<4>, _: Tensor<3, Int>) -> Tensor<4> {
        x
    }
    fn encode_queries(&self, x: Tensor<4>, positions: Tensor<3, Int>, end: usize) -> Tensor<4> {
        let last: i64 = positions.clone().max().try_into_scalar().unwrap();
        assert!(last < end as i64, "{last} is not below {end}");
        Self::grown(x, positions)
    }
    fn max_positions(&self) -> Option<usize> {
        None
    }
}

/// An encoding that changes queries alone is that of a model which changes them by itself.
#[test]
fn queries_are_encoded_at_their_own_positions() {
    const PADDING: [usize; 2] = [0, 15];
    for backend in backends() {
        let device = &backend.device;
        let all = layers(16, 2, 70, device);
        let positions: Vec<i64> = PADDING
            .iter()
            .flat_map(|&padding| (0..70).map(move |column| (column - padding as i64).max(-1)))
            .collect();
        let data = TensorData::new(positions, [2, 1, 70]);
        let positions = Tensor::<3, Int>::from_data(data, device);
        let grown: Vec<Qkv> = all
            .iter()
            .map(|[q, k, v]| [Growing::grown(q.clone(), positions.clone()), k.clone(), v.clone()])
            .collect();
        for policy in [
            Policy::full(),
            Policy::h2o(Budget::Tokens(BUDGET)),
            Policy::snapkv(Budget::Tokens(BUDGET)).with_window(8),
            Policy::ems(Budget::Tokens(BUDGET)),
        ] {
            let what = format!("{} on {}", policy.name(), backend.name);
            let [mut cache, mut plain] = [cache(&policy, device), cache(&policy, device)];
            for cache in [&mut cache, &mut plain] {
                cache.begin_prompt(Prompt::new(60).left_padding(PADDING.to_vec())).unwrap();
            }
            let calls = [(0, 25), (25, 35)].into_iter().chain((60..69).map(|token| (token, 1)));
            for (start, length) in calls {
                let found = step(&mut cache, &all, start, length, &Growing);
                let expected = step(&mut plain, &grown, start, length, &NoPositionEncoding);
                for (found, expected) in found.into_iter().zip(expected) {
                    let off = farthest(found, expected);
                    assert!(off < 1e-4, "{what}, from {start}: {off}");
                }
            }
            for layer in 0..SHAPE.layers {
                let kept = [&cache, &plain].map(|cache| cache.kept_positions(layer).unwrap());
                assert_eq!(kept[0], kept[1], "{what}");
                let [q, own] =
                    [&all, &grown].map(|layers| layers[layer][0].clone().narrow(2, 69, 1));
                let found = cache.read(layer, q, &Growing).unwrap();
                let off = farthest(found, plain.read(layer, own, &NoPositionEncoding).unwrap());
                assert!(off < 1e-4, "{what}, read: {off}");
            }
        }
    }
}

/// Columns of each layer at these places, joined.
fn places(layer: &Qkv, places: &[usize]) -> Qkv {
    layer.clone().map(|x| {
        Tensor::cat(places.iter().map(|&at| x.clone().narrow(2, at, 1)).collect::<Vec<_>>(), 2)
    })
}

#[test]
fn drafts_end_as_tokens_one_by_one() {
    for backend in backends() {
        let device = &backend.device;
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device).unwrap();
        let all = layers(15, 2, 140, device);
        for policy in policies(&backend) {
            let what = format!("{} on {}", policy.name(), backend.name);
            let [mut cache, mut plain] = [cache(&policy, device), cache(&policy, device)];
            for cache in [&mut cache, &mut plain] {
                cache.begin_prompt(Prompt::new(60).left_padding(vec![0, 15])).unwrap();
                step(cache, &all, 0, 60, &rope);
                step(cache, &all, 60, 1, &rope);
            }
            let compresses = policy.schedule().decode_every.is_some();
            if compresses && policy.reducer().makes_clusters() {
                let error = cache.begin_decode(2).unwrap_err();
                assert!(matches!(error, Error::DraftRefused { .. }), "{what}: {error}");
                continue;
            }
            // Pages are packed behind a draft, not within it.
            let tolerance = if policy.store().repacks_entries() { 0.1 } else { 2e-3 };
            let mut next = 61;
            // Accepted and wrong tokens of each draft.
            for (accepted, wrong) in
                [(2, 2), (0, 3), (1, 0), (3, 1), (1, 1), (4, 0), (0, 1), (5, 4)]
            {
                let tokens: Vec<usize> = (next..next + accepted).chain(110..110 + wrong).collect();
                cache.begin_decode(tokens.len()).unwrap();
                let mut found = Vec::new();
                for (layer, qkv) in all.iter().enumerate() {
                    let [q, k, v] = places(qkv, &tokens);
                    found.push(cache.attend(layer, q, k, v, &rope).unwrap());
                }
                cache.truncate(next + accepted).unwrap();
                assert_eq!(cache.columns_seen(), [next + accepted; 2], "{what}");
                for token in 0..accepted {
                    let expected = step(&mut plain, &all, next + token, 1, &rope);
                    for (found, expected) in found.iter().zip(expected) {
                        let off = farthest(found.clone().narrow(2, token, 1), expected);
                        assert!(
                            compresses || off < tolerance,
                            "{what}, token {}: {off}",
                            next + token
                        );
                    }
                }
                next += accepted;
                let place = format!("{what}, before token {next}");
                assert!(compresses || state(&cache) == state(&plain), "{place}");
                // What is due is dropped by the next token.
                let kept = (0..SHAPE.layers).map(|layer| cache.tokens_kept(layer).unwrap());
                let most = kept.flatten().max().unwrap();
                assert!(most <= next, "{place}: {most}");
            }
            for cache in [&mut cache, &mut plain] {
                step(cache, &all, next, 1, &rope);
            }
            let counts = [&cache, &plain].map(|cache| {
                let all = (0..SHAPE.layers).map(|layer| cache.kept_by_head(layer).unwrap());
                all.map(|rows| rows.into_iter().flatten().sum::<usize>()).collect::<Vec<_>>()
            });
            assert_eq!(counts[0], counts[1], "{what}");
            // A second prompt is compressed by what both have observed.
            for cache in [&mut cache, &mut plain] {
                cache.begin_prompt(Prompt::new(30)).unwrap();
                step(cache, &all, next + 1, 30, &rope);
            }
            assert!(compresses || state(&cache) == state(&plain), "{what}");
        }
    }
}

#[test]
fn what_cannot_be_taken_back_is_refused() {
    let device = host();
    let all = layers(16, 1, 90, &device);
    let begin = |policy: &Policy, prompt: usize| {
        let mut cache = cache(policy, &device);
        step(&mut cache, &all, 0, prompt, &NoPositionEncoding);
        cache
    };
    let least = |error: Error| match error {
        Error::TruncateTooFar { least, .. } => least,
        error => panic!("{error}"),
    };
    // Everything goes back under `full`, but for the first token.
    let mut full = begin(&Policy::full(), 50);
    step(&mut full, &all, 50, 1, &NoPositionEncoding);
    full.truncate(51).unwrap();
    full.truncate(20).unwrap();
    assert_eq!(full.tokens_seen(), [20]);
    full.truncate(1).unwrap();
    for (columns, must_be) in [(0, "at least 1"), (2, "at most the 1 columns seen")] {
        let error = full.truncate(columns).unwrap_err();
        assert!(matches!(&error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains(must_be), "{error}");
    }
    // A compressed prompt stays.
    let mut snapkv = begin(&Policy::snapkv(Budget::Tokens(BUDGET)), 50);
    for token in 50..53 {
        step(&mut snapkv, &all, token, 1, &NoPositionEncoding);
    }
    let before = state(&snapkv);
    assert_eq!(least(snapkv.truncate(49).unwrap_err()), 50);
    assert_eq!(state(&snapkv), before);
    snapkv.truncate(50).unwrap();
    assert_eq!(snapkv.tokens_kept(0).unwrap(), [BUDGET]);
    // Packed pages stay, and so do tokens that were weighed.
    let mut fp8 = begin(&Policy::fp8(), 70);
    step(&mut fp8, &all, 70, 1, &NoPositionEncoding);
    assert!(least(fp8.truncate(1).unwrap_err()) > 1);
    let mut h2o = begin(&Policy::h2o(Budget::Tokens(BUDGET)), 50);
    step(&mut h2o, &all, 50, 1, &NoPositionEncoding);
    assert_eq!(least(h2o.truncate(50).unwrap_err()), 51);

    let mut cache = cache(&Policy::full(), &device);
    let error = cache.begin_decode(3).unwrap_err();
    assert!(matches!(error, Error::NothingHeld { layer: 0 }), "{error}");
    step(&mut cache, &all, 0, 10, &NoPositionEncoding);
    assert!(matches!(cache.begin_decode(0), Err(Error::InvalidParameter { .. })));
    cache.begin_decode(3).unwrap();
    let [q, k, v] = columns(&all[0], 10, 2);
    let error = cache.attend(0, q, k, v, &NoPositionEncoding).unwrap_err();
    assert!(matches!(error, Error::DraftColumns { layer: 0, declared: 3, new: 2 }), "{error}");
    // A prompt that is declared instead takes its place.
    cache.begin_prompt(Prompt::new(2)).unwrap();
    step(&mut cache, &all, 10, 2, &NoPositionEncoding);
    let error = h2o.begin_decode(2).and_then(|()| {
        let [q, k, v] = columns(&all[0], 51, 2);
        h2o.update_with(0, q, k, v, &NoPositionEncoding).map(drop)
    });
    assert!(matches!(error, Err(Error::DraftRefused { .. })), "{error:?}");
}
