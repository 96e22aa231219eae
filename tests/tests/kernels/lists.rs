//! Heads of different lengths in one list, side by side, and with what has come behind them.

use briquette::ops::{LayOutInput, Ops, PackInput, Reference, best};
use briquette_kernels::{Columns, KernelError, LayOut, MOST_TRACKS, Pack, join, lay_out, pack};
use briquette_tests::{
    backends::{Backend, backends, host},
    inputs::Noise,
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::common::{integers, numbers, poison};

fn devices() -> impl Iterator<Item = Backend> {
    backends().into_iter().filter(|backend| backend.name != "flex")
}

/// Lists of heads, and a tail.
#[derive(Debug)]
struct Case {
    batch: usize,
    heads: usize,
    head_dim: usize,
    /// Rows of each head.
    counts: Vec<usize>,
    /// Columns of a rectangle.
    width: usize,
    capacity: usize,
    tail: usize,
}

fn cases() -> Vec<Case> {
    let case = |[batch, heads, head_dim]: [usize; 3],
                counts: &[usize],
                width,
                [capacity, tail]: [usize; 2]| {
        Case { batch, heads, head_dim, counts: counts.to_vec(), width, capacity, tail }
    };
    vec![
        case([1, 1, 1], &[1], 1, [1, 0]),
        case([1, 2, 64], &[5, 5], 5, [4, 1]),
        // A head that holds nothing, and rows of odd lengths.
        case([2, 2, 7], &[3, 0, 9, 1], 11, [3, 3]),
        // More vectors than a cube has units, and more rows than a cube copies.
        case([1, 2, 1030], &[4, 2], 4, [2, 2]),
        case([1, 3, 128], &[70, 300, 33], 320, [130, 129]),
    ]
}

impl Case {
    fn offsets(&self) -> Vec<usize> {
        let mut offsets = vec![0];
        self.counts.iter().for_each(|count| offsets.push(offsets[offsets.len() - 1] + count));
        offsets
    }

    fn alike(&self) -> bool {
        self.counts.iter().all(|&count| count == self.width)
    }

    fn noise(&self, rows: [usize; 3], dtype: DType) -> Tensor<4> {
        let [batch, heads, rows] = rows;
        let mut noise = Noise::new((self.head_dim + rows) as u64);
        noise.tensor([batch, heads, rows, self.head_dim], &host()).cast(dtype)
    }

    fn lay_out(&self, dtype: DType, device: &Device) -> LayOut {
        let total = self.counts.iter().sum();
        let list =
            self.noise([1, 1, total], dtype).to_device(device).reshape([total, self.head_dim]);
        let tail = self.noise([self.batch, self.heads, self.capacity], dtype).to_device(device);
        LayOut {
            values: list.clone() * 2.0,
            keys: list,
            offsets: (!self.alike()).then(|| integers(&self.offsets(), device)),
            width: self.width,
            tail_values: tail.clone() * 2.0,
            tail_keys: tail,
            tail: self.tail,
        }
    }

    /// What is found in a rectangle is what the list and the tail held: the first number is at fillers.
    fn check_rectangle(&self, call: &LayOut, [keys, values]: [Tensor<4>; 2]) {
        let Self { batch, heads, head_dim, width, capacity, tail, .. } = *self;
        assert_eq!(keys.dims(), [batch, heads, width + tail, head_dim]);
        assert_eq!(values.dims(), keys.dims());
        let offsets = self.offsets();
        let pairs =
            [(keys, &call.keys, &call.tail_keys), (values, &call.values, &call.tail_values)];
        for (found, list, behind) in pairs {
            let (found, list) = (numbers(found), numbers(list.clone()));
            let behind = numbers(behind.clone());
            let row = |x: &[f32], row: usize| x[row * head_dim..][..head_dim].to_vec();
            for (head, (&count, &own)) in self.counts.iter().zip(&offsets).enumerate() {
                let first = head * (width + tail);
                for place in 0..count {
                    let expected = row(&list, own + place);
                    assert_eq!(row(&found, first + width - count + place), expected, "{self:?}");
                }
                for place in 0..tail {
                    let expected = row(&behind, head * capacity + place);
                    assert_eq!(row(&found, first + width + place), expected, "{self:?}");
                }
                let fillers = (0..width - count).flat_map(|place| row(&found, first + place));
                assert!(fillers.into_iter().all(f32::is_finite), "{self:?}");
            }
        }
    }
}

/// The same numbers, turned in memory.
fn turned<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.swap_dims(0, D - 1).add_scalar(0.0).swap_dims(0, D - 1)
}

