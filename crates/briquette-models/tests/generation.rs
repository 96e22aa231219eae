//! The generation loop on tiny random models.

mod common;
mod tiny;

use std::ops::ControlFlow;

use briquette::{
    Budget, CacheShape, KvCache, Policy, PrefillCompression, Schedule, position::PositionEncoding,
};
use briquette_models::{
    Attend, Error, GenerateOptions, Generation, Interrupt, Model, continue_batch_until, generate,
    generate_batch, generate_batch_until, generate_until, prefill, prefill_shared,
};
use burn::tensor::Tensor;
use common::{cache, host, logits, options, row};
use serde_json::json;
use tiny::{Tiny, device, prompt};

/// What a policy that counts positions in the cache compresses by.
const IN_PARTS: Schedule = Schedule::always(1).with_prefill(PrefillCompression::EveryChunk);

fn assert_close(found: &[f32], expected: &[f32]) {
    common::assert_close("logits", found, expected, 2e-5);
}

/// What prompts are continued by.
fn batch(model: &Model, prompts: &[Vec<u32>], options: &GenerateOptions) -> Vec<Generation> {
    generate_batch(model, prompts, &mut cache(model), options, |_, _| {}).unwrap().0
}

#[test]
fn the_last_logits_are_the_last_column_however_the_prompt_arrives() {
    let model = Tiny::new().load();
    let ids = prompt(1, 23);
    let all = logits(&model, &ids);
    let last = &all[22 * 64..];
    assert_close(&host(model.forward_last(row(&ids), &mut cache(&model)).unwrap()), last);
    for chunk in [None, Some(1), Some(5), Some(22), Some(23), Some(100)] {
        assert_close(&host(prefill(&model, &[&ids], &mut cache(&model), chunk).unwrap()), last);
    }
    // One token at a time: what decoding does.
    let mut cache = cache(&model);
    for (position, id) in ids.iter().enumerate() {
        let logits = host(model.forward_last(row(&[*id]), &mut cache).unwrap());
        assert_close(&logits, &all[position * 64..(position + 1) * 64]);
    }
}

#[test]
fn a_second_prompt_follows_the_first() {
    let model = Tiny::new().load();
    let ids = prompt(2, 20);
    let whole = host(prefill(&model, &[&ids], &mut cache(&model), None).unwrap());
    let mut cache = cache(&model);
    prefill(&model, &[&ids[..13]], &mut cache, None).unwrap();
    let parts = host(prefill(&model, &[&ids[13..]], &mut cache, Some(3)).unwrap());
    assert_close(&parts, &whole);
    assert_eq!(cache.tokens_seen(), [20]);
}

#[test]
fn a_padded_row_is_as_good_as_alone() {
    let model = Tiny::with(json!({ "tie_word_embeddings": false })).load();
    let prompts = [prompt(3, 9), prompt(4, 21), prompt(5, 1)];
    for chunk in [None, Some(4)] {
        let options = GenerateOptions { chunk, ..options(12) };
        let mut heard = vec![Vec::new(); 3];
        let (rows, timing) =
            generate_batch(&model, &prompts, &mut cache(&model), &options, |row, token| {
                heard[row].push(token)
            })
            .unwrap();
        assert_eq!((timing.prompt_tokens, timing.decoded_tokens), (31, 33));
        for (row, prompt) in prompts.iter().enumerate() {
            let mut tokens = Vec::new();
            let (alone, _) =
                generate(&model, prompt, &mut cache(&model), &options, |t| tokens.push(t)).unwrap();
            assert_eq!(rows[row], alone);
            assert_eq!(heard[row], alone.tokens);
            assert_eq!(tokens, alone.tokens);
            assert_eq!((alone.tokens.len(), alone.stopped), (12, false));
        }
    }
}

