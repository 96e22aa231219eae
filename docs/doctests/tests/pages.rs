//! Claims of the pages beside their Rust code: links, policy files, the list of methods.

use std::{collections::BTreeSet, fs, path::Path};

use briquette::{Budget, Policy, methods};
use briquette_book::PAGES;

/// A page of the book, or with `../../` a file of the repository.
fn read(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    text.split(&open).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The targets of Markdown links and images, code blocks and comments left out.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let shown = prose.flat_map(|prose| prose.split("<!--").map(|part| part.rsplit("-->").next()));
    let after = shown.flatten().flat_map(|shown| shown.split("](").skip(1));
    after.filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn the_summary_lists_every_page() {
    let summary = read("SUMMARY.md");
    let listed: BTreeSet<&str> = links(&summary).into_iter().collect();
    let files = |folder: &str, prefix: &str| -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src").join(folder);
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{prefix}{name}")).collect()
    };
    for file in
        [files(".", ""), files("methods", "methods/"), files("evaluate", "evaluate/")].concat()
    {
        assert!(
            file == "SUMMARY.md" || listed.contains(file.as_str()),
            "{file} is not in the summary"
        );
    }
}

#[test]
fn links_and_includes_lead_somewhere() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    for page in PAGES.iter().chain(&["../../README.md", "../../CONTRIBUTING.md"]) {
        let text = read(page);
        let folder = source.join(page).parent().unwrap().to_owned();
        let includes = text.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next());
        for link in links(&text).into_iter().chain(includes) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.starts_with("https://") || file.is_empty() {
                continue;
            }
            assert!(folder.join(file).exists(), "{page}: {link}");
            if !anchor.is_empty() {
                let target = fs::read_to_string(folder.join(file)).unwrap();
                let headings = target.lines().filter(|line| line.starts_with('#')).map(slug);
                assert!(headings.into_iter().any(|heading| heading == anchor), "{page}: {link}");
            }
        }
    }
}

/// `folder/file.rs::name` between backticks, of the chapters on reliability and on what goes with
/// what: the file has a test of this name.
#[test]
fn tests_that_are_named_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = ["reliability.md", "what-goes-with-what.md"].map(read).concat();
    let mut found = 0;
    for (file, name) in page.split('`').filter_map(|code| code.split_once(".rs::")) {
        let folder = if file.contains('/') { "" } else { "crates/briquette-cli/tests/" };
        let text = fs::read_to_string(root.join(format!("{folder}{file}.rs")));
        let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
        let test = format!("#[test]\n{{}}fn {name}()");
        let there = ["", "    "].iter().any(|indent| text.contains(&test.replace("{}", indent)));
        assert!(there, "{file} has no test `{name}`");
        found += 1;
    }
    assert!(found > 20, "{found} tests are named");
}

/// If set, [the parts](parts_are_the_files_they_are_from) are written anew instead of compared.
const UPDATE: &str = "BRIQUETTE_UPDATE_BOOK";

/// Tables and programs stand in the pages as they are in their files, so that a page reads whole
/// wherever it is shown: between `<!-- part: FILE -->` and `<!-- end of part -->`, programs in a
/// fence.
#[test]
fn parts_are_the_files_they_are_from() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let (mut found, mut old) = (0, Vec::new());
    for page in PAGES {
        let (text, mut new) = (read(page), String::new());
        let mut parts = text.split("<!-- part: ");
        new += parts.next().unwrap_or_default();
        for part in parts {
            let (file, rest) = part.split_once(" -->\n\n").expect("a part names its file");
            let (inside, after) =
                rest.split_once("<!-- end of part -->").expect("a part has an end");
            let path = source.join(page).with_file_name(file);
            let content = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{page}: {}: {error}", path.display()));
            let content = content.trim_matches('\n');
            let content = match inside.lines().next().filter(|line| line.starts_with("```")) {
                Some(fence) => format!("{fence}\n{content}\n```"),
                None => content.to_owned(),
            };
            new += &format!("<!-- part: {file} -->\n\n{content}\n\n<!-- end of part -->{after}");
            found += 1;
        }
        if new != text && std::env::var_os(UPDATE).is_some() {
            fs::write(source.join(page), new).unwrap();
        } else if new != text {
            old.push(*page);
        }
        assert!(!text.contains("{{#include"), "{page} is not whole without mdbook");
    }
    assert!(
        old.is_empty(),
        "{old:?} differ from their files; with {UPDATE}=1 they are written anew"
    );
    assert!(found > 5, "{found} parts");
}

/// The page on adding a cache begins with the lines of the example that it replaces.
#[test]
fn replaced_attention_is_that_of_the_example() {
    let page = read("add-to-your-model.md");
    let example = read("../../examples/attention-module/src/before.rs");
    let example = example.replace("\n        ", "\n");
    assert!(example.contains(blocks(&page, "rust,ignore")[0]));
}

/// The anchor that a heading gets.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The page of combinations that have no page of their own.
const COMBINATIONS: &str = "methods/combinations.md";

#[test]
fn every_method_has_a_page_that_shows_its_file() {
    let table = read("methods.md");
    let mut combined = Vec::new();
    for method in methods() {
        let name = &method.name;
        let policy = Policy::named(name, None).unwrap();
        let file = policy.with_default_budget(Budget::Tokens(256)).to_toml().unwrap();
        let own = format!("methods/{name}.md");
        let link = if PAGES.contains(&own.as_str()) {
            let page = read(&own);
            assert_eq!(blocks(&page, "toml"), [file], "{name}");
            assert!(page.starts_with(&format!("# {}\n", method.title)), "{name}");
            own
        } else {
            combined.push(file);
            let heading = format!("## {}", method.title);
            let found = read(COMBINATIONS).lines().any(|line| line == heading);
            assert!(found, "{COMBINATIONS} has no heading `{heading}`");
            format!("{COMBINATIONS}#{}", slug(&heading))
        };
        assert!(table.contains(&format!("[`{name}`]({link})")), "{name} is not in the table");
    }
    assert_eq!(blocks(&read(COMBINATIONS), "toml"), combined);
}

#[test]
fn policy_files_can_be_read() {
    // Those of the evaluation are run files. Its own tests read them.
    for page in PAGES.iter().filter(|page| !page.starts_with("evaluate")) {
        for block in blocks(&read(page), "toml") {
            if block.starts_with("[dependencies]") {
                // The README's is built by `.ci/outside`.
                assert!(read("../../README.md").contains(block), "{page}");
                continue;
            }
            if block.starts_with("[profile.") {
                continue;
            }
            if let Err(error) = Policy::from_toml(block) {
                panic!("{page}: {error}\n{block}");
            }
        }
    }
}
