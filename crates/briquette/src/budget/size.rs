use std::fmt;

use serde::{Deserialize, Serialize};

/// Size that a cache is compressed to: a number of tokens, a share of the tokens seen, or bytes.
///
/// As text ([`FromStr`](std::str::FromStr), [`Display`](fmt::Display)): `256`, `25%` or `0.25`,
/// `512KiB`. Bytes are written in the largest unit that they fill whole. In a policy file: `{
/// tokens = 256 }`, `{ ratio = 0.25 }`, `{ bytes = 524288 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// A number of tokens per layer and batch row, sinks and window included.
    Tokens(usize),
    /// A share of the tokens a row has seen, rounded down. No less than what the policy protects is
    /// kept, which may be all that is left of a short prompt.
    Ratio(f64),
    /// A number of bytes on the device, for all layers and rows together: keys, values, their
    /// bookkeeping and the slack decoding needs.
    /// [`KvCache::bytes_held`](crate::KvCache::bytes_held) stays below it once compressed.
    Bytes(u64),
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "{tokens}"),
            Self::Ratio(ratio) => write!(f, "{}%", ratio * 100.0),
            Self::Bytes(bytes) => {
                const UNITS: [(&str, u64); 3] =
                    [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
                let whole = |&&(_, unit): &&(&str, u64)| *bytes > 0 && bytes.is_multiple_of(unit);
                match UNITS.iter().find(whole) {
                    Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
                    None => write!(f, "{bytes}B"),
                }
            }
        }
    }
}
