//! Chat templates beside `transformers`, on the conversations in `fixtures/chat.json`, which
//! `tests/goldens/chat.py` makes.

use std::{collections::BTreeMap, fs, time::SystemTime};

use briquette_models::{ChatMessage, ChatTemplate, Error};
use chrono::{Local, TimeZone};
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
    assert_eq!(fixture.cases.len(), 66);
    let now = Local.with_ymd_and_hms(2026, 3, 9, 12, 30, 0).unwrap();
    for case in &fixture.cases {
        let source = fixture.templates[&case.template].as_str();
        let template = ChatTemplate::new(source, token("<s>"), token("</s>")).unwrap();
        let template = template.at(SystemTime::from(now));
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
fn the_present_day_is_told() {
    let template = ChatTemplate::new("{{ strftime_now('%Y-%m-%d') }}", None, None).unwrap();
    let day = || Local::now().format("%Y-%m-%d").to_string();
    let (before, found, after) = (day(), template.render(&[], false).unwrap(), day());
    assert!(found == before || found == after, "{found}");
    let unknown = ChatTemplate::new("{{ strftime_now('%Q') }}", None, None).unwrap();
    match unknown.render(&[], false) {
        Err(Error::ChatTemplate(message)) => assert!(message.contains("`%Q`"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_template_has_the_special_tokens_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, json: serde_json::Value| {
        fs::write(dir.path().join(name), json.to_string()).unwrap();
    };
    let text = "{{ bos_token + messages[0].content }}{{ eos_token }}|{{ cls_token }}|{{ image }}";
    let render = || {
        let template = ChatTemplate::for_model(dir.path(), text).unwrap();
        template.render(&[ChatMessage::new("user", "hello")], false)
    };
    // As in Jinja, what is not defined has no sum.
    assert!(matches!(render(), Err(Error::ChatTemplate(_))));
    let map = json!({ "bos_token": "<older>", "cls_token": { "content": "[CLS]" } });
    write("special_tokens_map.json", map);
    let mut config = json!({
        "chat_template": "{{ another }}", "bos_token": "<s>", "eos_token": { "content": "</s>" },
        "extra_special_tokens": { "image": "<image>" },
    });
    write("tokenizer_config.json", config.clone());
    assert_eq!(render().unwrap(), "<older>hello</s>|[CLS]|<image>");
    config["added_tokens_decoder"] = json!({});
    write("tokenizer_config.json", config);
    assert_eq!(render().unwrap(), "<s>hello</s>||<image>");
}

/// A template that fails, and what it says.
fn refused(template: &str) -> String {
    let rendered = ChatTemplate::new(template, None, None).and_then(|it| it.render(&[], false));
    match rendered {
        Err(Error::ChatTemplate(message)) => message,
        other => panic!("{template}: {other:?}"),
    }
}

#[test]
fn a_template_without_end_is_refused_by_name() {
    let nested = "{% for a in range(9999) %}".repeat(4) + "a" + &"{% endfor %}".repeat(4);
    for (template, part) in [
        (format!("{{{{ {}true }}}}", "not ".repeat(300_000)), "at most 131072"),
        (nested, "fuel"),
        ("{{ '%999999999d'|format(1) }}".into(), "format makes"),
        ("{{ '%*d'|format(999999999, 1) }}".into(), "format makes"),
        ("{{ '{:>999999999}'.format(1) }}".into(), "format makes"),
        ("{{ '%999999999d' % 1 }}".into(), "% makes"),
        ("{{ range(9)|slice(999999999)|list }}".into(), "slice makes"),
        ("{{ range(9)|batch(999999999, 'a')|list }}".into(), "batch makes"),
        ("{{ range(99999)|join('a' * 999999) }}".into(), "join makes"),
        ("{{ ('a' * 999999).join(range(99999)) }}".into(), "join makes"),
        ("{{ 'a\nb'|indent(999999999) }}".into(), "indent makes"),
        ("{{ 'a' * 99999999 }}".into(), "* makes"),
        ("{{ [1] * 99999999 }}".into(), "* makes"),
        ("{{ [[1, [2]]]|tojson(indent=9999999) }}".into(), "tojson makes"),
        ("{{ [1]|tojson(indent=999999999) }}".into(), "indent is at most"),
        (format!("{{{{ ['{}']|map('%join', 'a') }}}}", "a".repeat(9)), "filter %join is unknown"),
        ("{% include 'chat_template.txt' %}".into(), "other templates"),
    ] {
        let message = refused(&template);
        assert!(message.contains(part), "{part}: {message}");
    }
    // Doublings: sixty of each, in the forms that a template has for them.
    for (first, twice, part) in [
        ("'a'", "x.s ~ x.s", "16777216"),
        ("'a'", "x.s + x.s", "16777216"),
        ("'a'", "x.s * 2", "16777216"),
        ("'a'", "x.s|replace('a', 'aa')", "16777216"),
        ("'a'", "x.s.replace('a', 'aa')", "16777216"),
        ("'a'", "[x.s, x.s]|join", "16777216"),
        ("'a'", "[x.s, x.s]|string", "16777216"),
        ("'a'", "'%s%s' % (x.s, x.s)", "16777216"),
        ("'a'", "'{0}{0}'.format(x.s)", "16777216"),
        ("[1]", "x.s + x.s", "16777216"),
        ("[1]", "[x.s, x.s]", "16777216"),
        ("[1]", "[x.s]", "deep"),
        ("[1]", "{'a': x.s, 'b': x.s}", "16777216"),
        ("(1,)", "x.s + x.s", "16777216"),
        ("(1,)", "x.s * 2", "16777216"),
    ] {
        let template = format!(
            "{{% set x = namespace(s={first}) %}}{{% for i in range(99) %}}\
             {{% set x.s = {twice} %}}{{% endfor %}}{{{{ x.s }}}}"
        );
        let message = refused(&template);
        assert!(message.contains(part), "{twice}: {message}");
    }
    for (template, part) in [
        // Text in a capture, text in a macro, lists that share their parts.
        (
            "{% set x %}{% for i in range(99999) %}".to_owned()
                + &"a".repeat(9999)
                + "{% endfor %}{% endset %}",
            "in all",
        ),
        (
            "{% macro m() %}".to_owned()
                + &"a".repeat(99_999)
                + "{% endmacro %}{% for i in range(99999) %}{% set x = m() %}{% endfor %}",
            "in all",
        ),
        // A namespace can hold itself, and is no part of anything.
        ("{% set x = namespace() %}{% set x.x = x %}{{ x }}".into(), "namespace"),
        ("{% set x = namespace() %}{% set x.x = [x] %}".into(), "namespace"),
        ("{% set x = namespace() %}{% set y = namespace(x=x) %}".into(), "namespace"),
        ("{% set x = namespace() %}{{ x ~ '' }}".into(), "namespace"),
        ("{% set x = namespace() %}{{ x|tojson }}".into(), "namespace"),
        ("{% set x = namespace() %}{{ (x or 1)|string }}".into(), "namespace"),
    ] {
        let message = refused(&template);
        assert!(message.contains(part), "{part}: {message}");
    }
    // As deep as a template may be.
    for deep in [
        "not ".repeat(32_000) + "true",
        "-".repeat(100_000) + "1",
        "a".to_owned() + &".a".repeat(60_000),
    ] {
        let template = ChatTemplate::new(format!("{{{{ {deep} }}}}"), None, None);
        let _ = template.and_then(|template| template.render(&[], false));
    }
}

#[test]
fn a_long_conversation_has_room() {
    // Lists that grow by a message each turn, and a document with what templates do to it.
    let template = "{% set ns = namespace(seen=[], last='') %}{% for m in messages %}{% set ns.seen = ns.seen + [m] %}\
                    {% set ns.last = m.content|trim|replace('\r', '') ~ '\n' %}{% set before = messages[:loop.index0] %}\
                    {{ '<' + m.role + '>' + ns.last }}{{ before|length }}{% endfor %}{{ ns.seen|length }}";
    let template = ChatTemplate::new(template, None, None).unwrap();
    let short = vec![ChatMessage::new("user", "word ".repeat(100)); 600];
    assert!(template.render(&short, false).unwrap().ends_with("599600"));
    let long = [ChatMessage::new("user", "word ".repeat(4_000_000))];
    assert_eq!(template.render(&long, false).unwrap().len(), "<user>".len() + 19_999_999 + 1 + 2);
}

#[test]
fn a_broken_template_is_refused() {
    let broken = ChatTemplate::new("{% for message in messages %}", None, None);
    assert!(matches!(broken, Err(Error::ChatTemplate(_))));
    let unknown = ChatTemplate::new("{{ strange(messages) }}", None, None).unwrap();
    assert!(matches!(unknown.render(&[], false), Err(Error::ChatTemplate(_))));
}
