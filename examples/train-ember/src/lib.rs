//! Trains ember-7m, or a model of its architecture on a text of one's own, with Burn.
//!
//! Data flows one way: text is [prepared](prepare()) into tokens, [tasks](data) are written into
//! it, [batches](model) of them go through the [model], the [training](train()) updates its weights
//! by a [plan](Plan), and what came out is [measured](evaluate), [drawn](plot()) and
//! [exported](export()).

mod checkpoint;
pub mod cli;
pub mod data;
pub mod evaluate;
mod export;
mod log;
pub mod model;
mod optimizer;
mod plan;
mod plot;
mod prepare;
mod smoke;
mod train;

pub use checkpoint::Position;
pub use export::{export, import};
pub use log::{Line, read_log};
pub use plan::{Plan, Stage};
pub use plot::plot;
pub use prepare::prepare;
pub use train::{CHECKPOINT_SECONDS, Options, Outcome, Span, train};
