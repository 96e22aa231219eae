//! GGUF files: those of tiny checkpoints, a real one where it was fetched, and damaged ones.
//! `tests/goldens/gguf_files.py` makes the fixtures.

mod common;
mod raw_gguf;

use std::{
    fs,
    path::{Path, PathBuf},
};

use briquette_models::{
    ChatMessage, ChatTemplate, Error, Model, ModelConfig, RopeScaling, Tokenizer, WeightBits,
    generate,
};
use burn::tensor::{DType, f16};
use common::{
    assert_close, assert_refused, cache, device, ember, fixtures, host, logits, options, with_keys,
};
use raw_gguf::{RawGguf, RawTensor};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    fixtures().join("gguf").join(name)
}

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn a_file_is_the_model_it_was_made_of() {
    // Those are held to transformers in `architectures.rs`.
    let tokens: Vec<u32> = (0..80).map(|i| i * 37 % 96).collect();
    for name in ["llama", "llama-linear", "qwen2", "qwen3"] {
        let folder = Model::load(fixtures().join(name), &device(), DType::F32).unwrap();
        let path = fixture(&format!("{name}.gguf"));
        let file = Model::load(&path, &device(), DType::F32).unwrap();
        let (found, expected) = (file.config(), folder.config());
        assert_eq!(found.architecture, expected.architecture);
        assert_eq!(found.cache_shape(), expected.cache_shape());
        assert_eq!(found.tie_word_embeddings, expected.tie_word_embeddings, "{name}");
        assert_eq!(found.eos_token_ids, [1]);
        assert_close(name, &logits(&file, &tokens), &logits(&folder, &tokens), 1e-5);
        let half = Model::load(&path, &device(), DType::BF16).unwrap();
        assert_eq!(half.dtype(), DType::BF16);
    }
}

/// A file with its matrices in blocks, and a folder with the numbers that these stand for.
fn quantized(name: &str) -> (PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = fixtures().join(name).join("config.json");
    fs::copy(config, dir.path().join("config.json")).unwrap();
    let weights = fixture(&format!("{name}-quantized.safetensors"));
    fs::copy(weights, dir.path().join("model.safetensors")).unwrap();
    (fixture(&format!("{name}-quantized.gguf")), dir)
}

/// Biases, a tied head, rows that come back in their order, and matrices that cannot be merged or
/// have no whole blocks are among them.
#[test]
fn weights_stay_in_their_blocks() {
    for name in ["llama", "qwen2"] {
        let (file, folder) = quantized(name);
        let expanded = Model::load(folder.path(), &device(), DType::F32).unwrap();
        let model = Model::load(&file, &device(), DType::F32).unwrap();
        assert_eq!(model.dtype(), DType::F32);
        let stored = model.weight_bytes() as f64 / expanded.weight_bytes() as f64;
        assert!(stored < 0.4, "{name} takes {stored} of its numbers' bytes");
        let tokens: Vec<u32> = (0..80).map(|i| i * 37 % 96).collect();
        // Many rows at once, and a few.
        for tokens in [&tokens[..], &tokens[..5]] {
            assert_close(name, &logits(&model, tokens), &logits(&expanded, tokens), 2e-5);
        }
        let greedy = |model: &Model| {
            let mut cache = cache(model);
            generate(model, &tokens, &mut cache, &options(40), |_| {}).unwrap().0.tokens
        };
        assert_eq!(greedy(&model), greedy(&expanded), "{name}");
        let [of_model, of_expanded] = [&model, &expanded].map(|model| model.output_projections());
        for (found, expected) in of_model.into_iter().zip(of_expanded) {
            assert_close(name, &host(found), &host(expected), 1e-7);
        }
    }
}

/// Experts lie in one tensor, and each is a matrix by itself.
#[test]
fn weights_of_experts_stay_in_their_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let mut stored = RawGguf::read(fixture("tiny-mixtral.gguf"));
    let mut expanded = stored.clone();
    let mut count = 0;
    for (stored, expanded) in stored.tensors.iter_mut().zip(&mut expanded.tensors) {
        if !stored.name().ends_with("gate_exps.weight")
            && !stored.name().ends_with("up_exps.weight")
        {
            continue;
        }
        count += 1;
        let (mut blocks, mut numbers) = (Vec::new(), Vec::new());
        for block in stored.numbers().chunks_exact(32) {
            let largest = block.iter().fold(0.0, |largest: f32, number| number.abs().max(largest));
            let scale = f16::from_f32(largest / 127.0);
            let level = |number: &f32| (number / scale.to_f32()).round() as i8;
            blocks.extend(scale.to_le_bytes());
            blocks.extend(block.iter().map(|number| level(number).cast_unsigned()));
            let number = |number: &f32| f32::from(level(number)) * scale.to_f32();
            numbers.extend(block.iter().flat_map(|it| number(it).to_le_bytes()));
        }
        stored.stored(8, blocks);
        expanded.stored(0, numbers);
    }
    assert_eq!(count, 4);
    let load = |file: &RawGguf, name: &str| {
        file.write(dir.path().join(name));
        Model::load(dir.path().join(name), &device(), DType::F32).unwrap()
    };
    let (stored, expanded) = (load(&stored, "stored.gguf"), load(&expanded, "expanded.gguf"));
    // Of two layers, three experts of two matrices of 16 rows.
    let less = expanded.weight_bytes() - stored.weight_bytes();
    assert_eq!(less, 2 * 3 * 2 * 16 * (32 * 4 - 34));
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 384).collect();
    assert_close("experts", &logits(&stored, &tokens), &logits(&expanded, &tokens), 2e-4);
}

