//! Configurations as people have them beside `transformers`: pairs of keys that say the same thing,
//! and keys left out or null. `tests/goldens/keys.py` makes `fixtures/keys.json`.

mod common;

use std::fs;

use briquette::ops::Window;
use briquette_models::{Error, Model, generate};
use burn::tensor::DType;
use common::{cache, device, fixtures, options, row};
use safetensors::{SafeTensors, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

#[derive(Deserialize)]
struct Golden {
    changes: Vec<Change>,
    results: Vec<Outcome>,
    /// The places of a change and its result, by checkpoint.
    checkpoints: std::collections::BTreeMap<String, Vec<[usize; 2]>>,
}

/// Change of a checkpoint.
#[derive(Deserialize)]
struct Change {
    case: String,
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    drop: Vec<String>,
    #[serde(default)]
    head: Option<String>,
}

/// Result of `transformers`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Outcome {
    Refused {
        error: String,
    },
    Text {
        prompt: Vec<u32>,
        greedy: Vec<u32>,
        /// The largest logit after the text.
        logit: f32,
        window: Option<usize>,
        /// A token, several, or none.
        eos: Value,
    },
}

/// Cases whose text `transformers` writes and which are refused here, by the beginnings or ends of
/// their names: keys that contradict each other, of which it ignores one, or that it does not read.
/// With what the error says.
const REFUSED: &[(&str, &str)] = &[
    ("rope: two thetas", "rope_theta"),
    ("rope: two local thetas", "rope_theta"),
    ("rope: two types", "rope_type"),
    ("rope: a factor and no type", "rope_type"),
    ("rope: linear beside another theta", "rope_scaling"),
    ("rope: linear beside linear", "rope_scaling"),
    ("rope: scaling beside full", "rope_scaling"),
    ("rope: nested", "rope_parameters"),
    ("rope: flat", "rope_parameters"),
    ("rope: a base beside both kinds", "rope_parameters"),
    ("rope: partial", "partial_rotary_factor"),
    ("rope: two partials", "only 1 for this model type"),
    // It takes the outer one where frequencies are scaled.
    ("rope: two partials, linear", "contradicts"),
    ("rope: yarn, two originals", "original_max_position_embeddings"),
    ("rope: llama3, two originals", "original_max_position_embeddings"),
    ("without original_max_position_embeddings", "original_max_position_embeddings"),
    ("hidden_act: ", "contradicts"),
    // The convolution has an activation by another key in a prompt than in decoding.
    ("hidden_act: ", "only silu for this model type"),
    ("hidden_activation: ", "contradicts"),
    ("experts: both", "num_local_experts"),
    ("experts per token: ", "experts_per_token"),
    ("limit: another", "swiglu_limit"),
    // It caps scores where the key is not there, which the cache does not.
    ("without attn_logit_softcapping", "attn_logit_softcapping"),
    // The norms of Llama 4 would undo the factor.
    ("rope: yarn", "factor of the rotation"),
    ("beside: another type of the text part", "model_type of text_config"),
    ("beside: a cap of logits", "final_logit_softcapping"),
];

/// Cases that are read here and fail there, by beginnings or ends likewise, and why they mean what
/// is read.
const READ: &[(&str, &str)] = &[
    ("window: None", "there is no window, and no layer has one"),
    ("window: 16", "it fails behind the window only, where texts end here"),
    ("null ", "`null` is the default where it is no number there, and no flag"),
    ("head_dim: ", "`null` is the default, and an equal width no other"),
    ("without pad_token_id", "its default is beyond the vocabulary, and fills nothing here"),
    ("rope: yarn", "Mixtral's heads have no width there"),
    ("rope: dynamic", "Mixtral's heads have no width there"),
    ("chunk: null", "there are no chunks, and no layer has one"),
    ("names without the first part", "Llama 4's class there has another first part"),
    ("beside: without vision_config", "nothing of it is read"),
    ("beside: null vision_config", "nothing of it is read"),
    ("beside: null image_token_index", "nothing of it is read"),
    ("beside: null mm_tokens_per_image", "nothing of it is read"),
];

/// The folder of a checkpoint with a change.
fn folder(name: &str, change: &Change) -> TempDir {
    let source = fixtures().join(name);
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let part = match config.get_mut("text_config") {
        Some(Value::Object(part)) if !change.case.starts_with("beside: ") => part,
        _ => &mut config,
    };
    part.retain(|key, _| !change.drop.contains(key));
    part.extend(change.set.clone());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), Value::from(config).to_string()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let bytes = change.head.as_deref().map_or(bytes.clone(), |head| stored(&bytes, head));
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

