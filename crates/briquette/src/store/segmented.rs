use burn::tensor::{Int, Tensor};

use super::{DenseStore, Store, StoreOptions, StoreQuery, dense::attend_entries, layout::Layout};
use crate::{
    Result,
    ops::{AttentionOutput, Tail},
    ops::{AttentionStatistics, Entries, Sharing},
    prefix::Parts,
    state::StateVisitor,
};

/// Entries in a form of their own, which change only when all of them are replaced.
pub(super) trait Body: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Whether tokens share entries in it.
    const SHARES: bool = false;

    /// Takes entries of which each batch row and head holds the last `counts`; gives them back if it gains nothing by
    /// holding them, and they are to be held as they are. `before` is where rows lay the last time.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation).
    fn pack(
        entries: Entries,
        counts: &[usize],
        before: Option<Layout>,
        options: &StoreOptions,
    ) -> Result<Packing<Self>>;

    /// Where its rows lie.
    fn layout(&self) -> &Layout;

    /// Keys and values of all of them and of a tail, heads that hold fewer filled up at the left. Those of tokens that
    /// share are there once.
    fn pad(&self, tail: Tail, options: &StoreOptions) -> Result<[Tensor<4>; 2]>;

    /// Which tokens share, if any do.
    fn sharing(&self) -> Option<Sharing> {
        None
    }

    /// The positions of all of them, `[batch, kv_heads, columns]`, −1 at fillers.
    fn positions(&self) -> Tensor<3, Int>;

    /// What is counted of all of them.
    fn tracks(&self) -> AttentionStatistics;

    /// Columns of the longest head.
    fn columns(&self) -> usize;

    /// Attention of one query a head over these entries and a tail of which all rows are entries, without laying them
    /// out side by side; `None` if there is no way.
    fn attend(&self, tail: Tail, input: &StoreQuery<'_>) -> Result<Option<AttentionOutput>> {
        let _ = (tail, input);
        Ok(None)
    }

    /// Replaces what is counted of them.
    fn set_tracks(&mut self, tracks: AttentionStatistics);

    /// Visits what it holds, see [`Replay::visit_state`](crate::state::Replay::visit_state).
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor);

    /// Bytes held on the device.
    fn bytes(&self) -> usize;

    /// What it is written to a file as.
    fn save(&self) -> Result<Parts>;

    /// The body that [`save`](Self::save) wrote.
    fn restore(parts: Parts, options: &StoreOptions) -> Result<Self>;

    /// The same entries for as many rows as the options have, where there is one.
    fn repeated(&self, options: &StoreOptions) -> Self;

    /// The most bytes of a body and a tail that hold so many entries and columns together.
    fn bytes_of(options: &StoreOptions, entries: usize, columns: usize) -> usize;
}

/// Entries taken in, or given back.
pub(super) enum Packing<B> {
    /// In a form of their own.
    Packed(B),
    /// The body gains nothing by holding them.
    AsTheyAre(Box<Entries>),
}

/// A body, and behind it the entries that have come since, in buffers that are written in place.
#[derive(Clone, Debug)]
pub(super) struct Segmented<B> {
    options: StoreOptions,
    body: Option<B>,
    tail: DenseStore,
    /// Whether a column of the tail is padding in some row.
    padded: bool,
}

impl<B: Body> Segmented<B> {
    pub(super) fn new(options: StoreOptions) -> Self {
        Self { tail: DenseStore::new(options.clone()), options, body: None, padded: false }
    }

    /// The store that [`save`](Store::save) wrote.
    pub(super) fn restore(options: StoreOptions, mut parts: Parts) -> Result<Self> {
        let padded = parts.take_number("padded")? == 1;
        let packed = parts.take_number("packed")? == 1;
        let tail = DenseStore::restore(options.clone(), parts.take_parts("tail"))?;
        let body = || B::restore(parts.take_parts("body"), &options);
        let body = packed.then(body).transpose()?;
        parts.finish()?;
        Ok(Self { options, body, tail, padded })
    }

    fn tail(&self) -> Tail {
        let columns = self.tail.columns();
        let (keys, values) = self.tail.buffers().unwrap_or_else(|| {
            let StoreOptions { shape, batch, dtype, ref device, .. } = self.options;
            let row = [batch, shape.kv_heads, 1, shape.head_dim];
            let nothing = Tensor::empty(row, (device, dtype));
            (nothing.clone(), nothing)
        });
        Tail { keys, values, entries: columns }
    }

    fn body_columns(&self) -> usize {
        self.body.as_ref().map_or(0, B::columns)
    }
}

impl<B: Body> Store for Segmented<B> {
    fn columns(&self) -> usize {
        self.body_columns() + self.tail.columns()
    }

    fn capacity(&self) -> usize {
        self.body_columns() + self.tail.capacity()
    }

    fn bytes(&self) -> usize {
        self.body.as_ref().map_or(0, B::bytes) + self.tail.bytes()
    }

    fn spare_bytes(&self) -> usize {
        self.tail.spare_bytes()
    }