#[test]
fn whoever_hears_the_tokens_can_end_them() {
    let model = Tiny::new().load();
    let ids = prompt(6, 8);
    let whole = generate(&model, &ids, &mut cache(&model), &options(20), |_| {}).unwrap().0;
    assert_eq!(whole.tokens.len(), 20);
    for end in [1, 5, 20] {
        let (mut cache, mut heard) = (cache(&model), 0);
        let (part, timing) = generate_until(&model, &ids, &mut cache, &options(20), |_| {
            heard += 1;
            if heard == end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!((&part.tokens[..], part.stopped), (&whole.tokens[..end], true));
        // The last one is not fed.
        assert_eq!(part.unseen, part.tokens.last().copied());
        assert_eq!((cache.tokens_seen(), timing.decoded_tokens), (vec![8 + end - 1], end - 1));
    }
}

#[test]
fn a_row_rests_after_its_stop_token() {
    let model = Tiny::new().load();
    let prompts = [prompt(6, 8), prompt(7, 15)];
    let free = batch(&model, &prompts, &options(20));
    // A token that only the first row generates, and where it does first.
    let stop = *free[0].tokens.iter().find(|token| !free[1].tokens.contains(token)).unwrap();
    let at = free[0].tokens.iter().position(|token| *token == stop).unwrap();
    let options = GenerateOptions { stop: vec![stop], ..options(20) };
    let rows = batch(&model, &prompts, &options);
    assert_eq!(rows[0].tokens, free[0].tokens[..at]);
    assert!(rows[0].stopped && !rows[1].stopped);
    assert_eq!(rows[1], free[1]);
    // The first row has left the cache.
    assert_eq!([rows[0].unseen, rows[1].unseen], [None, free[1].tokens.last().copied()]);
}

#[test]
fn whoever_hears_a_row_can_end_it_and_no_other() {
    let model = Tiny::new().load();
    let prompts = [prompt(6, 8), prompt(7, 15)];
    let free = batch(&model, &prompts, &options(12));
    let mut heard = [0; 2];
    let (rows, timing) =
        generate_batch_until(&model, &prompts, &mut cache(&model), &options(12), |row, _| {
            heard[row] += 1;
            if heard[row] == [9, 4][row] {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!((heard, timing.decoded_tokens), ([9, 4], 8 + 3));
    assert_eq!(rows[0].tokens, free[0].tokens[..9]);
    assert_eq!(rows[1].tokens, free[1].tokens[..4]);
    assert_eq!([rows[0].unseen, rows[1].unseen], [free[0].tokens.get(8).copied(), None]);
}

/// Prompts of which some are long enough to be quantized, and how many tokens each row is to have.
const ROWS: [(usize, usize); 5] = [(170, 6), (131, 25), (150, 1), (97, 25), (140, 12)];

/// Generates until each row has its tokens. Returns the tokens heard, too.
fn batch_of_rows(
    model: &Model,
    cache: &mut KvCache,
    options: &GenerateOptions,
) -> (Vec<Generation>, Vec<Vec<u32>>) {
    let prompts: Vec<_> =
        (40..).zip(ROWS).map(|(seed, (length, _))| prompt(seed, length)).collect();
    let mut heard = vec![Vec::new(); ROWS.len()];
    let (rows, timing) = generate_batch_until(model, &prompts, cache, options, |row, token| {
        heard[row].push(token);
        let ends = heard[row].len() == ROWS[row].1;
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!((timing.decoded_tokens, timing.steps), (5 + 24 + 24 + 11, 24));
    (rows, heard)
}

fn alone(model: &Model, cache: &mut KvCache, row: usize, options: &GenerateOptions) -> Vec<u32> {
    let (length, new) = ROWS[row];
    let options = GenerateOptions { max_new_tokens: new, ..options.clone() };
    generate(model, &prompt(40 + row as u64, length), cache, &options, |_| {}).unwrap().0.tokens
}

#[test]
fn rows_that_have_ended_leave_the_cache() {
    let model = Tiny::with(json!({ "max_position_embeddings": 512 })).load();
    let budget = Budget::Tokens(48);
    let policies = [
        Policy::full(),
        Policy::snapkv(budget),
        Policy::adakv(budget),
        Policy::h2o(budget),
        Policy::ems(budget),
        Policy::d2o(budget),
        Policy::streaming_llm(budget),
        Policy::kvzip(budget),
        Policy::kivi(2),
        Policy::fp8(),
    ];
    for policy in policies {
        let name = policy.name().to_owned();
        let options = options(40);
        let empty = || model.cache(policy.clone()).unwrap();
        let (mut left, mut kept) = (empty(), empty());
        let (rows, heard) = batch_of_rows(&model, &mut left, &options);
        let keeps = GenerateOptions { keep_rows: true, ..options.clone() };
        assert_eq!(
            batch_of_rows(&model, &mut kept, &keeps),
            (rows.clone(), heard.clone()),
            "{name}"
        );
        for (row, found) in rows.iter().enumerate() {
            let expected = alone(&model, &mut empty(), row, &options);
            assert_eq!((&found.tokens, found.stopped), (&expected, true), "{name}, row {row}");
            assert_eq!(heard[row], expected, "{name}, row {row}");
            let is_last = ROWS[row].1 == 25;
            assert_eq!(found.unseen, expected.last().copied().filter(|_| is_last), "{name}");
        }
        let seen = |row: usize| ROWS[row].0 + 24;
        assert_eq!(left.tokens_seen(), [seen(1), seen(3)], "{name}");
        assert_eq!(kept.tokens_seen(), [0, 1, 2, 3, 4].map(seen), "{name}");
        assert!(left.bytes_held() < kept.bytes_held() * 3 / 4, "{name}");
    }
}

#[test]
fn a_row_alone_never_leaves() {
    let model = Tiny::new().load();
    for keep_rows in [false, true] {
        let ids = prompt(6, 8);
        let free = batch(&model, std::slice::from_ref(&ids), &options(20)).swap_remove(0).tokens;
        let at = free.iter().position(|token| *token == free[5]).unwrap();
        let options = GenerateOptions { stop: vec![free[5]], keep_rows, ..options(20) };
        let mut cache = cache(&model);
        let (rows, _) = generate_batch(&model, &[ids], &mut cache, &options, |_, _| {}).unwrap();
        assert_eq!(rows[0].tokens, free[..at]);
        assert_eq!(cache.tokens_seen(), [8 + at]);
    }
}

/// Rows draw by streams of their own: the first as alone, the others as in a batch that keeps all.
#[test]
fn what_a_row_draws_does_not_depend_on_the_rows_that_are_left() {
    let model = Tiny::with(json!({ "max_position_embeddings": 512 })).load();
    let drawing = GenerateOptions {
        temperature: 1.5,
        top_k: Some(30),
        repetition_penalty: 1.2,
        seed: 3,
        ..options(40)
    };
    let (rows, _) = batch_of_rows(&model, &mut cache(&model), &drawing);
    assert_eq!(rows[0].tokens, alone(&model, &mut cache(&model), 0, &drawing));
    let keeps = GenerateOptions { keep_rows: true, ..drawing.clone() };
    assert_eq!(rows, batch_of_rows(&model, &mut cache(&model), &keeps).0);
    let greedy = batch_of_rows(&model, &mut cache(&model), &options(40)).0;
    assert!(rows.iter().zip(&greedy).any(|(drawn, greedy)| drawn.tokens != greedy.tokens));
}

#[test]
fn generation_counts_its_tokens() {
    let model = Tiny::new().load();
    let ids = prompt(8, 10);
    for (count, decoded, seen) in [(0, 0, 10), (1, 0, 10), (4, 3, 13)] {
        let mut cache = cache(&model);
        let (generation, timing) =
            generate(&model, &ids, &mut cache, &options(count), |_| {}).unwrap();
        assert_eq!(generation.tokens.len(), count);
        assert_eq!((timing.prompt_tokens, timing.decoded_tokens), (10, decoded));
        // The last token has been chosen, not read.
        assert_eq!(cache.tokens_seen(), [seen]);
        assert!(timing.prefill_rate() > 0.0);
    }
}

#[test]
fn drawing_depends_on_the_seed_and_the_row_only() {
    let model = Tiny::new().load();
    let ids = prompt(9, 10);
    let drawn = |seed| {
        let options = GenerateOptions { temperature: 1.5, top_p: 0.95, seed, ..options(16) };
        generate(&model, &ids, &mut cache(&model), &options, |_| {}).unwrap().0.tokens
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn bad_prompts_are_refused_with_their_numbers() {
    let model = Tiny::new().load();
    let run =
        |prompts: &[Vec<u32>]| prefill(&model, prompts, &mut cache(&model), None).unwrap_err();
    assert!(matches!(run(&[]), Error::EmptyPrompt { row: 0, rows: 0 }));
    assert!(matches!(run(&[prompt(1, 3), vec![]]), Error::EmptyPrompt { row: 1, rows: 2 }));
    assert!(matches!(
        run(&[prompt(1, 129)]),
        Error::PromptTooLong { tokens: 129, context: 128, why: None }
    ));
    assert!(matches!(run(&[vec![3, 64]]), Error::TokenOutOfRange { token: 64, vocab_size: 64 }));
    let error = model.forward(row(&[64]), &mut cache(&model)).unwrap_err();
    assert!(matches!(error, Error::TokenOutOfRange { token: 64, .. }));
    let zero = prefill(&model, &[prompt(1, 3)], &mut cache(&model), Some(0));
    assert!(matches!(zero, Err(Error::InvalidOption { option: "chunk", .. })));

    let found = CacheShape { layers: 3, ..model.cache_shape() };
    let mut other = KvCache::new(found, Policy::full(), &device()).unwrap();
    let error = prefill(&model, &[prompt(1, 3)], &mut other, None).unwrap_err();
    assert!(matches!(error, Error::CacheShape { found: f, .. } if f == found));
}

#[test]
fn the_context_has_an_end() {
    let model = Tiny::new().load();
    let mut full = cache(&model);
    prefill(&model, &[prompt(1, 100)], &mut full, None).unwrap();
    let error = prefill(&model, &[prompt(2, 29)], &mut full, None).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { tokens: 129, context: 128, why: None }));
    // Refused before anything happened: the cache still takes what fits.
    let error = generate(&model, &prompt(2, 20), &mut full, &options(20), |_| {});
    assert!(matches!(
        error,
        Err(Error::Cache(briquette::Error::PositionOverflow { max: 128, .. }))
    ));
}

#[test]
fn positions_counted_in_the_cache_have_no_end() {
    let model = Tiny::new().load();
    let policy = Policy::streaming_llm(Budget::Tokens(32)).with_schedule(IN_PARTS);
    assert_eq!(model.context(&policy), None);
    let mut cache = model.cache(policy).unwrap();
    let options = GenerateOptions { chunk: Some(16), ..options(8) };
    generate(&model, &prompt(1, 300), &mut cache, &options, |_| {}).unwrap();
    assert_eq!(cache.tokens_seen(), [307]);
    assert_eq!(cache.tokens_kept(0).unwrap(), [32]);
}

#[test]
fn prompts_beyond_the_context_come_in_parts_or_are_refused_at_once() {
    let model = Tiny::new().load();
    let policy = |budget| Policy::streaming_llm(budget).with_schedule(IN_PARTS);
    let run = |policy: Policy, tokens: usize, chunk| {
        let mut cache = model.cache(policy).unwrap();
        let options = GenerateOptions { chunk, ..options(3) };
        let done = generate(&model, &prompt(1, tokens), &mut cache, &options, |_| {});
        done.map(|(generation, _)| (generation.tokens, cache.tokens_seen()[0]))
    };
    // 96 columns fit beside 32 that are left: by default as many as fit.
    let budget = Budget::Tokens(32);
    let (said, seen) = run(policy(budget), 300, None).unwrap();
    assert_eq!((said.len(), seen), (3, 302));
    assert_eq!(run(policy(budget), 300, Some(96)).unwrap().0, said);
    let error = run(policy(budget), 300, Some(97)).unwrap_err();
    assert!(matches!(error, Error::ChunkTooLong { chunk: 97, most: 96, context: 128 }), "{error}");
    // A prompt that fits stays whole.
    run(policy(budget), 128, Some(128)).unwrap();
    run(policy(Budget::Ratio(0.25)), 300, None).unwrap();
    let error = run(policy(Budget::Tokens(128)), 300, None).unwrap_err();
    assert!(
        matches!(error, Error::PromptTooLong { tokens: 300, context: 128, why: None }),
        "{error}"
    );
    // Chunks are the method's own schedule.
    assert_eq!(run(Policy::streaming_llm(budget), 300, None).unwrap().0, said);
    let at_end = Policy::streaming_llm(budget).with_schedule(Schedule::always(1));
    let error = run(at_end, 300, None).unwrap_err();
    assert!(matches!(error, Error::PromptNotInParts { tokens: 300, context: 128 }), "{error}");
    assert!(error.to_string().contains("schedule.prefill=every-chunk"), "{error}");

    // What is held behind the last decoded token has a position, too.
    let context = |budget| model.context(&policy(budget));
    assert_eq!(context(Budget::Tokens(127)), None);
    assert_eq!(context(Budget::Tokens(128)), Some(128));
    assert_eq!(context(Budget::Ratio(0.5)), Some(254));
    assert_eq!(context(Budget::Bytes(1 << 20)), Some(128));
    assert_eq!(context(Budget::Bytes(1 << 10)), None);
}

#[test]
fn an_interrupt_stops_between_chunks_and_tokens_and_leaves_the_cache() {
    let interrupt = Interrupt::new();
    let model = Tiny::new().load().with_interrupt(interrupt.clone());
    let ids = prompt(3, 24);
    let mut stopped = cache(&model);
    // After three tokens, in the middle of a generation.
    let mut heard = 0;
    let error = generate(&model, &ids, &mut stopped, &options(50), |_| {
        heard += 1;
        if heard == 3 {
            interrupt.set();
        }
    })
    .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!((heard, stopped.tokens_seen()), (3, vec![ids.len() + 2]));
    let error = prefill(&model, &[&ids], &mut cache(&model), Some(5)).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    // A prompt of which nothing has arrived is none.
    let mut untouched = stopped.fork();
    let error = prefill(&model, &[&ids], &mut untouched, None).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(untouched.tokens_seen(), stopped.tokens_seen());

    // It goes on where it was.
    interrupt.clear();
    let other = prompt(4, 9);
    prefill(&model, &[&other], &mut untouched, None).unwrap();
    assert_eq!(untouched.tokens_seen(), [stopped.tokens_seen()[0] + other.len()]);
    let mut whole = cache(&model);
    let (expected, _) = generate(&model, &ids, &mut whole, &options(4), |_| {}).unwrap();
    let next = model.forward_last(row(&expected.tokens[2..3]), &mut stopped).unwrap();
    let next = host(next);
    let best = (0..next.len()).max_by(|a, b| next[*a].total_cmp(&next[*b])).unwrap();
    assert_eq!(best as u32, expected.tokens[3]);
}

#[test]
fn an_interrupt_stops_between_layers() {
    /// Sets the flag in the first layer, and counts layers.
    struct Interrupting(KvCache, Interrupt, usize);

    impl Attend for Interrupting {
        fn attend(
            &mut self,
            layer: usize,
            queries: Tensor<4>,
            keys: Tensor<4>,
            values: Tensor<4>,
            encoding: &dyn PositionEncoding,
        ) -> briquette::Result<Tensor<4>> {
            self.1.set();
            self.2 += 1;
            self.0.attend(layer, queries, keys, values, encoding)
        }
    }

    let interrupt = Interrupt::new();
    let model = Tiny::new().load().with_interrupt(interrupt.clone());
    let mut attend = Interrupting(cache(&model), interrupt, 0);
    let error = model.forward_last_through(row(&prompt(3, 24)), &mut attend).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert_eq!(attend.2, 1);
}

#[test]
fn one_prefill_serves_several_policies() {
    let model = Tiny::new().load();
    let prompts = [prompt(31, 40), prompt(32, 29)];
    let budget = Budget::Tokens(16);
    let policies =
        [Policy::full(), Policy::tova(budget), Policy::h2o(budget), Policy::kvzip(budget)];
    let caches = || -> Vec<KvCache> {
        policies.iter().map(|policy| model.cache(policy.clone()).unwrap()).collect()
    };
    let mut together = caches();
    let logits = prefill_shared(&model, &prompts, &mut together).unwrap();
    for (shared, mut alone) in together.iter_mut().zip(caches()) {
        let hear = |_, _| ControlFlow::Continue(());
        let options = options(9);
        let found =
            continue_batch_until(&model, &prompts, logits.clone(), shared, &options, hear).unwrap();
        let expected = generate_batch_until(&model, &prompts, &mut alone, &options, hear).unwrap();
        assert_eq!(found.0, expected.0, "{}", alone.policy().name());
        assert_eq!(shared.bytes_held(), alone.bytes_held(), "{}", alone.policy().name());
    }

    let mut again = caches();
    let long = [prompt(33, model.config().max_position_embeddings + 1)];
    let error = prefill_shared(&model, &long, &mut again).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { .. }), "{error}");
    let stopped = Interrupt::new();
    let stopping = Tiny::new().load().with_interrupt(stopped.clone());
    stopped.set();
    let error = prefill_shared(&stopping, &prompts, &mut again).unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(again.iter().all(|cache| cache.tokens_seen().is_empty()));
    prefill_shared(&model, &prompts, &mut again).unwrap();
}
