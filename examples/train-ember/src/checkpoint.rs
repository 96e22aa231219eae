//! A training on disk: weights, the optimiser's moments, and its position.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use burn::{
    optim::{AdamWState, AdaptiveMomentumState},
    tensor::{DType, Device, Tensor, TensorData},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

use crate::{
    Plan,
    model::{Layout, Parameters},
    optimizer::{Memory, Optimizer},
};

/// Position of a training.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The stage.
    pub stage: usize,
    /// Steps done in it.
    pub stage_step: usize,
    /// Steps done in all.
    pub step: usize,
    /// Tokens seen in all.
    pub tokens: u64,
    /// Seconds trained, measurements and files included, waiting for the first step of a run not.
    pub seconds: f64,
    /// Of these, seconds before the stage.
    pub seconds_before_stage: f64,
    /// Steps before the stage.
    pub steps_before_stage: usize,
}

/// State with which a training continues from a checkpoint.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) position: Position,
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) layout: Layout,
    /// Updates the optimiser has made.
    updates: usize,
}

const WEIGHTS: &str = "training.safetensors";
const STATE: &str = "state.json";
const NAMES: [[&str; 3]; 2] = [
    ["matrices", "matrices.moment_1", "matrices.moment_2"],
    ["norms", "norms.moment_1", "norms.moment_2"],
];

/// The folder of a run's checkpoint.
pub(crate) fn folder(out: &Path) -> PathBuf {
    out.join("checkpoint")
}

/// Writes a checkpoint beside the last one, then puts it in its place: a crash leaves one of the
/// two.
pub(crate) fn save(
    out: &Path,
    plan: &Plan,
    seed: u64,
    layout: &Layout,
    position: &Position,
    parameters: &Parameters,
    optimizer: &Optimizer,
) -> Result<()> {
    let (fresh, old, place) = (out.join("checkpoint.new"), out.join("checkpoint.old"), folder(out));
    let remove = |left: &Path| -> Result<()> {
        if left.exists() {
            fs::remove_dir_all(left).with_context(|| left.display().to_string())?;
        }
        Ok(())
    };
    remove(&fresh)?;
    fs::create_dir_all(&fresh).with_context(|| fresh.display().to_string())?;

    let mut tensors =
        vec![(NAMES[0][0], parameters.matrices.clone()), (NAMES[1][0], parameters.norms.clone())];
    let mut updates = 0;
    if let Some(states) = &optimizer.state {
        for (names, state) in NAMES.iter().zip(states) {
            updates = state.momentum.time;
            tensors.push((names[1], state.momentum.moment_1.clone()));
            tensors.push((names[2], state.momentum.moment_2.clone()));
        }
    }
    let data = tensors
        .into_iter()
        .map(|(name, tensor)| Ok((name, tensor.try_into_data()?.convert::<f32>())))
        .collect::<Result<Vec<_>>>()?;
    let views = data
        .iter()
        .map(|(name, data)| {
            let count = data.as_bytes().len() / 4;
            Ok((*name, TensorView::new(Dtype::F32, vec![count], data.as_bytes())?))
        })
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, &fresh.join(WEIGHTS))?;
    let state = State {
        position: position.clone(),
        seed,
        plan: plan.clone(),
        layout: layout.clone(),
        updates,
    };
    fs::write(fresh.join(STATE), serde_json::to_string_pretty(&state)? + "\n")?;

    if place.exists() {
        // Only now: where there is no other, the old one is the checkpoint.
        remove(&old)?;
        fs::rename(&place, &old)?;
    }
    fs::rename(&fresh, &place)?;
    remove(&old)
}

/// A checkpoint, read.
pub(crate) struct Checkpoint {
    pub(crate) state: State,
    pub(crate) parameters: Parameters,
    /// The optimiser's moments; `None` before its first step.
    pub(crate) memory: Option<Memory>,
}

/// The state of a run; `None` if it has no checkpoint.
pub(crate) fn state(out: &Path) -> Result<Option<State>> {
    let Some(place) = find(out) else { return Ok(None) };
    let damaged = || damaged(&place);
    let text = fs::read_to_string(place.join(STATE)).with_context(damaged)?;
    Ok(Some(serde_json::from_str(&text).with_context(damaged)?))
}

/// Reads the checkpoint of a run; `None` if there is none.
pub(crate) fn load(out: &Path, device: &Device) -> Result<Option<Checkpoint>> {
    let (Some(place), Some(state)) = (find(out), state(out)?) else { return Ok(None) };
    let damaged = || damaged(&place);
    let bytes = fs::read(place.join(WEIGHTS)).with_context(damaged)?;
    let tensors = SafeTensors::deserialize(&bytes).with_context(damaged)?;
    let read = |name: &str| -> Result<Tensor<1>> {
        let view = tensors.tensor(name).with_context(damaged)?;
        ensure!(view.dtype() == Dtype::F32, "{}: {name} is {:?}", damaged(), view.dtype());
        let values: Vec<f32> = view
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let count = values.len();
        Ok(Tensor::from_data(TensorData::new(values, [count]), (device, DType::F32)))
    };
    let parameters = Parameters { matrices: read(NAMES[0][0])?, norms: read(NAMES[1][0])? };
    ensure!(
        parameters.matrices.dims() == [state.layout.matrices()]
            && parameters.norms.dims() == [state.layout.norms()],
        "{}: its weights are not of its architecture",
        damaged()
    );
    let moments = |names: [&str; 3]| -> Result<AdamWState<1>> {
        let momentum = AdaptiveMomentumState::new(state.updates, read(names[1])?, read(names[2])?);
        Ok(AdamWState::new(momentum))
    };
    let memory =
        if state.updates == 0 { None } else { Some([moments(NAMES[0])?, moments(NAMES[1])?]) };
    Ok(Some(Checkpoint { state, parameters, memory }))
}

/// The checkpoint's folder. One that was being put in its place when a run ended counts.
fn find(out: &Path) -> Option<PathBuf> {
    let places = [folder(out), out.join("checkpoint.old")];
    places.into_iter().find(|place| place.join(STATE).exists())
}

fn damaged(place: &Path) -> String {
    format!("the checkpoint in {} is damaged", place.display())
}
