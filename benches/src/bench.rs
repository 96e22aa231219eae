//! Shared parts of the rows of `bench-kernels`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use anyhow::{Result, anyhow, bail};
use briquette::{
    device::bytes_in_use,
    ops::{Fallback, Ops, Reference},
};
use burn::tensor::{DType, Device, Distribution, Int, Tensor};

use crate::{
    measure::{Call, Effort, Timing, keep, time, time_difference, time_graph},
    record::{Record, Sink, today},
};

/// An implementation of a row, to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// The operations that policies use: kernels where there are some.
    Briquette,
    /// The tensor operations that stand in where there is no kernel, on the same device.
    Reference,
    /// Burn's own operations of today.
    Burn,
}

/// The largest difference from the reference, and the largest number of the reference.
pub type Difference = (f64, f64);

/// A row that is to be timed.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Its name in the table.
    pub row: &'a str,
    /// Its sizes, for people.
    pub shape: String,
    /// The fewest bytes that must be moved.
    pub bytes: f64,
    /// The operations of its matrix products.
    pub operations: f64,
}

/// A device, the way to time on it, and the destination of results.
#[derive(Debug)]
pub struct Bench {
    /// The device.
    pub device: Device,
    /// The operations that policies use: kernels where there are some. A row that they fell back
    /// from on a device that has kernels is an error.
    pub ops: Arc<dyn Ops>,
    /// Its name, for people.
    pub name: String,
    /// The type of queries, keys and values.
    pub dtype: DType,
    /// Whether sizes are small.
    pub quick: bool,
    /// Parts of names of rows that are wanted; all if empty.
    pub rows: Vec<String>,
    /// The variants that are wanted.
    pub variants: Vec<Variant>,
    /// Whether graphs are wanted.
    pub graph: bool,
    /// Thoroughness of timings.
    pub effort: Effort,
    /// Destination of results.
    pub sink: Sink,
}

