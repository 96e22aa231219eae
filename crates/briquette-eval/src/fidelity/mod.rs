//! How far a model on a compressed cache is from itself on the full cache: on any text, without
//! labels.
//!
//! A window of text is a prompt of N tokens and T tokens behind it. The prompt is read and
//! compressed as a policy says; then the T tokens are fed one at a time, whatever the model would
//! have said (teacher forcing). The same is done on the full cache. No token is compared with the
//! text: what is compared are the two runs.
//!
//! - *Output error*, a number a layer. With `O_t` the output of the layer's attention for continued
//!   token `t`, before the output projection, all heads side by side, it is the mean over the T
//!   tokens of the terms of CompressKV's Eq. 8,
//!
//!   ```text
//!   e_l = 1/T · Σ_t ‖O_full,t − O_comp,t‖_F / (‖O_full,t‖_F + 1e-6)
//!   ```
//!
//!   Eq. 8 is the sum; the mean does not grow with T. `O_comp` is what the compressed cache returns
//!   for the queries, keys and values *of the full run*, before positions are encoded, so no layer
//!   inherits the error of those before it, and every policy encodes positions its own way.
//! - *End-to-end error*: the same with `O_comp` of the run on the compressed cache, in which layers
//!   do inherit.
//! - *KL*, a number a continued token: KL(full ‖ compressed) = Σ p_full · ln(p_full / p_comp) over
//!   the vocabulary, of the distributions of the token that comes after it, in nats; 0 for equal
//!   ones. Sums are taken in f64.
//! - *Agreement*: the share of the T tokens after which both runs hold the same token most likely;
//!   of equal ones the first of the vocabulary.
//! - *Overlap* with an oracle that sees the future, a number a kv head. The oracle keeps as many
//!   tokens of the prompt as the policy's head does: those that receive the most attention from the
//!   T continued tokens on the full cache, summed over the query heads of the group and over the
//!   tokens; of equal ones the older. Overlap is |kept ∩ oracle| / |kept|. A head that merges or
//!   shares entries is taken to keep the positions its cache reports.
//! - *Kept*: which tokens of the prompt each head holds, at the end of the prompt.
//!
//! The prompt is seen by the model once: until a cache is compressed at its end, every policy would
//! hand the model the same outputs, so the caches of all policies are filled with the queries, keys
//! and values of that one pass. For a policy that compresses after every chunk, the prompt is one
//! chunk. A policy that wants a second pass (KVzip, KVCompose) gets it: the model repeats the
//! prompt on the filled cache, without a word before it.

mod capture;
mod divergence;
mod kept;
mod largest;
mod measure;
mod oracle;
mod plan;
mod reference;

pub(crate) use divergence::most_likely;
pub use divergence::{agreement, kl_divergence};
pub use kept::{share_of_heads, token_texts};
pub use largest::{Largest, Probe, largest};
pub use measure::Measured;
pub use oracle::overlap;
pub use plan::Plan;
pub use reference::Reference;
