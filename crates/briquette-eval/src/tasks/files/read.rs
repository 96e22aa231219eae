//! Records of a file of data, one after the other: a file is never held as a whole.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::{
    cell::Cell,
    fmt,
    io::{self, BufRead, BufReader, Read},
    marker::PhantomData,
    path::Path,
    rc::Rc,
};

use serde::{
    Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::{Error, Result, files};

/// A record, or `Err` with its defect in words.
pub(super) type Checked<T> = std::result::Result<T, String>;

/// Reads the records of a file in the order they stand in, each with its line. A file whose name
/// ends in `.csv` is a table with a header; a file that begins with `[` is one JSON array, and any
/// other has a JSON value a line. A byte order mark, `\r` before `\n` and empty lines are passed
/// over.
pub(super) fn records<T: DeserializeOwned>(
    path: &Path,
    each: impl FnMut(usize, Checked<T>) -> Result<()>,
) -> Result<()> {
    let mut reader = open(path)?;
    if is_table(path) {
        return table(path, reader, each);
    }
    let start = reader.fill_buf().map_err(|source| Error::read(path, source))?;
    if start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        array(path, reader, each)
    } else {
        lines(path, reader, each)
    }
}

/// Whether the name of a file says that it is a table.
pub(super) fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"))
}

/// Reads the records under `data` of a file that is one JSON object.
pub(super) fn records_under_data<T: DeserializeOwned>(
    path: &Path,
    each: impl FnMut(usize, Checked<T>) -> Result<()>,
) -> Result<()> {
    array(path, open(path)?, each)
}

fn open(path: &Path) -> Result<BufReader<files::Reader>> {
    let mut reader = files::open(path)?;
    let start = reader.fill_buf().map_err(|source| Error::read(path, source))?;
    if start.starts_with("\u{feff}".as_bytes()) {
        reader.consume('\u{feff}'.len_utf8());
    }
    Ok(reader)
}

fn lines<T: DeserializeOwned>(
    path: &Path,
    mut reader: impl BufRead,
    mut each: impl FnMut(usize, Checked<T>) -> Result<()>,
) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let bytes =
            reader.read_until(b'\n', &mut line).map_err(|source| Error::read(path, source))?;
        if bytes == 0 {
            break;
        }
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            each(number, serde_json::from_slice(line).map_err(|error| what(&error)))?;
        }
    }
    Ok(())
}

fn table<T: DeserializeOwned>(
    path: &Path,
    reader: impl BufRead,
    mut each: impl FnMut(usize, Checked<T>) -> Result<()>,
) -> Result<()> {
    let reader = NewLines { reader, held: false };
    let line_of = |position: Option<&csv::Position>| {
        position.map_or(1, |position| usize::try_from(position.line()).unwrap_or(usize::MAX))
    };
    let mut table = csv::ReaderBuilder::new().trim(csv::Trim::Headers).from_reader(reader);
    let failed = |error: csv::Error| {
        let line = line_of(error.position());
        match error.into_kind() {
            csv::ErrorKind::Io(source) => Error::read(path, source),
            kind => Error::DataLine { path: path.into(), line, message: table_fault(&kind) },
        }
    };
    let header = table.headers().map_err(failed)?.clone();
    for row in table.records() {
        match row {
            Ok(row) => {
                let record =
                    row.deserialize(Some(&header)).map_err(|error| table_fault(error.kind()));
                each(line_of(row.position()), record)?;
            }
            Err(error) if error.is_io_error() => return Err(failed(error)),
            Err(error) => each(line_of(error.position()), Err(table_fault(error.kind())))?,
        }
    }
    Ok(())
}

/// Makes `\r\n` a `\n`: the table reader counts the lines of rows that end in both one too low.
struct NewLines<R> {
    reader: R,
    /// Whether a `\r` waits for what follows it.
    held: bool,
}

impl<R: BufRead> Read for NewLines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = 0;
        while let Some(place) = into.get_mut(bytes) {
            let next = self.reader.fill_buf()?.first().copied();
            if self.held && next != Some(b'\n') {
                *place = b'\r';
                bytes = bytes.saturating_add(1);
                self.held = false;
                continue;
            }
            let Some(next) = next else { break };
            self.reader.consume(1);
            self.held = next == b'\r';
            if !self.held {
                *place = next;
                bytes = bytes.saturating_add(1);
            }
        }
        Ok(bytes)
    }
}

fn table_fault(kind: &csv::ErrorKind) -> String {
    match kind {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} columns, the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { err, .. } => {
            format!("column {}: not UTF-8", err.field().saturating_add(1))
        }
        csv::ErrorKind::Deserialize { err, .. } => err.kind().to_string(),
        _ => "not a line of CSV".into(),
    }
}

