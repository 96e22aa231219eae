//! The files of a run import each other in one direction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The modules beside it that a file names behind `super::`, its tests left out.
fn imports(text: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for rest in code.split("super::").skip(1) {
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split(';').next().unwrap_or_default(),
            None => {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
            }
        };
        let words = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        found.extend(words.map(str::to_owned).filter(|word| modules.contains(word)));
    }
    found
}

/// The files that are imported, in some steps, by what they import.
fn in_circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<&String> {
    let reaches = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(imports[file].iter().filter(|other| seen.insert((*other).clone())));
        }
        seen.contains(from)
    };
    imports.keys().filter(|file| reaches(file)).collect()
}

#[test]
fn no_file_of_a_run_is_in_a_circle() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/run");
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name != "mod" {
            texts.insert(name, fs::read_to_string(path).unwrap());
        }
    }
    let modules: BTreeSet<String> = texts.keys().cloned().collect();
    let all: BTreeMap<String, BTreeSet<String>> =
        texts.iter().map(|(name, text)| (name.clone(), imports(text, &modules))).collect();
    assert!(all["begin"].contains("results") && all["results"].contains("header"), "{all:?}");
    assert_eq!(in_circles(&all), Vec::<&String>::new(), "{all:#?}");
}

#[test]
fn a_circle_is_seen() {
    let sets = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let of = |name: &str, names: &[&str]| (name.to_owned(), sets(names));
    let all = BTreeMap::from([of("a", &["b"]), of("b", &["c"]), of("c", &["b"]), of("d", &[])]);
    assert_eq!(in_circles(&all), ["b", "c"]);
}
