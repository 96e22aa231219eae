use burn::tensor::{DType, Int, Tensor};

use crate::{
    cluster::{ClusterOps, ExtendInput, ExtendOutput, Groups},
    entries::{Entries, Sharing, counted, moved},
    error::Result,
};

/// [`Sharing`] of all tokens, by the columns and rows of [`Entries`].
#[derive(Clone, Debug)]
pub struct Table {
    /// Entries, one number a batch row and kv head: the last rows.
    pub entries: Vec<usize>,
    /// The row of each column, any at a filler, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// What the row is multiplied by, f32, `[batch, kv_heads, columns]`.
    pub norms: Tensor<3>,
    /// The column of the center of each row, any at a filler, `[batch, kv_heads, rows]`.
    pub centers: Tensor<3, Int>,
}

impl Table {
    /// The table of tokens each of which has a row of its own, the last `held` columns of each head.
    pub fn of_own(entries: &Entries, held: &[usize]) -> Self {
        let dims = entries.positions.dims();
        let device = entries.positions.device();
        let place = counted(dims, &device);
        Self {
            entries: held.to_vec(),
            rows: place.clone(),
            norms: Tensor::ones(dims, (&device, DType::F32)),
            centers: place,
        }
    }

    /// The table of entries that are shared; `None` if each token has its own.
    ///
    /// # Errors
    /// As [`ClusterOps::extend`].
    pub fn of(entries: &Entries, ops: &(impl ClusterOps + ?Sized)) -> Result<Option<Self>> {
        let Some(sharing) = entries.sharing.as_ref() else { return Ok(None) };
        let Sharing { tokens, entries: shared, own, entry, norms, centers, .. } = sharing;
        let heads = tokens.iter().zip(shared).zip(own);
        let counts: Vec<[usize; 3]> =
            heads.map(|((&tokens, &shared), &own)| [tokens, shared, own]).collect();
        let ExtendOutput { rows, norms, centers } = ops.extend(ExtendInput {
            entry: entry.clone(),
            norms: norms.clone(),
            centers: centers.clone(),
            counts: &counts,
            columns: entries.positions.dims()[2],
            rows: entries.keys.dims()[2],
        })?;
        Ok(Some(Self { entries: sharing.all_entries(), rows, norms, centers }))
    }

    /// The same as what a store takes in: all that `counts` columns of each head, the last, may hold is described.
    /// `positions` are −1 where they hold nothing; those come first.
    ///
    /// # Errors
    /// As [`ClusterOps::group`].
    pub fn sharing(
        self,
        positions: &Tensor<3, Int>,
        counts: &[usize],
        ops: &(impl ClusterOps + ?Sized),
    ) -> Result<Sharing> {
        let (columns, rows) = (self.rows.dims()[2], self.centers.dims()[2]);
        let back = |counts: &[usize], width: usize| -> Vec<i64> {
            counts.iter().map(|&count| count as i64 - width as i64).collect()
        };
        let nothing = positions.clone().lower_scalar(0);
        let entry = moved(self.rows, &back(&self.entries, rows));
        let Groups { members, none, .. } = ops.group(entry.clone().mask_fill(nothing, -1), rows)?;
        Ok(Sharing {
            tokens: counts.to_vec(),
            own: vec![0; counts.len()],
            entry: entry.clamp_min(0),
            norms: self.norms,
            centers: moved(self.centers, &back(counts, columns)).clamp_min(0),
            entries: self.entries,
            members,
            none,
        })
    }
}
