//! Files that `torch.save` wrote, made by `tests/goldens/pytorch_files.py`.

mod common;
mod memory;
mod tiny;

use std::{
    fs,
    io::{Cursor, Write},
    path::{Path, PathBuf},
};

use briquette_models::{Error, Model};
use burn::tensor::DType;
use proptest::prelude::*;
use tempfile::TempDir;
use tiny::{Tiny, device, prompt, torch};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(fixtures().join("pytorch").join(name)).unwrap()
}

/// The folder of the checkpoint with these weights.
fn folder(weights: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join("qwen2/config.json"), dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), weights).unwrap();
    dir
}

fn load(dir: &Path) -> Result<Model, Error> {
    Model::load(dir, &device(), DType::F32)
}

fn logits(model: &Model) -> Vec<f32> {
    common::logits(model, &prompt(5, 12))
}

#[test]
fn what_torch_saves_is_the_same_model() {
    let expected = logits(&load(&fixtures().join("qwen2")).unwrap());
    for (name, dtype) in
        [("zip.bin", DType::BF16), ("legacy.bin", DType::BF16), ("views.bin", DType::F16)]
    {
        let dir = folder(&fixture(name));
        let model = load(dir.path()).unwrap();
        assert!(model.config().tie_word_embeddings && model.warnings().is_empty(), "{name}");
        assert_eq!(logits(&model), expected, "{name}");
        assert_eq!(Model::stored_dtype(dir.path()).unwrap(), dtype, "{name}");
    }
}

#[test]
fn shards_and_one_file_are_the_same_model() {
    let tiny = Tiny::new();
    let expected = logits(&tiny.load());
    let sharded = tiny.shards(3, "pytorch_model", "bin");
    assert_eq!(logits(&load(sharded.path()).unwrap()), expected);
    let single = tiny.configured();
    fs::write(single.path().join("pytorch_model.bin"), torch::file(tiny.tensors.iter())).unwrap();
    assert_eq!(logits(&load(single.path()).unwrap()), expected);

    let shard = sharded.path().join("pytorch_model-00002-of-00003.bin");
    fs::remove_file(&shard).unwrap();
    match load(sharded.path()) {
        Err(Error::MissingShard { shard: named, missing: 1, shards: 3 }) => {
            assert_eq!(named, shard)
        }
        other => panic!("{other:?}"),
    }
}

/// As in `transformers`.
#[test]
fn safetensors_go_first() {
    let one = Tiny::new();
    let mut other = one.clone();
    other.random("model.norm.weight", &[24]);
    for number in other.tensors.get_mut("model.norm.weight").unwrap().bytes.chunks_exact_mut(4) {
        number.copy_from_slice(&1.5_f32.to_le_bytes());
    }
    let expected = logits(&one.load());
    assert_ne!(logits(&other.load()), expected);
    for dir in [one.folder(), one.sharded_folder()] {
        let path = dir.path().join("pytorch_model.bin");
        fs::write(path, torch::file(other.tensors.iter())).unwrap();
        assert_eq!(logits(&load(dir.path()).unwrap()), expected);
    }
}

fn refused(weights: &[u8]) -> Error {
    let dir = folder(weights);
    let error = load(dir.path()).unwrap_err();
    assert!(!dir.path().join("it-was-run").exists() && !Path::new("it-was-run").exists());
    error
}

