//! Decoding that never rewrites an entry, held to a plain reference.

use briquette::{
    Budget, CacheShape, Error, KvCache, LayerView, Policy, Result, Schedule, allocate,
    policy::{AppendOnly, Recent},
    position::RotaryEmbedding,
    reduce::EvictThenMerge,
    score::Scorer,
    store::Quantized,
};
use briquette_tests::{
    backends::{Backend, backends},
    inputs::Noise,
};
use burn::tensor::{Tensor, TensorData};

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 8 };

/// A score that is a function of head and position, and different for nearly every one.
fn score(head: usize, position: i64) -> f32 {
    ((position * 7919 + head as i64 * 613) % 1009) as f32
}

#[derive(Debug)]
struct ByPosition;

impl Scorer for ByPosition {
    fn name(&self) -> &str {
        "by-position"
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let positions = view.positions();
        let [_, heads, columns] = positions.dims();
        let host = positions.clone().try_into_vec_as::<i64>()?;
        let of = |(at, &position): (usize, &i64)| score(at / columns % heads, position);
        let scores: Vec<f32> = host.iter().enumerate().map(of).collect();
        Ok(Tensor::from_data(TensorData::new(scores, positions.dims()), &positions.device()))
    }
}

/// One head, as plainly as it can be said.
struct Plain {
    head: usize,
    case: Case,
    /// Positions of the entries that are written.
    written: Vec<i64>,
    /// Those of the tokens that have come since.
    new: Vec<i64>,
}

impl Plain {
    fn step(&mut self, position: i64) {
        let Case { budget, sinks, recent, every, append: AppendOnly { page, keep }, .. } =
            self.case;
        self.new.push(position);
        if self.new.len() < every {
            return;
        }
        // The best of the new ones, the last of them first of all.
        let mut order: Vec<usize> = (0..every).collect();
        let rank = |&at: &usize| (at + recent < every, -score(self.head, self.new[at]) as i64, at);
        order.sort_by_key(rank);
        let mut kept = order[..keep].to_vec();
        kept.sort_unstable();
        let appended: Vec<i64> = kept.into_iter().map(|at| self.new[at]).collect();
        self.new.clear();
        // The page of the lowest mean goes while there is too much.
        while self.written.len() + appended.len() > budget {
            let mean = |number: usize| -> f64 {
                let of_page = &self.written[number * page..(number + 1) * page];
                of_page.iter().map(|&p| f64::from(score(self.head, p))).sum::<f64>() / page as f64
            };
            let pages = sinks.div_ceil(page)..self.written.len() / page;
            let Some(worst) = pages.rev().min_by(|&a, &b| mean(a).total_cmp(&mean(b))) else {
                break;
            };
            self.written.drain(worst * page..(worst + 1) * page);
        }
        self.written.extend(appended);
    }

    fn held(&self) -> Vec<i64> {
        [&self.written[..], &self.new].concat()
    }
}

#[derive(Clone, Copy)]
struct Case {
    prompt: usize,
    budget: usize,
    sinks: usize,
    recent: usize,
    every: usize,
    append: AppendOnly,
    ragged: bool,
}

