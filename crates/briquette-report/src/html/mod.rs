//! The page of a run: everything its results say, in one HTML file that needs no network.
//!
//! Results are read a record at a time and summed up (`collect`), turned into numbers with
//! intervals (`measure`), drawn (`sections`), and put into the template under `assets`.

mod collect;
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

use self::{collect::Collected, figure::Data, measure::Measures};
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
    /// `tables.md`: a table a task, policies down and budgets across.
    pub tables: PathBuf,
    /// The pictures, as SVG and as PNG.
    pub pictures: Vec<PathBuf>,
    /// Records read.
    pub records: usize,
    /// Warnings about gaps in them.
    pub warnings: Vec<String>,
}

/// Writes the page of the run whose results are in `dir`: `dir/results.jsonl`, or the shards
/// `dir/results-I-of-N.jsonl`. The page is `page`, or `dir/report.html`; beside it come
/// `report.csv`, `tables.md` and the pictures, in `dir/report`. The same results give the same
/// files.
///
/// Where the run left its plan (`dir/plan.jsonl`), the page says how much of it is missing.
///
/// Intervals are 95 %: Wilson's for scores of 0 and 1, else Student's over samples. What is called
/// "over full" is paired: the difference on the same sample.
///
/// # Errors
/// `Error::NoResults` and `Error::ResultLine`, for a first line that says nothing of a run,
/// `Error::Read` and `Error::Write` of [`briquette_eval`]; [`Error::NoPage`](crate::Error::NoPage)
/// for results of another command, [`Error::ResultSettings`](crate::Error::ResultSettings) for
/// shards of different runs, [`Error::Page`](crate::Error::Page).
pub fn write(dir: &Path, page: Option<&Path>, title: Option<&str>) -> Result<Written> {
    let mut collected = Collected::default();
    let source = read::records(dir, |record| collected.push(record))?;
    let measures = Measures::of(&collected);
    let data = Data::new(&collected, &measures);
    let plan = read::plan(dir)?;
    let facts = facts::Facts::of(dir, title, &source, &collected, plan.as_deref());
    let warnings = facts.warnings_by_file().to_vec();
    let tables_text = tables::tables(&facts, &collected, &measures);
    let (page_text, figures) = page::page(facts, &data)?;

    let folder = dir.join("report");
    create_dir(&folder)?;
    // First: it says whose the other files are, also when a kill comes between them.
    let tables = folder.join("tables.md");
    files::write(&tables, &tables_text)?;
    let csv = folder.join("report.csv");
    write_csv(&csv, measures.csv())?;
    let mut pictures = Vec::new();
    for figure in &figures {
        pictures.extend(figure.save(&folder)?);
    }
    let page = page.map_or_else(|| dir.join("report.html"), Path::to_owned);
    files::write(&page, &page_text)?;
    Ok(Written { page, csv, tables, pictures, records: collected.records, warnings })
}
