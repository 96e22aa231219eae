//! Chains of variables, each assigned the one before it.

use std::{collections::HashSet, path::Path};

use rand::{RngExt, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Source,
    cell::{Cell, at_least, refuse},
    names::{List, letters, untaken},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Result,
    tasks::{
        Sample, Turn,
        assemble::{self, Hay, encode_all},
        haystack::Haystack,
    },
};

/// Letters of a variable in RULER's form.
const LETTERS: usize = 5;

/// Question about the chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VariableForm {
    /// The last variable of a chain and the way back from it:
    /// `Question: What is the value of VAR b? Answer: VAR b`, to be followed by `= VAR a = 12345`.
    /// The embedded model was trained on this form, with words as variables. Scored by
    /// [`Metric::ExactMatch`](crate::metrics::Metric::ExactMatch).
    #[default]
    Steps,
    /// The value at once: `Question: What is the value of VAR b? Answer: `. Scored by
    /// [`Metric::ExactMatch`](crate::metrics::Metric::ExactMatch).
    Value,
    /// All variables that have a value: RULER's published prompt, without its optional example,
    /// with five letters as variables. Scored by
    /// [`Metric::Contains`](crate::metrics::Metric::Contains).
    Names,
}

synthetic_task! {
    /// RULER's variable tracking (Hsieh et al. 2024, "VT"). The assignments of a chain keep their
    /// order, their places are random.
    pub struct VariableTracking: 4 samples {
        /// Chains, of which one is asked for.
        pub chains: usize = 2,
        /// Assignments from variable to variable in a chain: it has one variable more.
        pub hops: usize = 2,
        /// The question.
        pub form: VariableForm = VariableForm::Steps,
        /// The text that assignments are hidden in; not `needles`.
        pub haystack: Source = Source::BuiltIn,
    }
}

impl Family for VariableTracking {
    const NAME: &'static str = "variable-tracking";

    fn default_label(&self) -> String {
        let form = match self.form {
            VariableForm::Steps => "steps",
            VariableForm::Value => "value",
            VariableForm::Names => "names",
        };
        let source = self.haystack.suffix();
        format!("{}-{form}-{}x{}hops{source}", Self::NAME, self.chains, self.hops)
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        at_least(Self::NAME, "chains", self.chains, 1)?;
        let haystack = self.haystack.load(Self::NAME)?;
        cells.iter().map(|cell| self.sample(&haystack, cell)).collect()
    }
}

/// Variables that have one value, the first of them directly.
#[derive(Debug)]
struct Chain {
    variables: Vec<String>,
    value: String,
}

impl VariableTracking {
    fn sample(&self, haystack: &Haystack, cell: &Cell<'_>) -> Result<Sample> {
        let tokenizer = cell.tokenizer;
        let mut choice = cell.stream(0);
        let variables = self.hops.saturating_add(1).saturating_mul(self.chains);
        if variables > cell.length {
            return Err(cell.too_short(variables));
        }
        let chains = self.chains(variables, &mut choice)?;
        let turn = self.turn(cell, &chains[0])?;

        let introduction = match self.form {
            VariableForm::Steps | VariableForm::Value => "",
            VariableForm::Names => {
                "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
            }
        };
        let introduction = tokenizer.encode(introduction, true)?;
        let inserts = encode_all(tokenizer, self.statements(&chains, &mut choice))?;
        let hidden: usize = inserts.iter().map(Vec::len).sum();
        let fixed = introduction.len() + hidden + turn.question.len() + turn.max_new_tokens;
        let room = assemble::room(Self::NAME, cell.length, fixed)?;
        let hay = Hay::fill(tokenizer, haystack.pieces(cell.stream(1)), room)?;
        // Not before the text: a statement of RULER's form needs a sentence before it.
        let inside = &hay.boundaries[1..];
        let mut places: Vec<usize> =
            inserts.iter().map(|_| inside[choice.random_range(0..inside.len())]).collect();
        places.sort_unstable();
        let spots: Vec<(usize, usize)> = places.into_iter().zip(0..).collect();
        let axes = [("chains", self.chains), ("hops", self.hops)];
        Ok(cell.named(&axes, hay.with(&introduction, &inserts, &spots), vec![turn]))
    }

