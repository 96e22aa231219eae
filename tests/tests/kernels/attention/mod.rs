//! Attention, and the rotation of queries and keys.

mod decode;
mod prefill;
mod rotary;
mod sparse;
mod window;
