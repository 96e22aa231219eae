//! A text compressed once by one run of the command, and asked by others.

mod common;

use std::fs;

use common::{
    FILES, assert_says, copy_model, file, folder, json, read, refused, refused_with, run_file,
    stdout, text,
};
use serde_json::Value;

const DOCUMENT: &str = "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. \
    I will quiz you about the numbers afterwards.\nThe rain had stopped before noon.\nOne of the special magic numbers \
    is countess:8174205. The road was wet and nobody came.";
const QUESTION: &str = "\nWhat is the special magic number for countess mentioned in the provided text? The special \
    magic number is countess:";

/// The embedded model has no chat template: this one writes a conversation as it was trained, the
/// answer as far as its number.
const TEMPLATE: &str = "<|begin_of_text|>{% for message in messages %}{{ message.content }}{% endfor %}\
    {% if add_generation_prompt %} The special magic number is countess:{% endif %}";
/// The question without what the template writes.
const ASKED: &str =
    "\nWhat is the special magic number for countess mentioned in the provided text?";

#[test]
fn a_prefix_answers_as_the_text_would() {
    let (_folder, [file]) = folder(["document.prefix"]);
    let kept = json(["compress", "--prompt", DOCUMENT, "--policy", "full", "--out", text(&file)]);
    assert_eq!(kept["bytes_written"], fs::metadata(&file).unwrap().len());
    assert_eq!(kept["tokens_kept"][0], kept["tokens"]);
    // Room for tokens to come is no part of what is kept.
    let bytes = |key: &str| kept[key].as_u64().unwrap();
    let full = bytes("bytes_held") - bytes("bytes_spare");
    assert!(bytes("bytes_full") <= full && full * 10 < bytes("bytes_full") * 11, "{kept}");
    assert_says(&refused(["compress", "--prompt", DOCUMENT, "--out", "-"]), &["--out FILE"]);
    let from = |question: &str| json(["generate", "--prompt", question, "--prefix", text(&file)]);
    let found = from(QUESTION);
    assert_eq!(found["text"].as_str().unwrap().trim_end(), "8174205", "{found}");
    let question = found["prefill"]["tokens"].as_u64().unwrap();
    let (seen, tokens) = (&found["cache"]["tokens_seen"], kept["tokens"].as_u64().unwrap());
    assert!(seen.as_u64().unwrap() >= tokens + question, "{seen} of {tokens} and {question}");
    // What was kept is there for the next question.
    assert_eq!(from(QUESTION)["text"], found["text"]);

    // Under a policy of its own it keeps as much as it was told to.
    let args = ["compress", "--prompt", DOCUMENT, "--policy", "snapkv:kernel=15", "--budget", "48"];
    let small = json([&args[..], &["--out", text(&file)]].concat());
    assert_eq!(small["tokens_kept"][0], 48);
    assert!(small["bytes_written"].as_u64() < kept["bytes_written"].as_u64());
    assert_eq!(from(QUESTION)["policy"], "snapkv:kernel=15");
}

/// KVzip reads the text twice before it is kept, and a question behind it is not.
#[test]
fn a_text_that_is_read_twice_is_kept_small() {
    let (_folder, [file]) = folder(["document.prefix"]);
    for policy in ["kvzip", "kvzip-plus"] {
        let args = ["compress", "--prompt", DOCUMENT, "--policy", policy, "--budget", "25%"];
        let kept = json([&args[..], &["--out", text(&file)]].concat());
        // Of so short a text room for what follows is most of what is held.
        let part = kept["bytes_written"].as_f64().unwrap() / kept["bytes_full"].as_f64().unwrap();
        assert!(part < 0.4, "{policy}: {kept}");
        let found = json(["generate", "--prompt", QUESTION, "--prefix", text(&file)]);
        let question = found["prefill"]["tokens"].as_u64().unwrap();
        let seen = found["cache"]["tokens_seen"].as_u64().unwrap();
        assert!(seen >= kept["tokens"].as_u64().unwrap() + question, "{found}");
        assert_eq!(found["policy"], policy);
    }
}