#[test]
fn a_model_is_quantized() {
    let tokens: Vec<u32> = (0..200).map(|i| i * 37 % 4096).collect();
    let model = Model::load(ember(), &device(), DType::F32).unwrap();
    let expected = logits(&model, &tokens);
    // How far logits are off, as a share of how far they are apart.
    let size = expected.iter().map(|logit| logit.powi(2)).sum::<f32>().sqrt();
    let off = |model: &Model| {
        let found = logits(model, &tokens);
        let squares = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2));
        squares.sum::<f32>().sqrt() / size
    };
    let quantized = |bits| model.clone().quantize_weights(bits).unwrap();
    let (eight, four) = (quantized(WeightBits::Eight), quantized(WeightBits::Four));
    let share = |of: &Model| of.weight_bytes() as f64 / model.weight_bytes() as f64;
    let (of_eight, of_four) = (share(&eight), share(&four));
    assert!(of_eight < 0.26 && of_four < of_eight - 0.05, "{of_eight}, {of_four}");
    let (by_eight, by_four) = (off(&eight), off(&four));
    println!("{of_eight} {of_four} of the bytes, {by_eight} {by_four} off");
    // Of normal weights the largest of a group is some 2.7 deviations, and levels are 1/127 and 1/8
    // of it apart: products are off by 0.6 % and 10 %, twelve after another by twice to four times.
    assert!((0.006..0.025).contains(&by_eight), "{by_eight}");
    assert!((0.1..0.4).contains(&by_four), "{by_four}");
    // What is quantized stays as it is.
    let again = eight.clone().quantize_weights(WeightBits::Four).unwrap();
    assert_eq!(again.weight_bytes(), eight.weight_bytes());
}

#[test]
fn the_type_is_that_of_the_file() {
    for (path, stored) in [
        (ember(), DType::BF16),
        (fixture("llama-quantized.gguf"), DType::F16),
        (fixture("qwen3.gguf"), DType::F16),
    ] {
        // The host computes in f32 alone.
        assert_eq!(Model::default_dtype(&path, &device()).unwrap(), DType::F32);
        assert_eq!(Model::stored_dtype(&path).unwrap(), stored, "{}", path.display());
    }
    let missing = Model::stored_dtype(fixtures()).unwrap_err();
    assert!(matches!(missing, Error::NoWeights { .. }), "{missing}");
}

#[test]
fn a_tokenizer_is_that_of_its_folder() {
    let (file, folder) =
        (Tokenizer::load(fixture("vocabulary.gguf")).unwrap(), Tokenizer::load(ember()).unwrap());
    assert_eq!(file.vocab_size(), folder.vocab_size());
    for text in [
        "The gardener wrote 1234 words on 5 pages, didn't she?",
        "  two spaces,\n\na line\tand a tab;   three",
        "Größe, naïve café — 東京 и Москва 🙂!",
        "<|begin_of_text|>x² + y³ = 10_000<|end_of_text|>\n",
        "",
    ] {
        for special in [true, false] {
            let ids = folder.encode(text, special).unwrap();
            assert_eq!(file.encode(text, special).unwrap(), ids, "{text}");
            assert_eq!(file.decode(&ids).unwrap(), folder.decode(&ids).unwrap());
        }
    }
    let template = ChatTemplate::load(fixture("vocabulary.gguf")).unwrap().unwrap();
    let messages = [ChatMessage::new("user", "a"), ChatMessage::new("assistant", "b")];
    let text = template.render(&messages, false).unwrap();
    assert_eq!(text, "<|begin_of_text|>[a][b]<|end_of_text|>");
    assert!(ChatTemplate::load(fixture("qwen2.gguf")).unwrap().is_none());
    // A tokenizer_config.json beside the file that has none does not hide it.
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("vocabulary.gguf"), dir.path().join("a.gguf")).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
    assert!(ChatTemplate::load(dir.path()).unwrap().is_some());
}

#[test]
fn a_folder_may_hold_one_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("qwen2.gguf"), dir.path().join("a.gguf")).unwrap();
    let config = ModelConfig::from_folder(dir.path()).unwrap();
    assert_eq!(config, ModelConfig::from_folder(fixture("qwen2.gguf")).unwrap());
    // A tokenizer.json beside it goes before its own, which this one lacks.
    assert!(Tokenizer::load(dir.path()).is_err());
    fs::copy(ember().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    Tokenizer::load(dir.path()).unwrap();
    fs::copy(fixture("qwen3.gguf"), dir.path().join("b.GGUF")).unwrap();
    let error = ModelConfig::from_folder(dir.path()).unwrap_err();
    assert!(matches!(error, Error::SeveralGguf { count: 2, .. }), "{error}");
}

/// A folder of a file that was downloaded with a part of what lies beside it.
#[test]
fn a_file_goes_before_a_configuration_without_weights() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixture("qwen2.gguf"), dir.path().join("a.gguf")).unwrap();
    let expected = ModelConfig::from_folder(fixture("qwen2.gguf")).unwrap();
    let full = fs::read_to_string(ember().join("config.json")).unwrap();
    for config in [r#"{ "model_type": "llama" }"#, &full] {
        fs::write(dir.path().join("config.json"), config).unwrap();
        assert_eq!(ModelConfig::from_folder(dir.path()).unwrap(), expected);
        Model::load(dir.path(), &device(), DType::F32).unwrap();
    }
    // A whole folder is one, whatever lies in it too.
    fs::copy(ember().join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let config = ModelConfig::from_folder(dir.path()).unwrap();
    assert_eq!(config, ModelConfig::from_file(ember().join("config.json")).unwrap());
}

