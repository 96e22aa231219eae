//! Folders as they come, and as they should not come.

mod common;
mod tiny;

use std::{fs, path::Path, process::Command};

use briquette_models::{Error, Model, ModelConfig, Tokenizer};
use burn::tensor::DType;
use common::cache;
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;
use tiny::{Stored, Tiny, device, prompt};

fn load(dir: &Path) -> Result<Model, Error> {
    Model::load(dir, &device(), DType::F32)
}

/// Logits after each of 12 tokens.
fn logits(model: &Model) -> Vec<f32> {
    common::logits(model, &prompt(5, 12))
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    common::assert_close("logits", found, expected, tolerance);
}

#[test]
fn shards_and_one_file_are_the_same_model() {
    let tiny = Tiny::with(json!({ "tie_word_embeddings": false }));
    let sharded = load(tiny.sharded_folder().path()).unwrap();
    assert_eq!(logits(&tiny.load()), logits(&sharded));
}

#[test]
fn a_file_in_memory_is_the_same_model() {
    let tiny = Tiny::new();
    let dir = tiny.folder();
    let config = ModelConfig::from_json(&tiny.config.to_string()).unwrap();
    let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
    let read = |bytes: &[u8]| {
        Model::from_safetensors(config.clone(), bytes.to_vec(), &device(), DType::F32)
    };
    assert_eq!(logits(&read(&bytes).unwrap()), logits(&tiny.load()));
    for (length, says) in
        [(4, "it has 4 bytes, fewer than a header"), (bytes.len() - 1, "truncated")]
    {
        let error = read(&bytes[..length]).unwrap_err().to_string();
        assert!(error.starts_with("model.safetensors is ") && error.contains(says), "{error}");
    }
}

#[test]
fn progress_is_told_in_bytes_of_the_files() {
    let fixtures = common::fixtures();
    let bin = Tiny::new().shards(3, "pytorch_model", "bin");
    let folders = ["llama", "gpt-oss", "gpt-oss-mxfp4"].map(|name| fixtures.join(name));
    let files = ["llama-quantized", "tiny-gpt-oss"].map(|name| format!("gguf/{name}.gguf"));
    let files = files.map(|name| fixtures.join(name));
    // Without the headers, of which those of safetensors say how long they are.
    let size = |path: &Path| {
        let weights = path.join("model.safetensors");
        if let Ok(bytes) = fs::read(&weights) {
            let header = u64::from_le_bytes(*bytes.first_chunk().unwrap());
            return (bytes.len() as u64 - 8 - header, 1.0);
        }
        let shards = fs::read_dir(path).into_iter().flatten().map(|file| file.unwrap().path());
        let shards: u64 = shards
            .filter(|path| path.extension().unwrap() == "bin")
            .map(|path| fs::metadata(path).unwrap().len())
            .sum();
        (if path.is_dir() { shards } else { fs::metadata(path).unwrap().len() }, 0.9)
    };
    for path in [&folders[..], &files, &[bin.path().into()]].concat() {
        let config = ModelConfig::from_folder(&path).unwrap();
        let (mut told, mut total) = (Vec::new(), 0);
        Model::load_with_progress(config, &path, &device(), DType::F32, |read, all| {
            told.push(read);
            total = all;
        })
        .unwrap();
        assert!(told.is_sorted_by(|before, next| before < next), "{told:?}");
        assert!(told[0] > 0 && told.len() > 10, "{told:?}");
        assert_eq!(told.last(), Some(&total));
        let (bytes, least) = size(&path);
        let share = total as f64 / bytes as f64;
        assert!((least..=1.0).contains(&share), "{}: {share}", path.display());
    }
}

#[test]
fn a_tied_head_is_the_embedding() {
    let tied = Tiny::new();
    let mut untied = Tiny::with(json!({ "tie_word_embeddings": false }));
    let embedding = untied.tensors["model.embed_tokens.weight"].clone();
    untied.tensors.insert("lm_head.weight".into(), embedding);
    assert_close(&logits(&tied.load()), &logits(&untied.load()), 1e-5);
}