fn array<T: DeserializeOwned>(
    path: &Path,
    reader: impl Read,
    each: impl FnMut(usize, Checked<T>) -> Result<()>,
) -> Result<()> {
    let newlines = Rc::new(Cell::new(0));
    let reader = Counting { reader, newlines: Rc::clone(&newlines) };
    let mut refused = None;
    let items = Items { each, newlines, refused: &mut refused, record: PhantomData };
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = json.deserialize_any(items).and_then(|()| json.end());
    match (refused, read) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) if error.is_io() => Err(Error::read(path, error.into())),
        (None, Err(error)) => Err(Error::DataLine {
            path: path.into(),
            line: error.line().max(1),
            message: what(&error),
        }),
    }
}

/// Counts the lines that pass. The JSON reader takes one byte at a time, so the count is where it
/// is.
struct Counting<R> {
    reader: R,
    newlines: Rc<Cell<usize>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(into)?;
        let found = into.iter().take(bytes).filter(|byte| **byte == b'\n').count();
        self.newlines.set(self.newlines.get().saturating_add(found));
        Ok(bytes)
    }
}

/// Hands on the items of an array, or of the array under `data` of an object.
struct Items<'a, T, F> {
    each: F,
    newlines: Rc<Cell<usize>>,
    /// The error of `each`, which ends the reading.
    refused: &'a mut Option<Error>,
    record: PhantomData<T>,
}