#[test]
fn code_is_named_and_not_run() {
    let error = refused(&fixture("code.bin"));
    match &error {
        Error::PytorchObject { key, kind, .. } => {
            assert_eq!((key.as_str(), kind.as_str()), ("extra", "posix.system"));
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("nothing was run"), "{error}");
    // All of the file is a call.
    let error = refused(&plain(b"cposix\nsystem\nX\x10\0\0\0touch it-was-run\x85R"));
    assert!(matches!(error, Error::PytorchObject { .. }), "{error}");
}

#[test]
fn what_is_no_plain_dictionary_is_named() {
    for (name, key) in [("nested.bin", "state_dict"), ("model.bin", "0")] {
        let error = refused(&fixture(name));
        assert!(
            matches!(&error, Error::PytorchNested { key: found, .. } if found == key),
            "{error}"
        );
        assert!(error.to_string().contains("model.state_dict()"), "{error}");
    }
    let error = refused(&fixture("sparse.bin"));
    assert!(matches!(error, Error::Pytorch { .. }), "{error}");
    assert!(error.to_string().contains("torch._utils._rebuild_sparse_tensor"), "{error}");
}

/// A file of the format before 1.6 whose content is a list and these opcodes.
fn plain(opcodes: &[u8]) -> Vec<u8> {
    let mut file = torch::file([].into_iter());
    let empty = b"\x80\x02}(u.";
    let at = file.windows(empty.len()).position(|it| it == empty).unwrap();
    file.splice(at..at + empty.len(), [b"\x80\x02]", opcodes, b"."].concat());
    file
}

/// A file of today's format whose pickle has these opcodes.
fn zip(opcodes: &[u8], method: CompressionMethod) -> Vec<u8> {
    let mut file = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    file.start_file("archive/data.pkl", options).unwrap();
    file.write_all(&[b"\x80\x02]", opcodes, b"."].concat()).unwrap();
    file.finish().unwrap().into_inner()
}

#[test]
fn what_is_no_file_of_torch_is_named() {
    let mut early = vec![0; 512];
    early[257..262].copy_from_slice(b"ustar");
    let safetensors = fs::read(fixtures().join("qwen2/model.safetensors")).unwrap();
    for (weights, says) in [
        (&early[..], "the format before PyTorch 0.1.10"),
        (&safetensors, "torch.save did not write it"),
        (&[], "torch.save did not write it"),
        (b"\x80\x02}.", "torch.save did not write it"),
        (b"PK\x03\x04", "invalid Zip archive"),
        (&plain(&[0x85; 990]), "no dictionary of tensors"),
        (&plain(&[0x85; 5000]), "nesting exceeds"),
        (&plain(&vec![b'N'; 8 << 20]), "torch.save did not write it"),
        (&zip(&vec![b'N'; 8 << 20], CompressionMethod::Stored), "its pickle is longer than"),
        (&zip(&vec![b'N'; 8 << 20], CompressionMethod::Deflated), "it is compressed"),
    ] {
        let error = refused(weights);
        assert!(matches!(error, Error::Pytorch { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_changed_byte_of_a_tensor_is_told_of() {
    let mut weights = fixture("zip.bin");
    weights[20_000] ^= 1;
    let error = refused(&weights);
    assert!(matches!(error, Error::LoadTensor { .. }), "{error}");
    assert!(error.to_string().contains("Invalid checksum"), "{error}");
    let error = refused(&weights[..30_000]);
    assert!(error.to_string().contains("fetch it again"), "{error}");
}

/// A view of stride 0 can claim any size.
#[test]
fn a_file_holds_what_it_claims() {
    let mut tiny = Tiny::new();
    tiny.random("model.norm.weight", &[1]);
    let mut weights = torch::file(tiny.tensors.iter());
    // One number, 2^31 - 1 times.
    let at = |of: &[u8], what: &[u8]| of.windows(what.len()).rposition(|it| it == what).unwrap();
    let shape = at(&weights, b"tQK\0(J\x01\0\0\0t(J\x01\0\0\0t");
    weights[shape + 6..shape + 10].copy_from_slice(&i32::MAX.to_le_bytes());
    weights[shape + 13..shape + 17].copy_from_slice(&0_i32.to_le_bytes());
    let error = refused(&weights);
    assert!(error.to_string().contains("its tensors claim 85899"), "{error}");
}

/// Where a file is cut, or what of it is changed.
#[derive(Clone, Debug)]
enum Damage {
    Cut(prop::sample::Index),
    Changed(Vec<(prop::sample::Index, u8)>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        index().prop_map(Damage::Cut),
        prop::collection::vec((index(), any::<u8>()), 1..4).prop_map(Damage::Changed),
    ]
}

#[test]
fn no_damaged_file_takes_all_memory() {
    let config = fs::read_to_string(fixtures().join("qwen2/config.json")).unwrap();
    let good: Vec<Vec<u8>> =
        ["zip.bin", "legacy.bin", "code.bin", "nested.bin"].map(fixture).into();
    let inputs = (0..good.len(), damage(), any::<bool>());
    memory::bounded(
        "no_damaged_file_takes_all_memory",
        (600, 512),
        inputs,
        |(file, damage, early)| {
            let mut weights = good[file].clone();
            // Most of a file is numbers: half of the damage falls where its pickle is.
            let room = if early { weights.len().min(6000) } else { weights.len() };
            match damage {
                Damage::Cut(at) => weights.truncate(at.index(room)),
                Damage::Changed(places) => {
                    for (at, byte) in places {
                        weights[at.index(room)] = byte;
                    }
                }
            }
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("config.json"), &config).unwrap();
            fs::write(dir.path().join("pytorch_model.bin"), &weights).unwrap();
            let loaded = load(dir.path());
            // Burn turns a panic of a reader into an error.
            if let Err(error) = &loaded {
                assert!(!error.to_string().contains("panic"), "{error}");
            }
            loaded.is_ok()
        },
    );
}
