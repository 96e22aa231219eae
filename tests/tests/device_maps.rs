//! The embedded model with its layers on two devices gives what it gives on one.

use std::fs::read_to_string;

use briquette::{Budget, Error, KvCache, Policy};
use briquette_models::{
    DeviceMap, Error as ModelError, GenerateOptions, MemoryPlan, Model, WeightBits, generate_batch,
    prefill,
};
use briquette_tests::backends::{backends, host};
use burn::tensor::{DType, Device, Tensor};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const BUDGET: Budget = Budget::Tokens(48);

fn load(devices: impl Into<DeviceMap>) -> Model {
    Model::load(format!("{HERE}/../models/ember-7m"), devices, DType::F32).unwrap()
}

/// The host and another device, in either order.
fn maps(other: &Device) -> [DeviceMap; 2] {
    let layers = load(&host()).config().num_hidden_layers;
    let by = |devices: [Device; 2]| {
        let [one, other] = devices;
        DeviceMap::by_layers(vec![(one, 1), (other, layers - 1)]).unwrap()
    };
    [by([host(), other.clone()]), by([other.clone(), host()])]
}

/// Prompts of different lengths, above the budget.
fn prompts() -> [Vec<u32>; 2] {
    let text = read_to_string(format!("{HERE}/fixtures/ember_logits.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(file["prompts"][0]["tokens"].clone()).unwrap();
    [90, 61].map(|length| tokens.iter().copied().cycle().take(length).collect())
}

fn texts(model: &Model, cache: &mut KvCache) -> Vec<Vec<u32>> {
    let options = GenerateOptions { max_new_tokens: 8, ..GenerateOptions::default() };
    let (found, _) = generate_batch(model, &prompts(), cache, &options, |_, _| {}).unwrap();
    found.into_iter().map(|row| row.tokens).collect()
}

/// Those whose layers are compressed together, those that merge, quantize, or hold heads apart.
fn policies() -> [Policy; 7] {
    [
        Policy::full(),
        Policy::pyramidkv(BUDGET),
        Policy::adakv(BUDGET),
        Policy::d2o(BUDGET),
        Policy::ems(BUDGET),
        Policy::kivi(2),
        Policy::fp8(),
    ]
}

/// What a model says, and what its cache keeps.
fn answer(model: &Model, policy: &Policy) -> (Vec<Vec<u32>>, Vec<i64>, Vec<usize>) {
    let mut cache = model.cache(policy.clone()).unwrap();
    let texts = texts(model, &mut cache);
    // Rows leave, and those that stay go on.
    cache.select_rows(&[1]).unwrap();
    let next = Tensor::from_data([[7_i32]], &model.device());
    let next = model.forward_last(next, &mut cache).unwrap().argmax(1);
    (texts, next.try_into_vec_as::<i64>().unwrap(), cache.tokens_kept(1).unwrap())
}

#[test]
fn texts_are_those_of_one_device() {
    let whole = load(&host());
    let expected = policies().map(|policy| answer(&whole, &policy));
    for backend in backends() {
        let mut maps = maps(&backend.device).to_vec();
        // Both orders are one on the host.
        maps.truncate(if backend.device == host() { 1 } else { 2 });
        for map in maps {
            let model = load(map);
            for (policy, expected) in policies().iter().zip(&expected) {
                let what = format!("{}, {:?}", policy.name(), model.devices());
                assert_eq!(answer(&model, policy), *expected, "{what}");
            }
        }
    }
}

#[cfg(feature = "remote")]
#[test]
fn texts_of_two_servers_are_those_of_one_device() {
    use briquette_tests::backends::serve;

    let [one, other] = [serve(), serve()];
    let map = DeviceMap::open(&format!("{one}=2,{other}=6")).unwrap();
    let (whole, apart) = (load(&host()), load(map));
    assert_eq!(apart.devices().len(), 2);
    for policy in policies() {
        let what = policy.name().to_owned();
        assert_eq!(answer(&apart, &policy), answer(&whole, &policy), "{what}");
    }
}

#[test]
fn logits_are_those_of_one_device() {
    let tokens = &prompts()[0];
    let of = |model: &Model| -> Vec<f32> {
        let mut cache = model.cache(Policy::full()).unwrap();
        let logits = prefill(model, &[tokens], &mut cache, Some(16)).unwrap();
        assert_eq!(logits.device(), model.device());
        logits.try_into_vec_as().unwrap()
    };
    let quantized = |model: Model| model.quantize_weights(WeightBits::Eight).unwrap();
    let expected = [of(&load(&host())), of(&quantized(load(&host())))];
    for backend in backends() {
        let [first, second] = maps(&backend.device);
        for (found, expected) in
            [of(&load(first)), of(&quantized(load(second)))].iter().zip(&expected)
        {
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            let worst = off.fold(0.0, f32::max);
            assert!(worst <= 2e-4, "{}: {worst}", backend.name);
        }
    }
}

#[test]
fn each_layer_lies_on_its_device() {
    for backend in backends() {
        let model = load(maps(&backend.device)[0].clone());
        let mut cache = model.cache(Policy::snapkv(BUDGET)).unwrap();
        prefill(&model, &[&prompts()[0]], &mut cache, None).unwrap();
        for layer in 0..cache.shape().layers {
            let device = if layer == 0 { host() } else { backend.device.clone() };
            assert_eq!(model.device_of(layer), &device);
            let held = cache.entries(layer).unwrap().unwrap().keys.device();
            assert_eq!(held, device, "{}, layer {layer}", backend.name);
        }
        assert_eq!(model.device(), host());
    }
}

/// Weights and caches, and the device that is full first.
#[test]
fn a_plan_is_of_each_device() {
    let ember = format!("{HERE}/../models/ember-7m");
    let policy = Policy::snapkv(BUDGET);
    let tokens = &prompts()[0];
    for backend in backends().into_iter().filter(|backend| backend.device != host()) {
        for map in maps(&backend.device) {
            let model = load(map.clone());
            let config = model.config().clone();
            let plan = MemoryPlan::of(config, &ember, map, DType::F32, None).unwrap();
            let devices = plan.weights_of_devices();
            assert_eq!(devices.len(), 2);
            let mut cache = model.cache(policy.clone()).unwrap();
            for (device, weights) in devices {
                assert_eq!(*weights, model.weight_bytes_on(device), "{}", backend.name);
                let rows = |rows| cache.bytes_after_prompt_on(device, rows, tokens.len()).unwrap();
                // There is room for any number on the other.
                let most = |bytes: usize| {
                    let memory = |of: &Device| if of == device { bytes as u64 } else { u64::MAX };
                    plan.most_rows(&policy, tokens.len(), memory).unwrap()
                };
                let found = [weights + rows(3), weights + rows(3) - 1, *weights, 0].map(most);
                assert_eq!(found, [3, 2, 0, 0], "{}", backend.name);
            }
            let of = |(device, _): &(Device, usize)| {
                cache.bytes_after_prompt_on(device, 1, tokens.len()).unwrap()
            };
            let of_cache: Vec<usize> = devices.iter().map(of).collect();
            assert!(of_cache[0] != of_cache[1], "one layer, and the others");
            prefill(&model, &[tokens], &mut cache, None).unwrap();
            let held = cache.bytes_held() - cache.bytes_spare();
            assert_eq!(of_cache.iter().sum::<usize>(), held, "{}", backend.name);
            assert_eq!(plan.weight_bytes(), devices.iter().map(|(_, bytes)| bytes).sum::<usize>());
        }
    }
}

#[test]
fn what_is_of_one_device_is_refused() {
    for backend in backends().into_iter().filter(|backend| backend.device != host()) {
        let map = maps(&backend.device)[0].clone();
        let model = load(map.clone());
        let ember = format!("{HERE}/../models/ember-7m");
        let plan = MemoryPlan::of(model.config().clone(), ember, map, DType::F32, None).unwrap();
        let planned = plan.cache_bytes(&Policy::kvzip(BUDGET), 512, 1).unwrap_err();
        assert!(planned.to_string().contains("devices"), "{planned}");
        match model.cache(Policy::kvzip(BUDGET)) {
            Err(ModelError::Cache(Error::InvalidParameter { parameter, value, .. })) => {
                assert_eq!(parameter, "devices");
                assert!(value.contains("kvzip"), "{value}");
            }
            other => panic!("{}: {other:?}", backend.name),
        }
        // A cache of one device is not that of the model.
        let mut cache = KvCache::new(model.cache_shape(), Policy::full(), &model.device()).unwrap();
        let error = prefill(&model, &[&prompts()[0]], &mut cache, None).unwrap_err();
        let ModelError::Cache(Error::WrongDevice { .. }) = error else { panic!("{error}") };
        // Rows join those that lie as they do.
        let [whole, mut apart] = [&load(&host()), &model].map(|model| {
            let mut cache = model.cache(Policy::full()).unwrap();
            prefill(model, &[&prompts()[1]], &mut cache, None).unwrap();
            cache
        });
        match apart.append_rows(&whole).unwrap_err() {
            Error::RowsDiffer { what: "device", expected, .. } => {
                assert!(expected.ends_with("for its layers"), "{expected}");
            }
            other => panic!("{}: {other}", backend.name),
        }
    }
    let folder = format!("{HERE}/../models/ember-7m");
    for (counts, said) in [(vec![1, 2], "1 + 2 layers"), (vec![3], "3 layers")] {
        let shares = counts.into_iter().map(|count| (host(), count)).collect();
        let map = DeviceMap::by_layers(shares).unwrap();
        let error = Model::load(&folder, map, DType::F32).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
