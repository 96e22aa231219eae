//! No circle of imports between the files of a crate.
//!
//! A file stands on another if its code names something that is *defined* there: in an import, a
//! path, a type, or a macro's arguments. Names are followed through re-exports to their definition.
//! So `mod` and `pub use` alone lead nowhere: they are how a parent shows its children, and a child
//! that imports its sibling through the parent stands on the sibling. A parent whose own code uses
//! a child stands on it like any other file; if that child imports what the parent itself defines,
//! the two are a circle. Methods are found where their type is: a path does not say in which `impl`
//! they stand. Tests inside files are left out, they may look anywhere.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Item, ItemMod, ItemUse, UseTree, Visibility,
    ext::IdentExt,
    visit::{self, Visit},
};

/// The crates that hold to it: their folders, from the root of the repository.
const CRATES: [&str; 8] = [
    "crates/briquette",
    "crates/briquette-models",
    "crates/briquette-ops",
    "crates/briquette-graph",
    "crates/briquette-eval",
    "crates/briquette-report",
    "crates/briquette-cli",
    "kernels-cubecl",
];

/// The modules of `briquette` from the lowest: none imports one behind it.
const ORDER: [&str; 8] =
    ["budget", "view", "score", "allocate", "reduce", "store", "policy", "cache"];

/// Files by their path below `src`, and those they stand on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A module, of a file of its own or inside one.
#[derive(Default)]
struct Module {
    file: String,
    parent: usize,
    children: HashMap<String, usize>,
    names: Names,
}

enum Target {
    Module(usize),
    /// Something defined in this module.
    Item(usize),
}

#[derive(Default)]
struct Crate {
    modules: Vec<Module>,
}

impl Crate {
    fn read(src: &Path) -> Self {
        let mut all = Self::default();
        let root = ["lib.rs", "main.rs"].map(|name| src.join(name));
        all.file(src, root.iter().find(|root| root.exists()).unwrap_or(&root[0]), src, 0);
        all
    }

    /// Reads a file, whose children lie in `folder`.
    fn file(&mut self, src: &Path, file: &Path, folder: &Path, parent: usize) -> usize {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let name = file.strip_prefix(src).unwrap().display().to_string();
        self.module(src, name, parsed.items, folder, parent)
    }

    fn module(
        &mut self,
        src: &Path,
        file: String,
        items: Vec<Item>,
        folder: &Path,
        parent: usize,
    ) -> usize {
        let id = self.modules.len();
        self.modules.push(Module { file: file.clone(), parent, ..Module::default() });
        let mut names = Names::default();
        for item in items.into_iter().filter(|item| !attributes(item).iter().any(is_test)) {
            names.items.extend(defined(&item));
            match item {
                Item::Mod(ItemMod { ident, content, .. }) => {
                    let name = ident.unraw().to_string();
                    let below = folder.join(&name);
                    let child = match content {
                        Some((_, items)) => self.module(src, file.clone(), items, &below, id),
                        None => {
                            let paths = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
                            let path = paths.iter().find(|path| path.exists());
                            self.file(src, path.unwrap_or(&paths[0]), &below, id)
                        }
                    };
                    self.modules[id].children.insert(name, child);
                }
                item => names.visit_item(&item),
            }
        }
        self.modules[id].names = names;
        id
    }

