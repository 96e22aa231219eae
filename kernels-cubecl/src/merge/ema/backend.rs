use super::kernel;
use crate::common::{backend::*, optional::Optional};

/// How many columns of each head there are.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Held<B: Backend> {
    /// As many of all.
    Alike {
        count: usize,
    },
    Differ {
        counts: IntTensor<B>,
    },
}

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait EmaBackend: Backend {
    /// See [`super::ema_weights`]: weights and thresholds.
    #[fusion(meta = |similarity, _before, _held, _beta| outputs(similarity))]
    fn ema_weights(
        similarity: FloatTensor<Self>,
        #[extension_type] before: Optional<Self>,
        #[extension_type] held: Held<Self>,
        beta: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the outputs, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(similarity: &TensorSpec) -> (TensorSpec, TensorSpec) {
    let threshold = TensorSpec::new(Shape::from([similarity.shape[0], 1]), DType::F32);
    (similarity.clone(), threshold)
}

impl EmaBackend for CubeBackend {
    fn ema_weights(
        similarity: FloatTensor<Self>,
        before: Optional<Self>,
        held: Held<Self>,
        beta: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (client, shape) = (similarity.client.clone(), similarity.shape());
        let batch = shape[0];
        let weights = empty(&similarity, shape, DType::F32);
        let threshold = empty(&similarity, [batch, 1], DType::F32);
        // What is not looked at: another tensor stands in.
        let stand_in = || similarity.as_tensor_alias(0);
        let before = before.into_option();
        let follows = before.is_some();
        let before = before.map_or_else(stand_in, |before| before.into_tensor_arg());
        let (count, counts, int, differ) = match held {
            Held::Alike { count } => (count, stand_in(), DType::I32, false),
            Held::Differ { counts } => {
                let int = counts.dtype;
                (0, counts.into_tensor_arg(), int, true)
            }
        };
        kernel::ema_weights::launch(
            &client,
            CubeCount::Static(batch as u32, 1, 1),
            CubeDim::new_1d(kernel::UNITS as u32),
            similarity.into_tensor_arg(),
            before,
            counts,
            weights.clone().into_tensor_arg(),
            threshold.clone().into_tensor_arg(),
            count,
            beta,
            follows,
            differ,
            dtype_to_storage_type(int),
        );
        (weights, threshold)
    }
}
