//! Rows of a batch that leave, are repeated, or join.

use burn::tensor::{DType, Tensor};

use super::{
    CacheConfig, KvCache, ceiling, kv_cache::measures_of, layer::LayerCache, progress::Progress,
    recurrent::RecurrentLayer,
};
use crate::{
    Error, Policy, Result, check,
    prefix::{PrefixError, fingerprint},
    rows::{append_rows, select_list, select_rows},
    store::Store,
    view::Measure,
};

/// How to bring together caches that were made for different uses.
const ALIKE: &str = "make both caches with the same settings";
/// How to bring together caches that count decoded tokens.
const IN_STEP: &str = "decode until both are the same";

impl KvCache {
    /// Selects rows of the batch: row `i` becomes what row `rows[i]` was. Rows leave, change places
    /// or are repeated, as the beams of a search are.
    ///
    /// All that the cache knows of a row goes with it. A declared prompt of which nothing has
    /// arrived is forgotten. [`reset`](Self::reset) ends all rows.
    ///
    /// ```
    /// # use briquette::{CacheShape, KvCache, Policy, Prompt, position::NoPositionEncoding};
    /// # use burn::tensor::Tensor;
    /// # fn main() -> briquette::Result<()> {
    /// # let device = briquette::device::open("flex")?;
    /// # let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    /// # let x = |heads| Tensor::<4>::zeros([3, heads, 9, 16], &device);
    /// let mut cache = KvCache::new(shape, Policy::full(), &device)?;
    /// cache.begin_prompt(Prompt::new(9).left_padding(vec![0, 4, 2]))?;
    /// cache.attend(0, x(4), x(2), x(2), &NoPositionEncoding)?;
    /// // The first row has ended, and the third goes on in two ways.
    /// cache.select_rows(&[1, 2, 2])?;
    /// assert_eq!(cache.tokens_seen(), [5, 7, 7]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The cache is then as it was before.
    /// - [`Error::InvalidParameter`] for no rows.
    /// - [`Error::RowOutOfRange`].
    /// - [`Error::PromptUnfinished`].
    /// - [`Error::Prefix`] if it has seen nothing, if a step has not gone through all layers, or if
    ///   the store is custom and [selects no rows](crate::store::Store::select_rows).
    /// - [`Error::MemoryCeiling`].
    pub fn select_rows(&mut self, rows: &[usize]) -> Result<()> {
        check::count("rows", rows.len())?;
        self.check_complete()?;
        let batch = self.batch.unwrap_or(0);
        if let Some(&row) = rows.iter().find(|&&row| row >= batch) {
            return Err(Error::RowOutOfRange { row, rows: batch });
        }
        let layers = self.layers.iter().enumerate();
        let layers = layers.map(|(number, layer)| layer.select_rows(rows, self.policy_of(number)));
        let layers = layers.collect::<Result<_>>()?;
        let recurrent = self.recurrent.iter().map(|layer| layer.select_rows(rows)).collect();
        self.hold_rows(layers, recurrent)
    }

    /// Appends the rows of another cache to the batch, for example a prompt that was prefilled
    /// alone. Rows may hold different numbers of tokens: shorter ones begin with padding.
    ///
    /// A row goes on as it would alone. A budget in bytes, which all rows share, holds again from
    /// the next compression on. Declared prompts of which nothing has arrived are forgotten.
    ///
    /// # Errors
    /// The cache is then as it was before.
    /// - [`Error::RowsDiffer`] for another shape, policy, model, data type, softmax scale, softcap,
    ///   windows, recurrent layers or device. Rows are compressed together: if the policy
    ///   compresses at every n-th decoded token, n > 1, both caches must have decoded as many since
    ///   the last one. If its scorer sums over a local window (EMS), both must have as many queries
    ///   in it.
    /// - [`Error::PromptUnfinished`] of either cache.
    /// - [`Error::Prefix`] if either has seen nothing, if a step has not gone through all its
    ///   layers, or if the store is custom and [appends no
    ///   rows](crate::store::Store::append_rows).
    /// - [`Error::Operation`], [`Error::MemoryCeiling`].
    pub fn append_rows(&mut self, other: &Self) -> Result<()> {
        self.check_complete()?;
        other.check_complete()?;
        self.check_rows_of(other)?;
        let layers = self.layers.iter().zip(&other.layers).enumerate();
        let layers =
            layers.map(|(number, (own, more))| own.append_rows(more, self.policy_of(number)));
        let layers = layers.collect::<Result<_>>()?;
        let recurrent = self.recurrent.iter().zip(&other.recurrent);
        let recurrent = recurrent.map(|(own, more)| own.append_rows(more)).collect();
        self.hold_rows(layers, recurrent)
    }