    /// All that a path leads to from a module. `steps` bounds imports that lead around.
    fn resolve(&self, from: usize, path: &[String], steps: usize) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return vec![Target::Module(from)] };
        if steps == 0 {
            return Vec::new();
        }
        let mut found = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(from)],
            "super" => vec![Target::Module(self.modules[from].parent)],
            name => self.lookup(from, name, steps),
        };
        // Where a module and a function have one name, a path that goes on means the module.
        let is_module = |target: &Target| matches!(target, Target::Module(_));
        if !rest.is_empty() && found.iter().any(is_module) {
            found.retain(is_module);
        }
        let follow = |target| match target {
            Target::Module(module) => self.resolve(module, rest, steps - 1),
            item => vec![item],
        };
        found.into_iter().flat_map(follow).collect()
    }

    /// All that a name means in a module.
    fn lookup(&self, id: usize, name: &str, steps: usize) -> Vec<Target> {
        let Module { names, children, .. } = &self.modules[id];
        let mut found = Vec::new();
        if names.items.contains(name) {
            found.push(Target::Item(id));
        }
        found.extend(children.get(name).map(|&child| Target::Module(child)));
        let imports = names.imports.get(name).into_iter().flatten();
        // `use x::y as x` must not lead back to itself.
        let imports = imports.filter(|path| path.len() > 1 || path[0] != name);
        found.extend(imports.flat_map(|path| self.resolve(id, path, steps - 1)));
        if found.is_empty() {
            let of_glob = |path: &Vec<String>| {
                let inside = path.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>();
                self.resolve(id, &inside, steps - 1)
            };
            found.extend(names.globs.iter().flat_map(of_glob));
        }
        found
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (id, module) in self.modules.iter().enumerate() {
            let found = module.names.paths.iter().flat_map(|path| self.resolve(id, path, 32));
            let files = found.filter_map(|target| match target {
                Target::Item(of) => Some(self.modules[of].file.clone()),
                Target::Module(_) => None,
            });
            let files: BTreeSet<String> = files.filter(|file| *file != module.file).collect();
            graph.entry(module.file.clone()).or_default().extend(files);
        }
        graph
    }
}

/// The names that code defines, imports and uses.
#[derive(Default)]
struct Names {
    items: HashSet<String>,
    /// What is imported, and its paths.
    imports: HashMap<String, Vec<Vec<String>>>,
    /// Paths whose contents are imported.
    globs: Vec<Vec<String>>,
    paths: Vec<Vec<String>>,
}

impl Names {
    /// Takes in an import; `shown` if it is a re-export.
    fn import(&mut self, before: &[String], tree: &UseTree, shown: bool) {
        let with = |name: &syn::Ident| -> Vec<String> {
            before.iter().cloned().chain([name.unraw().to_string()]).collect()
        };
        let mut add = |path: Vec<String>, name: String| {
            let path = if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                path[..path.len() - 1].to_vec()
            } else {
                path
            };
            let name = if name == "self" { path[path.len() - 1].clone() } else { name };
            if !shown {
                self.paths.push(path.clone());
            }
            self.imports.entry(name).or_default().push(path);
        };
        match tree {
            UseTree::Path(path) => self.import(&with(&path.ident), &path.tree, shown),
            UseTree::Name(name) => add(with(&name.ident), name.ident.unraw().to_string()),
            UseTree::Rename(name) => add(with(&name.ident), name.rename.unraw().to_string()),
            UseTree::Glob(_) => self.globs.push(before.to_vec()),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(before, tree, shown));
            }
        }
    }

    /// Takes in the paths among the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.paths.push(std::mem::take(&mut path));
                    }
                    colons = 0;
                    path.push(ident.unraw().to_string());
                }
                other => {
                    colons = 0;
                    self.paths.push(std::mem::take(&mut path));
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.paths.push(path);
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&[], &item.tree, !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|part| part.ident.unraw().to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    // Attributes and doc comments are not code.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.unraw().to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn is_test(attribute: &Attribute) -> bool {
    let names_test = |tokens: &TokenStream| {
        let text = tokens.to_string();
        text == "test" || text.starts_with("all (test")
    };
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| names_test(&list.tokens))
}

fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in graph.get(file).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen
}

/// Sets of files each of which stands on all of its set, with the steps inside.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|file| (file, reached(graph, file))).collect();
    let mut found: BTreeSet<Vec<&String>> = BTreeSet::new();
    for (file, all) in reach.iter().filter(|(file, all)| all.contains(**file)) {
        found.insert(
            graph.keys().filter(|o| all.contains(*o) && reach[o].contains(*file)).collect(),
        );
    }
    let steps = |circle: Vec<&String>| {
        let steps = circle.iter().flat_map(|file| {
            let inside = graph[*file].iter().filter(|next| circle.contains(next));
            inside.map(move |next| format!("{file} → {next}"))
        });
        steps.collect()
    };
    found.into_iter().map(steps).collect()
}

