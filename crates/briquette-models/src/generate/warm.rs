use briquette::{Policy, WarmUp};

use crate::{GenerateOptions, Model, Result, generate_batch};

impl Model {
    /// Compiles the kernels of a generation under this policy, of the model and of its caches, for
    /// prompts of these lengths: it generates a few tokens behind prompts that say nothing, in
    /// caches that are dropped. `progress` is told after each prompt how many of how many are done.
    ///
    /// With [`briquette::device`]'s `keep_compiled` the kernels outlive the process.
    ///
    /// # Errors
    /// As [`WarmUp::each`], [`Model::cache`] and [`generate_batch`].
    pub fn warm(
        &self,
        policy: &Policy,
        warm_up: &WarmUp,
        progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        let options =
            GenerateOptions { max_new_tokens: WarmUp::DECODED + 1, ..GenerateOptions::default() };
        warm_up.each(progress, |rows, prompt| {
            let mut cache = self.cache(policy.clone())?;
            generate_batch(self, &vec![vec![0; prompt]; rows], &mut cache, &options, |_, _| {})?;
            Ok(())
        })
    }
}
