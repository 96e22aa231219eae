//! Conversations and token streams on the embedded model.

mod common;

use briquette::{Budget, Policy};
use briquette_models::{
    ChatMessage, ChatTemplate, Conversation, ConversationState, Error, GenerateOptions, Model,
    TokenStream, Tokenizer, generate,
};
use burn::tensor::DType;
use common::{device, ember};

const CHAT: &str = "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}<assistant> {% endif %}";

fn template(text: &str) -> ChatTemplate {
    ChatTemplate::new(text, None, None).unwrap()
}

#[test]
fn a_stream_is_what_generate_gives() {
    let model = Model::load(ember(), &device(), DType::F32).unwrap();
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let prompt = tokenizer.encode("It was a dark and stormy night", true).unwrap();
    let drawn = GenerateOptions { temperature: 0.8, seed: 5, ..GenerateOptions::default() };
    for options in [GenerateOptions::default(), drawn] {
        let options = GenerateOptions { max_new_tokens: 24, ..options };
        let policy = Policy::snapkv(Budget::Tokens(64));
        let mut cache = model.cache(policy.clone()).unwrap();
        let (whole, _) = generate(&model, &prompt, &mut cache, &options, |_| {}).unwrap();
        let seen = cache.tokens_seen();

        let mut cache = model.cache(policy).unwrap();
        let mut stream = TokenStream::new(&model, &prompt, &mut cache, &options).unwrap();
        let tokens: Vec<u32> = stream.by_ref().collect::<Result<_, _>>().unwrap();
        assert_eq!(tokens, whole.tokens);
        assert_eq!((stream.unseen(), stream.stopped()), (tokens.last().copied(), false));
        assert_eq!(stream.timing().decoded_tokens, 23);
        assert!(stream.next().is_none());
        assert_eq!(cache.tokens_seen(), seen);

        // A stop token ends it, and is no part of it.
        let stop = GenerateOptions { stop: vec![tokens[10]], ..options };
        cache.reset();
        let mut stream = TokenStream::new(&model, &prompt, &mut cache, &stop).unwrap();
        let until = tokens.iter().position(|token| *token == tokens[10]).unwrap();
        let first: Vec<u32> = stream.by_ref().map(|token| token.unwrap()).collect();
        assert_eq!(first, tokens[..until]);
        assert_eq!((stream.unseen(), stream.stopped()), (None, true));
    }
}

#[test]
fn turns_together_are_the_whole_conversation() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let template = template(CHAT);
    let system = vec![ChatMessage::new("system", "Be brief.")];
    let mut conversation = Conversation::new(&template, &tokenizer, system);
    let first = conversation.say("Who is there?").unwrap();
    assert!(first.from_start);
    let mut seen = first.tokens;
    for (answer, question) in [("Nobody at all.", "And now?"), ("Still nobody.", "Really?")] {
        let tokens = tokenizer.encode(answer, false).unwrap();
        let (last, before) = tokens.split_last().unwrap();
        // The cache has seen all of the answer but its last token.
        seen.extend(before);
        conversation.answered(answer, Some(*last));
        let turn = conversation.say(question).unwrap();
        assert!(!turn.from_start);
        assert_eq!(turn.tokens[0], *last);
        seen.extend(turn.tokens);
    }
    let whole = template.render(conversation.messages(), true).unwrap();
    assert_eq!(tokenizer.decode(&seen).unwrap(), whole);
    assert_eq!(conversation.messages().len(), 6);
}

#[test]
fn a_template_that_rewrites_earlier_turns_begins_anew() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let template = template("{{ messages | length }}:{{ messages[-1].content }}");
    let mut conversation = Conversation::new(&template, &tokenizer, Vec::new());
    conversation.say("one").unwrap();
    conversation.answered("two", None);
    let turn = conversation.say("three").unwrap();
    assert!(turn.from_start);
    assert_eq!(tokenizer.decode(&turn.tokens).unwrap(), "3:three");
}

