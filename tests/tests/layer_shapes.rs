//! Caches of models whose values are not as wide as keys, or lie in them, and of models whose
//! layers differ, on every device of the build.

use std::f64::consts::E;

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, LayerShape, Policy, Prompt, Result,
    ops::OpError,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding, Rotated},
    state::Replay,
};
use briquette_kernels::supports;
use briquette_tests::{
    backends::{backends, host},
    inputs::Noise,
};
use burn::tensor::{Device, Tensor};

const LENGTHS: [usize; 2] = [31, 19];
const DECODED: usize = 6;
const COLUMNS: usize = LENGTHS[0] + DECODED;

type Qkv = [Tensor<4>; 3];

/// A model, and how its values are handed over.
#[derive(Clone, Debug)]
struct Model {
    shape: CacheShape,
    config: CacheConfig,
    layers: Vec<LayerShape>,
}

impl Model {
    fn alike(head_dim: usize, kv_heads: usize, value_dim: usize) -> Self {
        let shape = CacheShape { layers: 2, query_heads: 4, kv_heads, head_dim };
        let own = LayerShape::new(4, kv_heads, head_dim).with_value_dim(value_dim);
        let config = CacheConfig::default().with_value_dim(value_dim);
        Self { shape, config, layers: vec![own; 2] }
    }

    fn in_keys(head_dim: usize, kv_heads: usize, value_dim: usize) -> Self {
        let model = Self::alike(head_dim, kv_heads, value_dim);
        Self { config: CacheConfig::default().with_values_in_keys(value_dim), ..model }
    }

    fn of(layers: Vec<LayerShape>) -> Self {
        let shape = CacheShape { layers: layers.len(), query_heads: 4, kv_heads: 2, head_dim: 16 };
        let config = CacheConfig::default().with_layer_shapes(layers.clone());
        Self { shape, config, layers }
    }

    fn try_cache(&self, policy: Policy, device: &Device) -> Result<KvCache> {
        KvCache::with_config(self.shape, policy, self.config.clone(), device)
    }

    fn cache(&self, policy: Policy, device: &Device) -> KvCache {
        self.try_cache(policy, device).unwrap()
    }

    /// Queries, keys and values of each layer, whose noise is the layer's own.
    fn tokens(&self, device: &Device) -> Vec<Qkv> {
        let of_layer = |(layer, own): (usize, &LayerShape)| {
            let mut noise = Noise::new(5 + layer as u64);
            let mut random = |heads, width| noise.tensor([2, heads, COLUMNS, width], device);
            let q = random(own.query_heads, own.head_dim);
            let k = random(own.kv_heads, own.head_dim);
            let v = match self.config.values_in_keys {
                true => k.clone().narrow(3, 0, own.value_dim),
                false => random(own.kv_heads, own.value_dim),
            };
            [q, k, v]
        };
        self.layers.iter().enumerate().map(of_layer).collect()
    }
}

fn narrow_layer() -> LayerShape {
    LayerShape::new(6, 1, 24).with_value_dim(8)
}

fn models() -> Vec<Model> {
    vec![
        Model::alike(16, 2, 8),
        Model::alike(8, 2, 20),
        Model::in_keys(20, 1, 12),
        Model::in_keys(16, 2, 8),
        Model::of(vec![LayerShape::new(4, 2, 16), narrow_layer()]),
    ]
}

/// Calls a layer as its cache wants it.
fn call(
    cache: &mut KvCache,
    layer: usize,
    [q, k, v]: Qkv,
    encoding: &dyn PositionEncoding,
) -> Result<Tensor<4>> {
    match cache.config().values_in_keys {
        true => cache.attend_keys(layer, q, k, encoding),
        false => cache.attend(layer, q, k, v, encoding),
    }
}

/// Calls all layers with some of the columns.
fn step(cache: &mut KvCache, layers: &[Qkv], start: usize, length: usize) -> Vec<Tensor<4>> {
    let of_layer = |(layer, qkv): (usize, &Qkv)| {
        let qkv = qkv.clone().map(|x| x.narrow(2, start, length));
        call(cache, layer, qkv, &NoPositionEncoding).unwrap()
    };
    layers.iter().enumerate().map(of_layer).collect()
}

