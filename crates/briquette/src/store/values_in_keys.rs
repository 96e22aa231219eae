//! Entries whose values are the first channels of their keys, which are held once: a store of
//! another kind holds these channels as values, and the others as keys.

use std::any::Any;

use burn::tensor::{Int, Tensor};

use super::{Store, StoreBuilder, StoreOptions};
use crate::{
    Result,
    ops::{AttentionStatistics, Entries},
    prefix::Parts,
};

/// Builds the store of a layer, whether its values are in its keys or not.
pub(crate) fn build(builder: &dyn StoreBuilder, options: StoreOptions) -> Box<dyn Store> {
    if !options.values_in_keys {
        return builder.build(options);
    }
    let inner = builder.build(apart(&options));
    Box::new(ValuesInKeys { inner, options })
}

/// Restores the store of a layer, as [`StoreBuilder::restore`] does.
pub(crate) fn restore(
    builder: &dyn StoreBuilder,
    options: StoreOptions,
    parts: Parts,
) -> Result<Option<Box<dyn Store>>> {
    if !options.values_in_keys {
        return builder.restore(options, parts);
    }
    let inner = builder.restore(apart(&options), parts)?;
    Ok(inner.map(|inner| Box::new(ValuesInKeys { inner, options }) as Box<dyn Store>))
}

/// The options of a store whose keys are the channels behind the values.
fn apart(options: &StoreOptions) -> StoreOptions {
    let mut options = StoreOptions { values_in_keys: false, ..options.clone() };
    options.shape.head_dim -= options.value_dim;
    options
}

#[derive(Clone, Debug)]
struct ValuesInKeys {
    inner: Box<dyn Store>,
    options: StoreOptions,
}

impl ValuesInKeys {
    fn apart(&self, entries: Entries) -> Entries {
        let (from, channels) = (self.options.value_dim, entries.keys.dims()[3]);
        Entries { keys: entries.keys.narrow(3, from, channels - from), ..entries }
    }

    fn joined(&self, entries: Entries) -> Entries {
        let keys = Tensor::cat(vec![entries.values.clone(), entries.keys], 3);
        Entries { keys, ..entries }
    }

    fn around(&self, inner: Box<dyn Store>, batch: usize) -> Box<dyn Store> {
        Box::new(Self { inner, options: self.options.with_batch(batch) })
    }
}

impl Store for ValuesInKeys {
    fn columns(&self) -> usize {
        self.inner.columns()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    fn spare_bytes(&self) -> usize {
        self.inner.spare_bytes()
    }

    fn bytes_of(&self, entries: usize, columns: usize) -> usize {
        self.inner.bytes_of(entries, columns)
    }

    fn bytes_of_prompt(&self, entries: usize, columns: usize) -> usize {
        self.inner.bytes_of_prompt(entries, columns)
    }

    fn least_bytes(&self, capacity: usize) -> usize {
        self.inner.least_bytes(capacity)
    }

    fn reserve(&mut self, capacity: usize) {
        self.inner.reserve(capacity);
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) -> Result<()> {
        let entries = self.apart(entries);
        self.inner.append(entries, counts)
    }

    fn moves_padding(&self) -> bool {
        self.inner.moves_padding()
    }

    fn truncate(&mut self, columns: usize) {
        self.inner.truncate(columns);
    }

    fn packed_columns(&self) -> usize {
        self.inner.packed_columns()
    }

    fn entries(&self) -> Result<Entries> {
        Ok(self.joined(self.inner.entries()?))
    }

    fn entries_at(&self, positions: Tensor<3, Int>) -> Result<Entries> {
        Ok(self.joined(self.inner.entries_at(positions)?))
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.inner.positions()
    }

    fn statistics(&self) -> AttentionStatistics {
        self.inner.statistics()
    }

    fn scalars(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        self.inner.scalars()
    }

    fn set_statistics(&mut self, statistics: AttentionStatistics) {
        self.inner.set_statistics(statistics);
    }

    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()> {
        let entries = self.apart(entries);
        self.inner.replace(entries, counts, capacity)
    }

    fn settle(&mut self) {
        self.inner.settle();
    }

    fn save(&self) -> Result<Option<Parts>> {
        self.inner.save()
    }

    fn select_rows(&self, rows: &[usize], counts: &[usize]) -> Option<Box<dyn Store>> {
        let inner = self.inner.select_rows(rows, counts)?;
        Some(self.around(inner, rows.len()))
    }

    fn append_rows(
        &self,
        more: &dyn Store,
        counts: [&[usize]; 2],
    ) -> Result<Option<Box<dyn Store>>> {
        let Some(more) = (more as &dyn Any).downcast_ref::<Self>() else { return Ok(None) };
        let inner = self.inner.append_rows(more.inner.as_ref(), counts)?;
        let rows = self.options.batch + more.options.batch;
        Ok(inner.map(|inner| self.around(inner, rows)))
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}