#[test]
fn the_parts_of_a_file_are_read_together() {
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % 96).collect();
    for (name, count) in [("llama", 3), ("llama-quantized", 2)] {
        let whole = Model::load(fixture(&format!("{name}.gguf")), &device(), DType::F32).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path =
            |number: u16| dir.path().join(format!("{name}-{:05}-of-{count:05}.gguf", number + 1));
        let parts = RawGguf::read(fixture(&format!("{name}.gguf"))).split(count);
        for (part, number) in parts.iter().zip(0..) {
            part.write(path(number));
        }
        // The folder, or any of them.
        for named in [dir.path().into(), path(0), path(count - 1)] {
            let model = Model::load(&named, &device(), DType::F32).unwrap();
            assert_eq!(model.config(), whole.config());
            assert_eq!(logits(&model, &tokens), logits(&whole, &tokens), "{name}");
        }
        let refused = |part: &str| {
            let error = ModelConfig::from_folder(dir.path()).unwrap_err();
            assert!(matches!(error, Error::Gguf { .. }), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        };
        parts[0].write(path(1));
        refused(&format!("it is not part 2 of {count}"));
        let mut less = parts[1].clone();
        less.tensors.pop();
        less.write(path(1));
        refused("split.tensors.count is");
        fs::remove_file(path(1)).unwrap();
        let absent = |named: &Path| ModelConfig::from_folder(named).unwrap_err();
        let error = absent(dir.path());
        let said = format!("part 2 of {count} of a GGUF file is absent");
        assert!(error.to_string().starts_with(&said), "{error}");
        parts[1].write(path(1));
        let hidden = dir.path().join("hidden");
        fs::rename(path(0), &hidden).unwrap();
        for named in [dir.path(), &path(1)] {
            let error = absent(named);
            assert!(
                matches!(&error, Error::MissingPart { part, number: 1, .. } if *part == path(0)),
                "{error}"
            );
        }
        fs::rename(&hidden, path(0)).unwrap();
        fs::rename(path(0), dir.path().join("model.gguf")).unwrap();
        for number in 1..count {
            let _ = fs::remove_file(path(number));
        }
        refused(&format!("it is one of {count} parts, but is not called NAME-00001-of-"));
    }
}

#[test]
fn a_llama_may_have_biases_of_queries_keys_and_values_alone() {
    let source = fixtures().join("llama");
    let config = json(source.join("config.json"));
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (layers, hidden) = (size("num_hidden_layers"), size("hidden_size"));
    let dim = size("head_dim");
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut raw = RawGguf::read(fixture("llama.gguf"));
    let mut biases: Vec<(String, Vec<f32>)> = Vec::new();
    for layer in 0..layers {
        for (part, heads) in [
            ("q", "num_attention_heads"),
            ("k", "num_key_value_heads"),
            ("v", "num_key_value_heads"),
        ] {
            let channels = size(heads) * dim;
            let bias: Vec<f32> = (0..channels).map(|i| (i * 7 % 11) as f32 * 0.1 - 0.5).collect();
            // Pairs of rotated channels lie beside each other there.
            let place = |i: usize| i / dim * dim + i % 2 * (dim / 2) + i % dim / 2;
            let paired: Vec<f32> = (0..channels).map(|i| bias[place(i)]).collect();
            let stored = if part == "v" { &bias } else { &paired };
            raw.tensors.push(RawTensor::of(&format!("blk.{layer}.attn_{part}.bias"), stored));
            biases.push((format!("model.layers.{layer}.self_attn.{part}_proj.bias"), bias));
        }
        // A folder has a bias of the output too.
        let output = format!("model.layers.{layer}.self_attn.o_proj.bias");
        biases.push((output, vec![0.0; hidden]));
    }
    let bytes: Vec<Vec<u8>> = biases
        .iter()
        .map(|(_, bias)| bias.iter().flat_map(|number| number.to_le_bytes()).collect())
        .collect();
    let views = biases.iter().zip(&bytes).map(|((name, bias), bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, vec![bias.len()], bytes).unwrap())
    });
    let all = safetensors::serialize(file.tensors().into_iter().chain(views), None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), all).unwrap();
    let config = with_keys(config, &serde_json::json!({ "attention_bias": true }));
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let path = dir.path().join("model.gguf");
    raw.write(&path);

    let tokens: Vec<u32> = (0..30).map(|i| i * 37 % 96).collect();
    let model = |path: &Path| Model::load(path, &device(), DType::F32).unwrap();
    let (file, folder) = (model(&path), model(dir.path()));
    assert!(file.config().attention_bias && !file.config().output_bias);
    assert_close("biases", &logits(&file, &tokens), &logits(&folder, &tokens), 1e-5);
    let without = logits(&model(&fixture("llama.gguf")), &tokens);
    assert_ne!(logits(&file, &tokens), without);
}

