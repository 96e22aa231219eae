//! What every decoded token does to the entries of a layer.

mod append;
mod count;
