use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette_eval::tasks::{
    NeedleTemplate,
    haystack::Haystack,
    synthetic::{Needle, NeedleForm, Source},
};
use briquette_models::ChatTemplate;

use crate::args::{model::ModelArgs, path::absolute};

/// Text that needles are hidden in, and how they are asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct HaystackArgs {
    /// Folder of .txt files to hide needles in [default: built-in prose]
    #[arg(long, value_name = "DIR")]
    haystack: Option<PathBuf>,
    /// Form of needles and questions: ember, ruler, or a TOML file
    ///
    /// `ember` is what the embedded model was trained on, `ruler` what RULER publishes. A file has
    /// introduction, needle, question and answer.
    #[arg(long, value_name = "NAME|FILE", default_value = "ember")]
    form: String,
    /// Ask through the chat template of the model
    #[arg(long)]
    pub(crate) chat: bool,
}

impl HaystackArgs {
    /// The folder and the file that are read, if named.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        let form = Path::new(&self.form);
        self.haystack.iter().cloned().chain(form.is_file().then(|| form.into())).collect()
    }

    /// The task that hides needles in this text, with the parameters of `needle`.
    pub(crate) fn task(&self, needle: Needle) -> Result<Needle> {
        let form = match NeedleForm::try_from(self.form.clone()).map_err(anyhow::Error::msg)? {
            NeedleForm::File(path) => NeedleForm::File(absolute(&path)?.into()),
            form => form,
        };
        let haystack = match &self.haystack {
            Some(dir) => Source::Folder(absolute(dir)?.into()),
            None => Source::BuiltIn,
        };
        Ok(Needle { form, haystack, ..needle })
    }

    pub(crate) fn read(&self, model: &ModelArgs) -> Result<Haystack> {
        let mut form =
            NeedleTemplate::read(&self.form).with_context(|| format!("--form {}", self.form))?;
        if self.chat {
            let dir = model.dir()?;
            let Some(template) = ChatTemplate::load(&dir)? else {
                bail!("--chat: there is no chat template in {}", dir.display());
            };
            form = form.in_chat(&template)?;
        }
        let haystack = match &self.haystack {
            Some(dir) => Haystack::from_dir(dir)?,
            None => Haystack::built_in(),
        };
        Ok(haystack.with_form(form))
    }
}