#[test]
fn a_template_that_rewrites_the_last_answer_repeats_what_stands_before_it() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    // The answer begins behind `A:`, and later stands behind `assistant:`; thoughts are left out.
    let template = template(
        "{% for m in messages %}{{ m.role }}: {{ m.content.split('|')[-1] }}\n{% endfor %}\
         {% if add_generation_prompt %}A:{% endif %}",
    );
    let mut conversation = Conversation::new(&template, &tokenizer, Vec::new());
    let first = conversation.say("Who is there?").unwrap();
    assert_eq!((first.from_start, first.repeated, first.lasting), (true, 0, 0));
    let mut lasting: Vec<u32> = Vec::new();
    for (turn, answer) in
        ["hm|Nobody.", "Still nobody.", "one|two|Not a soul.", ""].iter().enumerate()
    {
        conversation.answered(*answer, None);
        let said = conversation.say(format!("Question {turn}?")).unwrap();
        assert!(said.from_start);
        // What a cache behind the lasting tokens has seen, and with the others the whole text.
        assert_eq!(said.tokens[..said.repeated], lasting);
        let whole = template.render(conversation.messages(), true).unwrap();
        assert_eq!(tokenizer.decode(&said.tokens).unwrap(), whole);
        let asked = template.render(conversation.messages(), false).unwrap();
        assert_eq!(tokenizer.decode(&said.tokens[..said.lasting]).unwrap(), asked);
        lasting = said.tokens[..said.lasting].to_vec();
    }
    let before = lasting.len();
    conversation.answered("Nobody.", None);
    let last = conversation.say("Really?").unwrap();
    assert_eq!(last.repeated, before);
    let rest = tokenizer.decode(&last.tokens[before..]).unwrap();
    assert_eq!(rest, "assistant: Nobody.\nuser: Really?\nA:");
    // Behind a cache that was reset the whole conversation comes, and nothing is repeated.
    conversation.answered("Yes.", None);
    conversation.begin_again();
    let again = conversation.say("Well.").unwrap();
    assert_eq!((again.from_start, again.repeated, again.lasting), (true, 0, 0));
}

#[test]
fn a_conversation_goes_on_from_its_state() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let template = template(CHAT);
    let system = vec![ChatMessage::new("system", "Be brief.")];
    let mut conversation = Conversation::new(&template, &tokenizer, system.clone());
    conversation.say("Who is there?").unwrap();
    conversation.answered("Nobody at all.", Some(7));
    let json = serde_json::to_string(conversation.state()).unwrap();
    let state: ConversationState = serde_json::from_str(&json).unwrap();
    assert_eq!(&state, conversation.state());
    let mut resumed = Conversation::resume(&template, &tokenizer, state);
    let turn = resumed.say("And now?").unwrap();
    assert!(!turn.from_start);
    assert_eq!(turn, conversation.say("And now?").unwrap());
    assert_eq!(resumed.messages(), conversation.messages());

    // A message that goes on: with its rest the text is that of the whole message.
    let begun = [system, vec![ChatMessage::new("user", "A long text.\n")]].concat();
    let (given, tail) = template.render_unfinished(&begun).unwrap();
    let state = ConversationState::unfinished(begun, given.clone());
    assert!(state.is_unfinished());
    let mut resumed = Conversation::resume(&template, &tokenizer, state);
    let turn = resumed.say("What is it?").unwrap();
    assert!(!turn.from_start);
    assert_eq!(tokenizer.decode(&turn.tokens).unwrap(), format!("What is it?{tail}"));
    assert_eq!(resumed.messages()[1].content, "A long text.\nWhat is it?");
    resumed.answered("A text.", None);
    let turn = resumed.say("Is it long?").unwrap();
    assert!(!turn.from_start);
    assert_eq!(resumed.messages().len(), 4);
    // Read again from its start it is one message all the same.
    let begun = resumed.messages()[..2].to_vec();
    let mut again =
        Conversation::resume(&template, &tokenizer, ConversationState::unfinished(begun, given));
    again.begin_again();
    let turn = again.say(" Tell me.").unwrap();
    assert!(turn.from_start);
    assert_eq!(again.messages()[1].content, "A long text.\nWhat is it? Tell me.");
}

#[test]
fn what_a_template_trims_is_found_all_the_same() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let template = template("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}[");
    let mut conversation = Conversation::new(&template, &tokenizer, Vec::new());
    conversation.say("one").unwrap();
    conversation.answered(" two \n", None);
    let turn = conversation.say("three").unwrap();
    assert_eq!(
        (tokenizer.decode(&turn.tokens).unwrap().as_str(), turn.from_start),
        ("][three][", false)
    );
}

#[test]
fn a_refused_message_leaves_the_conversation_as_it_was() {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let template = template(
        "{% if messages[-1].content == 'no' %}{{ raise_exception('not that') }}{% endif %}{{ messages[-1].content }}",
    );
    let mut conversation = Conversation::new(&template, &tokenizer, Vec::new());
    assert!(matches!(conversation.say("no"), Err(Error::ChatTemplate(_))));
    assert!(conversation.messages().is_empty());
    conversation.say("yes").unwrap();
}
