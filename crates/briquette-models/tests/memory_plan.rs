//! The memory that is planned from headers, beside what a loaded model and its caches take.

mod common;

use std::{fs, path::Path};

use briquette::{Budget, Policy, methods};
use briquette_models::{
    Error, Instruction, MemoryPlan, Model, ModelConfig, Tokenizer, WeightBits, prefill, reconstruct,
};
use burn::tensor::DType;
use common::{device, ember, fixtures};

/// Policies that are planned by the command where none are named.
const USUAL: [&str; 12] = [
    "full",
    "local-window",
    "streaming-llm",
    "h2o",
    "tova",
    "snapkv",
    "pyramidkv",
    "adakv",
    "d2o",
    "ems",
    "kivi",
    "fp8",
];
const SHARES: [f64; 4] = [0.75, 0.5, 0.25, 0.125];

fn plan(path: &Path, dtype: DType, bits: Option<WeightBits>) -> MemoryPlan {
    let config = ModelConfig::from_folder(path).unwrap();
    MemoryPlan::of(config, path, &device(), dtype, bits).unwrap()
}

#[test]
fn weights_are_those_of_a_loaded_model() {
    let gguf = fs::read_dir(fixtures().join("gguf")).unwrap();
    let models = fs::read_dir(fixtures()).unwrap().chain(gguf);
    let models = models.map(|entry| entry.unwrap().path()).chain([ember()]);
    let mut seen = 0;
    for path in models {
        let Ok(model) = Model::load(&path, &device(), DType::F32) else { continue };
        assert_eq!(plan(&path, DType::F32, None).weight_bytes(), model.weight_bytes(), "{path:?}");
        for bits in [WeightBits::Four, WeightBits::Eight] {
            let quantized = model.clone().quantize_weights(bits).unwrap().weight_bytes();
            assert_eq!(plan(&path, DType::F32, Some(bits)).weight_bytes(), quantized, "{path:?}");
        }
        seen += 1;
    }
    assert!(seen > 30, "{seen} models");
    let half = Model::load(ember(), &device(), DType::F16).unwrap();
    assert_eq!(plan(&ember(), DType::F16, None).weight_bytes(), half.weight_bytes());
}

/// Share by which a plan is more than a cache holds behind prompts of one length.
fn excess(plan: &MemoryPlan, model: &Model, policy: &Policy, prompts: &[Vec<u32>]) -> f64 {
    let (context, rows) = (prompts[0].len(), prompts.len());
    let planned = plan.cache_bytes(policy, context, rows).unwrap();
    let mut cache = model.cache(policy.clone()).unwrap();
    prefill(model, prompts, &mut cache, None).unwrap();
    reconstruct(model, prompts, &mut cache, &Instruction::default()).unwrap();
    let held = cache.bytes_held() - cache.bytes_spare();
    planned as f64 / held as f64 - 1.0
}

#[test]
fn caches_are_those_of_a_run() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/harbour.txt");
    let text = fs::read_to_string(text).unwrap();
    let words = Tokenizer::load(ember()).unwrap().encode(&text, true).unwrap();
    let numbers: Vec<u32> = (0..128).map(|token| token * 37 % 89).collect();
    let models = [
        (ember(), vec![words[..500].to_vec()]),
        (ember(), vec![words[..133].to_vec(), words[400..533].to_vec()]),
        (fixtures().join("gemma3"), vec![numbers[..96].to_vec()]),
        (fixtures().join("qwen3-next"), vec![numbers[..96].to_vec()]),
        (fixtures().join("gguf/llama-quantized.gguf"), vec![numbers]),
    ];
    for (path, prompts) in models {
        let plan = plan(&path, DType::F32, None);
        let mut config = ModelConfig::from_folder(&path).unwrap();
        // The plan is for a context that the prompt fills. Without windows it is no matter, and a
        // second pass needs more positions.
        if config.sliding_window.is_some() {
            config = config.with_context(prompts[0].len()).unwrap();
        }
        let model = Model::load_as(config, &path, &device(), DType::F32).unwrap();
        let mut seen = 0;
        for name in methods().into_iter().map(|method| method.name) {
            // The others on tiny models alone.
            if path == ember() && !USUAL.contains(&&*name) {
                continue;
            }
            let policy = Policy::named(&name, None).unwrap();
            let policies = match policy.takes_budget() {
                true => SHARES.map(|share| policy.clone().with_budget(Budget::Ratio(share))).into(),
                false => vec![policy],
            };
            for policy in policies {
                // It needs a profile, keeps whole layers, or cannot run on windows.
                if plan.cache_bytes(&policy, prompts[0].len(), prompts.len()).is_err() {
                    continue;
                }
                let excess = excess(&plan, &model, &policy, &prompts);
                // Tokens of some layers of `ems-pyramidkv` may be fewer than it may remember.
                let most = if name == "ems-pyramidkv" { 0.1 } else { 0.02 };
                assert!((-0.02..=most).contains(&excess), "{path:?}, {policy:?}: {excess}");
                seen += 1;
            }
        }
        assert!(seen > 30, "{path:?}: {seen} policies");
    }
}

/// The search ends at the last number that fits.
#[test]
fn rows_and_context_are_the_most_that_fit() {
    let plan = plan(&ember(), DType::F32, None);
    let policy = Policy::snapkv(Budget::Ratio(0.25));
    let all = |context, rows| {
        (plan.weight_bytes() + plan.cache_bytes(&policy, context, rows).unwrap()) as u64
    };
    let memory = all(512, 7);
    assert_eq!(plan.most_rows(&policy, 512, |_| memory).unwrap(), 7);
    assert_eq!(plan.most_rows(&policy, 512, |_| memory - 1).unwrap(), 6);
    // A quarter of 512 to 515 tokens is as many.
    assert_eq!(plan.longest_context(&policy, 7, |_| memory).unwrap(), 515);
    assert_eq!(plan.longest_context(&policy, 7, |_| memory - 1).unwrap(), 511);
    assert_eq!(plan.most_rows(&policy, 512, |_| 1).unwrap(), 0);
    let longest = ModelConfig::from_folder(ember()).unwrap().longest_context();
    assert_eq!(plan.longest_context(&policy, 1, |_| u64::MAX).unwrap(), longest);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let config = || ModelConfig::from_folder(ember()).unwrap();
    let of = |path: &Path, dtype| MemoryPlan::of(config(), path, &device(), dtype, None);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(of(empty.path(), DType::F32), Err(Error::NoWeights { .. })));
    assert!(matches!(of(&ember(), DType::F64), Err(Error::UnsupportedType { .. })));
    assert!(matches!(of(&fixtures().join("llama"), DType::F32), Err(Error::MissingTensor { .. })));

    let plan = plan(&ember(), DType::F32, None);
    let longest = config().longest_context();
    for context in [0, longest + 1] {
        let refused = plan.cache_bytes(&Policy::full(), context, 1);
        assert!(matches!(refused, Err(Error::InvalidSetting { key: "context", .. })), "{context}");
    }
    for rows in [0, 1 << 40] {
        assert!(matches!(plan.cache_bytes(&Policy::full(), 16, rows), Err(Error::Cache(_))));
    }
    let whole_layers = Policy::named("simlayerkv", Budget::Ratio(0.5)).unwrap();
    let refused = plan.cache_bytes(&whole_layers, 16, 1).unwrap_err().to_string();
    assert!(refused.contains("keeps no more than its budget"), "{refused}");
}