fn padding() -> Vec<usize> {
    LENGTHS.map(|length| LENGTHS[0] - length).to_vec()
}

/// Gives a cache a padded prompt in chunks or as a whole, and decoded tokens.
fn give(cache: &mut KvCache, layers: &[Qkv], chunks: &[(usize, usize)]) -> Vec<Tensor<4>> {
    cache.begin_prompt(Prompt::new(LENGTHS[0]).left_padding(padding())).unwrap();
    let tokens = (LENGTHS[0]..COLUMNS).map(|token| (token, 1));
    let steps = chunks.iter().copied().chain(tokens);
    let outputs: Vec<_> = steps.map(|(start, length)| step(cache, layers, start, length)).collect();
    let of_layer =
        |layer: usize| Tensor::cat(outputs.iter().map(|step| step[layer].clone()).collect(), 2);
    (0..layers.len()).map(of_layer).collect()
}

const CHUNKS: [(usize, usize); 2] = [(0, 13), (13, LENGTHS[0] - 13)];

fn numbers(x: &Tensor<4>) -> Vec<f64> {
    x.clone().try_into_vec_as::<f32>().unwrap().into_iter().map(f64::from).collect()
}

/// Causal attention in f64, `[batch][query_heads][columns][value_dim]`, zero at padding. The
/// logit of a head takes part in the sum.
fn plain(qkv: &Qkv, sinks: Option<&[f64]>) -> Vec<f64> {
    let [[batch, heads, columns, width], [_, kv_heads, ..], [.., value_dim]] =
        [&qkv[0], &qkv[1], &qkv[2]].map(|x| x.dims());
    let [q, k, v] = [&qkv[0], &qkv[1], &qkv[2]].map(numbers);
    let mut output = Vec::new();
    for row in 0..batch {
        for head in 0..heads {
            let of_kv = (row * kv_heads + head / (heads / kv_heads)) * columns;
            for query in 0..columns {
                let asked = &q[((row * heads + head) * columns + query) * width..][..width];
                let mut sum = vec![0.0; value_dim];
                let mut total = sinks.map_or(0.0, |sinks| sinks[head].exp());
                for entry in padding()[row]..=query {
                    let key = &k[(of_kv + entry) * width..][..width];
                    let score: f64 = asked.iter().zip(key).map(|(a, b)| a * b).sum();
                    let weight = E.powf(score / (width as f64).sqrt());
                    total += weight;
                    let value = &v[(of_kv + entry) * value_dim..][..value_dim];
                    sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
                }
                let seen = query >= padding()[row];
                output.extend(sum.iter().map(|sum| if seen { sum / total } else { 0.0 }));
            }
        }
    }
    output
}

fn close(found: &Tensor<4>, expected: &[f64], what: &str) {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 1e-4, "{what}: {off}");
}

