//! Changes that every decoded token makes to the entries of a layer.

mod append;
mod count;
mod quantize;
mod ranks;
