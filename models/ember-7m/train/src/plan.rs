use crate::data::Mixture;

/// The course of a training: the stages of the curriculum, and the rule by which weights are
/// updated.
pub struct Plan {
    /// The rate of all stages but the last, after warming up.
    pub learning_rate: f64,
    /// The rate the last stage begins with; it falls in a line to zero.
    pub last_learning_rate: f64,
    pub warmup_steps: usize,
    /// Decay of the matrices (AdamW, Loshchilov and Hutter, 2019).
    pub weight_decay: f32,
    /// The norm of all gradients is at most this.
    pub clip: f64,
    /// Tokens of a micro-batch, whose sequences have one length.
    pub micro_tokens: usize,
    pub step_tokens: usize,
    pub stages: Vec<Stage>,
}

/// A part of the curriculum.
pub struct Stage {
    pub steps: usize,
    /// Tokens of a sequence; several take turns from micro-batch to micro-batch.
    pub lengths: Vec<usize>,
    pub mixture: Mixture,
}

const EARLY: Mixture = [0.08, 0.0, 0.26, 0.32, 0.23, 0.04, 0.07];
pub const LATER: Mixture = [0.34, 0.14, 0.24, 0.08, 0.03, 0.11, 0.06];

impl Default for Plan {
    /// The stages of ember-7m. There they ended by what the model could do, and by the clock.
    fn default() -> Self {
        let stage =
            |steps, lengths: &[usize], mixture| Stage { steps, lengths: lengths.into(), mixture };
        Self {
            learning_rate: 3e-3,
            last_learning_rate: 2.5e-3,
            warmup_steps: 150,
            weight_decay: 0.1,
            clip: 1.0,
            micro_tokens: 65_536,
            step_tokens: 131_072,
            stages: vec![
                stage(400, &[256], EARLY),
                stage(200, &[512], LATER),
                stage(200, &[1024, 512], LATER),
                stage(800, &[2048, 1024], LATER),
                stage(1432, &[4096, 1024, 4096, 2048, 4096, 512], LATER),
            ],
        }
    }
}

impl Plan {
    /// The stage of a step, and its number there; `None` behind the last.
    pub fn stage(&self, step: usize) -> Option<(usize, usize)> {
        let mut of_stage = step;
        for (index, stage) in self.stages.iter().enumerate() {
            if of_stage < stage.steps {
                return Some((index, of_stage));
            }
            of_stage -= stage.steps;
        }
        None
    }

    /// The rate at a step of a stage, of which `of_stage` are done.
    pub fn rate(&self, step: usize, index: usize, of_stage: usize) -> f64 {
        let progress = of_stage as f64 / self.stages[index].steps as f64;
        let last = index + 1 == self.stages.len();
        let falling = self.last_learning_rate * (1.0 - progress);
        let rate = if last { falling } else { self.learning_rate };
        rate * ((step + 1) as f64 / self.warmup_steps as f64).min(1.0)
    }
}
