//! Attention of decoded tokens, a file a kernel.

use std::fmt::Debug;

use briquette_ops::{AttentionOps, DecodeInput, DecodeOutput, KvLayout};
use briquette_tests::{backends::Backend, reference::Kind, session::tolerance};
use burn::tensor::{DType, Device};

use crate::common::{
    all_backends, answer, close, each_dtype, kernel_backends, numbers, poison, turned,
};

mod clustered;
mod dense_ragged;
mod quantized;

/// What layouts without positions know of: capped scores, and a sink of each query head.
fn capped_with_sinks(query_heads: usize) -> Kind {
    let sinks = (0..query_heads).map(|head| head as f64 / 2.0 - 1.0).collect();
    Kind { softcap: Some(1.5), sinks, ..Kind::default() }
}

/// A step over compressed entries, and what comes of it in f64.
struct Drawn {
    input: DecodeInput,
    /// Columns of weights.
    columns: usize,
    output: Vec<f64>,
    weights: Vec<f64>,
}

/// A case of a kernel over compressed entries.
trait Case: Debug {
    const OPERATION: &'static str;

    fn head_dim(&self) -> usize;

    /// Whether tensor cores take its keys in the type of the cache, which rounds them.
    fn is_rounded(&self) -> bool;

    fn draw(&self, dtype: DType, device: &Device) -> Drawn;

    /// The same numbers in tensors that are parts of wider ones, or turned.
    fn elsewhere(kv: KvLayout) -> KvLayout;

    /// `None` where there are no kernels, or the device binds too few tensors for this one: stores
    /// lay entries out instead, and `stores.rs` compares what comes of it.
    fn attend(backend: &Backend, input: &DecodeInput) -> Option<DecodeOutput> {
        let found = answer(backend, Self::OPERATION, |kernels| kernels.decode(input));
        assert_eq!(found.is_some(), !backend.binds_few(), "{}", backend.name);
        found
    }
}

fn attention_of_cases<C: Case>(cases: &[C]) {
    each_dtype(all_backends(), |backend, dtype| {
        for (index, case) in backend.some(cases.iter().enumerate().collect(), DType::F32) {
            // A kernel's first launch takes seconds on a software device: half precision has a few
            // of the cases, and those that tensor cores take.
            let of_planes = case.head_dim().is_multiple_of(64);
            if dtype != DType::F32 && !of_planes && !index.is_multiple_of(3) {
                continue;
            }
            println!("{}, {dtype:?}, {case:?}", backend.name);
            // A head that sees nothing is asked for by no caller.
            let Drawn { input, columns, output, weights } = case.draw(dtype, &backend.device);
            poison(&backend.device, &[output.len(), weights.len()]);
            let Some(found) = C::attend(backend, &input) else { continue };
            let dims @ [batch, query_heads, _, _] = input.queries.dims();
            assert_eq!((found.output.dims(), found.output.dtype()), (dims, dtype));
            let again = C::attend(backend, &input).unwrap();
            assert_eq!(found.output.to_data(), again.output.to_data());
            close(&numbers(found.output), &output, dtype, tolerance(dtype));
            let of_columns = found.weights.expect("they are wanted");
            assert_eq!(of_columns.dims(), [batch, query_heads, 1, columns], "one a column");
            let rounded = dtype != DType::F32 && of_planes && case.is_rounded();
            let off = if rounded { tolerance(dtype) / 4.0 } else { 1e-4 };
            close(&numbers(of_columns), &weights, DType::F32, off);

            if index == 0 || of_planes {
                let without = DecodeInput { weights: false, ..input };
                let without = C::attend(backend, &without).unwrap();
                assert!(without.weights.is_none());
                close(&numbers(without.output), &output, dtype, tolerance(dtype));
            }
        }
    });
}

fn attention_elsewhere<'a, C: Case + 'a>(cases: impl IntoIterator<Item = &'a C> + Clone) {
    for backend in kernel_backends() {
        for case in cases.clone() {
            println!("{}, {case:?}", backend.name);
            let Drawn { input, output, weights, .. } = case.draw(DType::F32, &backend.device);
            let queries = turned(&input.queries, 1, 3);
            let input = DecodeInput { queries, kv: C::elsewhere(input.kv), ..input };
            let Some(found) = C::attend(&backend, &input) else { continue };
            close(&numbers(found.output), &output, DType::F32, 1e-4);
            close(&numbers(found.weights.unwrap()), &weights, DType::F32, 1e-4);
        }
    }
}