    /// Checks that rows of another cache would be the same in this one.
    fn check_rows_of(&self, other: &Self) -> Result<()> {
        let mut all = self.common_to_rows().into_iter().zip(other.common_to_rows());
        match all.find(|((_, own, _), (_, other, _))| own != other) {
            Some(((what, expected, cure), (_, found, _))) => {
                Err(Error::RowsDiffer { what, found, expected, cure })
            }
            None => Ok(()),
        }
    }

    /// Settings and counters that rows of one batch share, with the cure where they differ.
    fn common_to_rows(&self) -> Vec<(&'static str, String, &'static str)> {
        let CacheConfig { softmax_scale, softcap, ref windows, ref model, .. } = self.config;
        let policy = format!("`{}` ({})", self.policy.name(), fingerprint(&self.policy));
        let [values, layer_shapes] = self.config.shape_texts();
        let mut all = vec![
            ("shape", format!("{:?}", self.shape), ALIKE),
            ("policy", policy, ALIKE),
            ("model", format!("{model:?}"), ALIKE),
            ("data type", format!("{:?}", self.dtype()), ALIKE),
            ("softmax scale", format!("{softmax_scale:?}"), ALIKE),
            ("softcap", format!("{softcap:?}"), ALIKE),
            ("windows", format!("{windows:?}"), ALIKE),
            ("value_dim", format!("{values:?}"), ALIKE),
            ("layer shapes", format!("{layer_shapes:?}"), ALIKE),
            ("recurrent layers", format!("{:?}", self.config.recurrent_text()), ALIKE),
            ("device", self.devices.to_string(), ALIKE),
        ];
        // A layer with a window is never behind.
        let mut layers =
            (0..self.layers.len()).filter(|&layer| self.config.window(layer).is_none());
        let Some(layer) = layers.next().map(|layer| &self.layers[layer]) else { return all };
        if self.policy.waits_for_second_pass() {
            let made = if layer.second_pass { "made" } else { "still to come" };
            all.push(("second pass", made.to_owned(), "make it in both caches first"));
        }
        if self.policy.schedule().decode_every.is_some_and(|every| every > 1) {
            let decoded = layer.progress.decoded().to_string();
            all.push(("number of tokens decoded since a compression", decoded, IN_STEP));
        }
        if self.policy.observes().local > 0 {
            let queries = layer.local_queries.to_string();
            all.push(("number of queries in the local window", queries, IN_STEP));
        }
        all
    }

    /// Replaces the layers by these, which hold other rows.
    fn hold_rows(&mut self, layers: Vec<LayerCache>, recurrent: Vec<RecurrentLayer>) -> Result<()> {
        let needed = self.bytes_of(&layers, &recurrent);
        ceiling::check(self.config.memory_ceiling, self.bytes_held(), needed)?;
        if let Some(rollback) = self.active_transaction.rollback() {
            rollback.remember_all(&self.layers);
        }
        (self.layers, self.recurrent) = (layers, recurrent);
        self.measures = measures_of(&self.layers);
        self.batch = self.layers.first().map(LayerCache::rows);
        self.positions = None;
        Ok(())
    }
}

impl LayerCache {
    /// Number of batch rows.
    fn rows(&self) -> usize {
        self.progress.seen().len()
    }

