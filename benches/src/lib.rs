//! The programs that time Briquette: one operation at a time beside PyTorch's (`bench-kernels`), a
//! whole model of the size of Llama 3 8B (`bench-generate`), and the tables of both
//! (`bench-table`).
//!
//! The README beside this describes the method of measurement.

pub mod bench;
pub mod generate;
pub mod measure;
pub mod model;
pub mod record;
pub mod rows;
pub mod settings;
pub mod table;
