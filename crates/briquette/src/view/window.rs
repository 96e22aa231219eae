use std::cell::RefCell;

use burn::tensor::Tensor;

use super::{Moments, WindowMoments};
use crate::{
    Result,
    ops::{
        Entries, MomentsInput, MomentsOutput, Ops, Scoring, Visibility, WindowInput,
        expand_clusters,
    },
    position::Encode,
};

/// The last queries of a layer and the entries they see. Their weights are computed when a stage
/// asks for them.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    /// Positions encoded, `[batch, query_heads, queries, head_dim]`.
    pub(crate) queries: Tensor<4>,
    pub(crate) entries: Entries,
    /// The encoding of their keys, if these are held without positions.
    pub(crate) encode: Option<Encode<'a>>,
    pub(crate) visibility: Visibility,
    pub(crate) scoring: Scoring,
    pub(crate) ops: &'a dyn Ops,
    pub(crate) known: RefCell<Known>,
}

/// Results kept from one stage, since another often needs the same.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The keys, encoded.
    keys: Option<Tensor<4>>,
    moments: Vec<WindowMoments>,
}

impl Known {
    /// Results of a window of one query per row, of which `own` are not padding. Its `weights` are
    /// their own sums, `[batch, query_heads, entries]`.
    pub(crate) fn of_query(weights: Tensor<3>, own: &[usize]) -> Self {
        let sums = MomentsOutput { sums: weights, deviations: None, entropies: None };
        let moments = vec![WindowMoments { sums, queries: 1, own: own.to_vec() }];
        Self { keys: None, moments }
    }
}

impl Window<'_> {
    /// The attention weights, `[batch, query_heads, queries, entries]`, f32.
    pub(crate) fn weights(&self) -> Result<Tensor<4>> {
        Ok(self.ops.window_weights(self.last(self.queries.dims()[2])?)?)
    }

    /// Sums over the last `queries` queries, of which the last `own` per batch row count.
    pub(crate) fn moments(
        &self,
        queries: usize,
        own: &[usize],
        wanted: Moments,
    ) -> Result<WindowMoments> {
        let queries = queries.min(self.queries.dims()[2]);
        let own: Vec<usize> = own.iter().map(|&own| own.min(queries)).collect();
        let is_it = |known: &&WindowMoments| {
            known.queries == queries
                && known.own == own
                && (known.sums.deviations.is_some() || !wanted.variance)
                && (known.sums.entropies.is_some() || !wanted.entropy)
        };
        if let Some(known) = self.known.borrow().moments.iter().find(is_it) {
            return Ok(known.clone());
        }
        let sums = self.ops.window_moments(MomentsInput {
            window: self.last(queries)?,
            own: own.clone(),
            deviations: wanted.variance,
            entropies: wanted.entropy,
        })?;
        let found = WindowMoments { sums, queries, own };
        self.known.borrow_mut().moments.push(found.clone());
        Ok(found)
    }

    /// The last `queries` queries and the keys.
    fn last(&self, queries: usize) -> Result<WindowInput> {
        let first = self.queries.dims()[2] - queries;
        Ok(WindowInput {
            queries: self.queries.clone().narrow(2, first, queries),
            keys: self.keys()?,
            visibility: self.visibility.clone().of_last(queries),
            scoring: self.scoring.clone(),
        })
    }

    fn keys(&self) -> Result<Tensor<4>> {
        let mut known = self.known.borrow_mut();
        if let Some(keys) = &known.keys {
            return Ok(keys.clone());
        }
        let keys = expand_clusters(self.entries.clone(), self.ops)?.keys;
        let keys = Encode::keys(self.encode.as_ref(), keys, self.ops)?;
        known.keys = Some(keys.clone());
        Ok(keys)
    }
}
