//! `config.json` of models, and chat templates.
#![no_main]

use briquette_models::{ChatMessage, ChatTemplate, ModelConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = ModelConfig::from_json(text) {
        let _ = config.cache_shape();
    }
    if let Ok(template) = ChatTemplate::new(text.to_owned(), Some("<s>".into()), None) {
        let _ = template.render(&[ChatMessage::new("user", "hello")], true);
    }
});
