//! Writes a module for each page that the summary lists, documented by the page.

use std::{env, error::Error, fmt::Write, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let source = fs::canonicalize("../src")?;
    let summary = source.join("SUMMARY.md");
    println!("cargo::rerun-if-changed={}", summary.display());
    let text = fs::read_to_string(summary)?;
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pages: Vec<&str> = links.filter(|link| link.ends_with(".md")).collect();
    let mut modules = format!(
        "/// Every page that is compiled, from `docs/src`.\npub const PAGES: &[&str] = &{pages:?};\n"
    );
    for page in pages {
        let module = page.trim_end_matches(".md").replace(['/', '-', '.'], "_");
        let path = source.join(page);
        writeln!(modules, "#[doc = include_str!({path:?})]\npub mod {module} {{}}")?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("pages.rs"), modules)?;
    Ok(())
}