fn same(found: &[Tensor<4>], expected: &[Tensor<4>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    found.iter().zip(expected).for_each(|(a, b)| close(a, &numbers(b), what));
}

#[test]
fn a_full_cache_is_the_models_own_attention() {
    for backend in backends() {
        for model in models() {
            let what = format!("{}, {:?}", backend.name, model.layers);
            let layers = model.tokens(&backend.device);
            let mut cache = model.cache(Policy::full(), &backend.device);
            for chunks in [&CHUNKS[..], &[(0, LENGTHS[0])]] {
                cache.reset();
                let found = give(&mut cache, &layers, chunks);
                for (found, qkv) in found.iter().zip(&layers) {
                    close(found, &plain(qkv, None), &what);
                }
            }
            let tokens: usize = LENGTHS.iter().map(|length| length + DECODED).sum();
            let of_layer = |own: &LayerShape| {
                let values = if model.config.values_in_keys { 0 } else { own.value_dim };
                own.kv_heads * (own.head_dim + values) * 4
            };
            let token: usize = model.layers.iter().map(of_layer).sum();
            assert_eq!(cache.bytes_full(), token * tokens, "{what}");
            let kept = cache.kept_by_head(1).unwrap();
            assert_eq!(kept[1], vec![LENGTHS[1] + DECODED; model.layers[1].kv_heads]);
            if supports(&backend.device) && !model.config.values_in_keys {
                let counted = cache.fallbacks().into_iter().any(|fallback| {
                    matches!(fallback.reason, OpError::NoKernel { what: "value_dim", .. })
                });
                assert!(counted, "{what}: {:?}", cache.fallbacks());
            }
        }
    }
}

/// What is held is as wide as it is, and once.
#[test]
fn narrow_values_take_less_memory() {
    let device = host();
    let held = |model: &Model, policy: Policy| {
        let config = model.config.clone().with_capacity(64);
        let mut cache = Model { config, ..model.clone() }.cache(policy, &device);
        give(&mut cache, &model.tokens(&device), &CHUNKS);
        let bytes = (cache.bytes_held(), cache.bytes_spare());
        (bytes.0 - bytes.1, cache.tokens_kept(0).unwrap().into_iter().max().unwrap())
    };
    for policy in [Policy::full, || Policy::adakv(Budget::Tokens(16)).with_window(4)] {
        let (wide, columns) = held(&Model::alike(16, 2, 16), policy());
        let (narrow, of_narrow) = held(&Model::alike(16, 2, 8), policy());
        let (in_keys, of_keys) = held(&Model::in_keys(16, 2, 8), policy());
        assert_eq!((columns, columns), (of_narrow, of_keys));
        // Ragged heads hold different numbers of entries, but the same in all.
        let entries = (wide - narrow) / (8 * 4);
        assert_eq!((wide - in_keys) / (16 * 4), entries);
        if policy().budget().is_none() {
            assert_eq!(entries, 2 * 2 * 2 * columns);
        }
        assert!(entries >= 2 * 2 * 2 * 16);
    }
}

/// The model with queries and keys, and values, filled up with zeros to one width: no weight and
/// no length of a value changes.
fn filled(model: &Model, layers: &[Qkv]) -> (Model, Vec<Qkv>) {
    let LayerShape { head_dim, value_dim, kv_heads, .. } = model.layers[0];
    let width = head_dim.max(value_dim);
    let full = Model::alike(width, kv_heads, width);
    let config = full.config.clone().with_softmax_scale(1.0 / (head_dim as f64).sqrt());
    let fill = |x: Tensor<4>| {
        let [batch, heads, columns, own] = x.dims();
        match width - own {
            0 => x,
            rest => {
                let zeros = Tensor::zeros([batch, heads, columns, rest], &x.device());
                Tensor::cat(vec![x, zeros], 3)
            }
        }
    };
    let layers = layers.iter().map(|qkv| qkv.clone().map(fill)).collect();
    (Model { config, ..full }, layers)
}

fn evicting() -> Vec<Policy> {
    let budget = Budget::Tokens(16);
    vec![
        Policy::h2o(budget),
        Policy::tova(budget),
        Policy::roco(budget),
        Policy::streaming_llm(budget),
        Policy::knorm(budget),
        Policy::keydiff(budget),
        Policy::snapkv(budget).with_window(4),
        Policy::non_causal(budget),
        Policy::adakv(budget).with_window(4),
        Policy::pyramidkv(budget).with_window(4),
        Policy::cake(budget).with_window(4),
        Policy::keydiff_adakv(budget),
    ]
}

fn kept(cache: &KvCache) -> Vec<Vec<Vec<Vec<usize>>>> {
    (0..cache.shape().layers).map(|layer| cache.kept_positions(layer).unwrap()).collect()
}

#[test]
fn policies_keep_what_they_keep_of_values_filled_up_with_zeros() {
    for backend in backends() {
        let device = &backend.device;
        for model in models().into_iter().take(4) {
            let mut policies = evicting();
            if !model.config.values_in_keys {
                let budget = Budget::Tokens(16);
                policies.extend([Policy::d2o(budget), Policy::cam(budget)]);
                policies.push(Policy::kvmerger(budget));
            }
            for policy in policies {
                let what = format!("{}, {}, {model:?}", backend.name, policy.name());
                let layers = model.tokens(device);
                let (full, of_full) = filled(&model, &layers);
                let mut expected = full.cache(policy.clone(), device);
                let mut cache = model.cache(policy, device);
                let outputs = give(&mut cache, &layers, &CHUNKS);
                let of_full = give(&mut expected, &of_full, &CHUNKS);
                let narrow = |x: Tensor<4>| x.narrow(3, 0, model.layers[0].value_dim);
                same(&outputs, &of_full.into_iter().map(narrow).collect::<Vec<_>>(), &what);
                assert_eq!(kept(&cache), kept(&expected), "{what}");
            }
        }
    }
}

/// The layers of a model with layers A and B are those of models with two layers A, and two B.
#[test]
fn layers_that_differ_do_not_mind_each_other() {
    let (wide, narrow) = (LayerShape::new(4, 2, 16), LayerShape::new(6, 1, 24));
    let budget = Budget::Tokens(16);
    let by_layer = |policy: &Policy| !policy.allocator().spans_layers();
    for backend in backends() {
        let device = &backend.device;
        let mut policies: Vec<_> = evicting().into_iter().filter(by_layer).collect();
        policies.extend([Policy::full(), Policy::fp8(), Policy::kivi(2), Policy::cam(budget)]);
        policies.extend([Policy::ems(budget).with_window(4), Policy::kvmerger(budget)]);
        for policy in policies {
            let what = format!("{}, {}", backend.name, policy.name());
            let run = |layers: [LayerShape; 2]| {
                let model = Model::of(layers.to_vec());
                let mut cache = model.cache(policy.clone(), device);
                let outputs = give(&mut cache, &model.tokens(device), &CHUNKS);
                (outputs, kept(&cache), cache)
            };
            let (mixed, of_mixed, cache) = run([wide, narrow]);
            let (first, of_first, _) = run([wide, wide]);
            let (second, of_second, _) = run([narrow, narrow]);
            same(&mixed[..1], &first[..1], &what);
            same(&mixed[1..], &second[1..], &what);
            assert_eq!(of_mixed[0], of_first[0], "{what}");
            assert_eq!(of_mixed[1], of_second[1], "{what}");
            assert_eq!(cache.kept_by_head(1).unwrap()[0].len(), 1);
        }
    }
}

/// A saved cache goes on as it would have, a draft that is taken back leaves nothing, and rows
/// change places.
#[test]
fn caches_are_saved_drafted_and_reordered() {
    for backend in backends().into_iter().filter(|backend| backend.is_quick()) {
        let device = &backend.device;
        let policies =
            || [Policy::full(), Policy::tova(Budget::Tokens(16)), evicting().swap_remove(8)];
        for (model, policy) in models().iter().flat_map(|model| policies().map(|it| (model, it))) {
            let what = format!("{}, {}, {model:?}", backend.name, policy.name());
            let layers = model.tokens(device);
            let mut cache = model.cache(policy.clone(), device);
            give(&mut cache, &layers, &CHUNKS);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("prefix");
            cache.save(&path).unwrap();
            let load = |config: CacheConfig| {
                KvCache::load(&path, model.shape, policy.clone(), config, device)
            };
            let mut loaded = load(model.config.clone()).unwrap();
            assert!(load(CacheConfig::default()).is_err(), "{what}");

            let mut drafted = cache.fork();
            let columns = drafted.columns_seen().into_iter().max().unwrap();
            drafted.begin_decode(3).unwrap();
            step(&mut drafted, &layers, 9, 3);
            drafted.truncate(columns).unwrap();

            let mut reordered = cache.fork();
            reordered.select_rows(&[1, 0, 1]).unwrap();
            let mut joined = cache.fork();
            joined.select_rows(&[1]).unwrap();
            let mut first = cache.fork();
            first.select_rows(&[0]).unwrap();
            joined.append_rows(&first).unwrap();

            let turned = |rows: &[usize]| -> Vec<Qkv> {
                let turn = |x: Tensor<4>| {
                    Tensor::cat(rows.iter().map(|&row| x.clone().narrow(0, row, 1)).collect(), 0)
                };
                layers.iter().map(|qkv| qkv.clone().map(turn)).collect()
            };
            let of = |outputs: &[Tensor<4>], rows: &[usize]| -> Vec<Tensor<4>> {
                let turn = |x: &Tensor<4>| {
                    Tensor::cat(rows.iter().map(|&row| x.clone().narrow(0, row, 1)).collect(), 0)
                };
                outputs.iter().map(turn).collect()
            };
            for token in [3, 4] {
                let expected = step(&mut cache, &layers, token, 1);
                same(&step(&mut loaded, &layers, token, 1), &expected, &what);
                same(&step(&mut drafted, &layers, token, 1), &expected, &what);
                let found = step(&mut reordered, &turned(&[1, 0, 1]), token, 1);
                same(&found, &of(&expected, &[1, 0, 1]), &what);
                let found = step(&mut joined, &turned(&[1, 0]), token, 1);
                same(&found, &of(&expected, &[1, 0]), &what);
            }
            assert_eq!(kept(&loaded), kept(&cache), "{what}");
            assert_eq!(kept(&drafted), kept(&cache), "{what}");
        }
    }
}

const THETA: f64 = 10_000.0;

/// Rotates the channels of unpadded tokens from `first` on by their columns.
fn rotated(x: &Tensor<4>, first: usize) -> Tensor<4> {
    let [_, _, columns, width] = x.dims();
    let mut all = numbers(x);
    let half = (width - first) / 2;
    for (index, row) in all.chunks_mut(width).enumerate() {
        let position = (index % columns) as f64;
        for pair in 0..half {
            let angle = position * THETA.powf(-(pair as f64) / half as f64);
            let (a, b) = (row[first + pair], row[first + half + pair]);
            row[first + pair] = a * angle.cos() - b * angle.sin();
            row[first + half + pair] = b * angle.cos() + a * angle.sin();
        }
    }
    let all: Vec<f32> = all.into_iter().map(|number| number as f32).collect();
    Tensor::<1>::from_floats(&all[..], &x.device()).reshape(x.dims())
}

/// Positions are those of the channels behind the values, whoever encodes them.
#[test]
fn encodings_leave_values_in_keys() {
    let model = Model::in_keys(20, 1, 12);
    for backend in backends() {
        let device = &backend.device;
        let rope = RotaryEmbedding::new(8, 64, THETA, device).unwrap();
        let layers = model.tokens(device);
        let turned: Vec<Qkv> =
            layers.iter().map(|[q, k, v]| [rotated(q, 12), rotated(k, 12), v.clone()]).collect();
        let budget = Budget::Tokens(16);
        for policy in [Policy::full(), Policy::h2o(budget), Policy::streaming_llm(budget)] {
            let what = format!("{}, {}", backend.name, policy.name());
            let run = |layers: &[Qkv], encoding: &dyn PositionEncoding| {
                let mut cache = model.cache(policy.clone(), device);
                let steps = [(0, LENGTHS[0])].into_iter();
                let mut outputs = Vec::new();
                for (start, length) in steps.chain((LENGTHS[0]..COLUMNS).map(|token| (token, 1))) {
                    for (layer, qkv) in layers.iter().enumerate() {
                        let qkv = qkv.clone().map(|x| x.narrow(2, start, length));
                        outputs.push(call(&mut cache, layer, qkv, encoding).unwrap());
                    }
                }
                let asked = layers[0][0].clone().narrow(2, COLUMNS - 1, 1);
                let read = cache.read(0, asked, encoding).unwrap();
                (outputs, read, kept(&cache))
            };
            let (found, read, of_found) = run(&layers, &rope);
            let (back, _, of_back) = run(&turned, &Rotated::by(&rope));
            same(&found, &back, &what);
            assert_eq!(of_found, of_back, "{what}");
            assert_eq!(read.dims(), [2, 4, 1, 12]);
            if policy.budget().is_none() {
                let outputs = (0..layers.len()).map(|layer| {
                    Tensor::cat(found.iter().skip(layer).step_by(2).cloned().collect(), 2)
                });
                for (output, qkv) in outputs.zip(&turned) {
                    let row = |x: Tensor<4>| x.narrow(0, 0, 1);
                    let expected = plain(&qkv.clone().map(row), None);
                    close(&row(output), &expected, &what);
                }
            }
        }
        let [q, k, _] = layers[0].clone();
        let mut cache = model.cache(Policy::full(), device);
        let whole = RotaryEmbedding::new(20, 64, THETA, device).unwrap();
        let error = cache.attend_keys(0, q, k, &whole).unwrap_err();
        assert!(error.to_string().contains("must be 8, as in the cache"), "{error}");
    }
}

/// Sinks are those of the layer's query heads, and a cache per layer has its layer's shape.
#[test]
fn settings_of_layers_go_with_their_shapes() {
    let device = host();
    let model = Model::of(vec![LayerShape::new(4, 2, 16), narrow_layer()]);
    let layers = model.tokens(&device);
    let logits = [vec![-1.0, 0.0, 0.5, 2.0], vec![1.0, 0.5, 0.0, -1.0, 2.0, 0.25]];
    let sinks = |list: &Vec<f64>| {
        let list: Vec<f32> = list.iter().map(|&number| number as f32).collect();
        Tensor::<1>::from_floats(&list[..], &device)
    };
    let config = model.config.clone().with_sinks(logits.iter().map(sinks).collect());
    let with_sinks = Model { config, ..model.clone() };
    let mut cache = with_sinks.cache(Policy::full(), &device);
    let found = give(&mut cache, &layers, &CHUNKS);
    for ((found, qkv), logits) in found.iter().zip(&layers).zip(&logits) {
        close(found, &plain(qkv, Some(logits)), "sinks");
    }
    let policy = Policy::h2o(Budget::Tokens(16));
    let expected = give(&mut model.cache(policy.clone(), &device), &layers, &CHUNKS);
    let caches = KvCache::per_layer(model.shape, &policy, &model.config, &device).unwrap();
    for ((mut cache, qkv), expected) in caches.into_iter().zip(layers).zip(&expected) {
        let found = give(&mut cache, &[qkv], &CHUNKS);
        same(&found, std::slice::from_ref(expected), "per layer");
    }
    let slopes = Tensor::<1>::zeros([4], &device);
    let with_slopes = Model { config: model.config.clone().with_slopes(slopes), ..model };
    let error = with_slopes.try_cache(Policy::full(), &device).unwrap_err();
    assert!(
        matches!(&error, Error::TensorShape { tensor: "slopes", expected, .. }
            if expected == "[6], one number per query head of layer 1"),
        "{error}"
    );
}

fn assert_refused(result: Result<KvCache>, what: &'static str, texts: &[&str]) {
    let error = result.unwrap_err();
    let is_known =
        matches!(&error, Error::InvalidParameter { parameter, .. } if *parameter == what);
    let told = error.to_string();
    assert!(is_known && texts.iter().all(|text| told.contains(text)), "{texts:?}: {error}");
}

#[test]
fn policies_that_do_not_fit_are_refused_by_name() {
    let device = host();
    let budget = Budget::Tokens(64);
    let (narrow, in_keys) = (Model::alike(16, 2, 8), Model::in_keys(16, 2, 8));
    for policy in [Policy::fp8(), Policy::kivi(2), Policy::ems(budget)] {
        let name = policy.name().to_owned();
        let texts = ["8 beside keys of 16", &name, policy.store().name()];
        assert_refused(narrow.try_cache(policy.clone(), &device), "value_dim", &texts);
        let texts = ["8 in keys of 16", &name];
        assert_refused(in_keys.try_cache(policy.clone(), &device), "value_dim", &texts);
        // Values that are as wide as keys are what they always were.
        Model::alike(16, 2, 16).cache(policy, &device);
    }
    for policy in [
        Policy::d2o(budget),
        Policy::cam(budget),
        Policy::kvmerger(budget),
        Policy::kvzip(Budget::Ratio(0.5)),
    ] {
        let name = policy.name().to_owned();
        let texts = ["8 in keys of 16", &name];
        assert_refused(in_keys.try_cache(policy, &device), "value_dim", &texts);
    }
    let mixed = Model::of(vec![LayerShape::new(4, 2, 16), narrow_layer()]);
    for policy in [
        Policy::cake(budget),
        Policy::pyramidkv(budget),
        Policy::d2o(budget),
        Policy::kvzip(Budget::Ratio(0.5)),
        Policy::h2o(Budget::Bytes(1 << 20)),
    ] {
        let name = policy.name().to_owned();
        let texts = ["in layer 1", &name];
        assert_refused(mixed.try_cache(policy.clone(), &device), "layer_shapes", &texts);
        // Layers that are as the cache says may be listed.
        Model::of(vec![LayerShape::new(4, 2, 16); 2]).cache(policy, &device);
    }
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    let device = host();
    let full = |model: Model| model.try_cache(Policy::full(), &device);
    assert_refused(full(Model::alike(16, 2, 0)), "value_dim", &["at least 1"]);
    for value_dim in [16, 17] {
        let texts = ["below head_dim, which is 16"];
        assert_refused(full(Model::in_keys(16, 2, value_dim)), "value_dim", &texts);
    }
    let mixed = Model::of(vec![LayerShape::new(4, 2, 16), narrow_layer()]);
    let one = Model { shape: CacheShape { layers: 3, ..mixed.shape }, ..mixed.clone() };
    assert_refused(full(one), "layer_shapes", &["of 2 layers", "of 3 layers"]);
    for config in [CacheConfig::default().with_value_dim(8), Model::in_keys(16, 2, 8).config] {
        let config = config.with_layer_shapes(mixed.layers.clone());
        assert_refused(full(Model { config, ..mixed.clone() }), "value_dim", &["layer_shapes"]);
    }
    let odd = Model::of(vec![LayerShape::new(4, 2, 16), LayerShape::new(4, 3, 16)]);
    let error = full(odd).unwrap_err();
    assert!(matches!(error, Error::InvalidShape { .. }), "{error}");
    let config = Model::in_keys(16, 2, 8).cache(Policy::full(), &device);
    assert!(config.fallback_reason().is_some(), "steps are not recorded");
}

/// Calls that do not fit are errors, and leave the cache as it was.
#[test]
fn calls_of_the_wrong_door_are_refused() {
    let device = host();
    let (narrow, in_keys) = (Model::alike(16, 2, 8), Model::in_keys(16, 2, 8));
    for model in [&narrow, &in_keys] {
        let layers = model.tokens(&device);
        let mut cache = model.cache(Policy::h2o(Budget::Tokens(16)), &device);
        give(&mut cache, &layers, &CHUNKS);
        let mut expected = cache.fork();
        let [q, k, v] = layers[0].clone().map(|x| x.narrow(2, 3, 1));
        let wrong = match model.config.values_in_keys {
            true => {
                let narrow = k.clone().narrow(3, 0, 8);
                let error = cache.attend_keys(0, q.clone(), narrow, &Rotated).unwrap_err();
                assert!(matches!(error, Error::TensorShape { tensor: "keys", .. }), "{error}");
                cache.attend(0, q, k, v, &Rotated)
            }
            false => {
                let wide = k.clone();
                let error = cache.attend(0, q.clone(), k.clone(), wide, &Rotated).unwrap_err();
                assert!(matches!(error, Error::TensorShape { tensor: "values", .. }), "{error}");
                cache.attend_keys(0, q, k, &Rotated)
            }
        };
        let error = wrong.unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "values", .. }), "{error}");
        let found = step(&mut cache, &layers, 3, 1);
        same(&found, &step(&mut expected, &layers, 3, 1), "after errors");
    }
    // Layers differ in what they take.
    let mixed = Model::of(vec![LayerShape::new(4, 2, 16), narrow_layer()]);
    let layers = mixed.tokens(&device);
    let mut cache = mixed.cache(Policy::full(), &device);
    let error = call(&mut cache, 1, layers[0].clone(), &NoPositionEncoding).unwrap_err();
    assert!(matches!(error, Error::TensorShape { tensor: "queries", .. }), "{error}");
    let error = call(&mut cache, 2, layers[0].clone(), &NoPositionEncoding).unwrap_err();
    assert!(matches!(error, Error::LayerOutOfRange { layer: 2, layers: 2 }), "{error}");
    assert!(cache.tokens_seen().is_empty());
}