impl Bench {
    /// Whether a row is wanted.
    pub fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| row.contains(part.as_str()))
    }

    /// A size, or the one that stands in for it where sizes are small.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Bytes of a number of the type of keys.
    pub fn number(&self) -> f64 {
        self.dtype.size() as f64
    }

    /// Normal noise, made on the device.
    pub fn noise<const D: usize>(&self, shape: [usize; D], dtype: DType) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), (&self.device, dtype))
    }

    /// Number of sets of inputs of so many bytes that together are far larger than the cache of the
    /// device.
    pub fn sets(&self, bytes: f64) -> usize {
        if self.quick { 2 } else { ((400e6 / bytes).ceil() as usize).clamp(1, 64) }
    }

    /// Times one way to compute a row and writes the result. `check`, if there is something to
    /// compare with, computes it once beside the reference. A failure is written too, and stops
    /// nothing; a fallback where there are kernels is one.
    pub fn run(
        &mut self,
        case: &Case<'_>,
        variant: &str,
        sets: usize,
        check: Option<&dyn Fn() -> Result<Difference>>,
        call: &Call<'_>,
    ) {
        let mut record = self.record(case, variant);
        let before = self.ops.fallbacks();
        let timed = guard(|| {
            let timing = time(&self.device, self.effort, sets, call)?;
            self.refuse_fallbacks(&before)?;
            Ok((timing, check.map(|check| check()).transpose()))
        });
        self.fill(&mut record, timed);
        self.finish(record, variant != "reference", |bench, ms| {
            time_graph(&bench.device, bench.effort, sets, ms, call)
        });
    }

    /// Times a call by the operations that policies use, whose first result is held against that of
    /// tensor operations, and by these: the variants that are wanted.
    pub fn run_both<T: Send + 'static>(
        &mut self,
        case: &Case<'_>,
        sets: usize,
        call: impl Fn(&dyn Ops, usize) -> Result<T> + Sync,
        compare: impl Fn(T, T) -> Result<Difference>,
    ) {
        let ops = self.ops.clone();
        if self.variants.contains(&Variant::Briquette) {
            let check = || compare(call(ops.as_ref(), 0)?, call(&Reference, 0)?);
            self.run(case, "briquette", sets, Some(&check), &|set| keep(call(ops.as_ref(), set)?));
        }
        if self.variants.contains(&Variant::Reference) {
            self.run(case, "reference", sets, None, &|set| keep(call(&Reference, set)?));
        }
    }

    /// As [`run`](Self::run), for the time by which `with` exceeds `without`, on one set of inputs.
    pub fn run_difference(
        &mut self,
        case: &Case<'_>,
        variant: &str,
        check: Option<&dyn Fn() -> Result<Difference>>,
        with: &Call<'_>,
        without: &Call<'_>,
    ) {
        let mut record = self.record(case, variant);
        let before = self.ops.fallbacks();
        let timed = guard(|| {
            let (timing, about) = time_difference(&self.device, self.effort, with, without)?;
            self.refuse_fallbacks(&before)?;
            Ok((about, (timing, check.map(|check| check()).transpose())))
        });
        let about = timed.as_ref().map_or(f64::INFINITY, |(about, _)| *about);
        self.fill(&mut record, timed.map(|(_, timed)| timed));
        self.finish(record, true, |bench, _| {
            let time = |call| time_graph(&bench.device, bench.effort, 1, about, call);
            Ok(time(with)? - time(without)?)
        });
    }

    /// Writes a record, and if a graph is wanted once more with its time, which `graph` works out
    /// from that of a launched call. It comes last: a capture that fails may take the device with
    /// it.
    fn finish(
        &mut self,
        mut record: Record,
        wanted: bool,
        graph: impl FnOnce(&Self, f64) -> Result<f64>,
    ) {
        self.write(&record);
        let Some(ms) = record.ms.filter(|_| self.graph && wanted) else { return };
        match guard(|| graph(self, ms)) {
            Ok(ms) => record.ms_graph = Some(ms),
            Err(error) => record.graph_error = Some(format!("{error:#}")),
        }
        self.write(&record);
    }

    fn fill(&self, record: &mut Record, timed: Result<(Timing, Result<Option<Difference>>)>) {
        match timed {
            Ok((Timing { first, device, call, range, .. }, difference)) => {
                record.ms = Some(device);
                record.ms_call = Some(call);
                record.ms_first = Some(first);
                record.ms_range = Some(range);
                match difference {
                    Ok(difference) => record.difference = difference,
                    Err(error) => record.error = Some(format!("not checked: {error:#}")),
                }
            }
            Err(error) => record.error = Some(format!("{error:#}")),
        }
    }

    /// Fails if tensor operations have answered for a kernel since then, but for devices that have
    /// none.
    fn refuse_fallbacks(&self, before: &[Fallback]) -> Result<()> {
        // What only CubeCL can tell.
        if bytes_in_use(&self.device).is_none() {
            return Ok(());
        }
        match self.ops.fallbacks().into_iter().find(|fallback| !before.contains(fallback)) {
            None => Ok(()),
            Some(Fallback { operation, reason, .. }) => {
                bail!("tensor operations were timed, not the kernel of {operation}: {reason}")
            }
        }
    }

    fn write(&mut self, record: &Record) {
        if let Err(error) = self.sink.write(record) {
            eprintln!("{error:#}");
        }
    }

    /// A row as it begins.
    fn record(&self, case: &Case<'_>, variant: &str) -> Record {
        let some = |number: f64| (number > 0.0).then_some(number);
        Record {
            side: "briquette".into(),
            row: case.row.into(),
            variant: variant.into(),
            shape: case.shape.clone(),
            bytes: some(case.bytes),
            operations: some(case.operations),
            dtype: format!("{:?}", self.dtype).to_lowercase(),
            device: self.name.clone(),
            versions: versions(),
            date: today(),
            quick: self.quick,
            ..Record::default()
        }
    }
}

/// Turns a panic of Burn or of a kernel, as of memory that ran out, into an error.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()));
        Err(anyhow!("panicked: {}", text.unwrap_or_default()))
    })
}

/// The largest difference of two tensors, and the largest number of the second.
///
/// # Errors
/// If the device fails, or there is a NaN.
pub fn difference<const D: usize>(found: Tensor<D>, expected: Tensor<D>) -> Result<Difference> {
    let (found, expected) = (found.cast(DType::F32), expected.cast(DType::F32));
    let of = f64::from(expected.clone().abs().max().try_into_scalar::<f32>()?);
    let off = f64::from((found - expected).abs().max().try_into_scalar::<f32>()?);
    // A maximum may pass over NaN.
    if off.is_nan() || of.is_nan() { Err(anyhow!("there is a NaN")) } else { Ok((off, of)) }
}

/// Number of indices that differ, and number of all.
///
/// # Errors
/// If the device fails.
pub fn indices_differ<const D: usize>(
    found: Tensor<D, Int>,
    expected: Tensor<D, Int>,
) -> Result<Difference> {
    let [found, expected] =
        [found, expected].map(|indices| indices.try_into_vec_as::<i64>().map_err(|e| anyhow!(e)));
    let (found, expected) = (found?, expected?);
    let differ = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
    Ok(((differ + found.len().abs_diff(expected.len())) as f64, expected.len() as f64))
}

fn versions() -> String {
    let built = if cfg!(debug_assertions) { ", debug build" } else { "" };
    let fusion = if cfg!(feature = "fusion") { ", fusion" } else { "" };
    format!("briquette {}, burn 0.22.1, cubecl 0.11.3{fusion}{built}", env!("CARGO_PKG_VERSION"))
}