/// As llama.cpp reads them: `llama_model::load_hparams`.
#[test]
fn a_factor_of_the_frequencies_is_linear_without_a_type() {
    let dir = tempfile::tempdir().unwrap();
    let scaling = |file: RawGguf| {
        let path = dir.path().join("model.gguf");
        file.write(&path);
        ModelConfig::from_folder(&path).map(|config| config.rope.scaling)
    };
    let (factor, kind) = ("llama.rope.scaling.factor", "llama.rope.scaling.type");
    let typed = RawGguf::read(fixture("llama-linear.gguf"));
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(scaling(typed.clone()).unwrap(), linear);
    let untyped = typed.clone().without(kind);
    assert_eq!(scaling(untyped.clone()).unwrap(), linear);
    let bare = untyped.clone().without(factor);
    assert_eq!(scaling(bare.clone()).unwrap(), RopeScaling::Default);
    let old = bare.float("llama.rope.scale_linear", 4.0);
    assert_eq!(scaling(old.clone()).unwrap(), linear);
    assert_eq!(scaling(old.float(factor, 2.0)).unwrap(), RopeScaling::Linear { factor: 2.0 });
    // 0 is none, and so is any where the type says so.
    assert_eq!(scaling(typed.clone().float(factor, 0.0)).unwrap(), RopeScaling::Default);
    assert_eq!(scaling(untyped.text(kind, "none")).unwrap(), RopeScaling::Default);
    let other = scaling(typed.clone().text(kind, "ntk")).unwrap_err();
    assert!(other.to_string().contains("rope.scaling.type = ntk"), "{other}");
    let attention = scaling(typed.float("llama.rope.scaling.attn_factor", 1.2)).unwrap_err();
    assert!(attention.to_string().contains("attn_factor"), "{attention}");
    // Divisors of each frequency, and a factor of all.
    let llama3 = RawGguf::read(fixture("llama.gguf"));
    let divisors = |file: RawGguf| match scaling(file).unwrap() {
        RopeScaling::LongRope { short_factor, .. } => short_factor,
        other => panic!("{other:?}"),
    };
    let twice: Vec<f64> = divisors(llama3.clone()).iter().map(|divisor| divisor * 2.0).collect();
    assert_eq!(divisors(llama3.float(factor, 2.0)), twice);
}

#[test]
fn a_file_without_a_pre_tokenizer_has_a_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let old = RawGguf::read(fixture("vocabulary.gguf")).without("tokenizer.ggml.pre");
    old.write(dir.path().join("model.gguf"));
    assert_refused(Tokenizer::load(dir.path()), &["tokenizer.ggml.pre", "tokenizer.json"]);
    fs::copy(ember().join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    Tokenizer::load(dir.path()).unwrap();
}

/// Reads the parts of a file that come before its weights.
fn open(bytes: &[u8]) -> Result<ModelConfig, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let config = ModelConfig::from_folder(&path);
    // None of these may panic.
    let _ = (Tokenizer::load(&path), ChatTemplate::load(&path), Model::stored_dtype(&path));
    config
}

fn qwen2() -> Vec<u8> {
    fs::read(fixture("qwen2.gguf")).unwrap()
}

/// Place of the first occurrence of a text in the file.
fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

fn with(at: usize, replaced: &[u8]) -> Vec<u8> {
    let mut bytes = qwen2();
    bytes[at..at + replaced.len()].copy_from_slice(replaced);
    bytes
}

fn damaged(bytes: &[u8], part: &str) {
    match open(bytes) {
        Err(Error::Gguf { message, .. }) => assert!(message.contains(part), "{message}"),
        other => panic!("{part}: {other:?}"),
    }
}

#[test]
fn a_cut_file_is_refused() {
    let whole = qwen2();
    for length in (0..1500).chain((1500..whole.len() - 32).step_by(1009)) {
        let error = open(&whole[..length]).unwrap_err();
        assert!(matches!(error, Error::Gguf { .. } | Error::Truncated { .. }), "{length}: {error}");
    }
    let cut = open(&whole[..whole.len() - 2000]).unwrap_err();
    assert!(matches!(cut, Error::Truncated { .. }), "{cut}");
}

