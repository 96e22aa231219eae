//! Numbers and names in the book are those of the code: stages, traits of operations, methods of
//! traits, crates.

use std::{collections::BTreeSet, fs};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{File, Item, TraitItem, TypeParamBound};

use crate::{read, root};

const BUILT: &str = "docs/src/how-it-is-built.md";
const POLICIES: &str = "docs/src/write-a-policy.md";
const CONTRIBUTING: &str = "CONTRIBUTING.md";

/// The folders of the stages, below `crates/briquette/src`.
const STAGES: [&str; 4] = ["score", "allocate", "reduce", "store"];

/// Traits with a table of their methods, and their files below `crates/briquette/src`.
const TRAITS: [(&str, &str); 4] = [
    ("Scorer", "score/scorer.rs"),
    ("Allocator", "allocate/allocator.rs"),
    ("Reducer", "reduce/reducer.rs"),
    ("Store", "store/interface.rs"),
];

fn parsed(path: &str) -> File {
    syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names in policy files of the built-in stages of a folder, from the call of `built_in!` in
/// its `spec.rs`.
fn kinds(folder: &str) -> Vec<String> {
    let path = format!("crates/briquette/src/{folder}/spec.rs");
    let call = parsed(&path).items.into_iter().find_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("built_in") => Some(item.mac.tokens),
        _ => None,
    });
    let call = call.unwrap_or_else(|| panic!("{path}: no call of `built_in!`"));
    let lists = call.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    });
    let found: Vec<String> = lists.flat_map(stages).collect();
    assert!(!found.is_empty(), "{path}: `built_in!` lists no stage");
    found
}

/// The stages of a list of names in Rust, each with attributes before it.
fn stages(list: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let mut renamed: Option<String> = None;
    for token in list {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let attribute = group.stream().to_string();
                if let Some((start, rest)) = attribute.split_once("rename")
                    && start.starts_with("serde")
                {
                    renamed = rest.split('"').nth(1).map(str::to_owned);
                }
            }
            TokenTree::Ident(ident) => {
                found.push(renamed.take().unwrap_or_else(|| kebab_case(&ident.to_string())));
            }
            _ => {}
        }
    }
    found
}

/// The name that serde gives a variant under `rename_all = "kebab-case"`.
fn kebab_case(name: &str) -> String {
    let mut kind = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kind.is_empty() {
            kind.push('-');
        }
        kind.extend(letter.to_lowercase());
    }
    kind
}

/// The traits that `Ops` is made of.
fn traits_of_operations() -> Vec<String> {
    let path = "crates/briquette-ops/src/ops.rs";
    let bounds = parsed(path).items.into_iter().find_map(|item| match item {
        Item::Trait(item) if item.ident == "Ops" => Some(item.supertraits),
        _ => None,
    });
    let bounds = bounds.unwrap_or_else(|| panic!("{path}: no trait `Ops`"));
    let name = |bound: &TypeParamBound| match bound {
        TypeParamBound::Trait(bound) => {
            bound.path.segments.last().map(|part| part.ident.to_string())
        }
        _ => None,
    };
    bounds.iter().filter_map(name).collect()
}

/// The methods of a trait.
fn methods_of(path: &str, name: &str) -> BTreeSet<String> {
    let items = parsed(path).items.into_iter().find_map(|item| match item {
        Item::Trait(item) if item.ident == name => Some(item.items),
        _ => None,
    });
    let items = items.unwrap_or_else(|| panic!("{path}: no trait `{name}`"));
    let method = |item: TraitItem| match item {
        TraitItem::Fn(item) => Some(item.sig.ident.to_string()),
        _ => None,
    };
    items.into_iter().filter_map(method).collect()
}

/// A row of a table in a page.
struct Row {
    /// Its file and line.
    at: String,
    cells: Vec<String>,
}

impl Row {
    fn new(page: &str, number: usize, line: &str) -> Self {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        Self { at: format!("{page}:{number}"), cells: cells.collect() }
    }

    fn last(&self) -> &str {
        &self.cells[self.cells.len() - 1]
    }
}

