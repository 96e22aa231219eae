//! What the page is to show, computed by the host: `in-browser POLICY BUDGET TOKENS < TEXT`, where
//! the budget may be empty.

use std::{error::Error, fs, io, path::Path};

use in_browser::Answerer;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [policy, budget, tokens] = &given[..] else {
        return Err("name a policy, a budget and a number of tokens".into());
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m");
    let text = |name: &str| fs::read_to_string(model.join(name));
    let weights = fs::read(model.join("model.safetensors"))?;
    let answerer = Answerer::load(&text("config.json")?, &text("tokenizer.json")?, weights)?;
    let prompt = io::read_to_string(io::stdin())?;
    let answer = answerer.continued(&prompt, policy, budget, tokens.parse()?, |_| {})?;
    print!("{}", answer.text);
    Ok(())
}