    /// The first is the one asked for.
    fn chains(&self, count: usize, rng: &mut ChaCha8Rng) -> Result<Vec<Chain>> {
        let variables = match self.form {
            VariableForm::Steps | VariableForm::Value => {
                List::holding(Self::NAME, count)?.draw(count, rng)
            }
            VariableForm::Names => capitals(count, rng)?,
        };
        // Half of all values there are: so many are found without long search.
        let most = 90_000 / 2;
        if self.chains > most {
            return refuse(Self::NAME, "chains", format!("{} given, at most {most}", self.chains));
        }
        let mut taken = HashSet::new();
        let mut value =
            || untaken(&mut taken, || rng.random_range(10_000..100_000_u32).to_string());
        let chain = |variables: &[String]| Chain { variables: variables.to_vec(), value: value() };
        Ok(variables.chunks(self.hops + 1).map(chain).collect())
    }

    /// The assignments of all chains, mixed; those of a chain keep their order.
    fn statements(&self, chains: &[Chain], rng: &mut ChaCha8Rng) -> Vec<String> {
        let (before, after) = match self.form {
            VariableForm::Steps | VariableForm::Value => ("\n", "."),
            VariableForm::Names if self.haystack.in_lines() => ("\n", ""),
            VariableForm::Names => (" ", "."),
        };
        let mut order: Vec<usize> = chains
            .iter()
            .enumerate()
            .flat_map(|(i, chain)| vec![i; chain.variables.len()])
            .collect();
        order.shuffle(rng);
        let mut next = vec![0_usize; chains.len()];
        let mut statement = |i: usize| {
            let Chain { variables, value } = &chains[i];
            let at = next[i];
            next[i] += 1;
            match at.checked_sub(1) {
                None => format!("{before}VAR {} = {value}{after}", variables[0]),
                Some(last) => {
                    format!("{before}VAR {} = VAR {}{after}", variables[at], variables[last])
                }
            }
        };
        order.into_iter().map(&mut statement).collect()
    }

    fn turn(&self, cell: &Cell<'_>, Chain { variables, value }: &Chain) -> Result<Turn> {
        let (count, last) = (variables.len(), &variables[variables.len() - 1]);
        match self.form {
            VariableForm::Steps => {
                let question =
                    format!("\nQuestion: What is the value of VAR {last}? Answer: VAR {last}");
                let back = variables.iter().rev().skip(1);
                let way: String = back.map(|variable| format!(" = VAR {variable}")).collect();
                cell.exact_turn(&question, &format!("{way} = {value}"))
            }
            VariableForm::Value => {
                let question = format!("\nQuestion: What is the value of VAR {last}? Answer: ");
                cell.exact_turn(&question, value)
            }
            VariableForm::Names => {
                let question = format!(
                    "\nQuestion: Find all variables that are assigned the value {value} in the text above. Answer: \
                     According to the chain(s) of variable assignment in the text above, {count} variables are \
                     assigned the value {value}, they are: "
                );
                // RULER generates 30 tokens.
                cell.list_turn(&question, variables.clone(), &variables.join(" "), 30)
            }
        }
    }
}

/// Different variables of five capitals.
fn capitals(count: usize, rng: &mut ChaCha8Rng) -> Result<Vec<String>> {
    // Half of all there are: so many are found without long search.
    let most = 26_usize.pow(LETTERS as u32) / 2;
    if count > most {
        let reason = format!("{count} variables, at most {most}");
        return refuse(VariableTracking::NAME, "chains", reason);
    }
    let mut taken = HashSet::with_capacity(count);
    let variable = |_| untaken(&mut taken, || letters(rng, b'A', LETTERS));
    Ok((0..count).map(variable).collect())
}
