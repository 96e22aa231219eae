//! Prompts of a run in tokens, and in the chat template of the model.

mod common;

use std::{fs, path::Path};

use briquette_models::Tokenizer;
use common::{
    MODEL, assert_says, copy_model, file, json, outputs, read, read_json, refused, stdout, text,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// The embedded model, with this chat template if there is one, and a run file.
fn place(template: Option<&str>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    copy_model(dir.path(), &files);
    if let Some(template) = template {
        file(dir.path(), "chat_template.jinja", template);
    }
    let run = "name = \"chat\"\nbudgets = [64]\n[[models]]\ndir = \".\"\nlabel = \"ember\"\nchat = true\n\
               [[policies]]\nname = \"snapkv\"\n[[policies]]\nname = \"tova\"\n\
               [[tasks.needle]]\nlengths = [192]\ndepths = [50]\nsamples = 2\n";
    file(dir.path(), "chat.toml", run);
    dir
}

/// The arguments that run it.
fn run(place: &TempDir, more: &[&str]) -> Vec<String> {
    let file = place.path().join("chat.toml");
    ["run", text(&file)].iter().chain(more).map(ToString::to_string).collect()
}

fn lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn prompts_are_written_once_in_the_template() {
    let place = place(Some(TEMPLATE));
    let path = place.path().join("prompts.jsonl");
    stdout(run(&place, &["--prompts", text(&path)]));
    let prompts = lines(&path);
    // Two samples, whatever the policies and places of the question.
    assert_eq!(prompts.len(), 2);
    let tokenizer = Tokenizer::load(MODEL).unwrap();
    let text = |tokens: &Value| {
        let tokens: Vec<u32> = serde_json::from_value(tokens.clone()).unwrap();
        tokenizer.decode(&tokens).unwrap()
    };
    for prompt in &prompts {
        assert_eq!((prompt["model"].as_str(), prompt["seed"].as_u64()), (Some("ember"), Some(0)));
        let turn = &prompt["turns"][0];
        let (context, question) = (text(&prompt["context"]), text(&turn["question"]));
        assert!(context.starts_with("<user>") && !question.contains("<user>"), "{context}");
        assert!(question.ends_with("</><assistant>"), "{question}");
        let answer = turn["references"][0].as_str().unwrap();
        assert!(context.contains(answer) && !question.contains(answer), "{context}");
    }
    assert_ne!(prompts[0]["context"], prompts[1]["context"]);
    // Nothing else was done.
    assert!(!place.path().join("out").exists());
}

#[test]
fn a_run_in_the_template_says_so() {
    let place = place(Some(TEMPLATE));
    let out = place.path().join("results");
    stdout(run(&place, &["--device", "flex", "--out", text(&out), "--no-report"]));
    let results = lines(&out.join("results.jsonl"));
    assert_eq!(results[0]["models"]["ember"]["chat"], true);
    // Two samples: everything kept, two policies, asked before and after.
    assert_eq!(results.len(), 1 + 2 * 3 * 2);
}

#[test]
fn a_model_without_a_template_is_refused() {
    assert_says(&refused(run(&place(None), &["--dry-run"])), &["has no chat template"]);
}

/// A prompt by this template of a file: its tokens, and what was said.
fn generated(model: &Path, template: &str) -> (u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let (file, json) = (file(dir.path(), "own.jinja", template), dir.path().join("out.json"));
    let generate = "generate --chat --prompt hello --max-new-tokens 1 --policy full";
    let files = ["--model", text(model), "--template", text(&file), "--json", text(&json)];
    let (_, said) = outputs(generate.split(' ').chain(files));
    (read_json(&json)["prefill"]["tokens"].as_u64().unwrap(), said)
}

#[test]
fn a_template_of_a_file_has_the_special_tokens_of_the_model() {
    let place = place(Some(TEMPLATE));
    let names =
        r#"{ "bos_token": "<|begin_of_text|>", "eos_token": { "content": "<|end_of_text|>" } }"#;
    file(place.path(), "tokenizer_config.json", names);
    let (plain, said) = generated(place.path(), "{{ messages[0].content }}");
    assert!(!said.contains("warning"), "{said}");
    let summed = "{{ bos_token + messages[0].content + eos_token }}";
    assert_eq!(generated(place.path(), summed).0, plain + 2);
    // Carriage returns of the file are none of the prompt's.
    let lines = "{{ messages[0].content }}\n\n.";
    let expected = generated(place.path(), lines).0;
    assert_eq!(generated(place.path(), &lines.replace('\n', "\r\n")).0, expected);
}

/// The embedded model with other keys.
fn changed(keys: Value) -> TempDir {
    let place = place(None);
    let mut config = read_json(&place.path().join("config.json"));
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    file(place.path(), "config.json", config.to_string());
    place
}

#[test]
fn a_prompt_beyond_the_context_is_told_what_ends_it() {
    let prompt = "The number is 1234567. ".repeat(5);
    let long_rope = json!({
        "rope_type": "longrope", "short_factor": vec![1.0; 16], "long_factor": vec![2.0; 16],
        "original_max_position_embeddings": 32,
    });
    let longer = changed(json!({ "rope_scaling": long_rope, "max_position_embeddings": 512 }));
    let model = longer.path().to_str().unwrap();
    let args = ["generate", "--model", model, "--prompt", &prompt, "--max-new-tokens", "2"];
    let said = refused(args);
    assert_says(&said, &["context of 32", "up to 512 fit with --context N"]);
    assert!(!said.contains("streaming-llm"), "{said}");
    assert_eq!(json([&args[..], &["--context", "512"]].concat())["decode"]["tokens"], 1);

    let window = changed(json!({ "sliding_window": 16 }));
    let said =
        refused(["generate", "--model", window.path().to_str().unwrap(), "--prompt", &prompt]);
    assert_says(&said, &["context of 16", "a window of 16 tokens that not every layer has"]);
    assert!(!said.contains("streaming-llm") && !said.contains("--context"), "{said}");

    let short = changed(json!({ "max_position_embeddings": 16 }));
    let said =
        refused(["generate", "--model", short.path().to_str().unwrap(), "--prompt", &prompt]);
    assert_says(&said, &["context of 16", "--policy streaming-llm"]);
}

#[test]
fn what_a_tokenizer_asks_for_in_vain_is_said_once() {
    let place = place(Some(TEMPLATE));
    let path = place.path().join("tokenizer.json");
    let mut file = read_json(&path);
    file["model"]["dropout"] = 0.5.into();
    fs::write(&path, file.to_string()).unwrap();
    let (_, said) = generated(place.path(), TEMPLATE);
    assert_eq!(said.matches("dropout is 0.5 and is not used").count(), 1, "{said}");
}
