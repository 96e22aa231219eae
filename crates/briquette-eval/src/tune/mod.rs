//! Which policy serves a model best in a given share of the full cache's memory, by
//! [`fidelity`](crate::fidelity).
//!
//! 1. Every candidate (a method with its [parameters](variants())) gets the largest
//!    [budget](crate::fidelity::largest()) whose cache keeps no more than the target share of the
//!    full cache's bytes, measured at the end of a prompt: positions and scores count, spare room
//!    for tokens to come does not. Those that keep more than 1.05 times the share are named with
//!    it, and not chosen.
//! 2. [Successive halving](rounds()) (Jamieson and Talwalkar, 2016) by thirds: all candidates on a
//!    few windows of the text, the best third on three times as many, and so on.
//! 3. Candidates are ranked by their mean KL(full ‖ compressed) over windows; how sure the order is
//!    says the difference to the best in the same windows (paired), with its standard error.
//!
//! The [material](Material) is a text that is continued, or [questions](Questions) behind contexts
//! that are compressed without them. A text does not say whether a detail that nothing refers to
//! yet would still be found; questions do, by the distributions of their answers. The winner was
//! picked among many in the same windows, so its own number is a little too good.

mod halving;
mod material;
mod prompt;
mod questions;
mod run;
mod variants;

pub use halving::{Round, rounds};
pub use material::Material;
pub use questions::Questions;
pub use run::{Candidate, Plan, Ranked, Refused, Tuned, Tuning, Unit};
pub use variants::variants;
