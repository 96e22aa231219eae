//! A Hugging Face folder, written and read.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use briquette_models::ModelConfig;
use burn::tensor::{Device, Tensor};
use half::bf16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::model::{Layout, Parameters};

const WEIGHTS: &str = "model.safetensors";

/// Writes a Hugging Face folder: `config.json` as given, weights in bf16 under their names there,
/// and the files of the tokenizer that lie in `data`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn export(
    config: &str,
    layout: &Layout,
    parameters: &Parameters,
    data: &Path,
    out: &Path,
) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("{} cannot be made", out.display()))?;
    let values = |tensor: &Tensor<1>| -> Result<Vec<f32>> {
        Ok(tensor.clone().try_into_data()?.convert::<f32>().try_into_vec::<f32>()?)
    };
    let (matrices, norms) = (values(&parameters.matrices)?, values(&parameters.norms)?);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = layout
        .tensors()
        .into_iter()
        .map(|(name, shape, norm, range)| {
            let source = if norm { &norms } else { &matrices };
            let bytes = source[range].iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes());
            (name, shape, bytes.collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let format = Some([("format".to_owned(), "pt".to_owned())].into());
    safetensors::serialize_to_file(views, format, &out.join(WEIGHTS))?;
    fs::write(out.join("config.json"), config)?;
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let source = data.join(name);
        if source.exists() {
            fs::copy(&source, out.join(name))
                .with_context(|| format!("{} cannot be copied", source.display()))?;
        }
    }
    Ok(())
}

/// Reads a Hugging Face folder with its weights in one file, bf16 or f32.
///
/// # Errors
/// If a file cannot be read, the architecture is not one that is trained here, or a tensor is
/// missing or of another shape or type.
pub fn import(model: &Path, device: &Device) -> Result<(Layout, Parameters)> {
    let layout = Layout::new(&ModelConfig::from_file(model.join("config.json"))?)?;
    let path = model.join(WEIGHTS);
    let bytes = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let tensors = SafeTensors::deserialize(&bytes)
        .with_context(|| format!("{} is damaged", path.display()))?;
    let (mut matrices, mut norms) = (vec![0.0; layout.matrices()], vec![0.0; layout.norms()]);
    for (name, shape, norm, range) in layout.tensors() {
        let view =
            tensors.tensor(&name).with_context(|| format!("{} has no {name}", path.display()))?;
        ensure!(view.shape() == shape, "{name} is {:?}, by config.json {shape:?}", view.shape());
        let place = &mut if norm { &mut norms } else { &mut matrices }[range];
        let data = view.data();
        match view.dtype() {
            Dtype::BF16 => {
                for (x, bytes) in place.iter_mut().zip(data.chunks_exact(2)) {
                    *x = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                }
            }
            Dtype::F32 => {
                for (x, bytes) in place.iter_mut().zip(data.chunks_exact(4)) {
                    *x = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            other => bail!("{name} is {other:?}; bf16 and f32 are read"),
        }
    }
    Ok((layout, Parameters::from_values(matrices, norms, device)))
}

#[cfg(test)]
mod tests {
    use briquette::Policy;
    use briquette_models::Model;
    use burn::tensor::{DType, Int, TensorData};

    use super::*;
    use crate::model::{Batch, Body, Weights};

    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 37,
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 64, "tie_word_embeddings": true}"#;

    /// Weights large enough that every one of them shows in the logits, and norms of their own.
    fn parameters(layout: &Layout, device: &Device) -> Parameters {
        let random = Parameters::random(layout, 5, device);
        let norms = (0..layout.norms()).map(|i| 1.0 + 0.4 * (i as f32).sin()).collect();
        let matrices = (random.matrices * 8.0).into_data().try_into_vec::<f32>().unwrap();
        Parameters::from_values(matrices, norms, device)
    }

    fn values(x: &Tensor<1>) -> Vec<f32> {
        x.clone().into_data().try_into_vec::<f32>().unwrap()
    }

    #[test]
    fn what_is_exported_has_the_logits_of_what_was_trained() {
        let device = Device::flex();
        let layout = Layout::new(&ModelConfig::from_json(CONFIG).unwrap()).unwrap();
        let trained = parameters(&layout, &device);
        let dir = tempfile::tempdir().unwrap();
        export(CONFIG, &layout, &trained, dir.path(), dir.path()).unwrap();

        // The file has the weights in bf16, each the nearest to its own.
        let (found, rounded) = import(dir.path(), &device).unwrap();
        assert_eq!(found, layout);
        for (rounded, trained) in
            [(&rounded.matrices, &trained.matrices), (&rounded.norms, &trained.norms)]
        {
            let nearest = |x: &f32| bf16::from_f32(*x).to_f32();
            let expected: Vec<f32> = values(trained).iter().map(nearest).collect();
            assert_eq!(values(rounded), expected);
            assert_ne!(values(rounded), values(trained));
        }

        let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + i * i) % 37).collect();
        let batch = Batch::new(&[(tokens.clone(), vec![1.0; 40])]).unwrap();
        let body = Body::new(&layout, 40, DType::F32, &device);
        let weights = Weights::new(&layout, &rounded, DType::F32);
        let every: Vec<usize> = (0..40).collect();
        let expected = body.logits(&weights, &batch, &every).unwrap();
        let expected = expected.into_data().try_into_vec::<f32>().unwrap();

        let llama = Model::load(dir.path(), &device, DType::F32).unwrap();
        let mut cache = llama.cache(Policy::full()).unwrap();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, 40]), &device);
        let logits = llama.forward(tokens, &mut cache).unwrap();
        let found = logits.into_data().try_into_vec::<f32>().unwrap();

        let most = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(most > 1.0, "logits of {most} show nothing");
        assert_eq!(found.len(), 40 * 37);
        for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < 1e-4 * most, "{a} and {b} at {at}, most {most}");
        }
    }

    #[test]
    fn a_folder_of_another_shape_is_refused() {
        let device = Device::flex();
        let layout = Layout::new(&ModelConfig::from_json(CONFIG).unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        export(CONFIG, &layout, &parameters(&layout, &device), dir.path(), dir.path()).unwrap();
        let import = |config: String| {
            fs::write(dir.path().join("config.json"), config).unwrap();
            format!("{:#}", import(dir.path(), &device).unwrap_err())
        };
        let error =
            import(CONFIG.replace(r#""intermediate_size": 40"#, r#""intermediate_size": 41"#));
        assert!(error.contains("[40, 24]") && error.contains("[41, 24]"), "{error}");
        let error =
            import(CONFIG.replace(r#""num_hidden_layers": 3"#, r#""num_hidden_layers": 4"#));
        assert!(error.contains("model.layers.3"), "{error}");
    }
}