#[test]
fn every_weight_and_bias_matters() {
    // A parameter that was not loaded, or not used, would not move the logits.
    let keys = json!({ "tie_word_embeddings": false, "attention_bias": true, "mlp_bias": true });
    let tiny = Tiny::with(keys);
    let before = logits(&tiny.load());
    for name in tiny.tensors.keys() {
        // A bias of the keys shifts all scores of a query alike when nothing is rotated, and at the
        // first layers it is small: any change will do.
        let mut changed = tiny.clone();
        for number in changed.tensors.get_mut(name).unwrap().bytes.chunks_exact_mut(4) {
            let value = f32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            number.copy_from_slice(&(-value).to_le_bytes());
        }
        assert_ne!(before, logits(&changed.load()), "{name}");
    }
}

#[test]
fn weights_are_converted_to_the_type_asked_for() {
    let tiny = Tiny::new();
    let exact = logits(&tiny.load());
    let dir = tiny.folder();
    for dtype in [DType::F16, DType::BF16] {
        let model = Model::load(dir.path(), &device(), dtype).unwrap();
        assert_eq!(model.dtype(), dtype);
        assert_close(&logits(&model), &exact, 0.05);
    }
    let refused = Model::load(dir.path(), &device(), DType::I32);
    assert!(matches!(refused, Err(Error::UnsupportedType { dtype: DType::I32, .. })));
}

#[test]
fn half_precision_files_load_in_f32() {
    let tiny = Tiny::new();
    let mut half = tiny.clone();
    for stored in half.tensors.values_mut() {
        // The upper half of an f32 is its bf16, rounded towards zero.
        stored.bytes = stored.bytes.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect();
        stored.dtype = Dtype::BF16;
    }
    let model = half.load();
    assert_eq!(model.dtype(), DType::F32);
    assert_close(&logits(&model), &logits(&tiny.load()), 0.05);
}

#[test]
fn tensors_that_follow_from_others_may_lie_in_the_file() {
    let mut tiny = Tiny::new();
    let embedding = tiny.tensors["model.embed_tokens.weight"].clone();
    tiny.tensors.insert("lm_head.weight".into(), embedding);
    tiny.random("model.layers.0.self_attn.rotary_emb.inv_freq", &[4]);
    let model = tiny.load();
    assert!(model.config().tie_word_embeddings && model.warnings().is_empty());
    assert_eq!(logits(&model), logits(&Tiny::new().load()));
}

#[test]
fn a_head_that_differs_from_the_embedding_is_taken_and_told_of() {
    let mut tied = Tiny::new();
    tied.random("lm_head.weight", &[64, 24]);
    let mut untied = tied.clone();
    untied.config["tie_word_embeddings"] = json!(false);
    let model = tied.load();
    assert!(!model.config().tie_word_embeddings);
    let [warning] = model.warnings() else { panic!("{:?}", model.warnings()) };
    assert!(warning.contains("tie_word_embeddings"), "{warning}");
    let untied = untied.load();
    assert!(untied.warnings().is_empty());
    assert_eq!(logits(&model), logits(&untied));
}

#[test]
fn what_a_generation_config_asks_for_in_vain_is_told() {
    let dir = Tiny::new().folder();
    let write = |keys: serde_json::Value| {
        fs::write(dir.path().join("generation_config.json"), keys.to_string()).unwrap();
        load(dir.path()).unwrap().warnings().to_vec()
    };
    let idle = json!({
        "repetition_penalty": 1.0, "min_length": 0, "suppress_tokens": [], "bad_words_ids": null, "temperature": 0.6,
    });
    assert!(write(idle).is_empty());
    let told = write(json!({ "repetition_penalty": 1.05, "suppress_tokens": [3] }));
    let [penalty, tokens] = &*told else { panic!("{told:?}") };
    assert!(
        penalty.contains("repetition_penalty = 1.05") && tokens.contains("suppress_tokens = [3]")
    );
}

#[test]
fn a_head_without_its_embedding_is_both() {
    let mut tiny = Tiny::new();
    let weight = tiny.tensors.remove("model.embed_tokens.weight").unwrap();
    tiny.tensors.insert("lm_head.weight".into(), weight);
    for dir in [tiny.folder(), tiny.sharded_folder()] {
        assert_eq!(logits(&load(dir.path()).unwrap()), logits(&Tiny::new().load()));
    }
}

