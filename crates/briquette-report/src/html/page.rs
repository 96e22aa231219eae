use std::collections::BTreeSet;

use minijinja::{AutoEscape, Environment, Value, context, syntax::SyntaxConfig, value::Serde};

use super::{
    facts::Facts,
    figure::{Data, Figures, FiguresView, ROOM},
    sections,
};
use crate::{Error, Result};

const TEMPLATE: &str = include_str!("../../assets/page.html");
const STYLE: &str = include_str!("../../assets/style.css");
const SCRIPT: &str = include_str!("../../assets/page.js");

/// The page, and the figures on it.
///
/// # Errors
/// [`Error::Page`].
pub(super) fn page(facts: Facts, data: &Data<'_>) -> Result<(String, Vec<Figures>)> {
    let (heat_maps, maps_left) = sections::heat_maps(data);
    let (fidelity, heads_left) = sections::fidelity(data);
    let mut accuracy = sections::pareto(data);
    accuracy.extend(sections::accuracy(data));
    let mut groups =
        [accuracy, heat_maps, sections::memory(data), sections::perplexity(data), fidelity];
    groups.iter_mut().for_each(|group| group.retain(|figures| !figures.charts.is_empty()));
    name_apart(&mut groups);
    let mut room = ROOM;
    let mut views: [Vec<FiguresView>; 5] = Default::default();
    // Maps are many, and take what room the others leave.
    for at in [0, 2, 3, 4, 1] {
        views[at] = groups[at].iter().map(|figures| figures.view(&mut room)).collect();
    }
    let [accuracy, heat_maps, memory, perplexity, fidelity] = &views;
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let failed = |error: minijinja::Error| Error::Page { message: format!("{error:#}") };
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(failed)?);
    let template = environment.template_from_str(TEMPLATE).map_err(failed)?;
    let safe = |text: &str| Value::from_safe_string(text.to_owned());
    let text = template
        .render(context! {
            version => env!("CARGO_PKG_VERSION"),
            style => safe(STYLE),
            script => safe(SCRIPT),
            facts => Value::from(Serde(&facts)),
            numbers => Value::from(Serde(sections::numbers(data))),
            choices => Value::from(Serde(sections::choices(data.collected))),
            unavailable => Value::from(Serde(sections::unavailable(data.collected))),
            accuracy => Value::from(Serde(accuracy)),
            heat_maps => Value::from(Serde(heat_maps)),
            maps_left,
            memory => Value::from(Serde(memory)),
            perplexity => Value::from(Serde(perplexity)),
            fidelity => Value::from(Serde(fidelity)),
            heads_left,
            kept => Value::from(Serde(sections::kept(data))),
            samples => Value::from(Serde(sections::samples(data.collected))),
        })
        .map_err(failed)?;
    Ok((text, groups.into_iter().flatten().collect()))
}

/// Figures with one name would be one file.
fn name_apart(groups: &mut [Vec<Figures>]) {
    let mut taken = BTreeSet::new();
    for figures in groups.iter_mut().flatten() {
        let stem = figures.stem.clone();
        for number in 2.. {
            if taken.insert(figures.stem.clone()) {
                break;
            }
            figures.stem = format!("{stem}-{number}");
        }
    }
}
