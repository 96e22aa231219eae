//! GGUF files taken apart and put together again, to make odd ones of the fixtures.

#![allow(dead_code)] // each test file uses its part

use std::{fs, path::Path};

/// The metadata and tensors of a file, each in the bytes it has there.
#[derive(Clone)]
pub(crate) struct RawGguf {
    /// Keys, and values behind their types.
    values: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<RawTensor>,
}

/// Name, what stands in the header behind it, and bytes of a tensor.
#[derive(Clone)]
pub(crate) struct RawTensor {
    name: String,
    header: Vec<u8>,
    bytes: Vec<u8>,
}

impl RawTensor {
    /// A tensor of a type by its number, the outermost dimension first.
    pub(crate) fn new(name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> Self {
        let dims = shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes());
        let count = (shape.len() as u32).to_le_bytes();
        let header = count.into_iter().chain(dims).chain(kind.to_le_bytes()).collect();
        Self { name: name.into(), header, bytes }
    }

    /// A vector in F32.
    pub(crate) fn of(name: &str, numbers: &[f32]) -> Self {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::new(name, &[numbers.len()], 0, bytes)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The outermost of two dimensions.
    pub(crate) fn rows(&self) -> usize {
        u64::from_le_bytes(self.header[12..20].try_into().unwrap()) as usize
    }

    /// The numbers of one of F32.
    pub(crate) fn numbers(&self) -> Vec<f32> {
        let (numbers, _) = self.bytes.as_chunks();
        numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// The same tensor in another type.
    pub(crate) fn stored(&mut self, kind: u32, bytes: Vec<u8>) {
        let at = self.header.len() - 4;
        self.header[at..].copy_from_slice(&kind.to_le_bytes());
        self.bytes = bytes;
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            8 => drop(self.text()),
            9 => {
                let (kind, length) = (self.u32(), self.u64());
                (0..length).for_each(|_| self.skip(kind));
            }
            _ => drop(self.take(8)),
        }
    }
}

impl RawGguf {
    pub(crate) fn read(path: impl AsRef<Path>) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut input = Input { bytes: &bytes, at: 8 };
        let (tensors, values) = (input.u64(), input.u64());
        let values = (0..values).map(|_| {
            let key = input.text();
            let start = input.at;
            let kind = input.u32();
            input.skip(kind);
            (key, bytes[start..input.at].to_vec())
        });
        let values = values.collect();
        let infos = (0..tensors).map(|_| {
            let name = input.text();
            let start = input.at;
            let dimensions = input.u32() as usize;
            input.take(8 * dimensions + 4);
            let header = bytes[start..input.at].to_vec();
            (name, header, input.u64() as usize)
        });
        let infos: Vec<(String, Vec<u8>, usize)> = infos.collect();
        let data = &bytes[input.at.next_multiple_of(32)..];
        let end = |start: usize| {
            let behind = infos.iter().map(|(.., other)| *other).filter(|other| *other > start);
            behind.min().unwrap_or(data.len())
        };
        let tensor = |(name, header, start): &(String, Vec<u8>, usize)| RawTensor {
            name: name.clone(),
            header: header.clone(),
            bytes: data[*start..end(*start)].to_vec(),
        };
        Self { values, tensors: infos.iter().map(tensor).collect() }
    }

    /// The same without the values.
    pub(crate) fn without(mut self, key: &str) -> Self {
        let before = self.values.len();
        self.values.retain(|(other, _)| other != key);
        assert!(self.values.len() < before, "{key}");
        self
    }

    pub(crate) fn float(self, key: &str, value: f32) -> Self {
        self.with(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn floats(self, key: &str, values: &[f32]) -> Self {
        let head = [6_u32.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
        let values = values.iter().flat_map(|value| value.to_le_bytes());
        self.with(key, 9, &head.into_iter().chain(values).collect::<Vec<u8>>())
    }

    pub(crate) fn number(self, key: &str, value: u16) -> Self {
        self.with(key, 2, &value.to_le_bytes())
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.with(key, 8, &[&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat())
    }

    fn with(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.values.retain(|(other, _)| other != key);
        self.values.push((key.into(), [&kind.to_le_bytes(), value].concat()));
        self
    }

    /// Parts of a split file: the metadata lies in the first, and each has every `count`th tensor.
    pub(crate) fn split(&self, count: u16) -> Vec<Self> {
        let part = |number: u16| {
            let held = self.tensors.iter().skip(number.into()).step_by(count.into());
            let values = if number == 0 { self.values.clone() } else { Vec::new() };
            let part = Self { values, tensors: held.cloned().collect() };
            part.number("split.no", number)
                .number("split.count", count)
                .number("split.tensors.count", self.tensors.len() as u16)
        };
        (0..count).map(part).collect()
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.values.len() as u64).to_le_bytes());
        let named = |bytes: &mut Vec<u8>, name: &str, rest: &[u8]| {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(rest);
        };
        for (key, value) in &self.values {
            named(&mut bytes, key, value);
        }
        let mut data = Vec::new();
        for RawTensor { name, header, bytes: own } in &self.tensors {
            named(&mut bytes, name, header);
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(own);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        fs::write(path, bytes).unwrap();
    }
}
