//! The functions that KIVI's published code quantizes with.

use briquette::{
    CacheConfig, CacheShape, KvCache, Policy, position::NoPositionEncoding, store::Quantized,
};
use briquette_tests::backends::host;
use burn::tensor::{DType, Tensor, TensorData, f16};
use serde::Deserialize;

use super::cases;

#[derive(Deserialize)]
struct Case {
    of: Of,
    bits: u8,
    group: usize,
    #[serde(rename = "type")]
    dtype: Type,
    /// `[batch, heads, tokens, channels]`
    shape: [usize; 4],
    before: Vec<f32>,
    after: Vec<f64>,
    /// Of keys `[batch, heads, tokens / group, channels]`, of values
    /// `[batch, heads, tokens, channels / group]`.
    scale: Vec<f64>,
    min: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    Keys,
    Values,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Type {
    Float32,
    Float16,
}

/// The line that the numbers of a group lie on.
struct Line {
    scale: f64,
    min: f64,
}

impl Line {
    /// The step a number is rounded to, a half to the even one. Equal numbers have no steps.
    fn step(&self, number: f64, top: f64) -> f64 {
        if self.scale == 0.0 {
            return 0.0;
        }
        ((number - self.min) / self.scale).round_ties_even().clamp(0.0, top)
    }
}

impl Case {
    fn top(&self) -> f64 {
        f64::from((1_u32 << self.bits) - 1)
    }

    /// Place of a number's group in the lists of scales and minima.
    fn group_of(&self, index: usize) -> usize {
        let [_, _, tokens, channels] = self.shape;
        let (head, token) = (index / (tokens * channels), index / channels % tokens);
        let channel = index % channels;
        match self.of {
            Of::Keys => (head * (tokens / self.group) + token / self.group) * channels + channel,
            Of::Values => (head * tokens + token) * (channels / self.group) + channel / self.group,
        }
    }

    /// The line of each group as a cache draws it: in f32, then rounded once to the cache's type.
    fn lines_here(&self) -> Vec<Line> {
        let mut ends = vec![(f32::INFINITY, f32::NEG_INFINITY); self.scale.len()];
        for (index, &number) in self.before.iter().enumerate() {
            let (low, high) = &mut ends[self.group_of(index)];
            (*low, *high) = (low.min(number), high.max(number));
        }
        let line = |(low, high): (f32, f32)| {
            let scale = (high - low) / self.top() as f32;
            let scale = match self.dtype {
                Type::Float32 => scale,
                Type::Float16 => f16::from_f32(scale).to_f32(),
            };
            Line { scale: scale.into(), min: low.into() }
        };
        ends.into_iter().map(line).collect()
    }

    /// The numbers as a cache gives them back.
    fn through_a_cache(&self) -> Vec<f32> {
        let [batch, kv_heads, tokens, channels] = self.shape;
        let device = host();
        let dtype = match self.dtype {
            Type::Float32 => DType::F32,
            Type::Float16 => DType::F16,
        };
        // A cache quantizes whole groups of tokens. Values are grouped by channels: the same tokens
        // again, until there are enough, change nothing.
        let times = self.group.div_ceil(tokens);
        let numbers = TensorData::new(self.before.clone(), self.shape);
        let numbers = Tensor::<4>::from_data(numbers, (&device, DType::F32)).cast(dtype);
        let numbers = numbers.repeat_dim(2, times);

        let shape = CacheShape { layers: 1, query_heads: kv_heads, kv_heads, head_dim: channels };
        let store = Quantized { bits: self.bits, group: self.group, residual: 0 };
        let config = CacheConfig::default().with_dtype(dtype);
        let policy = Policy::full().with_store(store);
        let mut cache = KvCache::with_config(shape, policy, config, &device).unwrap();
        cache.attend(0, numbers.clone(), numbers.clone(), numbers, &NoPositionEncoding).unwrap();

        let entries = cache.entries(0).unwrap().unwrap();
        let numbers = match self.of {
            Of::Keys => entries.keys,
            Of::Values => entries.values,
        };
        assert_eq!(numbers.dims(), [batch, kv_heads, times * tokens, channels]);
        numbers.narrow(2, 0, tokens).cast(DType::F32).try_into_vec_as().unwrap()
    }
}

/// Distance from a number of this size to the next one in f16.
fn unit_of_f16(number: f64) -> f64 {
    2_f64.powi(number.abs().max(2_f64.powi(-14)).log2().floor() as i32 - 10)
}

#[test]
fn round_trips_of_kivi() {
    for case in cases::<Case>("kivi.json", 8) {
        let lines = case.lines_here();
        let mut other_steps = 0;
        for (index, found) in case.through_a_cache().into_iter().enumerate() {
            let (found, before) = (f64::from(found), f64::from(case.before[index]));
            let (after, group, top) = (case.after[index], case.group_of(index), case.top());
            let place = format!(
                "{:?} {index}, {} bits, {:?}, {before} before",
                case.of, case.bits, case.dtype
            );
            let here = &lines[group];
            let there = Line { scale: case.scale[group], min: case.min[group] };
            // The fixture holds 9 decimals of scales and minima, and 7 of numbers.
            let apart = (here.scale - there.scale).abs();
            assert!((here.min - there.min).abs() <= 1e-9, "{} {}, {place}", here.min, there.min);
            if case.dtype == Type::Float32 {
                assert!(apart <= 1e-9, "scales {} {}, {place}", here.scale, there.scale);
                let off = (found - after).abs();
                assert!(off <= 1e-6 * after.abs() + 1e-7, "{found}, expected {after}, {place}");
                continue;
            }

            // KIVI rounds to f16 after every operation, a cache only scale and minimum. So scales
            // may be a unit apart, and a number that lies about halfway may go to another step.
            let (step_here, step) = (here.step(before, top), there.step(before, top));
            let expected = step_here * here.scale + here.min;
            let off = (found - expected).abs();
            assert!(off <= 1e-6, "{found}, in f32 {expected}, {place}");
            let unit = unit_of_f16(there.scale);
            assert!(apart <= unit + 1e-9, "scales {} {}, {place}", here.scale, there.scale);
            if step_here != step {
                other_steps += 1;
                continue;
            }
            let product = step * there.scale;
            let rounding = (unit_of_f16(product) + unit_of_f16(after)) / 2.0;
            let off = (found - after).abs();
            assert!(off <= step * apart + rounding + 1e-6, "{found}, expected {after}, {place}");
        }
        // Of 1 024 numbers a case.
        let expected = usize::from(case.dtype == Type::Float16 && case.of == Of::Values) * 2;
        assert_eq!(other_steps, expected, "{:?}, {} bits, {:?}", case.of, case.bits, case.dtype);
    }
}