/// A checkpoint with its head and its embedding stored in another way.
fn stored(bytes: &[u8], head: &str) -> Vec<u8> {
    const HEAD: &str = "lm_head.weight";
    let file = SafeTensors::deserialize(bytes).unwrap();
    let mut tensors = file.tensors();
    if head == "names without the first part" {
        for (name, _) in tensors.iter_mut().filter(|(name, _)| name != HEAD) {
            *name = name.split_once('.').unwrap().1.into();
        }
        return safetensors::serialize(tensors, None).unwrap();
    }
    let ends = ["embed_tokens.weight", "word_embeddings.weight"];
    let embedding = |name: &str| ends.iter().any(|end| name.ends_with(end));
    let place = tensors.iter().position(|(name, _)| embedding(name)).unwrap();
    let (name, weight) = tensors[place].clone();
    tensors.retain(|(name, _)| !embedding(name) && name != HEAD);
    // Each row has the numbers of the one before.
    let mut rolled = weight.data().to_vec();
    rolled.rotate_right(weight.data().len() / weight.shape()[0]);
    let rolled = TensorView::new(weight.dtype(), weight.shape().to_vec(), &rolled).unwrap();
    tensors.extend(match head {
        "both stored" => vec![(name, weight), (HEAD.into(), rolled)],
        "both stored, alike" => vec![(name, weight.clone()), (HEAD.into(), weight)],
        "only the head" => vec![(HEAD.into(), weight)],
        "only the embedding" => vec![(name, weight)],
        other => panic!("{other}"),
    });
    safetensors::serialize(tensors, None).unwrap()
}

/// The differences between a text of `transformers` and that of the model.
fn compare(model: &Model, outcome: &Outcome) -> Result<(), String> {
    let Outcome::Text { prompt, greedy, logit, window, eos } = outcome else {
        let Outcome::Refused { error } = outcome else { unreachable!() };
        return Err(format!("it is read, transformers fails: {error}"));
    };
    let config = model.config();
    let eos: Vec<u32> = match eos {
        Value::Array(ids) => ids.iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        id => id.as_u64().into_iter().map(|id| id as u32).collect(),
    };
    if config.sliding_window.map(Window::size) != *window || config.eos_token_ids != eos {
        return Err(format!(
            "the window is {:?}, that of transformers {window:?}; texts end with {:?}, there with {eos:?}",
            config.sliding_window, config.eos_token_ids
        ));
    }
    // Behind its window a text is another.
    let context = config.max_position_embeddings;
    let count = greedy.len().min(context.saturating_sub(prompt.len()));
    let (found, _) = generate(model, prompt, &mut cache(model), &options(count), |_| {}).unwrap();
    if found.tokens != greedy[..count] {
        return Err(format!("{:?} instead of {greedy:?}", found.tokens));
    }
    if count < greedy.len() {
        return Ok(());
    }
    let text = [&prompt[..], greedy].concat();
    let logits = model.forward_last(row(&text), &mut cache(model)).unwrap();
    let largest = logits.max().into_scalar::<f32>();
    match (largest - logit).abs() < 2e-3 {
        true => Ok(()),
        false => Err(format!("the last logit is {largest} instead of {logit}")),
    }
}

#[test]
fn every_way_to_say_the_same_is_read_as_by_transformers() {
    let text = fs::read_to_string(fixtures().join("keys.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    assert_eq!(golden.checkpoints.len(), 21);
    let (mut different, mut cases, mut texts) = (Vec::new(), 0, 0);
    for (name, places) in &golden.checkpoints {
        for [change, result] in places {
            let (change, outcome) = (&golden.changes[*change], &golden.results[*result]);
            let of = |table: &'static [(&str, &'static str)]| {
                let named =
                    |name: &str| change.case.starts_with(name) || change.case.ends_with(name);
                table.iter().filter(move |(case, _)| named(case)).map(|(_, why)| *why)
            };
            let loaded: Result<Model, Error> =
                Model::load(folder(name, change).path(), &device(), DType::F32);
            let refused = matches!(outcome, Outcome::Refused { .. });
            cases += 1;
            texts += usize::from(!refused && loaded.is_ok());
            let found = match &loaded {
                Err(error) if refused => {
                    println!("{name}: {}: {error}", change.case);
                    Ok(())
                }
                Err(error) => match error.to_string() {
                    said if of(REFUSED).any(|why| said.contains(why)) => Ok(()),
                    said => Err(said),
                },
                Ok(_) if refused && of(READ).next().is_some() => Ok(()),
                Ok(model) => compare(model, outcome),
            };
            different.extend(found.err().map(|why| format!("{name}: {}: {why}", change.case)));
        }
    }
    println!("{cases} cases, {texts} texts");
    assert!(different.is_empty(), "{}", different.join("\n"));
}
