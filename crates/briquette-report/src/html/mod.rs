//! The page of a run: everything its results say, in one HTML file that needs no network.
//!
//! Results are read a record at a time and summed up (`collect`), turned into numbers with
//! intervals (`measure`) and compared in pairs (`differences`), drawn (`sections`), and put into
//! the template under `assets`.

mod collect;
mod differences;
mod facts;
mod figure;
mod key;
mod measure;
mod natural;
mod page;
mod read;
mod sections;
mod tables;

use std::path::{Path, PathBuf};

use briquette_eval::files;

pub use self::tables::TableFormat;
use self::{collect::Collected, differences::Differences, figure::Data, measure::Measures};
use crate::{
    Result,
    files::{create_dir, write_csv},
};

/// Files that [`write()`] wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// `report.csv`: a line a row, task and measure, with its 95 % interval.
    pub csv: PathBuf,
    /// `differences.csv`: a line a difference of two policies on the same samples.
    pub differences: PathBuf,
    /// `tables.md`: a table a task, policies down and budgets across. Behind it `tables.tex`, where
    /// it was asked for.
    pub tables: Vec<PathBuf>,
    /// The pictures, as SVG and as PNG.
    pub pictures: Vec<PathBuf>,
    /// Records read.
    pub records: usize,
    /// Warnings about gaps in them.
    pub warnings: Vec<String>,
}

/// Writes the page of the run whose results are in `dir`: `dir/results.jsonl`, or the shards
/// `dir/results-I-of-N.jsonl`. The page is `page`, or `dir/report.html`; beside it come
/// `report.csv`, `differences.csv`, `tables.md` and the pictures, in `dir/report`. The same results
/// give the same files.
///
/// Where the run left its plan (`dir/plan.jsonl`), the page says how much of it is missing.
///
/// Intervals are 95 %: Wilson's for scores of 0 and 1, else Student's over samples. Differences are
/// paired by sample; their p-values are corrected for the number of policies and budgets (Holm).
///
/// # Errors
/// `Error::NoResults` and `Error::ResultLine`, for a first line that says nothing of a run,
/// `Error::Read` and `Error::Write` of [`briquette_eval`]; [`Error::NoPage`](crate::Error::NoPage)
/// for results of another command, [`Error::ResultSettings`](crate::Error::ResultSettings) for
/// shards of different runs, [`Error::Page`](crate::Error::Page).
pub fn write(dir: &Path, page: Option<&Path>, title: Option<&str>) -> Result<Written> {
    write_as(TableFormat::Markdown, dir, page, title)
}

/// As [`write()`], and the tables in this format too.
///
/// # Errors
/// As [`write()`].
pub fn write_as(
    format: TableFormat,
    dir: &Path,
    page: Option<&Path>,
    title: Option<&str>,
) -> Result<Written> {
    let mut collected = Collected::default();
    let source = read::records(dir, |record| collected.push(record))?;
    let measures = Measures::of(&collected);
    let differences = Differences::of(&collected, &measures);
    let data = Data::new(&collected, &measures, &differences);
    let plan = read::plan(dir)?;
    let facts = facts::Facts::of(dir, title, &source, &collected, plan.as_deref());
    let warnings = facts.warnings_by_file.clone();
    let methods = key::methods();
    let numbers = (&collected, &measures, &differences);
    let mut tables = vec![TableFormat::Markdown, format];
    tables.dedup();
    let tables = tables.into_iter().map(|form| {
        let file = if form == TableFormat::Latex { "tables.tex" } else { "tables.md" };
        (dir.join("report").join(file), tables::tables(form, &facts, numbers, &methods))
    });
    let (tables, table_texts): (Vec<PathBuf>, Vec<String>) = tables.unzip();
    let (page_text, figures) = page::page(facts, &data)?;

    let folder = dir.join("report");
    create_dir(&folder)?;
    // First: it says whose the other files are, also when a kill comes between them.
    for (file, text) in tables.iter().zip(&table_texts) {
        files::write(file, text)?;
    }
    let [csv, of_pairs] = ["report.csv", "differences.csv"].map(|name| folder.join(name));
    write_csv(&csv, measures.csv(&methods))?;
    write_csv(&of_pairs, differences.csv(&measures))?;
    let mut pictures = Vec::new();
    for figure in &figures {
        pictures.extend(figure.save(&folder)?);
    }
    let page = page.map_or_else(|| dir.join("report.html"), Path::to_owned);
    files::write(&page, &page_text)?;
    let records = collected.records;
    Ok(Written { page, csv, differences: of_pairs, tables, pictures, records, warnings })
}
