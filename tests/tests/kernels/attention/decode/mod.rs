//! Attention of decoded tokens, a file a kernel.

mod clustered;
mod dense_ragged;
mod quantized;