/// The first row of a page with this in its first cell.
fn row(page: &str, first: &str) -> Row {
    let text = read(page);
    let start = format!("| {first} |");
    let found = text.lines().zip(1..).find(|(line, _)| line.starts_with(&start));
    let (line, number) = found.unwrap_or_else(|| panic!("{page}: no row begins with `{start}`"));
    Row::new(page, number, line)
}

/// The rows of the table whose head begins so.
fn table(page: &str, head: &str) -> Vec<Row> {
    let text = read(page);
    let lines = text.lines().zip(1..).skip_while(|(line, _)| !line.starts_with(head));
    // Without the head and the line below it.
    let lines = lines.take_while(|(line, _)| line.starts_with('|')).skip(2);
    let rows: Vec<Row> = lines.map(|(line, number)| Row::new(page, number, line)).collect();
    assert!(!rows.is_empty(), "{page}: no table begins with `{head}`");
    rows
}

/// The names between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Holds the names that a page lists to those of the code, in any order.
fn assert_names(at: &str, listed: &[&str], expected: &[String]) {
    let names: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(names.len(), listed.len(), "{at}: a name comes twice in {listed:?}");
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    let missing: Vec<&str> = expected.difference(&names).copied().collect();
    let unknown: Vec<&str> = names.difference(&expected).copied().collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "{at}: the code also has {missing:?}, and it does not have {unknown:?}"
    );
}

#[test]
fn every_built_in_stage_is_listed() {
    for folder in STAGES {
        let kinds = kinds(folder);
        let rows = match folder {
            "score" => table(POLICIES, "| family, a folder of `score` |"),
            _ => vec![row(POLICIES, folder)],
        };
        let names: Vec<&str> = rows.iter().flat_map(|row| quoted(row.last())).collect();
        assert_names(&rows[0].at, &names, &kinds);
    }
}

#[test]
fn every_store_is_described() {
    let rows = table(BUILT, "| store | for |");
    let listed: Vec<&str> = rows.iter().flat_map(|row| row.cells[0].split(", ")).collect();
    assert_names(&rows[0].at, &listed, &kinds("store"));
}

#[test]
fn traits_of_operations_are_described() {
    let rows = table(BUILT, "| trait | operations |");
    let listed: Vec<&str> = rows.iter().flat_map(|row| quoted(&row.cells[0])).collect();
    assert_names(&rows[0].at, &listed, &traits_of_operations());
}

#[test]
fn methods_of_traits_exist() {
    for (name, file) in TRAITS {
        let path = format!("crates/briquette/src/{file}");
        let methods = methods_of(&path, name);
        for row in table(POLICIES, &format!("| method of `{name}` |")) {
            for method in quoted(&row.cells[0]) {
                let at = &row.at;
                assert!(methods.contains(method), "{at}: {path} has no method `{method}`");
            }
        }
    }
}

#[test]
fn every_crate_is_listed() {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let crates: Vec<String> = folders.map(|name| format!("crates/{name}")).collect();
    let text = read(BUILT);
    let lines = text.lines().zip(1..);
    let lines = lines.skip_while(|(line, _)| !line.starts_with("crates/briquette "));
    let mut listed = Vec::new();
    for (line, number) in lines.take_while(|(line, _)| *line != "```") {
        let path = line.split_whitespace().next().unwrap_or_default();
        assert!(root().join(path).exists(), "{BUILT}:{number}: there is no `{path}`");
        listed.push(path);
    }
    for folder in &crates {
        assert!(listed.contains(&folder.as_str()), "{BUILT}: `{folder}` is not listed");
    }
}

/// Whether a name between backticks is a path: none of its letters stand for another name.
fn is_path(name: &str) -> bool {
    let fits = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-' | '.' | '/');
    name.contains('/') && name.chars().all(fits)
}

#[test]
fn paths_of_contributing_exist() {
    let text = read(CONTRIBUTING);
    let mut found = BTreeSet::new();
    for (line, number) in text.lines().zip(1..) {
        for path in quoted(line).into_iter().filter(|name| is_path(name)) {
            assert!(root().join(path).exists(), "{CONTRIBUTING}:{number}: there is no `{path}`");
            found.insert(path);
        }
    }
    assert!(found.len() > 40, "{CONTRIBUTING}: {} paths", found.len());
}
