//! One pair of channels and many, a row that no vector divides, positions of heads and of rows,
//! padding.

use briquette::ops::Reference;
use briquette_kernels::{rotate, rotate_both};
use briquette_ops::{AttentionOps, RotaryTables};
use briquette_tests::{backends::host, inputs::Noise, session::tolerance};
use burn::tensor::{DType, Device, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    attention::{rotary_tables, rotated},
    common::{
        RefusedBy, all_backends, answer, close, each_dtype, f64s, integers, kernel_backends,
        numbers, poison, rows, turned,
    },
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
        let x = Noise::new(head_dim as u64).tensor([batch, heads, tokens, head_dim], &host());
        let x = x.cast(dtype);
        let mut rng = ChaCha8Rng::seed_from_u64(tokens as u64);
        let of_heads = if own { heads } else { 1 };
        let positions: Vec<i64> = (0..batch * of_heads * tokens)
            .map(|_| rng.random_range(0..=POSITIONS as i64) - 1)
            .collect();
        let tables = rotary_tables(POSITIONS, head_dim / 2, table);
        let held = tables.each_ref().map(f64s);

        let mut turned = Vec::new();
        for (place, row) in rows(&x).iter().enumerate() {
            let (token, list) = (place % tokens, place / tokens);
            let list = if own { list } else { list / heads };
            let position = positions[list * tokens + token].max(0) as usize;
            turned.extend(rotated(row, position, &held));
        }
        let [cosines, sines] = tables.map(|table| table.to_device(device));
        let positions = integers(&positions, [batch, of_heads, tokens], device);
        let rotary = RotaryTables { cosines, sines, positions };
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
    each_dtype(all_backends(), |backend, dtype| {
        let rotate = |x: &Tensor<4>, tables: &RotaryTables| {
            answer(backend, "rotate", |kernels| kernels.rotate(x.clone(), tables.clone()))
        };
        for case in CASES {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            let drawn = case.draw(dtype, DType::F32, &backend.device);
            poison(&backend.device, &[drawn.turned.len()]);
            check(rotate(&drawn.x, &drawn.rotary), &drawn, dtype);
            let expected = Reference.rotate(drawn.x.clone(), drawn.rotary.clone());
            check(expected.unwrap(), &drawn, dtype);
            check(rotate(&turned(&drawn.x, 1, 3), &drawn.rotary), &drawn, dtype);
            // Tables of another type.
            let drawn = case.draw(dtype, dtype, &backend.device);
            check(rotate(&drawn.x, &drawn.rotary), &drawn, dtype);
        }
    });
}

#[test]
fn queries_and_keys_are_turned_together() {
    each_dtype(all_backends(), |backend, dtype| {
        for case in CASES.into_iter().filter(|case| !case.own) {
            println!("{}, {dtype:?}, {case:?}", backend.name);
            let Case { batch, heads, tokens, head_dim, .. } = case;
            let drawn = case.draw(dtype, DType::F32, &backend.device);
            // Keys are the last heads, as a model hands them over.
            let kv_heads = heads.div_ceil(2);
            let keys = drawn.x.clone().narrow(1, heads - kv_heads, kv_heads);
            let of_keys = batch * kv_heads * tokens * head_dim;
            poison(&backend.device, &[drawn.turned.len(), of_keys]);
            let (turned, turned_keys) = answer(backend, "rotate", |kernels| {
                kernels.rotate_both(drawn.x.clone(), keys, drawn.rotary.clone())
            });
            let of_keys = numbers(turned.clone().narrow(1, heads - kv_heads, kv_heads));
            assert_eq!(numbers(turned_keys), of_keys);
            check(turned, &drawn, dtype);
        }
    });
}

#[test]
fn rotate_refuses() {
    let by = RefusedBy("rotate");
    let call = |device: &Device| {
        let Drawn { x, rotary, .. } = CASES[1].draw(DType::F32, DType::F32, device);
        (x, rotary)
    };
    let (x, tables) = call(&host());
    assert_eq!(rotate(x, tables).unwrap_err(), by.device());
    for backend in kernel_backends() {
        let (x, tables) = call(&backend.device);
        let short = RotaryTables { sines: tables.sines.clone().narrow(1, 0, 2), ..tables.clone() };
        let error = rotate(x.clone(), short).unwrap_err();
        assert_eq!(error, by.shape("sines", &[POSITIONS, 2], &[POSITIONS, 3]));
        let nothing = Tensor::zeros([2, 0, 5, 6], &backend.device);
        let error = rotate(nothing, tables.clone()).unwrap_err();
        assert_eq!(error, by.value("heads", 0, "1 or more"));
        let error = rotate_both(x.clone(), x, tables).unwrap_err();
        assert_eq!(error, by.shape("positions", &[2, 3, 5], &[2, 1, 5]));
    }
}
