use serde_json::Value;

use crate::{Architecture, Error, Result, shown::shown};

/// Refuses weights that a method of quantization has packed, by the name of the method in
/// `quantization_config`. Experts in MXFP4 are read.
pub(crate) fn check(config: Option<&Value>, architecture: Architecture) -> Result<()> {
    let Some(config) = config.filter(|config| !config.is_null()) else { return Ok(()) };
    let is_set = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let method = match config.get("quant_method").and_then(Value::as_str) {
        Some("mxfp4") if architecture == Architecture::GptOss => return Ok(()),
        Some(method) => name(method),
        // Its older files have no method.
        None if is_set("load_in_4bit") || is_set("load_in_8bit") => "bitsandbytes".into(),
        None => "a method without a name".into(),
    };
    Err(Error::QuantizedWeights { method })
}

/// The method as its authors write it.
fn name(method: &str) -> String {
    match method {
        "awq" => "AWQ".into(),
        "gptq" => "GPTQ".into(),
        "fp8" => "FP8".into(),
        "mxfp4" => "MXFP4".into(),
        method => shown(method),
    }
}
