use burn::tensor::{DType, Tensor};

use super::{Kind, Layout, Parameters, head::HeadGradients};

/// The weights of one step as products take them: in the type of the computation, and each norm's
/// weight multiplied into the matrices that read what it normalises. The norms then need no pass
/// over the tokens, and their gradients come from the small matrices.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Token embedding, `[vocabulary, hidden]`.
    pub(super) embedding: Tensor<2>,
    /// Matrices by layer and [`Kind`], `[1, inputs, outputs]`.
    pub(super) layers: Vec<[Tensor<3>; 7]>,
    /// The head, `[vocabulary, hidden]`.
    pub(super) head: Tensor<2>,
}

/// Sums of gradients over micro-batches, f32.
#[derive(Clone, Debug)]
pub(crate) struct Gradients {
    /// The sum of the loss, `[1]`.
    pub(crate) loss: Tensor<1>,
    /// The gradient of the embedding's rows as tokens, `[vocabulary, hidden]`.
    embedding: Tensor<2>,
    /// The gradients of the matrices, as in [`Weights`].
    layers: Vec<[Tensor<3>; 7]>,
    /// The gradient of the head, `[vocabulary, hidden]`.
    head: Tensor<2>,
}

impl Weights {
    /// Prepares the weights for one step.
    pub fn new(layout: &Layout, parameters: &Parameters, dtype: DType) -> Self {
        let matrix = |range: std::ops::Range<usize>, shape: [usize; 2]| {
            parameters.matrices.clone().slice([range]).reshape(shape)
        };
        let norm = |index| {
            parameters.norms.clone().slice([layout.norm(index)]).reshape([1, layout.hidden])
        };
        let embedding = matrix(layout.embedding(), [layout.vocabulary, layout.hidden]);
        let layers = (0..layout.layers).map(|layer| {
            Layout::KINDS.map(|kind| {
                let mut weight = matrix(layout.matrix(layer, kind), layout.shape(kind));
                if let Some(index) = norm_before(layer, kind) {
                    weight = weight * norm(index);
                }
                weight.cast(dtype).transpose().unsqueeze()
            })
        });
        Self {
            layers: layers.collect(),
            head: (embedding.clone() * norm(2 * layout.layers)).cast(dtype),
            embedding: embedding.cast(dtype),
        }
    }

    /// The same, with the layers' matrices as leaves of a graph.
    pub(crate) fn leaves(&self) -> Self {
        let leaf = |weight: &Tensor<3>| weight.clone().autodiff().require_grad();
        Self {
            embedding: self.embedding.clone(),
            layers: self.layers.iter().map(|layer| layer.each_ref().map(leaf)).collect(),
            head: self.head.clone(),
        }
    }
}

impl Gradients {
    /// Collects the gradients of a micro-batch. `layers` as in [`Weights`].
    pub(super) fn new(
        head: HeadGradients,
        embedding: Tensor<2>,
        layers: Vec<[Tensor<3>; 7]>,
    ) -> Self {
        let wide = |layer: [Tensor<3>; 7]| layer.map(|weight| weight.cast(DType::F32));
        let layers = layers.into_iter().map(wide).collect();
        Self { loss: head.loss, embedding, layers, head: head.weight }
    }

    /// Adds the gradients of another micro-batch.
    pub(crate) fn add(self, other: Self) -> Self {
        let layers = self.layers.into_iter().zip(other.layers).map(|(a, b)| {
            let mut b = b.into_iter();
            // As many in both.
            a.map(|a| match b.next() {
                Some(b) => a + b,
                None => a,
            })
        });
        Self {
            loss: self.loss + other.loss,
            embedding: self.embedding + other.embedding,
            layers: layers.collect(),
            head: self.head + other.head,
        }
    }

    /// Gradients of the parameters, laid out as they are: the chain rule through [`Weights::new`].
    pub(crate) fn of_parameters(self, layout: &Layout, parameters: &Parameters) -> Parameters {
        let matrix = |range: std::ops::Range<usize>, shape: [usize; 2]| {
            parameters.matrices.clone().slice([range]).reshape(shape)
        };
        let norm = |index| {
            parameters.norms.clone().slice([layout.norm(index)]).reshape([1, layout.hidden])
        };
        let mut of_kinds: [Vec<Tensor<1>>; 7] = Default::default();
        let mut of_norms: Vec<Option<Tensor<2>>> = vec![None; 2 * layout.layers + 1];
        // A weight W multiplied by a norm's γ: dW = d(Wγ) · γ, dγ = Σ d(Wγ) · W over the outputs.
        let mut through = |index: usize, gradient: Tensor<2>, weight: Tensor<2>| {
            let part = (gradient.clone() * weight).sum_dim(0);
            let sum = of_norms[index].take();
            of_norms[index] = Some(match sum {
                Some(sum) => sum + part,
                None => part,
            });
            gradient * norm(index)
        };
        for (layer, weights) in self.layers.into_iter().enumerate() {
            for (kind, gradient) in Layout::KINDS.into_iter().zip(weights) {
                let shape = layout.shape(kind);
                let mut gradient = gradient.squeeze_dim::<2>(0).transpose();
                if let Some(index) = norm_before(layer, kind) {
                    let weight = matrix(layout.matrix(layer, kind), shape);
                    gradient = through(index, gradient, weight);
                }
                of_kinds[kind as usize].push(gradient.reshape([shape[0] * shape[1]]));
            }
        }
        let embedding = matrix(layout.embedding(), [layout.vocabulary, layout.hidden]);
        let head = through(2 * layout.layers, self.head, embedding);
        let embedding = (self.embedding + head).reshape([layout.vocabulary * layout.hidden]);
        let matrices = std::iter::once(embedding).chain(of_kinds.into_iter().flatten());
        let norms = of_norms.into_iter().flatten().map(|norm| norm.reshape([layout.hidden]));
        Parameters {
            matrices: Tensor::cat(matrices.collect(), 0),
            norms: Tensor::cat(norms.collect(), 0),
        }
    }
}

/// The norm whose output a matrix reads.
fn norm_before(layer: usize, kind: Kind) -> Option<usize> {
    match kind {
        Kind::Query | Kind::Key | Kind::Value => Some(2 * layer),
        Kind::Gate | Kind::Up => Some(2 * layer + 1),
        Kind::Output | Kind::Down => None,
    }
}
