//! Attention, and the rotation of queries and keys.

mod decode;
mod gradient;
mod prefill;
mod rotary;
mod sparse;
mod window;
