//! Every method once more, in the plainest way: numbers in nested `Vec<f64>`, one sequence, loops.
//!
//! Nothing here is shared with the library, so that a mistake has to be made twice to go unseen. A
//! batch is one [`ModelCache`] a row: no padding, no masks. A method is four stages, as in the
//! library: a folder or file each, one idea a file.

pub mod allocate;
pub mod attention;
pub mod cache;
pub mod margin;
pub mod method;
pub mod profile;
pub mod quantize;
pub mod reconstruction;
pub mod reduce;
pub mod score;
pub mod sparse;

pub use allocate::{Allocate, ErrorAware};
pub use attention::{Encoding, Kind};
pub use cache::{Budget, Entry, LayerCache, ModelCache, Prefill, Settings};
pub use margin::Margin;
pub use method::{Method, Positions, Recent};
pub use profile::{HeadScore, Profile};
pub use quantize::{Precision, Store};
pub use reduce::{Compare, Pivot, Reduce, Redundancy, Rotate, Sigma};
pub use score::{From, Heads, Inner, Pick, Pool, Score, Window};

/// `[tokens][head_dim]`: what one head holds of some tokens.
pub type Head = Vec<Vec<f64>>;