fn play(case: Case, backend: &Backend) {
    let device = &backend.device;
    let Case { prompt, budget, sinks, recent, every, append, ragged } = case;
    let schedule = Schedule::append_only(every, append.keep, append.page);
    let mut policy = Policy::custom("by position", Budget::Tokens(budget), ByPosition)
        .with_sinks(sinks)
        .with_recent(Recent::Tokens(recent))
        .with_schedule(schedule);
    if ragged {
        policy = policy.with_allocator(allocate::HeadAdaptive { floor: 0.5, ..Default::default() });
    }
    let mut cache = KvCache::new(SHAPE, policy, device).unwrap();
    let tokens = prompt + 90;
    let mut noise = Noise::new(9);
    let heads = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads];
    let qkv = heads.map(|heads| noise.tensor([1, heads, tokens, SHAPE.head_dim], device));
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 1024, 10_000.0, device).unwrap();
    let give = |cache: &mut KvCache, from: usize, to: usize| {
        let [q, k, v] = qkv.clone().map(|x| x.narrow(2, from, to - from));
        cache.attend(0, q, k, v, &rope).unwrap();
    };
    give(&mut cache, 0, prompt);
    let after = cache.kept_positions(0).unwrap().remove(0);
    let mut plain: Vec<Plain> = (0..SHAPE.kv_heads)
        .map(|head| {
            let written = after[head].iter().map(|&p| p as i64).collect();
            Plain { head, case, written, new: Vec::new() }
        })
        .collect();
    let what = format!(
        "{}, budget {budget}, sinks {sinks}, every {every}, {append:?}, ragged {ragged}",
        backend.name
    );
    let rows = |cache: &KvCache| -> Vec<(i64, Vec<u32>)> {
        let entries = cache.entries(0).unwrap().unwrap();
        let positions = entries.positions.try_into_vec_as::<i64>().unwrap();
        let bits = |x: Tensor<4>| -> Vec<Vec<u32>> {
            let x = x.try_into_vec_as::<f32>().unwrap();
            x.chunks(SHAPE.head_dim).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
        };
        let both = bits(entries.keys).into_iter().zip(bits(entries.values));
        positions.into_iter().zip(both.map(|(key, value)| [key, value].concat())).collect()
    };
    let mut before = rows(&cache);
    let mut dropped = false;
    for token in prompt..tokens {
        give(&mut cache, token, token + 1);
        let found = cache.kept_positions(0).unwrap().remove(0);
        for (plain, found) in plain.iter_mut().zip(&found) {
            let found: Vec<i64> = found.iter().map(|&p| p as i64).collect();
            if ragged {
                // Shares move with the scores of what is there: what was dropped is checked page by
                // page.
                let old = plain.held();
                plain.new.push(token as i64);
                if plain.new.len() == every {
                    let gone: Vec<i64> =
                        plain.written.iter().copied().filter(|p| !found.contains(p)).collect();
                    for page in plain.written.chunks(append.page) {
                        let of_page = page.iter().filter(|p| gone.contains(p)).count();
                        assert!(of_page == 0 || of_page == append.page, "{what}: {page:?}");
                    }
                    let kept = plain.new.iter().filter(|p| found.contains(p)).count();
                    assert_eq!(kept, append.keep, "{what}");
                    dropped |= !gone.is_empty();
                    plain.written = found.clone();
                    plain.new.clear();
                } else {
                    assert_eq!(found, [&old[..], &[token as i64]].concat(), "{what}");
                }
            } else {
                let held = plain.written.len();
                plain.step(token as i64);
                assert_eq!(found, plain.held(), "{what}, token {token}");
                dropped |= plain.new.is_empty() && plain.written.len() < held + append.keep;
            }
            assert!(ragged || plain.written.len() <= budget, "{what}");
        }
        // What is still there is what it was, bit for bit.
        let now = rows(&cache);
        let all = now.iter().filter(|(position, _)| (0..token as i64).contains(position));
        for entry in all {
            assert!(before.contains(entry), "{what}: the entry at {} was rewritten", entry.0);
        }
        before = now;
    }
    assert!(dropped, "{what}: no page was ever dropped");
}

#[test]
fn it_keeps_what_the_plain_reference_does() {
    let case =
        |[prompt, budget, sinks, recent, every]: [usize; 5], [page, keep]: [usize; 2], ragged| {
            let append = AppendOnly { page, keep };
            Case { prompt, budget, sinks, recent, every, append, ragged }
        };
    let cases = [
        case([70, 48, 0, 0, 8], [8, 4], false),
        case([70, 50, 4, 2, 8], [8, 3], false),
        case([30, 40, 9, 0, 5], [8, 5], false),
        case([60, 33, 1, 1, 1], [4, 1], false),
        case([60, 33, 0, 3, 7], [5, 4], false),
        case([70, 48, 2, 1, 6], [4, 3], true),
    ];
    for backend in backends() {
        let some = if backend.is_quick() { cases.len() } else { 2 };
        cases.into_iter().take(some).for_each(|case| play(case, &backend));
    }
}

#[test]
fn what_cannot_only_append_is_refused() {
    let schedule = |decoded, keep, page| Schedule::append_only(decoded, keep, page);
    let refused = |policy: Policy, parameter: &str| {
        let error = policy.check().unwrap_err();
        assert!(
            matches!(&error, Error::InvalidParameter { parameter: found, .. } if *found == parameter),
            "{parameter}: {error}"
        );
    };
    let tova = |schedule| Policy::tova(Budget::Tokens(64)).with_schedule(schedule);
    tova(schedule(8, 4, 16)).check().unwrap();
    refused(tova(schedule(8, 9, 16)), "schedule.append-only.keep");
    refused(tova(schedule(8, 0, 16)), "schedule.append-only.keep");
    refused(tova(schedule(8, 4, 0)), "schedule.append-only.page");
    let prompts_only = schedule(8, 4, 16).with_decode_every(None);
    refused(tova(prompts_only), "schedule.decode-every");
    refused(tova(schedule(8, 4, 61)), "budget");
    refused(tova(schedule(8, 4, 8)).with_recent(Recent::Tokens(5)), "schedule.append-only.keep");
    let merges = EvictThenMerge::default();
    refused(tova(schedule(8, 4, 16)).with_reducer(merges), "reduce");
    let error = tova(schedule(8, 4, 16)).with_store(Quantized::kivi(4)).check().unwrap_err();
    assert!(matches!(error, Error::StoreMismatch { .. }), "{error}");
    let text = tova(schedule(8, 4, 16)).to_toml().unwrap();
    assert!(text.contains("append-only"), "{text}");
    assert_eq!(Policy::from_toml(&text).unwrap().schedule(), schedule(8, 4, 16));
}
