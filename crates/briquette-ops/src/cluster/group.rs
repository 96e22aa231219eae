use burn::tensor::{Int, Tensor, TensorData};

use crate::error::{OpError, Result};

/// Columns sorted by their class.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The columns of each row: those of no class, then those that have one, both ascending.
    /// `[batch, kv_heads, columns]`
    pub order: Tensor<3, Int>,
    /// Places of `order`: those of no class, then class by class, ascending in each. `[batch, kv_heads, columns]`
    pub members: Tensor<3, Int>,
    /// How many are of no class, `[batch, kv_heads]`.
    pub none: Tensor<2, Int>,
}

/// On the host: one read of the classes. Burn's own sort reads them back as well, and promises no order of equals.
pub(super) fn group(classes: Tensor<3, Int>) -> Result<Groups> {
    let device = classes.device();
    let [batch, heads, columns] = classes.dims();
    let classes = classes.try_into_vec_as::<i64>();
    let classes = classes.map_err(|error| OpError::failed("group", error))?;
    let (mut order, mut members, mut none) = (Vec::new(), Vec::new(), Vec::new());
    for classes in classes.chunks(columns.max(1)) {
        let (without, with): (Vec<usize>, Vec<usize>) =
            (0..columns).partition(|&column| classes[column] < 0);
        none.push(without.len() as i64);
        let of_row = [without, with].concat();
        let mut places: Vec<usize> = (0..columns).collect();
        places.sort_by_key(|&place| classes[of_row[place]].max(-1));
        order.extend(of_row.into_iter().map(|column| column as i64));
        members.extend(places.into_iter().map(|place| place as i64));
    }
    let list =
        |numbers| Tensor::from_data(TensorData::new(numbers, [batch, heads, columns]), &device);
    Ok(Groups {
        order: list(order),
        members: list(members),
        none: Tensor::from_data(TensorData::new(none, [batch, heads]), &device),
    })
}
