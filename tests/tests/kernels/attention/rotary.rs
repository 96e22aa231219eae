//! One pair of channels and many, a row that no vector divides, positions of heads and of rows,
//! padding.

use briquette::ops::{AttentionOps, OpError, Reference, RotaryTables};
use briquette_kernels::{rotate, rotate_both};
use briquette_tests::{backends::host, inputs::Noise, session::tolerance};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    all_backends, answer, close, kernel_backends, numbers, poison, rows, wrong_shape, wrong_value,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    tokens: usize,
    head_dim: usize,
    /// Whether heads have positions of their own.
    own: bool,
}

const CASES: [Case; 6] = [
    Case { batch: 1, heads: 1, tokens: 1, head_dim: 2, own: false },
    Case { batch: 2, heads: 3, tokens: 5, head_dim: 6, own: true },
    Case { batch: 1, heads: 2, tokens: 9, head_dim: 30, own: false },
    Case { batch: 2, heads: 2, tokens: 64, head_dim: 64, own: true },
    Case { batch: 1, heads: 4, tokens: 17, head_dim: 128, own: false },
    Case { batch: 3, heads: 1, tokens: 1, head_dim: 256, own: true },
];

const POSITIONS: usize = 41;

/// A call and what comes of it.
struct Drawn {
    x: Tensor<4>,
    rotary: RotaryTables,
    turned: Vec<f64>,
}

impl Case {
    fn draw(self, dtype: DType, table: DType, device: &Device) -> Drawn {
        let Self { batch, heads, tokens, head_dim, own } = self;
        let host = host();
        let half = head_dim / 2;
        let x = Noise::new(head_dim as u64).tensor([batch, heads, tokens, head_dim], &host);
        let x = x.cast(dtype);
        let mut rng = ChaCha8Rng::seed_from_u64(tokens as u64);
        let of_heads = if own { heads } else { 1 };
        let positions: Vec<i64> = (0..batch * of_heads * tokens)
            .map(|_| rng.random_range(0..=POSITIONS as i64) - 1)
            .collect();
        let make = |of: fn(f64) -> f64| {
            let angle = |place: usize| (place / half) as f64 / (1.0 + (place % half) as f64);
            let numbers = (0..POSITIONS * half).map(|place| of(angle(place)) as f32);
            let numbers = TensorData::new(numbers.collect::<Vec<f32>>(), [POSITIONS, half]);
            Tensor::<2>::from_data(numbers, (&host, DType::F32)).cast(table)
        };
        let (cosines, sines) = (make(f64::cos), make(f64::sin));
        let held = |table: &Tensor<2>| numbers(table.clone());
        let (cosine, sine) = (held(&cosines), held(&sines));

        let mut turned = Vec::new();
        for (place, row) in rows(&x, head_dim).iter().enumerate() {
            let (token, head) = (place % tokens, place / tokens % heads);
            let list =
                if own { place / tokens / heads * heads + head } else { place / tokens / heads };
            let position = positions[list * tokens + token].max(0) as usize;
            let angle = |i: usize| {
                let at = position * half + i;
                (f64::from(cosine[at]), f64::from(sine[at]))
            };
            turned.extend((0..half).map(|i| row[i] * angle(i).0 - row[i + half] * angle(i).1));
            turned.extend((0..half).map(|i| row[i + half] * angle(i).0 + row[i] * angle(i).1));
        }
        let positions = TensorData::new(positions, [batch, of_heads, tokens]);
        let rotary = RotaryTables {
            cosines: cosines.to_device(device),
            sines: sines.to_device(device),
            positions: Tensor::<3, Int>::from_data(positions, device),
        };
        Drawn { x: x.to_device(device), rotary, turned }
    }
}

fn check(found: Tensor<4>, drawn: &Drawn, dtype: DType) {
    assert_eq!(found.dims(), drawn.x.dims());
    assert_eq!(found.dtype(), dtype);
    close(&numbers(found), &drawn.turned, dtype, tolerance(dtype));
}

#[test]
fn rotate_of_cases() {
    for backend in all_backends() {
        let rotate = |x: &Tensor<4>, tables: &RotaryTables| {
            answer(&backend, "rotate", |kernels| kernels.rotate(x.clone(), tables.clone()))
        };
        for dtype in backend.dtypes() {
            for case in CASES {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let drawn = case.draw(dtype, DType::F32, &backend.device);
                poison(&backend.device, &[drawn.turned.len()]);
                check(rotate(&drawn.x, &drawn.rotary), &drawn, dtype);
                let expected = Reference.rotate(drawn.x.clone(), drawn.rotary.clone());
                check(expected.unwrap(), &drawn, dtype);
                let elsewhere = drawn.x.clone().swap_dims(1, 3).add_scalar(0.0).swap_dims(1, 3);
                check(rotate(&elsewhere, &drawn.rotary), &drawn, dtype);
                // Tables of another type.
                let drawn = case.draw(dtype, dtype, &backend.device);
                check(rotate(&drawn.x, &drawn.rotary), &drawn, dtype);
            }
        }
    }
}

#[test]
fn queries_and_keys_are_turned_together() {
    for backend in all_backends() {
        for dtype in backend.dtypes() {
            for case in CASES.into_iter().filter(|case| !case.own) {
                println!("{}, {dtype:?}, {case:?}", backend.name);
                let Case { batch, heads, tokens, head_dim, .. } = case;
                let drawn = case.draw(dtype, DType::F32, &backend.device);
                // Keys are the last heads, as a model hands them over.
                let kv_heads = heads.div_ceil(2);
                let keys = drawn.x.clone().narrow(1, heads - kv_heads, kv_heads);
                poison(
                    &backend.device,
                    &[drawn.turned.len(), batch * kv_heads * tokens * head_dim],
                );
                let (turned, turned_keys) = answer(&backend, "rotate", |kernels| {
                    kernels.rotate_both(drawn.x.clone(), keys, drawn.rotary.clone())
                });
                let of_keys = numbers(turned.clone().narrow(1, heads - kv_heads, kv_heads));
                assert_eq!(numbers(turned_keys), of_keys);
                check(turned, &drawn, dtype);
            }
        }
    }
}

#[test]
fn rotate_refuses() {
    let operation = "rotate";
    let call = |device: &Device| {
        let Drawn { x, rotary, .. } = CASES[1].draw(DType::F32, DType::F32, device);
        (x, rotary)
    };
    let (x, tables) = call(&host());
    assert_eq!(rotate(x, tables).unwrap_err(), OpError::Device { operation });
    for backend in kernel_backends() {
        let (x, tables) = call(&backend.device);
        let short = RotaryTables { sines: tables.sines.clone().narrow(1, 0, 2), ..tables.clone() };
        let error = rotate(x.clone(), short).unwrap_err();
        assert_eq!(error, wrong_shape(operation, "sines", &[POSITIONS, 2], &[POSITIONS, 3]));
        let nothing = Tensor::zeros([2, 0, 5, 6], &backend.device);
        let error = rotate(nothing, tables.clone()).unwrap_err();
        assert_eq!(error, wrong_value(operation, "heads", 0, "1 or more"));
        let error = rotate_both(x.clone(), x, tables).unwrap_err();
        assert_eq!(error, wrong_shape(operation, "positions", &[2, 3, 5], &[2, 1, 5]));
    }
}
