//! Prompt lookup: the tokens of greedy decoding, in fewer calls of the model.

mod common;
mod tiny;

use std::ops::ControlFlow;

use briquette::{Budget, KvCache, Policy, Schedule};
use briquette_models::{
    Error, GenerateOptions, Generation, Model, Timing, Tokenizer, generate, generate_batch,
    generate_until,
};
use burn::tensor::DType;
use common::{cache, device, ember, options};
use tiny::Tiny;

const NEW: usize = 24;

/// The embedded model, a text that repeats itself and one that does not. Behind 192 tokens KIVI
/// packs no page for 31 tokens.
fn texts() -> (Model, [Vec<u32>; 2]) {
    let tokenizer = Tokenizer::load(ember()).unwrap();
    let begins = |text: &str| tokenizer.encode(text, true).unwrap()[..192].to_vec();
    let repeats = "The old clock struck nine, and the rain began again. ".repeat(30);
    let prose = include_str!("../../../examples/harbour.txt");
    let model = Model::load(ember(), &device(), DType::F32).unwrap();
    (model, [begins(&repeats), begins(prose)])
}

/// Policies that compress no decoded token.
fn policies() -> [Policy; 5] {
    let (quarter, prompts) = (Budget::Ratio(0.25), Schedule::prefill_only());
    [
        Policy::full(),
        Policy::snapkv(quarter),
        Policy::kivi(4),
        Policy::streaming_llm(quarter).with_schedule(prompts),
        Policy::h2o(quarter).with_schedule(prompts),
    ]
}

/// Positions that all layers keep.
fn kept(cache: &KvCache) -> Vec<Vec<Vec<Vec<usize>>>> {
    (0..cache.shape().layers).map(|layer| cache.kept_positions(layer).unwrap()).collect()
}