#[test]
fn what_a_header_claims_is_checked() {
    let huge = u64::MAX.to_le_bytes();
    damaged(&with(0, b"GGML"), "begins with");
    damaged(&with(4, &[1]), "version 1");
    damaged(&with(4, &[0, 0, 0, 3]), "big-endian");
    // As many tensors, values and bytes of a key as a number can say.
    damaged(&with(8, &huge), "");
    damaged(&with(16, &huge), "");
    damaged(&with(24, &huge), "are claimed at byte 32");

    // A tensor: the length of its name, its name, dimensions, type, place.
    let bytes = qwen2();
    let name = "blk.0.attn_q.weight";
    let behind = find(&bytes, name) + name.len();
    damaged(&with(behind, &9_u32.to_le_bytes()), "9 dimensions");
    damaged(&with(behind + 4, &huge), "dimensions");
    damaged(&with(behind + 24, &huge), "");
    for (kind, shown) in [(16_u32, "type 16 (IQ2_XXS)"), (77, "type 77")] {
        let error = open(&with(behind + 20, &kind.to_le_bytes())).unwrap_err();
        assert!(matches!(error, Error::BlockType { .. }), "{error}");
        let message = error.to_string();
        let parts = [name, shown, "llama-quantize"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let twice = find(&bytes, "blk.1.attn_q.weight");
    damaged(&with(twice, name.as_bytes()), "twice");

    // A value: its key, its type, what it is.
    let key = "qwen2.context_length";
    let value = find(&bytes, key) + key.len();
    damaged(&with(value, &99_u32.to_le_bytes()), "type 99");
    damaged(&with(value, &6_u32.to_le_bytes()), "must be a number");
    damaged(&with(find(&bytes, key), b"qwen2.contest"), "context_length is not there");
    damaged(&with(value + 4, &u32::MAX.to_le_bytes()), "context_length is 4294967295");
    let key = "qwen2.block_count";
    let value = find(&bytes, key) + key.len() + 4;
    damaged(&with(value, &(1_u32 << 31).to_le_bytes()), "block_count is 2147483648");
    let key = "qwen2.rope.freq_base";
    let value = find(&bytes, key) + key.len() + 4;
    damaged(&with(value, &f32::NAN.to_le_bytes()), "freq_base is NaN, but must be a finite float");
    damaged(&with(value, &f32::INFINITY.to_le_bytes()), "freq_base is inf, but must be");
}

#[test]
fn a_damaged_byte_does_not_panic() {
    let whole = qwen2();
    let header = find(&whole, "output_norm.weight") + 200;
    let mut refused = 0;
    for at in 0..header {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        refused += usize::from(open(&bytes).is_err());
    }
    assert!(refused > header / 4, "{refused} of {header}");
}

/// Tokenizers with scores, experts, and the keys of families.
#[test]
fn a_damaged_byte_of_a_family_does_not_panic() {
    for (name, header, step) in [
        ("sentencepiece.gguf", 8000, 13),
        ("tiny-mixtral.gguf", 10_000, 101),
        ("tiny-phi3.gguf", 10_000, 101),
        ("tiny-gemma3.gguf", 14_000, 101),
        ("tiny-gpt-oss.gguf", 12_000, 101),
    ] {
        let whole = fs::read(fixture(name)).unwrap();
        for at in (0..700).step_by(step / 6).chain((700..header).step_by(step)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let _ = open(&bytes);
        }
    }
}

#[test]
fn missing_and_unknown_things_are_named() {
    let load = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        Model::load(&path, &device(), DType::F32).err()
    };
    let name = "blk.1.ffn_down.weight";
    match load(&with(find(&qwen2(), name), b"blk.1.ffn_dawn.weight")) {
        Some(Error::MissingTensor { tensor, count: 1, .. }) => {
            assert_eq!(tensor, "model.layers.1.mlp.down_proj.weight");
        }
        other => panic!("{other:?}"),
    }
    let family = find(&qwen2(), "general.architecture") + 20 + 4 + 8;
    match load(&with(family, b"gpt-2")) {
        Some(Error::ModelType { found, known }) => {
            assert_eq!(
                (found.as_str(), known.as_str()),
                ("gpt-2", "llama, qwen2, qwen3, qwen3moe, phi3, gemma2, gemma3, gpt-oss")
            );
        }
        other => panic!("{other:?}"),
    }
    let absent = Model::load(fixture("none.gguf"), &device(), DType::F32).unwrap_err();
    assert!(matches!(absent, Error::NoSuchModel { .. }), "{absent}");
    // This one has no weights.
    let bare = Model::load(fixture("vocabulary.gguf"), &device(), DType::F32).unwrap_err();
    assert!(bare.to_string().contains("token_embd.weight"), "{bare}");
}

/// As llama.cpp cuts them, `tests/goldens/gguf_llama_cpp.py`.
#[test]
fn texts_are_cut_as_gpt_oss_cuts_them() {
    let golden = json(fixture("byte-pairs.json"));
    let dir = tempfile::tempdir().unwrap();
    let file = RawGguf::read(fixture("vocabulary.gguf")).text("tokenizer.ggml.pre", "gpt-4o");
    file.write(dir.path().join("model.gguf"));
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let texts = golden["texts"].as_array().unwrap().iter().map(text);
    for (text, expected) in texts.zip(golden["tokens"].as_array().unwrap()) {
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids(expected), "{text:?}");
    }
}

/// A file of the metadata of a tokenizer: texts, lists of texts, lists of numbers.
fn vocabulary(pre: &str, model: &str) -> tempfile::TempDir {
    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(5_u64.to_le_bytes());
    for (key, value) in [("model", model), ("pre", pre)] {
        text(&mut bytes, &format!("tokenizer.ggml.{key}"));
        bytes.extend(8_u32.to_le_bytes());
        text(&mut bytes, value);
    }
    for (key, list) in
        [("tokens", &["<s>", "1", "2", "3", "12", "123"][..]), ("merges", &["1 2", "12 3"])]
    {
        text(&mut bytes, &format!("tokenizer.ggml.{key}"));
        bytes.extend([9_u32, 8].map(u32::to_le_bytes).concat());
        bytes.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|item| text(&mut bytes, item));
    }
    text(&mut bytes, "tokenizer.ggml.bos_token_id");
    bytes.extend([4_u32, 0].map(u32::to_le_bytes).concat());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.gguf"), bytes).unwrap();
    dir
}

#[test]
fn texts_are_cut_as_the_pre_tokenizer_says() {
    let ids =
        |pre: &str| Tokenizer::load(vocabulary(pre, "gpt2").path()).unwrap().encode("123312", true);
    assert_eq!(ids("gpt-2").unwrap(), [5, 3, 4]);
    assert_eq!(ids("smollm").unwrap(), [1, 2, 3, 3, 1, 2]);
    assert_eq!(ids("qwen2").unwrap(), [1, 2, 3, 3, 1, 2]);
    // Three digits at most, behind the token that begins a text.
    assert_eq!(ids("llama-bpe").unwrap(), [0, 5, 3, 4]);
    for (pre, model, part) in [("new-kind", "gpt2", "new-kind"), ("gpt-2", "t5", "`t5`")] {
        let refused = Tokenizer::load(vocabulary(pre, model).path());
        assert_refused(refused, &[part, "tokenizer.json"]);
    }
}

