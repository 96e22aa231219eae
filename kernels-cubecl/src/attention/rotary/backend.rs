use super::kernel;
use crate::common::{backend::*, vector::vector_size};

/// Tensors of [`RotaryTables`](briquette_ops::RotaryTables).
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Tables<B: Backend> {
    pub(super) cosines: FloatTensor<B>,
    pub(super) sines: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
}

/// Rotation as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RotateBackend: Backend {
    /// See [`super::rotate`].
    #[fusion(meta = |x, _tables| x.clone())]
    fn rotate(x: FloatTensor<Self>, #[extension_type] tables: Tables<Self>) -> FloatTensor<Self>;

    /// See [`super::rotate_both`].
    #[fusion(meta = |queries, keys, _tables| (queries.clone(), keys.clone()))]
    fn rotate_both(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        #[extension_type] tables: Tables<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl RotateBackend for CubeBackend {
    fn rotate(x: FloatTensor<Self>, tables: Tables<Self>) -> FloatTensor<Self> {
        let (client, shape) = (x.client.clone(), x.shape());
        let turned = empty_like(&x);
        let Tables { cosines, sines, positions } = tables;
        let width = width(&[&x, &cosines, &sines, &turned]);
        let types = [x.dtype, cosines.dtype, positions.dtype].map(dtype_to_storage_type);
        let vectors = shape[3] / 2 / width;
        kernel::rotate::launch(
            &client,
            cubes(&shape, shape[1], vectors),
            CubeDim::new_1d(kernel::UNITS as u32),
            width,
            x.into_tensor_arg(),
            cosines.into_tensor_arg(),
            sines.into_tensor_arg(),
            positions.into_tensor_arg(),
            turned.clone().into_tensor_arg(),
            vectors,
            types,
        );
        turned
    }

    fn rotate_both(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        tables: Tables<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, shape) = (queries.client.clone(), queries.shape());
        let (turned_queries, turned_keys) = (empty_like(&queries), empty_like(&keys));
        let Tables { cosines, sines, positions } = tables;
        let width = width(&[&queries, &keys, &cosines, &sines, &turned_queries, &turned_keys]);
        let types = [queries.dtype, cosines.dtype, positions.dtype].map(dtype_to_storage_type);
        let vectors = shape[3] / 2 / width;
        kernel::rotate_both::launch(
            &client,
            cubes(&shape, shape[1] + keys.shape()[1], vectors),
            CubeDim::new_1d(kernel::UNITS as u32),
            width,
            queries.into_tensor_arg(),
            keys.into_tensor_arg(),
            cosines.into_tensor_arg(),
            sines.into_tensor_arg(),
            positions.into_tensor_arg(),
            turned_queries.clone().into_tensor_arg(),
            turned_keys.clone().into_tensor_arg(),
            vectors,
            types,
        );
        (turned_queries, turned_keys)
    }
}

fn empty_like(x: &CubeTensor) -> CubeTensor {
    empty(x, x.shape(), x.dtype)
}

/// Numbers that are loaded at once, of rows and tables.
fn width(tensors: &[&CubeTensor]) -> usize {
    let width = tensors.iter().map(|tensor| vector_size(tensor)).min().unwrap_or(1);
    let half = tensors.first().map_or(1, |rows| rows.shape()[3] / 2);
    if half.is_multiple_of(width) { width } else { 1 }
}

/// Cubes of rows `[batch, _, tokens, _]` of so many heads.
fn cubes(rows: &Shape, heads: usize, vectors: usize) -> CubeCount {
    let along_x = (rows[2] * vectors).div_ceil(kernel::UNITS);
    CubeCount::Static(along_x as u32, heads as u32, rows[0] as u32)
}
