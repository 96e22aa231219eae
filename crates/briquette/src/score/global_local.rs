use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{Observes, Pool, Scorer};
use crate::{LayerView, Result, check, ops::GlobalLocalInput, ops::Track};

/// The attention weight a token has received from all queries, scaled to the level of what it received from the
/// last ones, or the latter if it is more; pooled along the tokens: the Global-Local score of EMS.
///
/// With g the sums over all queries and l those over a window, s = max(g · mean(l) / mean(g), l). The window
/// is the last `window` queries of a prompt, and `window` to 2 · `window` − 1 queries in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalLocal {
    /// Queries of the window. Entries of the last so many tokens stay out of means and pooling.
    pub window: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
}

impl Scorer for GlobalLocal {
    fn name(&self) -> &str {
        "global-local"
    }

    fn summary(&self) -> String {
        format!("{} {}{}", self.name(), self.window, Pool::summary(self.pool))
    }

    fn observes(&self) -> Observes {
        Observes::local(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)?;
        check::pool(self.pool)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let track = |track| view.track(track, self.name());
        Ok(view.ops.global_local(GlobalLocalInput {
            sums: track(Track::Sums)?,
            past: track(Track::LocalPast)?,
            current: track(Track::LocalCurrent)?,
            kv_heads: view.shape.kv_heads,
            window: self.window,
            pool: self.pool,
        })?)
    }
}
