use std::collections::BTreeMap;

use burn_store::burn_pack::Tensor;

/// Tensors of a file by name, their bytes not read yet.
pub(crate) type Tensors = BTreeMap<String, Tensor>;