#[test]
fn lay_out_of_cases() {
    for backend in devices() {
        for dtype in backend.dtypes() {
            for case in backend.some(cases(), dtype) {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let call = case.lay_out(dtype, &backend.device);
                let size = case.batch * case.heads * (case.width + case.tail) * case.head_dim;
                poison(&backend.device, &[size, size]);
                let found = lay_out(call.clone()).unwrap();
                assert_eq!(found[0].dtype(), dtype);
                case.check_rectangle(&call, found);
                let elsewhere = LayOut {
                    keys: turned(call.keys.clone()),
                    values: turned(call.values.clone()),
                    tail_keys: turned(call.tail_keys.clone()),
                    tail_values: call.tail_values.clone(),
                    ..call.clone()
                };
                case.check_rectangle(&call, lay_out(elsewhere).unwrap());
            }
        }
    }
}

#[test]
fn pack_of_cases() {
    for backend in devices() {
        for dtype in backend.dtypes() {
            for case in backend.some(cases(), dtype) {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let call = case.lay_out(dtype, &backend.device);
                let [keys, values] = lay_out(LayOut { tail: 0, ..call.clone() }).unwrap();
                let size = call.keys.dims().iter().product();
                poison(&backend.device, &[size, size]);
                let pack = |keys, values| {
                    let offsets = integers(&case.offsets(), &backend.device);
                    pack(Pack { keys, values, counts: &case.counts, offsets }).unwrap()
                };
                for (keys, values) in [(keys.clone(), values.clone()), (turned(keys), values)] {
                    let [keys, values] = pack(keys, values);
                    assert_eq!(numbers(keys), numbers(call.keys.clone()), "{case:?}");
                    assert_eq!(numbers(values), numbers(call.values.clone()), "{case:?}");
                }
            }
        }
    }
}

#[test]
fn lists_by_tensor_operations() {
    for backend in backends() {
        for case in cases() {
            let call = case.lay_out(DType::F32, &backend.device);
            let LayOut { keys, values, offsets, width, tail_keys, tail_values, tail } =
                call.clone();
            let input = LayOutInput { keys, values, offsets, width, tail_keys, tail_values, tail };
            for ops in [&Reference as &dyn Ops, best().as_ref()] {
                case.check_rectangle(&call, ops.lay_out(input.clone()));
                let [keys, values] = ops.lay_out(LayOutInput { tail: 0, ..input.clone() });
                let offsets = integers(&case.offsets(), &backend.device);
                let counts = &case.counts;
                let [keys, values] = ops.pack(PackInput { keys, values, counts, offsets });
                assert_eq!(numbers(keys), numbers(call.keys.clone()), "{case:?}");
                assert_eq!(numbers(values), numbers(call.values.clone()), "{case:?}");
            }
        }
    }
}

#[test]
fn lists_that_do_not_fit_are_refused() {
    let case = &cases()[2];
    let counts = &case.counts;
    let on_host = case.lay_out(DType::F32, &host());
    assert_eq!(lay_out(on_host).unwrap_err(), KernelError::Device { operation: "lay_out" });
    for backend in devices() {
        let good = case.lay_out(DType::F32, &backend.device);
        let value = |operation, what, found, expected: &str| KernelError::Value {
            operation,
            what,
            found,
            expected: expected.into(),
        };
        assert_eq!(
            lay_out(LayOut { tail: 4, ..good.clone() }).unwrap_err(),
            value("lay_out", "tail", 4, "at most 3")
        );
        assert_eq!(
            lay_out(LayOut { offsets: None, ..good.clone() }).unwrap_err(),
            value("lay_out", "rows", 13, "44, 11 a head")
        );
        let few = good.offsets.clone().map(|offsets| offsets.narrow(0, 0, 4));
        assert_eq!(
            lay_out(LayOut { offsets: few, ..good.clone() }).unwrap_err(),
            KernelError::Shape {
                operation: "lay_out",
                tensor: "offsets",
                found: vec![4],
                expected: vec![5],
            }
        );
        let rectangle = good.tail_keys;
        let (keys, values) = (rectangle.clone(), rectangle);
        let offsets = integers(&case.offsets(), &backend.device);
        let call = |counts| Pack {
            keys: keys.clone(),
            values: values.clone(),
            counts,
            offsets: offsets.clone(),
        };
        assert_eq!(
            pack(call(&counts[..3])).unwrap_err(),
            value("pack", "the length of counts", 3, "4")
        );
        assert_eq!(pack(call(counts)).unwrap_err(), value("pack", "counts", 9, "at most 3"));
        assert_eq!(pack(call(&[0; 4])).unwrap_err(), value("pack", "rows", 0, "1 or more"));
    }
}