    fn select_rows(&self, rows: &[usize], policy: &Policy) -> Result<Self> {
        let batch = self.rows();
        let held = select_list(&self.held, batch, rows);
        let none = || PrefixError::Store { store: policy.store().name().to_owned() };
        let store = self.store.as_ref();
        let store = store.map(|store| store.select_rows(rows, &held).ok_or_else(none));
        let store = store.transpose()?;
        let columns = |store: &Option<Box<dyn Store>>| store.as_ref().map_or(0, |it| it.columns());
        // Columns before the longest row that is left are gone.
        let gone = columns(&self.store).saturating_sub(columns(&store));
        let of_rows = |all: &[usize]| select_list(all, batch, rows);
        let (seen, columns) = (of_rows(self.progress.seen()), of_rows(self.progress.columns()));
        Ok(Self {
            progress: Progress::after(seen, columns, self.progress.decoded()),
            store,
            window: self.window.select_rows(rows),
            log: self.log.select_rows(batch, rows),
            measure: self.measure.as_ref().map(|Measure { of_rows, seen }| Measure {
                of_rows: select_list(of_rows, batch, rows),
                seen: select_list(seen, batch, rows),
            }),
            state: self.state.clone().map(|state| Box::new(select_rows(*state, rows))),
            share: self.share.as_ref().map(|share| select_list(share, batch, rows)),
            held,
            growth: None,
            local_queries: self.local_queries,
            // Forgotten when the last layer of a prompt has come.
            snapshot: None,
            second_pass: self.second_pass,
            fixed: self.fixed.saturating_sub(gone),
            mark: None,
        })
    }

    /// Appends the rows of the same layer of another cache.
    fn append_rows(&self, more: &Self, policy: &Policy) -> Result<Self> {
        let none = || PrefixError::Store { store: policy.store().name().to_owned() };
        let (own, other) = self.store.as_ref().zip(more.store.as_ref()).ok_or_else(none)?;
        let store = own.append_rows(other.as_ref(), [&self.held[..], &more.held])?;
        let measures = self.measure.as_ref().zip(more.measure.as_ref());
        let shares = self.share.as_ref().zip(more.share.as_ref());
        let seen = [self.progress.seen(), more.progress.seen()].concat();
        let columns = [self.progress.columns(), more.progress.columns()].concat();
        let store = store.ok_or_else(none)?;
        Ok(Self {
            progress: Progress::after(seen, columns, self.progress.decoded()),
            // Rows were moved to begin behind padding.
            fixed: store.columns(),
            store: Some(store),
            window: self.window.append_rows(&more.window),
            log: self.log.append_rows(&more.log, [self.rows(), more.rows()]),
            held: [&self.held[..], &more.held].concat(),
            measure: measures.map(|(own, more)| Measure {
                of_rows: [&own.of_rows[..], &more.of_rows].concat(),
                seen: [&own.seen[..], &more.seen].concat(),
            }),
            state: self.appended_state(more, policy),
            share: shares.map(|(own, more)| [&own[..], more].concat()),
            growth: None,
            local_queries: self.local_queries,
            snapshot: None,
            second_pass: self.second_pass,
            mark: None,
        })
    }

    /// The states of the rows of both; a layer without one has reduced nothing yet.
    fn appended_state(&self, more: &Self, policy: &Policy) -> Option<Box<Tensor<2>>> {
        let [_, numbers] = self.state.as_ref().or(more.state.as_ref())?.dims();
        let of = |layer: &Self, other: &Self| match (&layer.state, &other.state) {
            (Some(state), _) => Some((**state).clone()),
            (None, Some(other)) => {
                let initial = policy.reducer().initial_state();
                let dims = [layer.rows(), numbers];
                Some(Tensor::full(dims, initial, (&other.device(), DType::F32)))
            }
            (None, None) => None,
        };
        Some(Box::new(append_rows(of(self, more)?, of(more, self)?)))
    }
}
