//! The pages of each head of a paged store, on the host and on the device.

use std::{ops::Range, sync::OnceLock};

use burn::tensor::{Device, Int, Tensor};

use super::{packed::write_rows, pages::upload};
use crate::{
    rows::select_list,
    state::{StateTensor, StateVisitor},
};

/// The pages of each batch row and kv head.
#[derive(Clone, Debug)]
pub(super) struct PageTable {
    /// Oldest first.
    pub(super) lists: Vec<Vec<usize>>,
    /// Known once a query has attended to packed pages.
    index: OnceLock<PageIndex>,
    /// Maximum number of pages per head, where the index is changed in place.
    room: Option<usize>,
}

/// A page table on the device.
#[derive(Clone, Debug)]
pub(super) struct PageIndex {
    /// The pages of all heads one after another, and room behind them, `[all pages]`.
    pub(super) pages: Tensor<1, Int>,
    /// The first of each head's pages in the list, and the end of the last,
    /// `[batch · kv_heads + 1]`.
    pub(super) offsets: Tensor<1, Int>,
}

impl PageTable {
    pub(super) fn new(lists: Vec<Vec<usize>>) -> Self {
        Self { lists, index: OnceLock::new(), room: None }
    }

    /// Number of pages of the head that has the most.
    pub(super) fn most(&self) -> usize {
        self.lists.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Number of pages that a head may have before the index is made anew.
    pub(super) fn most_in_place(&self) -> usize {
        self.room.unwrap_or_else(|| self.most())
    }

    pub(super) fn index(&self, device: &Device) -> &PageIndex {
        self.index.get_or_init(|| {
            let (mut pages, offsets) = self.flat();
            if let Some(room) = self.room {
                pages.resize(room * self.lists.len(), 0);
            }
            PageIndex { pages: upload(pages, device), offsets: upload(offsets, device) }
        })
    }

    fn flat(&self) -> (Vec<i64>, Vec<i64>) {
        let mut pages: Vec<i64> = Vec::new();
        let mut offsets = vec![0];
        for list in &self.lists {
            pages.extend(list.iter().map(|&page| page as i64));
            offsets.push(pages.len() as i64);
        }
        (pages, offsets)
    }

    /// The pages of every head side by side, `[batch · kv_heads · most pages]`. Heads with fewer
    /// pages begin with arbitrary ones.
    pub(super) fn rectangle(&self, device: &Device) -> Tensor<1, Int> {
        let most = self.most();
        let mut index = Vec::new();
        for list in &self.lists {
            index.extend(std::iter::repeat_n(0, most - list.len()));
            index.extend(list.iter().map(|&page| page as i64));
        }
        upload(index, device)
    }

    /// Appends pages to those of each head.
    pub(super) fn push(&mut self, new: Vec<Range<usize>>) {
        self.lists.iter_mut().zip(new).for_each(|(list, new)| list.extend(new));
        self.room = self.room.filter(|&room| self.most() <= room);
        let (Some(mut index), Some(_)) = (self.index.take(), self.room) else { return };
        let (pages, offsets) = self.flat();
        write(&mut index.pages, pages);
        write(&mut index.offsets, offsets);
        self.index = index.into();
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(vec![Vec::new(); self.lists.len()]);
    }

    /// Makes room for `room` pages per head in the index, which is changed in place from now on.
    pub(super) fn begin_in_place(&mut self, room: usize) {
        (self.index, self.room) = (OnceLock::new(), Some(room));
    }

    /// Forgets the index, which is made anew for the next query.
    pub(super) fn end_in_place(&mut self) {
        (self.index, self.room) = (OnceLock::new(), None);
    }

    /// Number of integers on the device, and how many of them are spare.
    pub(super) fn integers(&self) -> (usize, usize) {
        let Some(index) = self.index.get() else { return (0, 0) };
        let [pages] = index.pages.dims();
        let used: usize = self.lists.iter().map(Vec::len).sum();
        (pages + self.lists.len() + 1, pages - used)
    }

    /// Visits the index, which must be there.
    pub(super) fn visit_state(&mut self, visitor: &mut dyn StateVisitor) {
        if let Some(PageIndex { pages, offsets }) = self.index.get_mut() {
            visitor.tensor(StateTensor::Int1(pages));
            visitor.tensor(StateTensor::Int1(offsets));
        }
    }

    /// Returns the pages of these of `batch` rows, and which of all `pages` they are numbers of:
    /// `None` if still of all. Rows share pages, or each has copies of its own.
    pub(super) fn select_rows(
        &self,
        (batch, rows): (usize, &[usize]),
        pages: usize,
        shares: bool,
    ) -> (Self, Option<Vec<usize>>) {
        let mut lists = select_list(&self.lists, batch, rows);
        let mut uses = vec![0; pages];
        lists.iter().flatten().for_each(|&page| uses[page] += 1);
        if uses.iter().all(|&uses| uses == 1 || uses > 1 && shares) {
            return (Self::new(lists), None);
        }
        let (mut kept, mut places) = (Vec::new(), vec![None; pages]);
        for page in lists.iter_mut().flatten() {
            let before = *page;
            *page = match places[before].filter(|_| shares) {
                Some(place) => place,
                None => {
                    kept.push(before);
                    kept.len() - 1
                }
            };
            places[before] = Some(*page);
        }
        (Self::new(lists), Some(kept))
    }

    /// Appends the lists of other rows, whose pages are numbered from `first` on.
    pub(super) fn append_rows(&self, more: &Self, first: usize) -> Self {
        let moved = more.lists.iter().map(|list| list.iter().map(|page| page + first).collect());
        Self::new(self.lists.iter().cloned().chain(moved).collect())
    }
}

/// Overwrites the first numbers of a list.
fn write(list: &mut Tensor<1, Int>, numbers: Vec<i64>) {
    if numbers.is_empty() {
        return;
    }
    let numbers = upload(numbers, &list.device()).cast(list.dtype());
    write_rows(list, 0, numbers);
}
