use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    Error, Result,
    checkpoint::{
        pytorch, safetensors,
        source::{WEIGHTS, original_format},
        tensors::Tensors,
    },
    json::{parse, read_text},
    shown::shown,
};

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads the headers of the files of weights of a Hugging Face folder.
pub(crate) fn open(dir: &Path) -> Result<Vec<(PathBuf, Tensors)>> {
    let Some(path) = WEIGHTS.iter().map(|name| dir.join(name)).find(|path| path.exists()) else {
        return Err(original_format(dir).unwrap_or_else(|| Error::NoWeights { dir: dir.into() }));
    };
    match path.extension().is_some_and(|ending| ending == "json") {
        true => open_shards(dir, &path),
        false => Ok(vec![(path.clone(), open_file(&path)?)]),
    }
}

fn open_file(path: &Path) -> Result<Tensors> {
    match path.extension().is_some_and(|ending| ending == "safetensors") {
        true => safetensors::open(path),
        false => pytorch::open(path),
    }
}

fn open_shards(dir: &Path, index: &Path) -> Result<Vec<(PathBuf, Tensors)>> {
    let Index { weight_map } = parse(&read_text(index)?, &index.display().to_string())?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    let inside = |name: &str| {
        let mut parts = Path::new(name).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
    };
    if let Some(name) = names.iter().find(|name| !inside(name)) {
        return Err(Error::ShardOutside { index: index.into(), shard: shown(name) });
    }
    let shards: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    let mut absent = shards.iter().filter(|shard| !shard.exists());
    if let Some(shard) = absent.next() {
        let missing = absent.count().saturating_add(1);
        return Err(Error::MissingShard { shard: shard.clone(), missing, shards: shards.len() });
    }
    let mut files: Vec<(PathBuf, Tensors)> = Vec::with_capacity(shards.len());
    for (name, shard) in names.into_iter().zip(shards) {
        let tensors = open_file(&shard)?;
        let placed = weight_map.iter().filter(|(_, holder)| *holder == name);
        let mut absent = placed.map(|(tensor, _)| tensor).filter(|it| !tensors.contains_key(*it));
        if let Some(tensor) = absent.next() {
            return Err(Error::NotInShard { tensor: shown(tensor), shard });
        }
        // `transformers` takes the one that it reads last.
        let twice = files.iter().find_map(|(first, held)| {
            Some((first, tensors.keys().find(|tensor| held.contains_key(*tensor))?))
        });
        if let Some((first, tensor)) = twice {
            return Err(Error::InTwoShards {
                tensor: shown(tensor),
                first: first.clone(),
                second: shard,
            });
        }
        files.push((shard, tensors));
    }
    Ok(files)
}
