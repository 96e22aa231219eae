//! Bytes of a cache that are known before its first token.

use burn::tensor::Device;

use super::{KvCache, recurrent::RecurrentShape};
use crate::{
    Budget, Result,
    check::{columns, count, refuse},
    store::build,
};

/// Maximum number of tokens of all rows, where numbers are as long.
const MOST_TOKENS: usize = match 1_usize.checked_shl(36) {
    Some(tokens) => tokens,
    None => usize::MAX,
};

impl KvCache {
    /// Returns the bytes that this cache will hold behind a first prompt of `tokens` tokens in each
    /// of `rows` rows, without the [room](Self::bytes_spare) for tokens to come. Nothing is
    /// allocated on the device.
    ///
    /// They follow from the shape, the policy and the configuration. Where they depend on what the
    /// tokens are, they are the most that the policy keeps: where tokens share entries
    /// ([`Reducer::makes_clusters`](crate::reduce::Reducer::makes_clusters)), and where heads below
    /// a threshold keep less. Heads of different lengths take a little more.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) for no row or token or more than
    /// there can be, and for a policy that does not hold its
    /// [budget](crate::Policy::holds_budget);
    /// [`Error::BytesTooFew`](crate::Error::BytesTooFew) for a budget in bytes.
    pub fn bytes_after_prompt(&self, rows: usize, tokens: usize) -> Result<usize> {
        self.planned_bytes(rows, tokens, |_| true)
    }

    /// Returns those of [`bytes_after_prompt`](Self::bytes_after_prompt) that lie on `device`, of a
    /// cache whose layers lie on several. On a device that has no layer it is 0.
    ///
    /// # Errors
    /// As [`bytes_after_prompt`](Self::bytes_after_prompt).
    pub fn bytes_after_prompt_on(
        &self,
        device: &Device,
        rows: usize,
        tokens: usize,
    ) -> Result<usize> {
        self.planned_bytes(rows, tokens, |of| of == device)
    }

    fn planned_bytes(
        &self,
        rows: usize,
        tokens: usize,
        counts: impl Fn(&Device) -> bool,
    ) -> Result<usize> {
        count("rows", rows)?;
        count("tokens of a prompt", tokens)?;
        columns("tokens of a prompt", tokens)?;
        let all = rows.saturating_mul(tokens);
        if all > MOST_TOKENS {
            return refuse("tokens of all rows", all, format!("at most {MOST_TOKENS}"));
        }
        if self.policy.takes_budget() && !self.policy.holds_budget() {
            return refuse("policy", self.policy.name(), "one that keeps no more than its budget");
        }
        let counts = |place: &usize| counts(self.devices.of(*place));
        let states = self.config.recurrent_shapes().iter().enumerate();
        let states = states.map(|(layer, shape)| (self.place_of_state(layer), shape));
        let of_state = |(place, shape): (usize, &RecurrentShape)| {
            shape.bytes_on(self.devices.rows(place)).saturating_mul(rows)
        };
        let states = states.filter(|(place, _)| counts(place)).map(of_state);
        (0..self.shape.layers)
            .filter(counts)
            .map(|layer| self.layer_bytes(layer, rows, tokens))
            .try_fold(states.fold(0, usize::saturating_add), |sum, bytes| {
                Ok(sum.saturating_add(bytes?))
            })
    }

    fn layer_bytes(&self, layer: usize, rows: usize, tokens: usize) -> Result<usize> {
        let context = self.context_between_calls(layer);
        let policy = context.policy;
        let store = build(policy.store(), context.store_options(rows));
        let window = self.layers[layer].window.size();
        let queries = context.window_bytes(self.dtype().size(), window, rows);
        // Rows of a prompt are alike, and only an error about bytes counts them.
        let alike = if matches!(policy.budget(), Some(Budget::Bytes(_))) { rows } else { 1 };
        let bytes_of = |entries, columns| store.bytes_of(entries, columns).saturating_add(queries);
        let budget = policy.resolve(context.shape, &vec![tokens; alike], &bytes_of)?;
        let kept = budget.and_then(|kept| kept.first().copied()).unwrap_or(tokens).min(tokens);
        let columns = policy.reducer().columns(kept).min(tokens);
        Ok(store.bytes_of_prompt(kept, columns).saturating_add(queries))
    }
}
