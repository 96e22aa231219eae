//! The embedded model, answering a text under a policy: in a page, and in a terminal to compare.

use briquette::Policy;
use briquette_models::{GenerateOptions, Model, ModelConfig, Result, Tokenizer, generate};
use burn::tensor::DType;
use wasm_bindgen::prelude::{JsError, JsValue, wasm_bindgen};

/// A model with its tokenizer.
#[wasm_bindgen]
pub struct Answerer {
    model: Model,
    tokenizer: Tokenizer,
}

/// What a text was continued by, and what that took.
#[wasm_bindgen(getter_with_clone)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub tokens_per_second: f64,
    pub bytes_held: usize,
    /// What the full cache would hold.
    pub bytes_full: usize,
}

impl Answerer {
    /// Reads the files of a model.
    pub fn load(config: &str, tokenizer: &str, weights: Vec<u8>) -> Result<Self> {
        let device = briquette::device::open("flex")?;
        let config = ModelConfig::from_json(config)?;
        let model = Model::from_safetensors(config, weights, &device, DType::F32)?;
        Ok(Self { model, tokenizer: Tokenizer::from_json(tokenizer)? })
    }

    /// Continues `text` by at most `max_tokens`. Without a `budget` the policy is to take none.
    pub fn continued(
        &self,
        text: &str,
        policy: &str,
        budget: &str,
        max_tokens: usize,
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer> {
        let budget = if budget.is_empty() { None } else { Some(budget.parse()?) };
        let mut cache = self.model.cache(Policy::parse(policy, budget)?)?;
        let prompt = self.tokenizer.encode(text, true)?;
        let stop = self.model.config().eos_token_ids.clone();
        let options = GenerateOptions { max_new_tokens: max_tokens, stop, ..Default::default() };
        let mut stream = self.tokenizer.stream();
        let mut failed = None;
        let (generation, timing) = generate(&self.model, &prompt, &mut cache, &options, |token| {
            match stream.push(token) {
                Ok(text) => on_text(&text),
                Err(error) => failed = Some(error),
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        Ok(Answer {
            text: self.tokenizer.decode(&generation.tokens)?,
            tokens: generation.tokens,
            tokens_per_second: timing.decode_rate(),
            bytes_held: cache.bytes_held(),
            bytes_full: cache.bytes_full(),
        })
    }
}

#[wasm_bindgen]
impl Answerer {
    #[wasm_bindgen(constructor)]
    pub fn new(
        config: &str,
        tokenizer: &str,
        weights: Vec<u8>,
    ) -> std::result::Result<Answerer, JsError> {
        Ok(Self::load(config, tokenizer, weights)?)
    }

    /// As `continued`; `on_text` is called with each piece of text.
    pub fn answer(
        &self,
        text: &str,
        policy: &str,
        budget: &str,
        max_tokens: usize,
        on_text: &js_sys::Function,
    ) -> std::result::Result<Answer, JsError> {
        let show = |piece: &str| {
            // A page that fails to show a piece gets the whole text at the end.
            let _ = on_text.call1(&JsValue::NULL, &piece.into());
        };
        Ok(self.continued(text, policy, budget, max_tokens, show)?)
    }
}

/// Whether a budget can be given to a method.
#[wasm_bindgen]
pub fn takes_budget(method: &str) -> bool {
    Policy::named(method, None).is_ok_and(|policy| policy.takes_budget())
}

/// The methods that the page offers, by name.
#[wasm_bindgen]
pub fn methods() -> Vec<String> {
    briquette::methods().into_iter().map(|method| method.name).collect()
}
