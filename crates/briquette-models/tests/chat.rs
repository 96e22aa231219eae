//! Chat templates beside `transformers`, on the conversations in `fixtures/chat.json`, which
//! `tests/goldens/chat.py` makes.

use std::{collections::BTreeMap, fs};

use briquette_models::{ChatMessage, ChatTemplate, Error};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Fixture {
    templates: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<BTreeMap<String, String>>,
    generation_prompt: bool,
    text: Option<String>,
    refused: Option<String>,
}

#[test]
fn conversations_are_rendered_as_transformers_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat.json");
    let fixture: Fixture = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let token = |text: &str| Some(text.to_owned());
    assert_eq!(fixture.cases.len(), 24);
    for case in &fixture.cases {
        let source = fixture.templates[&case.template].as_str();
        let template = ChatTemplate::new(source, token("<s>"), token("</s>")).unwrap();
        let messages: Vec<ChatMessage> = case
            .messages
            .iter()
            .map(|message| ChatMessage::new(&message["role"], &message["content"]))
            .collect();
        match (template.render(&messages, case.generation_prompt), &case.text) {
            (Ok(found), Some(text)) => assert_eq!(found, *text, "{}", case.template),
            (Err(Error::ChatTemplate(found)), None) => {
                let refused = case.refused.as_deref().unwrap();
                assert!(found.contains(refused), "{}: {found}", case.template);
            }
            (found, _) => panic!("{}: {found:?}", case.template),
        }
    }
}

#[test]
fn a_folder_says_its_template() {
    let dir = tempfile::tempdir().unwrap();
    let messages = [ChatMessage::new("user", "hello")];
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let render = || {
        let template = ChatTemplate::load(dir.path()).unwrap();
        template.map(|template| template.render(&messages, true).unwrap())
    };
    assert_eq!(render(), None);
    write("tokenizer_config.json", &json!({ "bos_token": "<s>" }).to_string());
    assert_eq!(render(), None);

    let template = "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}";
    let mut config =
        json!({ "bos_token": { "content": "<s>", "lstrip": false }, "chat_template": template });
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(render().unwrap(), "<s>hello");

    config["pad_token"] = json!("<pad>");
    config["chat_template"] = json!([
        { "name": "tool_use", "template": "no" }, { "name": "default", "template": template },
    ]);
    write("tokenizer_config.json", &config.to_string());
    assert_eq!(render().unwrap(), "<s>hello<pad>");

    write("chat_template.jinja", "{{ eos_token }}|{{ messages[0].role }}");
    assert_eq!(render().unwrap(), "|user");
}

#[test]
fn a_message_goes_on_behind_what_is_known_of_it() {
    let template = |text: &str| ChatTemplate::new(text, Some("<s>".into()), None).unwrap();
    let trimming = template(
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let messages =
        |text: &str| [ChatMessage::new("system", "Be brief."), ChatMessage::new("user", text)];
    // Marks in a document are taken for what they are.
    for (document, known) in [("A text. \n", "A text. \n"), ("\n\u{e000}", "\u{e000}"), ("", "")] {
        let (before, behind) = trimming.render_unfinished(&messages(document)).unwrap();
        assert_eq!(before, format!("<s><system>Be brief.</><user>{known}"));
        assert_eq!(behind, "</><assistant>");
        let whole = trimming.render(&messages(&format!("{document}And?")), true).unwrap();
        assert_eq!(whole, format!("{before}And?{behind}"));
    }
    let refused =
        |text: &str, messages: &[ChatMessage]| match template(text).render_unfinished(messages) {
            Err(Error::ChatTemplate(message)) => message,
            other => panic!("{other:?}"),
        };
    assert!(refused("hello", &messages("A")).contains("0 times"));
    assert!(
        refused("{{ messages[1].content }}{{ messages[1].content }}", &messages("A"))
            .contains("2 times")
    );
    assert!(refused("hello", &[]).contains("without a message"));
}

#[test]
fn a_template_without_end_is_refused_by_name() {
    let refused = |template: String| {
        let rendered = ChatTemplate::new(template, None, None).and_then(|it| it.render(&[], false));
        match rendered {
            Err(Error::ChatTemplate(message)) => message,
            other => panic!("{other:?}"),
        }
    };
    let nested = "{% for a in range(9999) %}".repeat(4) + "a" + &"{% endfor %}".repeat(4);
    for (template, part) in [
        (format!("{{{{ {}true }}}}", "not ".repeat(300_000)), "at most 131072"),
        (nested, "fuel"),
        ("{{ '%999999999d'|format(1) }}".into(), "at most 3 digits"),
        ("{{ '%*d'|format(999999999, 1) }}".into(), "at most 3 digits"),
        ("{{ range(9)|slice(999999999)|list }}".into(), "slice into 999999999"),
        ("{{ range(9)|batch(999999999, 'a')|list }}".into(), "batch into 999999999"),
        ("{{ range(99999)|join('a' * 999999) }}".into(), "join makes"),
    ] {
        let message = refused(template);
        assert!(message.contains(part), "{part}: {message}");
    }
    // As deep as a template may be.
    for deep in [
        "not ".repeat(32_000) + "true",
        "-".repeat(100_000) + "1",
        "a".to_owned() + &".a".repeat(60_000),
    ] {
        let _ = ChatTemplate::new(format!("{{{{ {deep} }}}}"), None, None);
    }
    // What models use is as it was.
    let template =
        "{{ ['a', 'b']|join(', ') }} {{ '%02d'|format(7) }} {{ range(3)|batch(2)|list }}";
    let template = ChatTemplate::new(template, None, None).unwrap();
    assert_eq!(template.render(&[], false).unwrap(), "a, b 07 [[0, 1], [2]]");
}

#[test]
fn a_broken_template_is_refused() {
    let broken = ChatTemplate::new("{% for message in messages %}", None, None);
    assert!(matches!(broken, Err(Error::ChatTemplate(_))));
    let unknown = ChatTemplate::new("{{ strange(messages) }}", None, None).unwrap();
    assert!(matches!(unknown.render(&[], false), Err(Error::ChatTemplate(_))));
}
