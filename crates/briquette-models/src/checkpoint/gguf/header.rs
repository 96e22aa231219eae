use std::io::Read;

use super::value::Value;

/// The metadata of the files there are take some megabytes; more is a damaged count or length.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header of a file, and never asks for more bytes than the file has: a damaged count
/// ends with the file, and allocates nothing before.
pub(super) struct Header<R> {
    input: R,
    /// Bytes read so far.
    at: u64,
    end: u64,
}

/// A result whose error says what is wrong with the header.
type Result<T> = std::result::Result<T, String>;

impl<R: Read> Header<R> {
    /// A reader of the header of a file of `length` bytes.
    pub(super) fn new(input: R, length: u64) -> Self {
        Self { input, at: 0, end: length.min(MAX_HEADER) }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        let at = self.at;
        self.check(length)?;
        let length = usize::try_from(length).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| format!("the text at byte {at} is not UTF-8"))
    }

    /// A value with its type before it.
    pub(super) fn value(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        match kind {
            9 => self.list(),
            _ => self.scalar(kind),
        }
    }

    fn scalar(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(u8::from_le_bytes(self.array()?) != 0),
            8 => Value::Text(self.text()?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("the value at byte {} has type {other}", self.at)),
        })
    }

    fn list(&mut self) -> Result<Value> {
        let (kind, length) = (self.u32()?, self.u64()?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            // A text takes its length at least.
            8 | 10..=12 => 8,
            other => return Err(format!("the list at byte {} is of type {other}", self.at)),
        };
        self.check(length.saturating_mul(size))?;
        Ok(match kind {
            8 => Value::Texts((0..length).map(|_| self.text()).collect::<Result<_>>()?),
            6 | 12 => {
                let floats = (0..length).map(|_| match self.scalar(kind)? {
                    Value::Float(float) => Ok(float),
                    _ => Err("a list mixes types".to_owned()),
                });
                Value::Floats(floats.collect::<Result<_>>()?)
            }
            7 => {
                for _ in 0..length {
                    self.scalar(kind)?;
                }
                Value::Other(length)
            }
            _ => {
                let number = |value| match value {
                    Value::Signed(number) => Ok(number),
                    Value::Unsigned(number) => {
                        i64::try_from(number).map_err(|_| format!("{number} is in a list"))
                    }
                    _ => Err("a list mixes types".to_owned()),
                };
                let numbers = (0..length).map(|_| self.scalar(kind).and_then(number));
                Value::Numbers(numbers.collect::<Result<_>>()?)
            }
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.check(N as u64)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn check(&self, bytes: u64) -> Result<()> {
        let left = self.end.saturating_sub(self.at);
        if bytes > left {
            let (at, end) = (self.at, self.end);
            return Err(format!(
                "{bytes} bytes are claimed at byte {at} of a header of at most {end}"
            ));
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.input.read_exact(bytes).map_err(|error| error.to_string())?;
        self.at = self.at.saturating_add(bytes.len() as u64);
        Ok(())
    }
}
