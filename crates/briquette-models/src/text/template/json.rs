use std::io::{self, Write};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, ValueKind},
};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::budget::{largest, refused};

/// The filter `tojson`: JSON as Python's `json.dumps` writes it, with the options that
/// `transformers` gives to templates.
pub(super) fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(none) if none.is_none() => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(number) => {
            let most = largest(state);
            let number = number.as_usize().filter(|number| *number <= most);
            let number = number.ok_or_else(|| refused(format!("indent is at most {most}")))?;
            Some(" ".repeat(number))
        }
    };
    let separators: Option<Value> = options.get("separators")?;
    let separator = |place: usize, otherwise: &str| match &separators {
        Some(pair) if !pair.is_none() => pair.get_item_by_index(place).map(|it| it.to_string()),
        _ => Ok(otherwise.to_owned()),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let python = Python {
        between: separator(0, if indent.is_some() { "," } else { ", " })?,
        after_key: separator(1, ": ")?,
        indent,
        ascii,
        depth: 0,
        empty: true,
    };
    options.assert_all_used()?;
    let mut json = Bounded { json: Vec::new(), most: largest(state) };
    let mut serializer = Serializer::with_formatter(&mut json, python);
    let written = match sorted {
        true => sort(value)?.serialize(&mut serializer),
        false => value.serialize(&mut serializer),
    };
    let failed = |error: String| Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(json.json).map_err(|error| failed(error.to_string()))
}

/// The value with the keys of every map in their order.
fn sort(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pairs = keys.into_iter().map(|key| {
                let item = sort(&value.get_item(&key)?)?;
                Ok((key, item))
            });
            Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        ValueKind::Seq | ValueKind::Iterable => value
            .try_iter()?
            .map(|item| sort(&item))
            .collect::<Result<Vec<_>, _>>()
            .map(Value::from),
        _ => Ok(value.clone()),
    }
}

/// A writer that ends before it holds more than a value may.
struct Bounded {
    json: Vec<u8>,
    most: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.json.len().saturating_add(bytes.len()) > self.most {
            return Err(io::Error::other(format!("tojson makes more than {} bytes", self.most)));
        }
        self.json.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The form that `json.dumps` gives to JSON.
struct Python {
    between: String,
    after_key: String,
    indent: Option<String>,
    /// Whether other characters are written as escapes.
    ascii: bool,
    depth: usize,
    /// Whether the list or map that is written has no item yet.
    empty: bool,
}

impl Python {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth = self.depth.saturating_add(1);
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if !self.empty {
            self.line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            writer.write_all(self.between.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.after_key.as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit) {
                Ok(byte) if byte.is_ascii() => writer.write_all(&[byte])?,
                _ => write!(writer, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}