#[test]
fn names_may_lack_the_first_part() {
    for tied in [true, false] {
        let mut tiny = Tiny::with(json!({ "tie_word_embeddings": tied }));
        let expected = logits(&tiny.load());
        let bare = |(name, stored): (String, Stored)| {
            (name.strip_prefix("model.").unwrap_or(&name).to_owned(), stored)
        };
        tiny.tensors = tiny.tensors.into_iter().map(bare).collect();
        for dir in [tiny.folder(), tiny.sharded_folder()] {
            assert_eq!(logits(&load(dir.path()).unwrap()), expected);
        }
    }
}

#[test]
fn weights_that_are_no_numbers_are_told_of() {
    let mut tiny = Tiny::new();
    let norm = tiny.tensors.get_mut("model.layers.1.input_layernorm.weight").unwrap();
    norm.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let model = tiny.load();
    let prefilled = briquette_models::prefill(&model, &[prompt(5, 12)], &mut cache(&model), None);
    let error = prefilled.unwrap_err();
    assert!(matches!(error, Error::NumbersNotFinite { layer: 1, count: 1.., .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("at layer 1") && text.contains("weights are damaged"), "{text}");
}

/// Text that stands in a clone for a file that Git LFS has not fetched.
const POINTER: &str =
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 13478104\n";

#[test]
fn a_pointer_of_git_lfs_is_told_of() {
    let refused = |dir: &Path, name: &str| {
        fs::write(dir.join(name), POINTER).unwrap();
        let error = load(dir).unwrap_err();
        assert!(matches!(error, Error::LfsPointer { .. }), "{name}: {error}");
        assert!(error.to_string().contains("git lfs pull"), "{error}");
    };
    for name in ["model.safetensors", "config.json", "generation_config.json"] {
        refused(Tiny::new().folder().path(), name);
    }
    for name in ["model-00002-of-00002.safetensors", "model.safetensors.index.json"] {
        refused(Tiny::new().sharded_folder().path(), name);
    }
    let dir = tempfile::tempdir().unwrap();
    refused(dir.path(), "model.gguf");
    fs::write(dir.path().join("tokenizer.json"), POINTER).unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::LfsPointer { .. }), "{error}");
}

#[test]
fn shards_lie_in_the_folder_of_their_index() {
    let dir = Tiny::new().sharded_folder();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::copy(dir.path().join("config.json"), inner.join("config.json")).unwrap();
    let shard = "model-00001-of-00002.safetensors";
    for name in [format!("../{shard}"), dir.path().join(shard).display().to_string(), "..".into()] {
        let index = json!({ "weight_map": { "model.norm.weight": name } });
        fs::write(inner.join("model.safetensors.index.json"), index.to_string()).unwrap();
        let error = load(&inner).unwrap_err();
        assert!(matches!(error, Error::ShardOutside { .. }), "{error}");
        assert!(error.to_string().contains("move it there"), "{error}");
    }
}

/// A pipe would be waited for, and `/dev/zero` has no end.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    let pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let zero = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    let folder = || Tiny::new().folder();
    let sharded = || Tiny::new().sharded_folder();
    let files: [(&dyn Fn() -> TempDir, &str); 6] = [
        (&folder, "model.safetensors"),
        (&folder, "config.json"),
        (&folder, "generation_config.json"),
        (&sharded, "model-00001-of-00002.safetensors"),
        (&sharded, "model.safetensors.index.json"),
        (&|| tempfile::tempdir().unwrap(), "model.gguf"),
    ];
    for (folder, name) in files {
        for make in [&pipe as &dyn Fn(&Path), &zero] {
            let dir = folder();
            let path = dir.path().join(name);
            let _ = fs::remove_file(&path);
            make(&path);
            let error = load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: it is no regular file")), "{name}: {error}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    zero(&dir.path().join("tokenizer.json"));
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("it is no regular file"), "{error}");
}