/// As llama.cpp makes them, `tests/goldens/gguf_llama_cpp.py`: with a space in front and without,
/// and with special tokens that take the spaces behind them.
#[test]
fn tokens_of_sentencepiece_are_those_of_llama_cpp() {
    let golden = json(fixture("sentencepiece.json"));
    let texts: Vec<&str> = golden["texts"].as_array().unwrap().iter().map(text).collect();
    assert!(texts.len() > 60);
    for (name, tokens) in golden["tokens"].as_object().unwrap() {
        let tokenizer = Tokenizer::load(fixture(&format!("{name}.gguf"))).unwrap();
        for (text, expected) in texts.iter().zip(tokens.as_array().unwrap()) {
            let found = tokenizer.encode(text, true).unwrap();
            assert_eq!(found, ids(expected), "{name}: {text:?}");
        }
        // Also one token at a time.
        let written = "Größe:  東京\n🙂";
        let tokens = tokenizer.encode(written, true).unwrap();
        let mut stream = tokenizer.stream();
        let mut parts: Vec<String> = tokens.iter().map(|id| stream.push(*id).unwrap()).collect();
        parts.push(stream.finish().unwrap());
        assert_eq!(parts.concat(), written, "{name}");
        assert_eq!(tokenizer.decode(&tokens).unwrap(), written, "{name}");
    }
}

#[test]
fn a_vocabulary_of_sentencepiece_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let load = |file: RawGguf| {
        file.write(&path);
        Tokenizer::load(&path)
    };
    let whole = RawGguf::read(fixture("sentencepiece.gguf"));
    // Without scores every pair is as good as another, and without types no token is special.
    load(whole.clone().without("tokenizer.ggml.scores")).unwrap();
    let plain = load(whole.clone().without("tokenizer.ggml.token_type")).unwrap();
    assert!(plain.encode("<|turn|>", false).unwrap().len() > 3);
    let few = load(whole.clone().floats("tokenizer.ggml.scores", &[0.0; 3])).unwrap_err();
    assert!(few.to_string().contains("384 tokens are named, and 3 have a score"), "{few}");
    let text = load(whole.text("tokenizer.ggml.scores", "high")).unwrap_err();
    assert!(text.to_string().contains("must be a list of floats"), "{text}");
}

/// A model of 96 tokens whose first have these names and types; it ends texts with token 1.
fn with_tokens(named: &[(&str, u32)]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let named = |id: usize| named.get(id).map_or((format!("t{id}"), 1), |(n, k)| ((*n).into(), *k));
    let list = |key: &str, kind: u32, items: Vec<u8>| {
        let kinds = [9, kind].map(u32::to_le_bytes).concat();
        [text(key), kinds, 96_u64.to_le_bytes().to_vec(), items].concat()
    };
    let tokens = (0..96).flat_map(|id| text(&named(id).0)).collect();
    let kinds = (0..96).flat_map(|id| named(id).1.to_le_bytes()).collect();
    let mut keys = list("tokenizer.ggml.tokens", 8, tokens);
    keys.extend(list("tokenizer.ggml.token_type", 4, kinds));
    // Weights begin at a multiple of 32 bytes.
    let filler = |length: usize| {
        [text("filler"), 8_u32.to_le_bytes().to_vec(), text(&" ".repeat(length))].concat()
    };
    keys.extend(filler(31 - (keys.len() + filler(0).len() + 31) % 32));
    let mut bytes = qwen2();
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 3;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(24..24, keys);
    bytes
}

#[test]
fn answers_end_at_the_tokens_that_end_turns() {
    let ends = |named: &[(&str, u32)]| open(&with_tokens(named)).unwrap().eos_token_ids;
    let (control, own) = (3, 4);
    assert_eq!(ends(&[]), [1]);
    // The file says that texts end with token 1; turns end with others.
    let names = [("<|im_end|>", control), ("<|endoftext|>", control), ("<|im_start|>", control)];
    assert_eq!(ends(&names), [1, 0]);
    let names = [("<|eot_id|>", control), ("</s>", control), ("<|eom_id|>", control)];
    assert_eq!(ends(&names), [1, 0, 2]);
    // A word of the vocabulary ends nothing.
    assert_eq!(ends(&[("<|im_end|>", own), ("</s>", control), ("<end_of_turn>", 1)]), [1]);
    // Where calls of tools have an end of their own, `<|end|>` ends a part of an answer.
    assert_eq!(ends(&[("<|end|>", control), ("</s>", control)]), [1, 0]);
    let harmony = [("<|end|>", 3), ("<|endoftext|>", 3), ("<|return|>", 3), ("<|call|>", 3)];
    assert_eq!(ends(&harmony), [1, 2, 3]);
}