/// A generation that ends when this many tokens are heard, the tokens that the cache has seen, and
/// the decoded ones.
fn heard(
    (model, prompt): (&Model, &[u32]),
    options: &GenerateOptions,
    most: usize,
) -> (Generation, Vec<usize>, usize) {
    let (mut cache, mut count) = (cache(model), 0);
    let (found, timing) = generate_until(model, prompt, &mut cache, options, |_| {
        count += 1;
        if count == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    (found, cache.tokens_seen(), timing.decoded_tokens)
}

#[test]
fn tokens_and_cache_are_those_without_drafts() {
    let (model, texts) = texts();
    for policy in policies() {
        for (prompt, repeats) in texts.iter().zip([true, false]) {
            let mut plain = model.cache(policy.clone()).unwrap();
            let (expected, _) =
                generate(&model, prompt, &mut plain, &options(NEW), |_| {}).unwrap();
            let expected_kept = kept(&plain);
            let next: Vec<u32> = expected.unseen.iter().chain(&prompt[5..25]).copied().collect();
            let (second, _) = generate(&model, &next, &mut plain, &options(8), |_| {}).unwrap();
            for lookup in [2, 5, 10] {
                let what = format!("{}, repeats: {repeats}, lookup {lookup}", policy.name());
                let with = |count| GenerateOptions { lookup, ..options(count) };
                let mut cache = model.cache(policy.clone()).unwrap();
                let mut tokens = Vec::new();
                let (found, timing) =
                    generate(&model, prompt, &mut cache, &with(NEW), |token| tokens.push(token))
                        .unwrap();
                assert_eq!(found, expected, "{what}");
                assert_eq!(tokens, expected.tokens, "{what}");
                assert_eq!(kept(&cache), expected_kept, "{what}");
                let Timing { decoded_tokens, steps, drafted, accepted, .. } = timing;
                assert_eq!((decoded_tokens, steps), (NEW - 1, NEW - 1 - accepted), "{what}");
                let right = format!("{what}: {accepted} of {drafted}");
                assert!(accepted <= drafted && (accepted > 0 || !repeats), "{right}");
                // The next prompt finds what it would have found.
                let (found, _) = generate(&model, &next, &mut cache, &with(8), |_| {}).unwrap();
                assert_eq!(found, second, "{what}");
            }
        }
    }
}

#[test]
fn a_text_ends_within_a_draft_where_it_ends_without() {
    let (model, [prompt, _]) = texts();
    let of = (&model, &prompt[..]);
    let whole = heard(of, &options(NEW), usize::MAX).0.tokens;
    // Of all tokens the one that comes last for the first time.
    let first = |token: &&u32| whole.iter().position(|other| other == *token);
    let stop = *whole.iter().max_by_key(first).unwrap();
    assert!(whole.iter().position(|token| *token == stop) > Some(2), "{whole:?}");
    let stops = GenerateOptions { stop: vec![stop], ..options(NEW) };
    let counts = [0, 1, 2, 5, 9, 14].map(|count| (options(count), usize::MAX));
    let breaks = [1, 2, 5, 9, 14].map(|most| (options(NEW), most));
    let cases = counts.into_iter().chain(breaks).chain([(stops, usize::MAX)]);
    for (plain, most) in cases {
        let expected = heard(of, &plain, most);
        let with = GenerateOptions { lookup: 10, ..plain };
        assert_eq!(heard(of, &with, most), expected, "{most} of {}", with.max_new_tokens);
    }
}

#[test]
fn a_draft_ends_with_the_context() {
    let model = Tiny::new().load();
    let prompt = tiny::prompt(1, 12).repeat(10);
    // The ninth token has no position.
    let expected = heard((&model, &prompt), &options(50), 9);
    let with = GenerateOptions { lookup: 10, ..options(50) };
    assert_eq!(heard((&model, &prompt), &with, 9), expected);
    assert_eq!(expected.1, [128]);
}

#[test]
fn a_repetition_costs_within_a_draft_as_without() {
    let (model, texts) = texts();
    for prompt in &texts {
        let plain = GenerateOptions { repetition_penalty: 1.1, ..options(NEW) };
        let with = GenerateOptions { lookup: 5, ..plain.clone() };
        let of = (&model, &prompt[..]);
        assert_eq!(heard(of, &with, usize::MAX), heard(of, &plain, usize::MAX));
    }
}

/// Their texts may differ, since they hold a draft beyond their budget.
#[test]
fn policies_that_compress_or_pack_decoded_tokens_take_drafts() {
    const NEW: usize = 48;
    let (model, [_, prompt]) = texts();
    let budget = Budget::Tokens(64);
    let compressing = [Policy::streaming_llm(budget), Policy::h2o(budget), Policy::tova(budget)];
    for policy in compressing.into_iter().chain([Policy::fp8()]) {
        let mut cache = model.cache(policy).unwrap();
        let with = GenerateOptions { lookup: 10, ..options(NEW) };
        let found = generate(&model, &prompt, &mut cache, &with, |_| {});
        let name = cache.policy().name();
        let (found, _) = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.tokens.len(), NEW, "{name}");
        assert_eq!(cache.tokens_seen(), [prompt.len() + NEW - 1], "{name}");
    }
}

#[test]
fn what_takes_no_drafts_is_refused() {
    let (model, [prompt, _]) = texts();
    let with = GenerateOptions { lookup: 5, ..options(NEW) };
    let refused = generate_batch(
        &model,
        &[prompt.clone(), prompt.clone()],
        &mut cache(&model),
        &with,
        |_, _| {},
    )
    .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "lookup is 5 for 2 prompts, but must be 0 for more than one: generate them one by one, or set it to 0"
    );
    let drawing = GenerateOptions { temperature: 0.7, ..with.clone() };
    let refused = generate(&model, &prompt, &mut cache(&model), &drawing, |_| {}).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "lookup is 5 at a temperature of 0.7, but must be 0 where tokens are drawn: set one of the two to 0"
    );
    let schedule = Schedule::append_only(6, 3, 8);
    let policy = Policy::tova(Budget::Tokens(64)).with_schedule(schedule);
    let mut cache = model.cache(policy).unwrap();
    let refused = generate(&model, &prompt, &mut cache, &with, |token| panic!("{token}"));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Cache(briquette::Error::DraftRefused { .. })), "{refused}");
}
