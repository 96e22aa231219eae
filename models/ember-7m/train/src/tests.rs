use std::{collections::HashSet, fs, path::Path};

use briquette::Policy;
use briquette_models::{Model, ModelConfig, Tokenizer};
use burn::{
    module::Module,
    tensor::{DType, Device, Int, Tensor, TensorData},
};
use burn_store::{
    FloatCastAdapter, ModuleAdapter, ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore,
};
use tempfile::TempDir;

use crate::{
    data::{Corpus, Drawn, Tasks, generator, prepare},
    export,
    model::{Batch, Ember},
    plan::{LATER, Plan, Stage},
    train::{Training, trained},
};

const EMBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PROSE: &str = include_str!("../../../../crates/briquette-eval/assets/haystack.txt");

/// A prepared folder.
fn prepared() -> (TempDir, Tasks) {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    fs::create_dir(&text).unwrap();
    fs::write(text.join("a.txt"), &PROSE[..12_000]).unwrap();
    let ember = Path::new(EMBER);
    let files = [&ember.join("config.json"), &ember.join("recipe/words.json")];
    assert!(
        prepare(&text, dir.path(), ember, files.map(|file| file.as_path()), None).unwrap() > 2000
    );
    let tasks = Tasks::new(Corpus::load(dir.path()).unwrap()).unwrap();
    (dir, tasks)
}

/// The logits of `briquette-models`, which tests of its own hold to those of `transformers`.
fn logits(dir: &Path, tokens: &[u32]) -> Vec<f32> {
    let device = Device::flex();
    let model = Model::load(dir, &device, DType::F32).unwrap();
    let tokens = TensorData::new(tokens.to_vec(), [1, tokens.len()]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    let mut cache = model.cache(Policy::full()).unwrap();
    model.forward(tokens, &mut cache).unwrap().try_into_vec_as::<f32>().unwrap()
}

/// On the checkpoint of this repository.
#[test]
fn the_checkpoint_is_computed_as_elsewhere_and_exported_as_it_is() {
    let ember = Path::new(EMBER);
    let tokens = Tokenizer::load(ember).unwrap().encode(&PROSE[..400], true).unwrap();
    let reference = logits(ember, &tokens);

    let config = ModelConfig::from_file(ember.join("config.json")).unwrap();
    let device = Device::flex().autodiff();
    let mut model = Ember::new(&config, 0, &device).unwrap();
    let mut store = SafetensorsStore::from_file(ember.join("model.safetensors"))
        .with_from_adapter(PyTorchToBurnAdapter.chain(FloatCastAdapter::to(DType::F32)));
    model.load_from(&mut store).unwrap();
    let count = tokens.len();
    let weights = (0..count).map(|at| (at % 3) as f32).collect();
    let batch = Batch::new(&[Drawn { tokens: tokens.clone(), weights }], &device);
    let found = model.logits(batch.tokens.clone(), DType::F32);
    let found = found.try_into_vec_as::<f32>().unwrap();
    assert_eq!(found.len(), reference.len());
    let most = reference.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    for (a, b) in found.iter().zip(&reference) {
        assert!((a - b).abs() < 1e-4 * most, "{a} and {b}, the most {most}");
    }

    let loss = (model.losses(&batch, DType::F32) * batch.weights).sum();
    let loss = loss.try_into_scalar::<f64>().unwrap();
    let of_next = |at: usize| {
        let row = &reference[(at - 1) * config.vocab_size..at * config.vocab_size];
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        (sum.ln() - f64::from(row[tokens[at] as usize])) * (at % 3) as f64
    };
    let expected: f64 = (1..count).map(of_next).sum();
    assert!((loss - expected).abs() < 1e-4 * expected, "{loss} and {expected}");

    let dir = tempfile::tempdir().unwrap();
    export(&model.valid(), ember, dir.path()).unwrap();
    assert_eq!(logits(dir.path(), &tokens), reference);
}

#[test]
fn resumed_is_as_never_stopped_to_the_bit() {
    let stage = |steps, lengths: &[usize]| Stage { steps, lengths: lengths.into(), mixture: LATER };
    let stages = vec![stage(4, &[128]), stage(6, &[256, 128])];
    let plan =
        Plan { warmup_steps: 4, micro_tokens: 256, step_tokens: 512, stages, ..Plan::default() };
    // Never stopped; stopped in each of the stages.
    let [whole, parts] = [&[None][..], &[Some(3), Some(4), None]].map(|pauses| {
        let (dir, tasks) = prepared();
        let run = dir.path();
        let mut config = fs::read_to_string(run.join("config.json")).unwrap();
        for (key, old, new) in [
            ("hidden_size", 256, 32),
            ("intermediate_size", 768, 48),
            ("num_hidden_layers", 8, 2),
            ("num_attention_heads", 8, 2),
            ("num_key_value_heads", 2, 1),
            ("head_dim", 32, 16),
        ] {
            config = config.replace(&format!("\"{key}\": {old}"), &format!("\"{key}\": {new}"));
        }
        fs::write(run.join("config.json"), config).unwrap();
        for pause in pauses {
            let compute = (Device::flex(), DType::F32);
            let mut training = Training::start(&plan, &tasks, run, compute, 3).unwrap();
            assert_eq!(training.run(*pause).unwrap(), pause.is_none());
        }
        let compute = (Device::flex(), DType::F32);
        assert!(Training::start(&plan, &tasks, run, compute, 4).is_err());
        let log = fs::read_to_string(run.join("log.jsonl")).unwrap();
        assert_eq!(log.lines().count(), pauses.len());
        let model = trained(run, &Device::flex()).unwrap();
        let layer = &model.model.layers[1];
        let [a, b] = [&model.model.embed_tokens.weight, &layer.self_attn.k_proj.weight]
            .map(|weight| weight.val().try_into_vec_as::<f32>().unwrap());
        let norm = layer.post_attention_layernorm.gamma.val().try_into_vec_as::<f32>().unwrap();
        assert!(norm.iter().any(|x| *x != 1.0));
        [a, b, norm]
    });
    assert_eq!(whole, parts);
}

/// Answers can be read off the context, and they alone weigh like answers.
#[test]
fn numbers_that_are_hidden_are_asked_for() {
    let (_dir, tasks) = prepared();
    let mut count = 0;
    for sample in 0..40 {
        let needles = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        let drawn = tasks.draw(&mut generator([3, 0, 0, sample]), 512, &needles);
        assert_eq!((drawn.tokens.len(), drawn.weights.len()), (512, 512));
        let text = tasks.corpus.tokenizer.decode(&drawn.tokens).unwrap();
        let hidden = text.split("One of the special magic numbers is ").skip(1);
        let hidden: HashSet<&str> = hidden.filter_map(|part| part.split('.').next()).collect();
        let asked = text.split("The special magic number is ").skip(1);
        let asked: Vec<&str> = asked.filter_map(|part| part.lines().next()).collect();
        assert!(asked.iter().all(|asked| hidden.contains(asked)), "{text}");
        // Where the numbers do not fit, lines stand in.
        if !asked.is_empty() {
            let heavy = drawn.weights.iter().filter(|weight| **weight >= 10.0);
            assert_eq!(heavy.count(), 8 * asked.len(), "{text}");
            count += asked.len();
        }
    }
    assert!(count > 60, "{count}");
}
