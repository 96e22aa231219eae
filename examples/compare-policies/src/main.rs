//! One prompt, several policies: the tokens that each keeps, its cost, and whether the model still
//! finds the number that is hidden in the prompt.

use std::path::Path;

use briquette::{Budget, Policy, score::Pool};
use briquette_models::{GenerateOptions, Model, Result, Tokenizer, generate};
use burn::tensor::DType;

const WORD: &str = "antiquity";
const NUMBER: &str = "7264918";
const BUDGET: Budget = Budget::Tokens(256);

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m");
    let device = briquette::device::open("flex")?;
    let model = Model::load(&folder, &device, DType::F32)?;
    let tokenizer = Tokenizer::load(&folder)?;
    let prompt = tokenizer.encode(&prompt(), true)?;
    let options = GenerateOptions {
        max_new_tokens: 16,
        stop: model.config().eos_token_ids.clone(),
        ..Default::default()
    };

    println!("A prompt of {} tokens hides the number {NUMBER}.\n", prompt.len());
    println!("policy                  tokens kept      bytes   answer");
    for policy in [
        Policy::full(),
        Policy::local_window(BUDGET),
        Policy::streaming_llm(BUDGET),
        Policy::h2o(BUDGET),
        Policy::tova(BUDGET),
        Policy::snapkv(BUDGET),
        // The number is seven tokens long: pooling over 15 keeps it whole.
        Policy::snapkv(BUDGET).with_pool(Pool::avg(15)).with_name("snapkv, pool 15"),
    ] {
        let mut cache = model.cache(policy)?;
        let (generation, _) = generate(&model, &prompt, &mut cache, &options, |_| {})?;
        let answer = tokenizer.decode(&generation.tokens)?;
        let verdict = if answer == NUMBER { "right" } else { "wrong" };
        let (name, bytes) = (cache.policy().name(), cache.bytes_held());
        let kept = cache.tokens_kept(0)?[0];
        println!("{name:<24}{kept:>11} {bytes:>10}   {answer:<16} {verdict}");
    }
    Ok(())
}

/// The prompt the model was trained on, with a needle in the middle of the prose.
fn prompt() -> String {
    let prose = include_str!("../../../crates/briquette-eval/assets/haystack.txt");
    let lines: Vec<&str> = prose.lines().take(40).collect();
    let (before, after) = lines.split_at(lines.len() / 2);
    format!(
        "\nSome special magic numbers are hidden within the following text. Make sure to memorize \
         them. I will quiz you about the numbers afterwards.\n{}\n\
         One of the special magic numbers is {WORD}:{NUMBER}. {}\n\
         What is the special magic number for {WORD} mentioned in the provided text? The special \
         magic number is {WORD}:",
        before.join(" "),
        after.join(" ")
    )
}
