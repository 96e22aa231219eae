//! The public names of `briquette`: its types, traits and functions, with methods, public fields
//! and variants. The list is committed, so that a change of names is seen; signatures are not in
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use syn::{
    Attribute, ImplItem, Item, ItemImpl, Meta, MetaList, TraitItem, Type, UseTree, Visibility,
};

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/public-names.txt");

/// Methods and variants by the name of a type. Types of one name share theirs.
type Members = BTreeMap<String, BTreeSet<String>>;

#[test]
fn public_names_are_those_of_the_list() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/briquette/src");
    let mut members = Members::new();
    // The operations that stages need have their members there.
    add_members(&src.join("../../briquette-ops/src"), &mut members);
    add_members(&src, &mut members);
    let mut names = BTreeSet::new();
    add_names(&src.join("lib.rs"), &src, "", &mut names);
    let with_members = |name: &String| {
        let own = name.rsplit("::").next().and_then(|last| members.get(last));
        let of_name = own.into_iter().flatten().map(move |member| format!("{name}::{member}"));
        std::iter::once(name.clone()).chain(of_name).collect::<Vec<_>>()
    };
    let found: BTreeSet<String> = names.iter().flat_map(with_members).collect();
    if env::var_os("BRIQUETTE_WRITE_NAMES").is_some() {
        let lines: String = found.iter().map(|name| format!("{name}\n")).collect();
        fs::write(LIST, lines).unwrap();
    }
    let listed: BTreeSet<String> =
        fs::read_to_string(LIST).unwrap().lines().map(str::to_owned).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "public names have changed: new {new:#?}, gone {gone:#?}. If that is meant, say it in \
         CHANGELOG.md and run this test with BRIQUETTE_WRITE_NAMES=1"
    );
}

fn items(file: &Path) -> Vec<Item> {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display())).items
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    let is_hidden =
        |list: &MetaList| list.path.is_ident("doc") && list.tokens.to_string() == "hidden";
    attributes
        .iter()
        .any(|attribute| matches!(&attribute.meta, Meta::List(list) if is_hidden(list)))
}

/// Adds the members of what all files below `folder` define.
fn add_members(folder: &Path, members: &mut Members) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_members(&path, members);
            continue;
        }
        for item in items(&path) {
            let (name, of_item): (_, Vec<String>) = match item {
                Item::Enum(item) => {
                    let variants = item.variants.iter().map(|variant| variant.ident.to_string());
                    (item.ident.to_string(), variants.collect())
                }
                Item::Struct(item) => {
                    let public = item.fields.iter().filter(|field| is_public(&field.vis));
                    let names = public.filter_map(|field| field.ident.as_ref());
                    (item.ident.to_string(), names.map(ToString::to_string).collect())
                }
                Item::Trait(item) => {
                    let name = |item: &TraitItem| match item {
                        TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
                        _ => None,
                    };
                    (item.ident.to_string(), item.items.iter().filter_map(name).collect())
                }
                Item::Impl(ItemImpl { trait_: None, self_ty, items, .. }) => {
                    let Type::Path(path) = *self_ty else { continue };
                    let name = |item: &ImplItem| match item {
                        ImplItem::Fn(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                            Some(item.sig.ident.to_string())
                        }
                        ImplItem::Const(item) if is_public(&item.vis) => {
                            Some(item.ident.to_string())
                        }
                        _ => None,
                    };
                    let Some(last) = path.path.segments.last() else { continue };
                    (last.ident.to_string(), items.iter().filter_map(name).collect())
                }
                _ => continue,
            };
            members.entry(name).or_default().extend(of_item);
        }
    }
}

/// Adds the names that the module in `file` shows; the files of its modules lie in `folder`.
fn add_names(file: &Path, folder: &Path, path: &str, names: &mut BTreeSet<String>) {
    let mut own = Vec::new();
    // Modules, and the paths that their names are shown under.
    let mut modules: Vec<(String, String)> = Vec::new();
    for item in items(file) {
        match item {
            Item::Mod(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                modules.push((item.ident.to_string(), format!("{path}{}::", item.ident)));
            }
            Item::Use(item) if is_public(&item.vis) => {
                let mut whole = Vec::new();
                leaves(&item.tree, "", &mut own, &mut whole);
                modules.extend(whole.into_iter().map(|module| (module, path.to_owned())));
            }
            Item::Struct(item) if is_public(&item.vis) => own.push(item.ident.to_string()),
            Item::Enum(item) if is_public(&item.vis) => own.push(item.ident.to_string()),
            Item::Trait(item) if is_public(&item.vis) => own.push(item.ident.to_string()),
            Item::Type(item) if is_public(&item.vis) => own.push(item.ident.to_string()),
            Item::Const(item) if is_public(&item.vis) => own.push(item.ident.to_string()),
            Item::Fn(item) if is_public(&item.vis) => own.push(item.sig.ident.to_string()),
            _ => {}
        }
    }
    names.extend(own.into_iter().map(|name| format!("{path}{name}")));
    for (module, path) in modules {
        let below = folder.join(module);
        let files = [below.with_extension("rs"), below.join("mod.rs")];
        let file = files.iter().find(|file| file.exists()).expect("a file of the module");
        add_names(file, &below, &path, names);
    }
}

/// The names that an import shows, and the modules of which it shows all. `last` is the last part
/// of the path so far.
fn leaves(tree: &UseTree, last: &str, names: &mut Vec<String>, modules: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &path.ident.to_string(), names, modules),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(name) => names.push(name.rename.to_string()),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| leaves(tree, last, names, modules));
        }
        UseTree::Glob(_) => modules.push(last.to_owned()),
    }
}
