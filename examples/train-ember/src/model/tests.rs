//! Loss and gradients beside those of `transformers` in f64 (`tests/golden.py`).

use briquette_models::ModelConfig;
use burn::tensor::{DType, Device};
use safetensors::{SafeTensors, tensor::TensorView};

use super::{Batch, Body, Layout, Parameters, Weights};

const GOLDEN: &[u8] = include_bytes!("../../tests/golden.safetensors");

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": true}"#;

fn f32s(view: &TensorView<'_>) -> Vec<f32> {
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f64s(view: &TensorView<'_>) -> Vec<f64> {
    view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn golden(device: &Device) -> (Layout, Parameters, Vec<Batch>, f64, SafeTensors<'static>) {
    let layout = Layout::new(&ModelConfig::from_json(CONFIG).unwrap()).unwrap();
    let tensors = SafeTensors::deserialize(GOLDEN).unwrap();
    let mut matrices = vec![f32::NAN; layout.matrices()];
    let mut norms = vec![f32::NAN; layout.norms()];
    for (name, shape, norm, range) in layout.tensors() {
        let view = tensors.tensor(&format!("weight:{name}")).unwrap();
        assert_eq!(view.shape(), shape);
        let place = if norm { &mut norms } else { &mut matrices };
        place[range].copy_from_slice(&f32s(&view));
    }
    assert!(matrices.iter().chain(&norms).all(|x| x.is_finite()));
    let parameters = Parameters::from_values(matrices, norms, device);
    let tokens: Vec<u32> = tensors
        .tensor("tokens")
        .unwrap()
        .data()
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let weights = f32s(&tensors.tensor("weights").unwrap());
    let rows: Vec<_> =
        tokens.chunks(20).zip(weights.chunks(20)).map(|(t, w)| (t.to_vec(), w.to_vec())).collect();
    // Two micro-batches of one step.
    let batches = vec![Batch::new(&rows[..2]).unwrap(), Batch::new(&rows[2..]).unwrap()];
    let loss = f64s(&tensors.tensor("loss").unwrap())[0];
    (layout, parameters, batches, loss, tensors)
}

/// Every device of this build: with `wgpu` or `cuda` that is attention by the kernels, with its own
/// gradient.
fn devices() -> Vec<(&'static str, Device, f64)> {
    let tolerance = |name: &str| if name == "flex" { 1e-5 } else { 1e-4 };
    let names = briquette::device::available().into_iter();
    let names = names.filter(|name| ["flex", "wgpu", "cuda"].contains(name));
    let names = names.filter(|name| *name == "flex" || cfg!(feature = "kernels"));
    names.map(|name| (name, briquette::device::open(name).unwrap(), tolerance(name))).collect()
}

#[test]
fn loss_and_gradients_are_those_of_transformers() {
    for (name, device, tolerance) in devices() {
        check(name, &device, tolerance);
    }
}

fn check(device_name: &str, device: &Device, tolerance: f64) {
    let (layout, parameters, batches, loss, tensors) = golden(device);
    let body = Body::new(&layout, 64, DType::F32, device);
    let weights = Weights::new(&layout, &parameters, DType::F32);
    let scale = 1.0 / batches.iter().map(Batch::weight).sum::<f64>();
    let [first, second] = [0, 1].map(|i| body.gradients(&weights, &batches[i], scale).unwrap());
    let sum = first.add(second);
    let found: f64 = sum.loss.clone().into_scalar();
    assert!((found - loss).abs() < tolerance * loss, "{found} and {loss} on {device_name}");
    let gradients = sum.of_parameters(&layout, &parameters);
    let values = |x: burn::tensor::Tensor<1>| x.into_data().try_into_vec::<f32>().unwrap();
    let (matrices, norms) = (values(gradients.matrices), values(gradients.norms));
    for (name, _, norm, range) in layout.tensors() {
        let expected = f64s(&tensors.tensor(&format!("gradient:{name}")).unwrap());
        let found = if norm { &norms[range] } else { &matrices[range] };
        assert_eq!(found.len(), expected.len());
        let size = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let apart = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).powi(2));
        let apart = apart.sum::<f64>().sqrt();
        assert!(
            size > 1e-4 && apart < tolerance * size,
            "{name}: {apart} of {size} on {device_name}"
        );
    }
}

#[test]
fn losses_of_tokens_add_up_to_the_loss() {
    let (layout, parameters, batches, loss, _) = golden(&Device::flex());
    let body = Body::new(&layout, 64, DType::F32, &Device::flex());
    let weights = Weights::new(&layout, &parameters, DType::F32);
    let (mut sum, mut count) = (0.0, 0.0);
    for batch in &batches {
        for (loss, weight) in body.token_losses(&weights, batch).unwrap().iter().zip(&batch.weights)
        {
            sum += f64::from(loss * weight);
        }
        count += batch.weight();
    }
    assert!((sum / count - loss).abs() < 1e-5 * loss, "{} and {loss}", sum / count);
}