#[test]
fn a_missing_tensor_is_named() {
    let mut tiny = Tiny::new();
    tiny.tensors.remove("model.layers.1.mlp.down_proj.weight");
    tiny.tensors.remove("model.norm.weight");
    match load(tiny.folder().path()) {
        Err(ref error @ Error::MissingTensor { ref tensor, ref shape, count }) => {
            assert!(error.to_string().ends_with("all files of weights of one version"), "{error}");
            assert_eq!(tensor, "model.layers.1.mlp.down_proj.weight");
            assert_eq!((&shape[..], count), (&[24, 40][..], 2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_untied_head_must_be_there() {
    let mut tiny = Tiny::new();
    tiny.config["tie_word_embeddings"] = json!(false);
    let error = load(tiny.folder().path());
    assert!(
        matches!(error, Err(Error::MissingTensor { tensor, .. }) if tensor == "lm_head.weight")
    );
}

#[test]
fn an_extra_tensor_is_named() {
    let mut tiny = Tiny::new();
    tiny.random("model.layers.0.self_attn.q_norm.weight", &[8]);
    for dir in [tiny.folder(), tiny.sharded_folder()] {
        match load(dir.path()) {
            Err(ref error @ Error::ExtraTensor { ref tensor, ref path, count: 1 }) => {
                assert!(
                    error.to_string().contains("take the config.json that was saved"),
                    "{error}"
                );
                assert_eq!(tensor, "model.layers.0.self_attn.q_norm.weight");
                assert!(path.starts_with(dir.path()));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let mut tiny = Tiny::new();
    tiny.random("model.layers.0.self_attn.k_proj.weight", &[24, 16]);
    match load(tiny.folder().path()) {
        Err(Error::TensorShape { tensor, expected, found }) => {
            assert_eq!(tensor, "model.layers.0.self_attn.k_proj.weight");
            assert_eq!((expected, found), (vec![16, 24], vec![24, 16]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_of_integers_is_named() {
    let mut tiny = Tiny::new();
    let stored = Stored { dtype: Dtype::I8, shape: vec![24], bytes: vec![1; 24] };
    tiny.tensors.insert("model.norm.weight".into(), stored);
    let error = load(tiny.folder().path());
    assert!(
        matches!(error, Err(Error::TensorType { tensor, .. }) if tensor == "model.norm.weight")
    );
    let stored = Stored { dtype: Dtype::F8_E4M3, shape: vec![24], bytes: vec![1; 24] };
    tiny.tensors.insert("model.norm.weight".into(), stored);
    let error = load(tiny.folder().path());
    assert!(matches!(&error, Err(Error::TensorType { found, .. }) if found == "F8_E4M3"));
    assert!(error.unwrap_err().to_string().contains("take the model in one of these"));
}

#[test]
fn a_truncated_file_names_the_tensor_it_cuts() {
    let dir = Tiny::new().folder();
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    match load(dir.path()) {
        Err(Error::Truncated { tensor, needed, found, .. }) => {
            assert_eq!(tensor, "model.norm.weight");
            assert_eq!(needed, bytes.len() as u64);
            assert_eq!(found, bytes.len() as u64 - 10);
        }
        other => panic!("{other:?}"),
    }
    // Cut inside the header, inside its length, and to nothing; then no container at all.
    for content in [&bytes[..100], &bytes[..5], &[], &[0xff; 64]] {
        fs::write(&path, content).unwrap();
        assert!(
            matches!(load(dir.path()), Err(Error::Container { .. })),
            "{} bytes",
            content.len()
        );
    }
    // Longer than its header says.
    fs::write(&path, [&bytes[..], &[0; 3]].concat()).unwrap();
    assert!(matches!(load(dir.path()), Err(Error::Container { .. })));
}

#[test]
fn an_index_must_agree_with_its_shards() {
    let dir = Tiny::new().sharded_folder();
    let index = dir.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();

    let shard = dir.path().join("model-00002-of-00002.safetensors");
    let hidden = dir.path().join("hidden");
    fs::rename(&shard, &hidden).unwrap();
    assert!(
        matches!(load(dir.path()), Err(Error::MissingShard { shard: named, missing: 1, shards: 2 }) if named == shard)
    );
    fs::rename(&hidden, &shard).unwrap();

    let mut moved: serde_json::Value = serde_json::from_str(&text).unwrap();
    let first = moved["weight_map"]["model.embed_tokens.weight"].clone();
    for (_, place) in moved["weight_map"].as_object_mut().unwrap() {
        *place = first.clone();
    }
    fs::write(&index, moved.to_string()).unwrap();
    assert!(matches!(load(dir.path()), Err(Error::NotInShard { .. })));

    fs::write(&index, "{}").unwrap();
    assert!(matches!(load(dir.path()), Err(Error::Json { .. })));

    fs::write(&index, &text).unwrap();
    fs::copy(dir.path().join(first.as_str().unwrap()), &shard).unwrap();
    let error = load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NotInShard { .. }), "{error}");
    let mut moved: serde_json::Value = serde_json::from_str(&text).unwrap();
    let held = moved["weight_map"].as_object().unwrap().clone();
    for (tensor, place) in held {
        if place != first {
            moved["weight_map"].as_object_mut().unwrap().remove(&tensor);
        }
    }
    moved["weight_map"]["model.embed_tokens.weight"] = json!(shard.file_name().unwrap().to_str());
    fs::write(&index, moved.to_string()).unwrap();
    match load(dir.path()) {
        Err(Error::InTwoShards { first: one, second, .. }) => {
            assert_eq!((one.file_name(), second), (Some(first.as_str().unwrap().as_ref()), shard));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_below_a_prefix_is_named() {
    let mut tiny = Tiny::new();
    tiny.tensors =
        tiny.tensors.into_iter().map(|(name, it)| (format!("module.{name}"), it)).collect();
    match load(tiny.folder().path()) {
        Err(Error::PrefixedTensor { tensor, found }) => {
            assert_eq!(tensor, "model.embed_tokens.weight");
            assert_eq!(found, "module.model.embed_tokens.weight");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_incomplete_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(load(dir.path()), Err(Error::NoModel { .. })));
    fs::write(dir.path().join("config.json"), Tiny::new().config.to_string()).unwrap();
    assert!(matches!(load(dir.path()), Err(Error::NoWeights { .. })));
}

#[test]
fn a_folder_in_another_format_is_told_what_to_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("consolidated.safetensors");
    fs::write(&path, []).unwrap();
    for config in [None, Some(Tiny::new().config.to_string())] {
        if let Some(config) = config {
            fs::write(dir.path().join("config.json"), config).unwrap();
        }
        let error = load(dir.path()).unwrap_err();
        assert!(
            matches!(&error, Error::OriginalFormat { path: found } if *found == path),
            "{error}"
        );
    }
    let absent = |says: &str| {
        let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json is not in ") && error.contains(says), "{error}");
    };
    absent("fetch it too");
    fs::write(dir.path().join("tokenizer.model"), []).unwrap();
    absent(&format!("save_pretrained(\"{}\") writes tokenizer.json", dir.path().display()));
}

#[test]
fn packed_weights_are_known_by_the_names_of_tensors_and_files() {
    let packed = |more: &str| {
        let mut tiny = Tiny::new();
        let weight = tiny.tensors.remove("model.layers.0.mlp.up_proj.weight").unwrap();
        for ending in ["qweight", more] {
            let name = format!("model.layers.0.mlp.up_proj.{ending}");
            tiny.tensors.insert(name, weight.clone());
        }
        tiny.folder()
    };
    let method = |dir: &TempDir| match load(dir.path()) {
        Err(Error::QuantizedWeights { method }) => method,
        other => panic!("{other:?}"),
    };
    assert_eq!(method(&packed("g_idx")), "GPTQ");
    let dir = packed("scales");
    assert_eq!(method(&dir), "AWQ or GPTQ");
    fs::write(dir.path().join("quant_config.json"), "{}").unwrap();
    assert_eq!(method(&dir), "AWQ");
    fs::write(dir.path().join("quantize_config.json"), "{}").unwrap();
    assert_eq!(method(&dir), "GPTQ");
}

#[test]
fn stop_tokens_of_the_generation_configuration_come_first() {
    let dir = Tiny::new().folder();
    let stop = || load(dir.path()).unwrap().config().eos_token_ids.clone();
    assert_eq!(stop(), [1]);
    for (text, expected) in [
        (r#"{ "eos_token_id": [7, 1], "top_p": 0.9 }"#, vec![7, 1]),
        (r#"{ "eos_token_id": 5 }"#, vec![5]),
        (r#"{ "do_sample": true }"#, vec![1]),
    ] {
        fs::write(dir.path().join("generation_config.json"), text).unwrap();
        assert_eq!(stop(), expected, "{text}");
    }
    fs::write(dir.path().join("generation_config.json"), "[").unwrap();
    assert!(matches!(load(dir.path()), Err(Error::Json { .. })));
}
