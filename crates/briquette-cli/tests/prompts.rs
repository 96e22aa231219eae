//! Prompts of a run in tokens, and in the chat template of the model.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use briquette_models::Tokenizer;
use serde_json::Value;
use tempfile::TempDir;

const EMBER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m");
const TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// The embedded model, with this chat template if there is one, and a run file.
fn place(template: Option<&str>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(EMBER).join(file), dir.path().join(file)).unwrap();
    }
    if let Some(template) = template {
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    }
    let run = "name = \"chat\"\nbudgets = [64]\n[[models]]\ndir = \".\"\nlabel = \"ember\"\nchat = true\n\
               [[policies]]\nname = \"snapkv\"\n[[policies]]\nname = \"tova\"\n\
               [[tasks.needle]]\nlengths = [192]\ndepths = [50]\nsamples = 2\n";
    fs::write(dir.path().join("chat.toml"), run).unwrap();
    dir
}

fn run(place: &TempDir, more: &[&str]) -> Output {
    let file = place.path().join("chat.toml");
    Command::new(env!("CARGO_BIN_EXE_briquette")).arg("run").arg(file).args(more).output().unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn prompts_are_written_once_in_the_template() {
    let place = place(Some(TEMPLATE));
    let path = place.path().join("prompts.jsonl");
    let output = run(&place, &["--prompts", path.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let prompts = lines(&path);
    // Two samples, whatever the policies and places of the question.
    assert_eq!(prompts.len(), 2);
    let tokenizer = Tokenizer::load(EMBER).unwrap();
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
    let output = run(&place, &["--device", "flex", "--out", out.to_str().unwrap(), "--no-report"]);
    assert!(output.status.success(), "{output:?}");
    let results = lines(&out.join("results.jsonl"));
    assert_eq!(results[0]["models"]["ember"]["chat"], true);
    // Two samples: everything kept, two policies, asked before and after.
    assert_eq!(results.len(), 1 + 2 * 3 * 2);
}

#[test]
fn a_model_without_a_template_is_refused() {
    let output = run(&place(None), &["--dry-run"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("has no chat template"), "{error}");
}

/// A prompt by this template of a file: its tokens, and what was said.
fn generated(model: &Path, template: &str) -> (u64, String) {
    let dir = tempfile::tempdir().unwrap();
    let (file, json) = (dir.path().join("own.jinja"), dir.path().join("out.json"));
    fs::write(&file, template).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_briquette"))
        .args([
            "generate",
            "--chat",
            "--prompt",
            "hello",
            "--max-new-tokens",
            "1",
            "--policy",
            "full",
        ])
        .arg("--model")
        .arg(model)
        .arg("--template")
        .arg(file)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let json: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    (json["prefill"]["tokens"].as_u64().unwrap(), said)
}

#[test]
fn a_template_of_a_file_has_the_special_tokens_of_the_model() {
    let place = place(Some(TEMPLATE));
    let names =
        r#"{ "bos_token": "<|begin_of_text|>", "eos_token": { "content": "<|end_of_text|>" } }"#;
    fs::write(place.path().join("tokenizer_config.json"), names).unwrap();
    let (plain, said) = generated(place.path(), "{{ messages[0].content }}");
    assert!(!said.contains("warning"), "{said}");
    let summed = "{{ bos_token + messages[0].content + eos_token }}";
    assert_eq!(generated(place.path(), summed).0, plain + 2);
    // Carriage returns of the file are none of the prompt's.
    let lines = "{{ messages[0].content }}\n\n.";
    let expected = generated(place.path(), lines).0;
    assert_eq!(generated(place.path(), &lines.replace('\n', "\r\n")).0, expected);
}

#[test]
fn what_a_tokenizer_asks_for_in_vain_is_said_once() {
    let place = place(Some(TEMPLATE));
    let path = place.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    file["model"]["dropout"] = 0.5.into();
    fs::write(&path, file.to_string()).unwrap();
    let (_, said) = generated(place.path(), TEMPLATE);
    assert_eq!(said.matches("dropout is 0.5 and is not used").count(), 1, "{said}");
}
