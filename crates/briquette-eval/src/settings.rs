//! The settings of a measurement: what its results depend on, beside the policies.

use briquette_models::Model;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Error, Result,
    tasks::{haystack::Haystack, text::Text},
};

/// The settings as the first line of a [journal](crate::journal). `command` is the name of the
/// command that measures, and `weights` the fingerprint of the model's folder, by
/// [`of_model`](crate::fingerprint::of_model).
pub fn of(
    command: &str,
    (model, name, weights): (&Model, &str, &str),
    haystack: Option<&Haystack>,
    texts: &[Text],
    plan: &impl Serialize,
) -> Value {
    let texts: Vec<[String; 2]> =
        texts.iter().map(|text| [text.name().to_owned(), text.fingerprint()]).collect();
    json!({
        "briquette": env!("CARGO_PKG_VERSION"),
        "command": command,
        "model": name,
        "weights": weights,
        "stop": model.config().eos_token_ids,
        "shape": model.cache_shape(),
        "dtype": format!("{:?}", model.dtype()),
        "quantize": model.quantized_to(),
        "device": format!("{:?}", model.device()),
        "haystack": haystack.map(|haystack| [haystack.name().to_owned(), haystack.fingerprint()]),
        "texts": texts,
        "plan": plan,
    })
}

/// Refuses a list without a value, or with one twice.
pub(crate) fn check_list(name: &'static str, values: &[usize]) -> Result<()> {
    let reason = match values {
        [] => "no value given",
        _ if (1..values.len()).any(|i| values[..i].contains(&values[i])) => {
            "a value is given twice"
        }
        _ => return Ok(()),
    };
    Err(Error::Setting { name, reason: reason.into() })
}
