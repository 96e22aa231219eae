//! Ceilings of the device: the rates from which floors are computed.

use anyhow::Result;
use burn::tensor::{DType, Tensor};

use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if !bench.variants.contains(&Variant::Burn) {
        return Ok(());
    }
    copy(bench);
    matmul(bench);
    Ok(())
}

/// One pass over a long tensor, read and written.
fn copy(bench: &mut Bench) {
    let row = "copy";
    if !bench.wants(row) {
        return;
    }
    let bytes = bench.size(2 << 30, 1 << 20);
    let x = bench.noise([bytes / bench.dtype.size()], bench.dtype);
    let case = Case {
        row,
        shape: format!("{} MiB", bytes >> 20),
        bytes: 2.0 * bytes as f64,
        operations: 0.0,
    };
    let part = || x.clone().narrow(0, 0, 1000);
    let check = || difference(x.clone().mul_scalar(1.0).narrow(0, 0, 1000), part());
    bench.run(&case, "burn", 1, Some(&check), &|_| keep(x.clone().mul_scalar(1.0)));
}

fn matmul(bench: &mut Bench) {
    let row = "matmul";
    if !bench.wants(row) {
        return;
    }
    let n = bench.size(8192, 64);
    let [a, b] = [(); 2].map(|()| bench.noise([n, n], bench.dtype));
    let cube = (n as f64).powi(3);
    let bytes = 3.0 * (n as f64).powi(2) * bench.number();
    let case = Case { row, shape: format!("{n}³"), bytes, operations: 2.0 * cube };
    // A few rows, in f32 and column by column, so that no other product is trusted.
    let check = || {
        let rows = |x: Tensor<2>| x.narrow(0, 0, 4).cast(DType::F32);
        let found = rows(a.clone().matmul(b.clone()).narrow(1, 0, 8));
        let columns = b.clone().narrow(1, 0, 8).cast(DType::F32).transpose().reshape([1, 8, n]);
        let expected = (rows(a.clone()).reshape([4, 1, n]) * columns).sum_dim(2).reshape([4, 8]);
        difference(found, expected)
    };
    bench.run(&case, "burn", 1, Some(&check), &|_| keep(a.clone().matmul(b.clone())));
}
