//! The pages of the book and the README, so that `cargo test --doc` compiles and runs their code.

include!(concat!(env!("OUT_DIR"), "/pages.rs"));

#[doc = include_str!("../../../README.md")]
pub mod readme {}