/// Document and question are one message of a user, with all that the template writes around it.
#[test]
fn a_chat_prefix_answers_as_the_conversation_would() {
    let folder = tempfile::tempdir().unwrap();
    let template = file(folder.path(), "chat.jinja", TEMPLATE);
    let file = folder.path().join("document.prefix");
    let compress =
        ["compress", "--prompt", DOCUMENT, "--out", text(&file), "--template", text(&template)];
    let from = |question: &str, more: &[&str]| {
        let args = ["generate", "--prompt", question, "--prefix", text(&file)];
        json([&args[..], &["--max-new-tokens", "8"], more].concat())
    };
    let tokens = |report: &Value| report["prefill"]["tokens"].as_u64().unwrap();
    let message = format!("{DOCUMENT}{ASKED}");
    let systems: [&[&str]; 2] = [&[], &["--system", "Be brief."]];
    for system in systems {
        let chat = [&["--chat", "--policy", "full"][..], system].concat();
        let kept = json([&compress[..], &chat[..]].concat());
        let args = ["generate", "--prompt", message.as_str(), "--template", text(&template)];
        let whole = json([&args[..], &chat[..], &["--max-new-tokens", "8"]].concat());
        let found = from(ASKED, &[]);
        assert_eq!(found["text"], whole["text"], "{system:?}");
        assert_eq!(kept["tokens"].as_u64().unwrap() + tokens(&found), tokens(&whole));
        assert_eq!(found["cache"]["tokens_seen"], whole["cache"]["tokens_seen"]);
        if system.is_empty() {
            assert_eq!(found["text"].as_str().unwrap().trim_end(), "8174205", "{found}");
        }
        // The end of a question is trimmed, and what the file says may be said again.
        let again = from(&format!("{ASKED} \n"), &["--chat"]);
        assert_eq!((&again["text"], tokens(&again)), (&found["text"], tokens(&found)));
    }

    // A template that writes nothing behind the message, and a question of one token.
    fs::write(&template, "{{ messages[0].content }}").unwrap();
    let small = ["--chat", "--policy", "snapkv:kernel=15", "--budget", "48"];
    let kept = json([&compress[..], &small].concat());
    assert_eq!(kept["tokens_kept"][0], 48);
    let found = from(".", &[]);
    assert_eq!(tokens(&found), 1, "{found}");
    let seen = found["cache"]["tokens_seen"].as_u64().unwrap();
    assert!(seen > kept["tokens"].as_u64().unwrap(), "{found}");
}

#[test]
fn a_chat_prefix_is_told_from_a_plain_one() {
    let folder = tempfile::tempdir().unwrap();
    let template = file(folder.path(), "chat.jinja", TEMPLATE);
    let file = folder.path().join("document.prefix");
    let compress = ["compress", "--prompt", DOCUMENT, "--out", text(&file)];
    stdout(compress);
    let ask = ["generate", "--prompt", ASKED, "--prefix", text(&file)];
    let error = refused([&ask[..], &["--chat"]].concat());
    assert_says(&error, &["leave --chat out", "compress --chat"]);
    for more in [["--template", text(&template)], ["--system", "Be brief."]] {
        assert_says(&refused_with(2, [&ask[..], &more].concat()), &["--prefix"]);
        assert_says(&refused_with(2, [&compress[..], &more].concat()), &["--chat"]);
    }
    let error = refused([&compress[..], &["--chat"]].concat());
    assert_says(&error, &["no chat template", "--template"]);
    fs::write(&template, "hello").unwrap();
    let chat = ["--chat", "--template", text(&template)];
    assert_says(&refused([&compress[..], &chat].concat()), &["0 times"]);

    // A run goes on behind a text, not within a message.
    fs::write(&template, TEMPLATE).unwrap();
    stdout([&compress[..], &chat].concat());
    let rest = "[[policies]]\nprefix = \"document.prefix\"\n[[tasks.needle]]\nlengths = [256]\n";
    let run = run_file(folder.path(), "run.toml", "", rest);
    let out = folder.path().join("out");
    let error = refused(["run", text(&run), "--out", text(&out), "--no-report"]);
    assert_says(&error, &["`document`", "without --chat"]);
}