/// The answers of llama.cpp on random models, `tests/goldens/gguf_llama_cpp.py`.
fn assert_answers_as_llama_cpp(name: &str, model: &Model, tokenizer: &Tokenizer) {
    let golden = &json(fixture("families.json"))[name];
    let tokens = tokenizer.encode(text(&golden["prompt"]), true).unwrap();
    assert_eq!(tokens, ids(&golden["tokens"]), "{name}");
    let last = logits(model, &tokens).split_off((tokens.len() - 1) * model.config().vocab_size);
    let some: Vec<f32> = last.into_iter().step_by(16).collect();
    let expected = golden["logits"].as_array().unwrap().iter();
    let expected: Vec<f32> = expected.map(|logit| logit.as_f64().unwrap() as f32).collect();
    // llama.cpp has a table of GELU in F16, and rounds what weights in F16 are multiplied with.
    let tolerance = if name.starts_with("gemma") { 1e-2 } else { 1e-4 };
    assert_close(name, &some, &expected, tolerance);
    let greedy = ids(&golden["greedy"]);
    let mut cache = cache(model);
    let (found, _) = generate(model, &tokens, &mut cache, &options(greedy.len()), |_| {}).unwrap();
    assert_eq!(found.tokens, greedy, "{name}");
    let whole = [tokens, greedy].concat();
    let expected = format!("{}{}", text(&golden["prompt"]), text(&golden["text"]));
    assert_eq!(tokenizer.decode(&whole).unwrap(), expected, "{name}");
}

#[test]
fn families_answer_as_in_llama_cpp() {
    for name in ["mixtral", "qwen3moe", "phi3", "gemma2", "gemma3", "gpt-oss"] {
        let path = fixture(&format!("tiny-{name}.gguf"));
        let model = Model::load(&path, &device(), DType::F32).unwrap();
        assert_answers_as_llama_cpp(name, &model, &Tokenizer::load(&path).unwrap());
    }
    let path = fixture("tiny-phi3.gguf");
    let config = ModelConfig::from_folder(&path).unwrap().with_context(512).unwrap();
    let model = Model::load_as(config, &path, &device(), DType::F32).unwrap();
    assert_answers_as_llama_cpp("phi3-long", &model, &Tokenizer::load(&path).unwrap());
}

/// What llama.cpp takes where a file does not say it, and what the keys of a family mean.
#[test]
fn metadata_of_a_family_is_its_configuration() {
    let shared = r#""vocab_size": 384, "hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 256, "rms_norm_eps": 9.999999747378752e-06,
        "bos_token_id": 1, "eos_token_id": [2, 373, 374]"#;
    for (name, own) in [
        (
            "mixtral",
            r#""model_type": "mixtral", "num_hidden_layers": 2, "rope_theta": 10000, "num_local_experts": 3,
                "num_experts_per_tok": 2, "sliding_window": null"#,
        ),
        (
            "qwen3moe",
            r#""model_type": "qwen3_moe", "num_hidden_layers": 2, "head_dim": 8, "rope_theta": 1000000,
                "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true"#,
        ),
        // Refused alike as long as scores have no cap.
        (
            "gemma2",
            r#""model_type": "gemma2", "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
                "query_pre_attn_scalar": 16, "sliding_window": 128, "attn_logit_softcapping": 50,
                "final_logit_softcapping": 30"#,
        ),
        (
            "gemma3",
            r#""model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16,
                "sliding_window": 128, "rope_theta": 1000000, "rope_local_base_freq": 10000,
                "rope_scaling": { "rope_type": "linear", "factor": 2 }"#,
        ),
        (
            "gpt-oss",
            r#""model_type": "gpt_oss", "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 16,
                "rope_theta": 150000, "tie_word_embeddings": false, "rope_scaling": { "rope_type": "yarn",
                "factor": 4, "original_max_position_embeddings": 64, "truncate": true }"#,
        ),
    ] {
        // What stands behind goes before what stands in front.
        let all: Vec<Value> =
            [shared, own].map(|keys| serde_json::from_str(&format!("{{{keys}}}")).unwrap()).into();
        let expected = with_keys(all[0].clone(), &all[1]).to_string();
        let expected = ModelConfig::from_json(&expected).map_err(|error| error.to_string());
        let found = ModelConfig::from_folder(fixture(&format!("tiny-{name}.gguf")));
        assert_eq!(found.map_err(|error| error.to_string()), expected, "{name}");
    }
    let phi3 = ModelConfig::from_folder(fixture("tiny-phi3.gguf")).unwrap();
    assert_eq!((phi3.max_position_embeddings, phi3.rope.partial_rotary_factor), (256, 0.75));
    let RopeScaling::LongRope { attention_factor, long_factor, .. } = phi3.rope.scaling else {
        panic!("{:?}", phi3.rope);
    };
    assert!((attention_factor - 1.25_f64.sqrt()).abs() < 1e-6, "{attention_factor}");
    assert_eq!(long_factor[5], 6.0);
}