/// Positions and tracks of `[batch, heads, columns]`, all numbers different; tracks have so many heads for each.
fn columns(dims: [usize; 3], first: usize, groups: &[usize], device: &Device) -> Columns {
    let [batch, heads, width] = dims;
    let count = |numbers: usize, from: usize| (0..numbers).map(move |number| from + number);
    let positions: Vec<i64> =
        count(batch * heads * width, first).map(|number| number as i64 - 1).collect();
    let track = |(index, group): (usize, &usize)| {
        let all: Vec<f32> = count(batch * heads * group * width, first * (index + 2))
            .map(|number| number as f32)
            .collect();
        let data = TensorData::new(all, [batch, heads * group, width]);
        Tensor::<3>::from_data(data, (device, DType::F32))
    };
    Columns {
        positions: Tensor::from_data(TensorData::new(positions, dims), device),
        tracks: groups.iter().enumerate().map(track).collect(),
    }
}

#[test]
fn join_of_cases() {
    let cases: [([usize; 4], &[usize]); 4] = [
        ([1, 1, 1, 1], &[]),
        ([2, 3, 5, 2], &[1]),
        ([1, 2, 300, 1], &[1, 4, 1]),
        ([2, 1, 255, 257], &[2; MOST_TRACKS]),
    ];
    let integers = |x: Tensor<3, Int>| x.try_into_vec_as::<i64>().unwrap();
    for backend in devices() {
        for ([batch, heads, width, more], groups) in cases {
            let device = &backend.device;
            let before = columns([batch, heads, width], 7, groups, device);
            let behind = columns([batch, heads, more], 100_000, groups, device);
            // A part of wider tensors.
            let wide = columns([batch, heads, width + 3], 9, groups, device);
            let part = |x: &Tensor<3>, like: &Tensor<3>| {
                let wide = x
                    .clone()
                    .slice_assign([0..batch, 0..like.dims()[1], 2..width + 2], like.clone());
                wide.narrow(2, 2, width)
            };
            let tracks = wide.tracks.iter().zip(&before.tracks);
            let parts = Columns {
                tracks: tracks.map(|(wide, track)| part(wide, track)).collect(),
                ..before.clone()
            };
            poison(device, &[batch * heads * (width + more)]);
            for from in [before.clone(), parts] {
                let found = join(from, behind.clone()).unwrap();
                let all = vec![before.positions.clone(), behind.positions.clone()];
                assert_eq!(integers(found.positions), integers(Tensor::cat(all, 2)));
                assert_eq!(found.tracks.len(), groups.len());
                let both = before.tracks.iter().zip(&behind.tracks);
                for (found, (track, more)) in found.tracks.into_iter().zip(both) {
                    let all = Tensor::cat(vec![track.clone(), more.clone()], 2);
                    assert_eq!(numbers(found), numbers(all));
                }
            }
        }
    }
}

#[test]
fn join_refuses() {
    let both = |device: &Device| {
        (columns([1, 2, 3], 1, &[1, 2], device), columns([1, 2, 2], 1, &[1, 2], device))
    };
    let (before, behind) = both(&host());
    assert_eq!(join(before, behind).unwrap_err(), KernelError::Device { operation: "join" });
    for backend in devices() {
        let (before, behind) = both(&backend.device);
        let value = |what, found, expected: &str| KernelError::Value {
            operation: "join",
            what,
            found,
            expected: expected.into(),
        };
        let fewer = Columns { tracks: behind.tracks[..1].to_vec(), ..behind.clone() };
        let error = join(before.clone(), fewer).unwrap_err();
        assert_eq!(error, value("the tracks behind", 1, "2"));
        let error = join(before.clone(), columns([1, 2, 2], 1, &[1, 1], &backend.device));
        assert_eq!(
            error.unwrap_err(),
            KernelError::Shape {
                operation: "join",
                tensor: "a track behind",
                found: vec![1, 2, 2],
                expected: vec![1, 4, 2],
            }
        );
        let tracks = vec![before.tracks[0].clone(); MOST_TRACKS + 1];
        let error =
            join(Columns { tracks: tracks.clone(), ..before }, Columns { tracks, ..behind });
        assert!(matches!(error.unwrap_err(), KernelError::TooLarge { .. }));
    }
}