#[test]
fn what_is_no_prefix_of_this_model_is_refused() {
    let (folder, [file]) = folder(["document.prefix"]);
    let out = text(&file);
    let compress = ["compress", "--prompt", DOCUMENT, "--out", out];
    stdout(compress);
    let ask = ["generate", "--prompt", QUESTION, "--prefix", out];
    assert_says(&refused_with(2, [&ask[..], &["--budget", "64"]].concat()), &["--budget"]);
    assert_says(&refused([&ask[..], &["--dtype", "f16"]].concat()), &["F32", "F16"]);

    // Quantized weights compute other keys and values, each number of bits its own.
    let quantized = |bits| [&ask[..], &["--max-new-tokens", "1", "--quantize", bits]].concat();
    for bits in ["4", "8"] {
        let weights = format!("with weights of {bits} bits");
        assert_says(&refused(quantized(bits)), &["is of the model", &weights]);
    }
    stdout([&compress[..], &["--quantize", "4"]].concat());
    stdout(quantized("4"));
    for args in [quantized("8"), ask.to_vec()] {
        assert_says(&refused(args), &["with weights of 4 bits"]);
    }
    stdout(compress);

    // The same weights in a folder with another tokenizer are another model.
    let other = folder.path().join("other");
    copy_model(&other, &FILES);
    let tokenizer = other.join("tokenizer.json");
    fs::write(&tokenizer, read(&tokenizer) + "\n").unwrap();
    assert_says(&refused([&ask[..], &["--model", text(&other)]].concat()), &["is of the model"]);

    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, &bytes).unwrap();
    assert_says(&refused(ask), &["was altered"]);
    fs::write(&file, &bytes[..last]).unwrap();
    assert_says(&refused(ask), &["cut off"]);
}

/// Every sample of a run follows what was kept.
#[test]
fn a_run_starts_from_a_prefix() {
    let (folder, [file]) = folder(["document.prefix"]);
    let kept = json(["compress", "--prompt", DOCUMENT, "--policy", "full", "--out", text(&file)]);
    let write = |more: &str| {
        let policy = "[[policies]]\nprefix = \"document.prefix\"\n";
        run_file(folder.path(), "run.toml", "", &format!("{policy}{more}"))
    };
    let run = write("[[tasks.needle]]\nlengths = [256]\nask = [\"after\"]\n");
    let out = folder.path().join("out");
    let args = ["run", text(&run), "--out", text(&out), "--no-report"];
    stdout(args);
    let lines = read(&out.join("results.jsonl"));
    let full = |policy: &str| -> Vec<u64> {
        let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_policy = records.filter(|record| record["policy"] == policy);
        of_policy.map(|record| record["cache"]["full"].as_u64().unwrap()).collect()
    };
    let (alone, behind) = (full("full"), full("document"));
    assert!(!alone.is_empty() && alone.len() == behind.len(), "{lines}");
    // 4 KiB a token; answers may differ by some.
    let tokens = kept["tokens"].as_u64().unwrap();
    for (alone, behind) in alone.iter().zip(&behind) {
        let more = (behind - alone) / 4096;
        assert!(
            (tokens - 16..=tokens + 16).contains(&more),
            "{more} more than {alone}, {tokens} kept"
        );
    }

    for (text, what) in [
        (
            "change = [\"kernel=15\"]\n[[tasks.needle]]\nlengths = [256]\n",
            "the policy and the budget",
        ),
        ("[[tasks.perplexity]]\nprompt = 64\ntokens = 16\n", "starts from a prefix"),
    ] {
        write(text);
        assert_says(&refused(args), &[what]);
    }
}