#[test]
fn keys_of_a_family_are_read_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let config = |file: RawGguf| {
        file.write(&path);
        ModelConfig::from_folder(&path)
    };
    let refused = |file: RawGguf, part: &str| {
        let error = config(file).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let [gemma, mixtral, phi] = ["gemma3", "mixtral", "phi3"]
        .map(|name| RawGguf::read(fixture(&format!("tiny-{name}.gguf"))));
    let local =
        |file: RawGguf| config(file).unwrap().sliding_layers.into_iter().collect::<Vec<_>>();
    assert_eq!(local(gemma.clone()), [0, 1, 2, 3, 4, 6]);
    let pattern = "gemma3.attention.sliding_window_pattern";
    assert_eq!(local(gemma.clone().number(pattern, 3)), [0, 1, 3, 4, 6]);
    assert_eq!(local(gemma.clone().number(pattern, 0)), [0, 1, 2, 3, 4, 5, 6]);
    let base = config(gemma.clone().float("gemma3.rope.freq_base_swa", 5e3)).unwrap().local_rope;
    assert_eq!(base.unwrap().theta, 5e3);
    let window = "gemma3.attention.sliding_window";
    for whole in [gemma.clone().number(window, 0), gemma.clone().without(window)] {
        let whole = config(whole).unwrap();
        assert_eq!((whole.sliding_window, whole.sliding_layers.len()), (None, 0));
    }
    assert_eq!(config(gemma.clone().without("gemma3.rope.freq_base")).unwrap().rope.theta, 1e4);
    refused(gemma.number("gemma3.expert_count", 2), "expert_count = 2");
    refused(mixtral.clone().without("llama.expert_used_count"), "expert_used_count is not there");
    refused(mixtral.clone().number("llama.expert_count", 5000), "must be at most 4096");
    refused(phi.clone().number("phi3.rope.dimension_count", 32), "partial_rotary_factor");
    refused(phi.text("phi3.rope.scaling.type", "yarn"), "rope.scaling.type = yarn");
    let gpt = RawGguf::read(fixture("tiny-gpt-oss.gguf"));
    assert_eq!(local(gpt.clone()), [0, 2]);
    let pattern = "gpt-oss.attention.sliding_window_pattern";
    assert_eq!(local(gpt.clone().number(pattern, 3)), [0, 1]);
    refused(gpt.clone().without("gpt-oss.attention.sliding_window"), "sliding_window is not there");
    refused(gpt.clone().without("gpt-oss.expert_count"), "num_local_experts");
    // A configuration of this family without a scaling would have one.
    let plain = gpt.clone().without("gpt-oss.rope.scaling.factor");
    assert_eq!(config(plain).unwrap().rope.scaling, RopeScaling::Default);
    let ramp = gpt.clone().float("gpt-oss.rope.scaling.yarn_beta_fast", 16.0);
    let ramp = config(ramp.float("gpt-oss.rope.scaling.yarn_ext_factor", 1.0)).unwrap();
    assert!(matches!(ramp.rope.scaling, RopeScaling::Yarn { beta_fast: 16.0, .. }));
    for key in ["yarn_ext_factor", "yarn_attn_factor", "yarn_log_multiplier", "attn_factor"] {
        let scaled = gpt.clone().float(&format!("gpt-oss.rope.scaling.{key}"), 0.5);
        refused(scaled, &format!("rope.scaling.{key} = 0.5"));
    }
    gpt.number("gpt-oss.expert_count", 2).write(&path);
    let error = Model::load(&path, &device(), DType::F32).unwrap_err().to_string();
    assert!(error.contains("_exps.") && error.contains("2 experts"), "{error}");
    // Three matrices are no two.
    mixtral.number("llama.expert_count", 2).write(&path);
    let error = Model::load(&path, &device(), DType::F32).unwrap_err().to_string();
    assert!(error.contains("_exps.weight") && error.contains("2 experts"), "{error}");
}

/// The real model, or a line that says that a test is skipped.
fn smollm2() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.exists() {
        return Some(path);
    }
    println!("skipped: SmolLM2 is not here, models/fetch-smollm2 fetches it");
    None
}

#[test]
fn a_real_model_is_what_transformers_reads() {
    let Some(path) = smollm2() else { return };
    let golden = json(fixture("smollm2.json"));
    let tokenizer = Tokenizer::load(&path).unwrap();
    let texts = golden["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 5);
    for case in texts {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&case["tokens"]), "{text}");
    }
    let template = ChatTemplate::load(&path).unwrap().unwrap();
    let question = ChatMessage::new("user", golden["question"].as_str().unwrap());
    let prompt = template.render(&[question], true).unwrap();
    assert_eq!(prompt, golden["prompt"].as_str().unwrap());
    let tokens = tokenizer.encode(&prompt, false).unwrap();
    assert_eq!(tokens, ids(&golden["tokens"]));

    let model = Model::load(&path, &device(), DType::F32).unwrap();
    // `<|im_end|>`, and what llama.cpp ends at too: `<|endoftext|>` and `<reponame>`.
    assert_eq!(model.config().eos_token_ids, [2, 0, 4]);
    assert!(model.weight_bytes() as u64 <= fs::metadata(&path).unwrap().len());
    let bytes = fs::read(fixture("smollm2.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name| -> Vec<f32> {
        let data = file.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let (found, width) = (logits(&model, &tokens), model.config().vocab_size);
    let every = golden["every"].as_u64().unwrap() as usize;
    let some = found.chunks_exact(width).flat_map(|row| row.iter().step_by(every).copied());
    assert_close("logits", &some.collect::<Vec<f32>>(), &floats("logits"), 1e-3);
    assert_close("last", &found[found.len() - width..], &floats("last"), 1e-3);

    let greedy = file.tensor("greedy").unwrap().data().chunks_exact(8);
    let greedy: Vec<u32> =
        greedy.map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    assert_eq!(greedy.len(), 200);
    let (generation, _) =
        generate(&model, &tokens, &mut cache(&model), &options(200), |_| {}).unwrap();
    assert_eq!(generation.tokens, greedy);
    assert_eq!(tokenizer.decode(&greedy).unwrap(), golden["text"].as_str().unwrap());
}