    fn bytes_of(&self, entries: usize, columns: usize) -> usize {
        B::bytes_of(&self.options, entries, columns)
    }

    fn shares_entries(&self) -> bool {
        B::SHARES && self.body.is_some()
    }

    fn least_bytes(&self, capacity: usize) -> usize {
        if self.columns() == 0 {
            // It may pack all that comes.
            return self.bytes();
        }
        let tail = self.tail.least_bytes(capacity.saturating_sub(self.body_columns()));
        self.body.as_ref().map_or(0, B::bytes) + tail
    }

    fn reserve(&mut self, capacity: usize) {
        self.tail.reserve(capacity.saturating_sub(self.body_columns()));
    }

    fn append(&mut self, entries: Entries, counts: &[usize]) {
        let columns = entries.columns();
        self.padded |= counts.iter().any(|&count| count != columns);
        self.tail.append(entries, counts);
    }

    fn truncate(&mut self, columns: usize) {
        self.tail.truncate(columns.saturating_sub(self.body_columns()));
    }

    fn entries(&self) -> Result<Entries> {
        let (positions, tracks) = self.scalars();
        Ok(Entries { tracks, ..self.entries_at(positions)? })
    }

    fn entries_at(&self, positions: Tensor<3, Int>) -> Result<Entries> {
        let tracks = AttentionStatistics::default();
        let Some(body) = &self.body else {
            return Ok(Entries { positions, tracks, ..self.tail.held() });
        };
        let tail = self.tail();
        let sharing = body.sharing().map(|sharing| sharing.followed_by(tail.entries));
        let [keys, values] = body.pad(tail, &self.options)?;
        Ok(Entries { keys, values, positions, tracks, sharing })
    }

    fn positions(&self) -> Tensor<3, Int> {
        self.scalars().0
    }

    fn tracks(&self) -> AttentionStatistics {
        self.scalars().1
    }

    fn scalars(&self) -> (Tensor<3, Int>, AttentionStatistics) {
        let Some(body) = &self.body else { return self.tail.scalars() };
        if self.tail.columns() == 0 {
            return (body.positions(), body.tracks());
        }
        let (positions, tracks) = self.tail.scalars();
        let tracks = body.tracks().zip(tracks, |track, more| Tensor::cat(vec![track, more], 2));
        (Tensor::cat(vec![body.positions(), positions], 2), tracks)
    }

    fn attend(&self, input: StoreQuery<'_>) -> Result<AttentionOutput> {
        let one = input.queries.dims()[2] == 1 && !self.padded;
        if let (true, Some(body), Some((keys, values))) = (one, &self.body, self.tail.buffers()) {
            let tail = Tail { keys, values, entries: self.tail.columns() };
            if let Some(output) = body.attend(tail, &input)? {
                return Ok(output);
            }
        }
        attend_entries(self.entries()?, input)
    }

    fn set_tracks(&mut self, tracks: AttentionStatistics) {
        let columns = self.body_columns();
        let tail = self.tail.columns();
        if let Some(body) = &mut self.body {
            body.set_tracks(tracks.clone().map(|track| track.narrow(2, 0, columns)));
        }
        if tail > 0 {
            self.tail.set_tracks(tracks.map(|track| track.narrow(2, columns, tail)));
        }
    }

    fn replace(&mut self, entries: Entries, counts: &[usize], capacity: usize) -> Result<()> {
        let columns = entries.columns();
        let before = self.body.as_ref().map(|body| body.layout().clone());
        let packed = B::pack(entries, counts, before, &self.options)?;
        self.padded = false;
        match packed {
            Packing::Packed(body) => self.body = Some(body),
            Packing::AsTheyAre(entries) => {
                self.body = None;
                self.tail.hold(*entries, capacity);
                return Ok(());
            }
        }
        let room = capacity.saturating_sub(columns);
        self.tail.truncate(0);
        if self.tail.capacity() > room {
            self.tail = DenseStore::new(self.options.clone());
        }
        self.tail.reserve(room);
        Ok(())
    }

    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> bool {
        visitor.numbers(&[usize::from(self.padded), usize::from(self.body.is_some())]);
        if let Some(body) = &mut self.body {
            body.visit_state(visitor);
        }
        self.tail.visit_state(visitor)
    }

    fn save(&self) -> Result<Option<Parts>> {
        let mut parts = Parts::default();
        parts.put_numbers("padded", [usize::from(self.padded)]);
        parts.put_numbers("packed", [usize::from(self.body.is_some())]);
        parts.put_parts("tail", self.tail.parts()?);
        if let Some(body) = &self.body {
            parts.put_parts("body", body.save()?);
        }
        Ok(Some(parts))
    }

    fn repeated(&self, rows: usize) -> Option<Box<dyn Store>> {
        let options = StoreOptions { batch: rows, ..self.options.clone() };
        Some(Box::new(Self {
            body: self.body.as_ref().map(|body| body.repeated(&options)),
            tail: self.tail.of_rows(rows),
            padded: self.padded,
            options,
        }))
    }

    fn boxed_clone(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}
