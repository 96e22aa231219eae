//! Fingerprints: what tells models, texts, samples and policies from others of the same name.

use std::{
    io,
    path::{Path, PathBuf},
};

use blake3::Hasher;
use briquette::{Policy, files};
use briquette_models::is_gguf;

use crate::{Error, Result};

/// The first 128 bits of BLAKE3, in hexadecimal digits.
pub fn of(bytes: &[u8]) -> String {
    digits(Hasher::new().update(bytes))
}

/// Differs between policies, in anything that is a part of them.
pub(crate) fn of_policy(policy: &Policy) -> String {
    of(format!("{policy:?}").as_bytes())
}

/// The fingerprint of a model folder: of `config.json`, `tokenizer.json`, and every byte of the
/// weights; or of a GGUF file. Nothing is remembered between calls, since a file can change without
/// its date.
///
/// # Errors
/// [`Error::Read`], also for weights that are no regular file.
pub fn of_model(dir: &Path) -> Result<String> {
    let mut files: Vec<PathBuf> = match dir.is_dir() {
        true => crate::files::list(dir)?.into_iter().filter(|path| read_of_a_model(path)).collect(),
        false => briquette_models::parts_of(dir),
    };
    files.sort();
    let mut hasher = Hasher::new();
    for path in files {
        add(&mut hasher, &path).map_err(|source| Error::read(&path, source))?;
    }
    Ok(digits(&hasher))
}

/// Whether a file of a model folder decides what it computes: weights, whatever the case of a GGUF
/// file's ending, the configuration and the tokenizer. What ends an answer is in the settings of
/// results, what a chat template writes in samples.
fn read_of_a_model(path: &Path) -> bool {
    const FILES: [&str; 2] = ["config.json", "tokenizer.json"];
    const ENDINGS: [&str; 4] =
        [".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json"];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_gguf(path) || FILES.contains(&&*name) || ENDINGS.iter().any(|end| name.ends_with(end))
}

/// A file behind its name and length, so that no two run into each other. A GGUF file is all of a
/// model, whatever it is called.
fn add(hasher: &mut Hasher, path: &Path) -> io::Result<()> {
    let file = files::open(path)?;
    let name = match is_gguf(path) {
        true => b"gguf",
        false => path.file_name().unwrap_or_default().as_encoded_bytes(),
    };
    hasher.update(&(name.len() as u64).to_le_bytes()).update(name);
    hasher.update(&file.length().to_le_bytes());
    hasher.update_reader(file)?;
    Ok(())
}

fn digits(hasher: &Hasher) -> String {
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_byte_of_a_model_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let mut weights = vec![0_u8; 20 << 20];
        fs::write(&path, &weights).unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        let first = of_model(dir.path()).unwrap();
        assert_eq!((first.len(), of_model(dir.path()).unwrap()), (32, first.clone()));
        // One bit, at places that samples of the file would pass over.
        for at in [1, 300_000, (10 << 20) + 77, (20 << 20) - 1] {
            weights[at] ^= 1;
            fs::write(&path, &weights).unwrap();
            assert_ne!(of_model(dir.path()).unwrap(), first, "{at}");
            weights[at] ^= 1;
        }
        fs::write(&path, &weights).unwrap();
        fs::write(dir.path().join("README.md"), "nothing that is read").unwrap();
        assert_eq!(of_model(dir.path()).unwrap(), first);
        let mut known = vec![first];
        for name in ["tokenizer.json", "b.GGUF", "pytorch_model.bin"] {
            fs::write(dir.path().join(name), "{}").unwrap();
            let now = of_model(dir.path()).unwrap();
            assert!(!known.contains(&now), "{name}");
            known.push(now);
        }
    }

    #[test]
    fn a_gguf_file_may_be_called_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["a.gguf", "b.gguf"].map(|name| dir.path().join(name));
        fs::write(&one, "weights").unwrap();
        fs::write(&other, "weights").unwrap();
        assert_eq!(of_model(&one).unwrap(), of_model(&other).unwrap());
        fs::write(&other, "Weights").unwrap();
        assert_ne!(of_model(&one).unwrap(), of_model(&other).unwrap());
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("model.safetensors")).unwrap();
        let error = of_model(dir.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors: it is no regular file"), "{error}");
    }
}