/// The sources of a crate, by its folder from the root of the repository.
fn src(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join("src")
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for folder in CRATES {
        let graph = Crate::read(&src(folder)).graph();
        let imports = graph.values().flatten().count();
        assert!(2 * imports >= graph.len(), "{folder}: hardly an import is found");
        let circles = circles(&graph);
        assert!(circles.is_empty(), "files of {folder} import each other: {circles:#?}");
    }
}

#[test]
fn stages_are_imported_in_their_order() {
    let place = |file: &str| {
        let top = file.split(['/', '.']).next();
        ORDER.iter().position(|module| Some(*module) == top)
    };
    let graph = Crate::read(&src("crates/briquette")).graph();
    let mut backward = Vec::new();
    for (file, next) in
        graph.iter().flat_map(|(file, all)| all.iter().map(move |next| (file, next)))
    {
        if let (Some(from), Some(to)) = (place(file), place(next))
            && from < to
        {
            backward.push(format!("{file} → {next}"));
        }
    }
    assert!(backward.is_empty(), "imports against the order {ORDER:?}: {backward:#?}");
    let files = |module: &&&str| graph.keys().any(|file| file.starts_with(&format!("{module}/")));
    assert_eq!(ORDER.iter().filter(files).count(), ORDER.len(), "a module is gone");
}

/// A crate of these files, read.
fn made_up(files: &[(&str, &str)]) -> Graph {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Crate::read(folder.path()).graph()
}

#[test]
fn re_exports_lead_to_definitions() {
    let graph = made_up(&[
        ("lib.rs", "mod a; mod b; pub use a::One;"),
        ("a/mod.rs", "mod one; mod two; pub use one::One; pub use two::*;"),
        // Through the parent, the crate's root and a glob.
        ("a/one.rs", "use super::Two; pub struct One(Two);"),
        (
            "a/two.rs",
            "#[cfg(all(test, feature = \"x\"))] mod tests { use super::super::One; } pub struct Two;",
        ),
        ("b.rs", "use crate::{a, One}; fn f(_: One) { let _ = vec![a::Two]; }"),
    ]);
    let on = |file: &str| graph[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(on("a/one.rs"), ["a/two.rs"]);
    assert_eq!(on("b.rs"), ["a/one.rs", "a/two.rs"]);
    assert!(on("lib.rs").is_empty() && on("a/mod.rs").is_empty() && on("a/two.rs").is_empty());
    assert!(circles(&graph).is_empty());
}

#[test]
fn a_path_goes_on_through_the_module_not_the_function_of_that_name() {
    let graph = made_up(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "pub mod one; mod two; pub use two::one;"),
        ("a/one.rs", "pub struct Deep;"),
        ("a/two.rs", "pub fn one() {}"),
        ("b.rs", "use crate::a::one::Deep; fn f(_: Deep) {}"),
    ]);
    let on = graph["b.rs"].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(on, ["a/one.rs"]);
}

#[test]
fn a_parent_that_uses_its_child_and_is_used_by_it_is_a_circle() {
    let parent = "mod child; pub use child::Child; pub struct Own; pub fn f() -> ";
    let child = ("a/child.rs", "use super::Own; pub struct Child(Own);");
    let root = ("lib.rs", "mod a;");
    let shows = made_up(&[root, ("a/mod.rs", &format!("{parent} u8 {{ 0 }}")), child]);
    assert!(circles(&shows).is_empty());
    let uses = made_up(&[root, ("a/mod.rs", &format!("{parent} Child {{ Child(Own) }}")), child]);
    assert_eq!(circles(&uses), [["a/child.rs → a/mod.rs", "a/mod.rs → a/child.rs"]]);
}
