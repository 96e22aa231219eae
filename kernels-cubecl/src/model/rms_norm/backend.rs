use super::kernel;
use crate::common::{backend::*, optional::Optional, rows::cube_count, vector::vector_size};

/// Normalisation as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RmsNormBackend: Backend {
    /// See [`super::rms_norm`]: the sum and the normalised rows.
    #[fusion(meta = |x, _residual, _weight, _epsilon, _weight_less_one| (x.clone(), x.clone()))]
    fn rms_norm(
        x: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        weight_less_one: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl RmsNormBackend for CubeBackend {
    fn rms_norm(
        x: FloatTensor<Self>,
        residual: Optional<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        weight_less_one: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, shape) = (x.client.clone(), x.shape());
        let normal = empty(&x, shape.clone(), x.dtype);
        let residual = residual.into_option();
        let adds = residual.is_some();
        let sum = adds.then(|| empty(&x, shape.clone(), x.dtype));
        let all = [Some(&x), residual.as_ref(), sum.as_ref(), Some(&normal)];
        let width = all.into_iter().flatten().map(vector_size).min().unwrap_or(1);
        let element = dtype_to_storage_type(x.dtype);
        // What is not looked at: another tensor stands in.
        let written = sum.clone().unwrap_or_else(|| normal.clone());
        let of_residual = residual.unwrap_or_else(|| x.clone());
        kernel::rms_norm::launch(
            &client,
            cube_count(shape[0]),
            CubeDim::new_1d(kernel::UNITS as u32),
            width,
            x.clone().into_tensor_arg(),
            of_residual.into_tensor_arg(),
            weight.into_tensor_arg(),
            written.into_tensor_arg(),
            normal.clone().into_tensor_arg(),
            epsilon,
            adds,
            weight_less_one,
            element,
        );
        (sum.unwrap_or(x), normal)
    }
}