impl<'de, T, F> Visitor<'de> for Items<'_, T, F>
where
    T: DeserializeOwned,
    F: FnMut(usize, Checked<T>) -> Result<()>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> std::result::Result<(), A::Error> {
        // First as any value: an item that is JSON but not a record can be passed over.
        while let Some(item) = items.next_element::<Value>()? {
            let record = serde_json::from_value(item).map_err(|error| what(&error));
            if let Err(error) = (self.each)(self.newlines.get().saturating_add(1), record) {
                *self.refused = Some(error);
                return Err(serde::de::Error::custom("refused"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<(), A::Error> {
        let mut items = Some(self);
        while let Some(key) = object.next_key::<String>()? {
            match items.take_if(|_| key == "data") {
                Some(items) => object.next_value_seed(items)?,
                None => {
                    object.next_value::<IgnoredAny>()?;
                }
            }
        }
        match items {
            Some(_) => Err(serde::de::Error::custom("no `data` in the object")),
            None => Ok(()),
        }
    }
}

impl<'de, T, F> serde::de::DeserializeSeed<'de> for Items<'_, T, F>
where
    T: DeserializeOwned,
    F: FnMut(usize, Checked<T>) -> Result<()>,
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, data: D) -> std::result::Result<(), D::Error> {
        data.deserialize_seq(self)
    }
}

/// Message of an error without the line, which is 1 for every line read by itself.
fn what(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what} (column {})", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct One {
        n: u32,
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, content: &[u8]) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, content).unwrap();
            path
        }

        /// Reads a file: the line and the number of each record, or its defect.
        fn read(&self, name: &str, content: &str) -> Vec<(usize, Checked<u32>)> {
            let mut found = Vec::new();
            records(&self.file(name, content.as_bytes()), |line, record: Checked<One>| {
                found.push((line, record.map(|one| one.n)));
                Ok(())
            })
            .unwrap();
            found
        }

        fn refused(&self, name: &str, content: &[u8]) -> String {
            let error = records(&self.file(name, content), |_, _: Checked<One>| Ok(()));
            error.unwrap_err().to_string()
        }
    }

    #[test]
    fn lines_are_read_whatever_ends_them() {
        let folder = Folder::new();
        let expected = [(1, Ok(1)), (2, Ok(2))];
        for content in [
            "{\"n\":1}\n{\"n\":2}\n",
            "{\"n\":1}\r\n{\"n\":2}",
            "\u{feff}{\"n\":1}\n{\"n\":2}\n\n",
            " {\"n\": 1, \"more\": [\"]\"]} \n\t{\"n\":2}",
        ] {
            assert_eq!(folder.read("a.jsonl", content), expected, "{content}");
        }
        assert_eq!(folder.read("a.jsonl", "\n\r\n{\"n\":3}\n"), [(3, Ok(3))]);
        assert!(folder.read("a.jsonl", "").is_empty());
        assert!(folder.read("a.jsonl", "\u{feff}\n").is_empty());
    }

    #[test]
    fn a_damaged_line_stops_no_other() {
        let folder = Folder::new();
        let content = "{\"n\":1}\n{\"n\":\n{}\n{\"n\":\"x\"}\n{\"n\":5}";
        let found = folder.read("a.jsonl", content);
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
        let wrong = |at: usize| found[at].1.as_ref().unwrap_err();
        assert!(wrong(1).starts_with("EOF while parsing a value (column"), "{}", wrong(1));
        assert_eq!(wrong(2), "missing field `n` (column 2)");
        assert!(wrong(3).contains("invalid type: string \"x\", expected u32"), "{}", wrong(3));
        assert_eq!((&found[0].1, &found[4].1), (&Ok(1), &Ok(5)));
    }

    #[test]
    fn bytes_that_are_no_text_are_damage() {
        let folder = Folder::new();
        let path = folder.file("a.jsonl", b"{\"n\":1}\n{\"s\":\"\xff\",\"n\":2}\n");
        let mut wrong = Vec::new();
        records(&path, |line, record: Checked<Value>| {
            wrong.extend(record.err().map(|message| (line, message)));
            Ok(())
        })
        .unwrap();
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].0 == 2 && wrong[0].1.contains("unicode"), "{wrong:?}");
    }

    #[test]
    fn an_array_is_read_item_by_item() {
        let folder = Folder::new();
        let content =
            "\u{feff}\n[\n  {\"n\": 1},\n  {\"n\":\n    2},\n  {\"m\": 3}, {\"n\": 4}\n]\n";
        let found = folder.read("a.json", content);
        assert_eq!(found[..2], [(3, Ok(1)), (5, Ok(2))]);
        assert_eq!(found[2], (6, Err("missing field `n`".into())));
        assert_eq!(found[3], (6, Ok(4)));
        assert!(folder.read("a.json", "[]").is_empty());
    }

    #[test]
    fn an_array_that_breaks_off_names_its_line() {
        let folder = Folder::new();
        let error = folder.refused("a.json", b"[\n{\"n\": 1},\n{\"n\":");
        assert!(error.contains("a.json, line 3: EOF while parsing a value"), "{error}");
        let error = folder.refused("a.json", b"[{\"n\": 1}]\n{");
        assert!(error.contains("line 2: trailing characters"), "{error}");
    }

    #[test]
    fn what_is_done_with_a_record_can_end_the_reading() {
        let folder = Folder::new();
        for (name, content) in
            [("a.jsonl", "{\"n\":1}\n{\"n\":2}\n"), ("a.json", "[{\"n\":1},{\"n\":2}]")]
        {
            let path = folder.file(name, content.as_bytes());
            let mut seen = 0;
            let error = records(&path, |_, _: Checked<One>| {
                seen += 1;
                Err(Error::TooFewSamples { path: "b".into(), asked: 7, found: 0 })
            });
            assert!(error.unwrap_err().to_string().contains("7 samples"));
            assert_eq!(seen, 1);
        }
    }

    #[test]
    fn records_stand_under_data_of_an_object() {
        let folder = Folder::new();
        let read = |content: &str| {
            let mut found = Vec::new();
            let path = folder.file("a.json", content.as_bytes());
            records_under_data(&path, |_, record: Checked<One>| {
                found.push(record.unwrap().n);
                Ok(())
            })
            .map(|()| found)
        };
        assert_eq!(
            read("{\"version\":\"1.0\",\"data\":[{\"n\":1},{\"n\":2}],\"x\":{}}").unwrap(),
            [1, 2]
        );
        let error = read("{\"version\":\"1.0\"}").unwrap_err().to_string();
        assert!(error.contains("no `data`"), "{error}");
        assert!(read("").unwrap_err().to_string().contains("line 1: EOF"));
    }

    #[test]
    fn a_table_is_read_with_its_header() {
        let folder = Folder::new();
        let found =
            folder.read("a.csv", "\u{feff}m, n\r\n\"a, b\nc\",1\r\nd,2\r\ne\r\nf,x\r\ng,3\r\n");
        assert_eq!(found[..2], [(2, Ok(1)), (4, Ok(2))]);
        assert_eq!(found[2], (5, Err("1 columns, the header has 2".into())));
        assert!(found[3].0 == 6 && found[3].1.is_err(), "{found:?}");
        assert_eq!(found[4], (7, Ok(3)));
        let found = folder.read("b.CSV", "m\n1\n");
        assert_eq!(found, [(2, Err("missing field `n`".into()))]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = records(Path::new("no/such.jsonl"), |_, _: Checked<One>| Ok(()));
        assert!(error.unwrap_err().to_string().contains("cannot read no/such.jsonl"));
    }
}
