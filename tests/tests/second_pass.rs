//! KVzip and KVCompose: a second pass over prompts of different lengths, in parts, against the f64
//! reference.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, Schedule,
    allocate::{HeadAdaptive, LazyLayers, Uniform},
    policy::PositionMode,
    position::{PositionEncoding, RotaryEmbedding, Rotated},
    score::{CriticalKv, KvCompose, KvZip},
};
use briquette_tests::{
    backends::{backends, host},
    reference::{
        Encoding, Head,
        reconstruction::{Repeated, composed, kept, reread},
        score::criticalkv::projection,
    },
    session::{compare, heads, tolerance},
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 8 };
const GROUP: usize = 2;
const SINKS: usize = 2;
const HIDDEN: usize = 6;
/// Tokens of each row: they lie in 18 columns.
const LENGTHS: [usize; 2] = [17, 7];
/// Tokens repeated at a time.
const PART: usize = 5;
/// Tokens that repeat each part of each row: the second row has nothing left of the last two.
const REPEATS: [[usize; 2]; 4] = [[7, 6], [9, 5], [6, 1], [3, 1]];
const THETA: f64 = 10_000.0;

/// Queries, keys and values of some tokens of one row and layer.
struct Tokens {
    qkv: [Vec<Head>; 3],
    /// Hidden states, `[tokens][HIDDEN]`.
    hidden: Head,
}

fn draw(rng: &mut ChaCha8Rng, tokens: usize) -> Tokens {
    let mut head = |width: usize| -> Head {
        let mut number = || f64::from((rng.random::<f32>() - 0.5) * 4.0);
        (0..tokens).map(|_| (0..width).map(|_| number()).collect()).collect()
    };
    let qkv = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads]
        .map(|heads| (0..heads).map(|_| head(SHAPE.head_dim)).collect());
    Tokens { qkv, hidden: head(HIDDEN) }
}

/// Rows as one tensor, shorter ones padded at the left with what must not matter.
fn tensor(rows: &[&[Head]], device: &Device) -> Tensor<4> {
    let columns = rows.iter().map(|row| row[0].len()).max().unwrap();
    let width = rows[0][0][0].len();
    let mut numbers = Vec::new();
    for head in rows.iter().flat_map(|row| row.iter()) {
        numbers.extend(std::iter::repeat_n(-6.5_f32, (columns - head.len()) * width));
        numbers.extend(head.iter().flatten().map(|x| *x as f32));
    }
    let data = TensorData::new(numbers, [rows.len(), rows[0].len(), columns, width]);
    Tensor::from_data(data, device)
}

/// Queries or keys of a model that rotates them itself: so many tokens of each row, the first of
/// them at this position.
fn rotated(
    rope: &RotaryEmbedding,
    x: &Tensor<4>,
    first: [usize; 2],
    tokens: [usize; 2],
) -> Tensor<4> {
    let [rows, _, columns, _] = x.dims();
    let mut positions = Vec::new();
    for (first, tokens) in first.into_iter().zip(tokens) {
        positions.extend(std::iter::repeat_n(-1, columns - tokens));
        positions.extend((first..first + tokens).map(|position| position as i64));
    }
    let positions = TensorData::new(positions, [rows, 1, columns]);
    rope.encode(x.clone(), Tensor::from_data(positions, &x.device()))
}

/// All that is drawn: `[row][layer]`, and `[part][row][layer]`.
struct Drawn {
    prompts: Vec<Vec<Tokens>>,
    parts: Vec<Vec<Vec<Tokens>>>,
}

impl Drawn {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut layers = |tokens: usize| -> Vec<Tokens> {
            (0..SHAPE.layers).map(|_| draw(&mut rng, tokens)).collect()
        };
        let prompts = LENGTHS.into_iter().map(&mut layers).collect();
        let parts = REPEATS.into_iter().map(|rows| rows.into_iter().map(&mut layers).collect());
        let parts = parts.collect();
        Self { prompts, parts }
    }

    fn repeated(&self, part: usize, row: usize, layer: usize, head: usize) -> Repeated<'_> {
        let [_, keys, values] = &self.prompts[row][layer].qkv;
        let [new_queries, new_keys, new_values] = &self.parts[part][row][layer].qkv;
        Repeated {
            keys: &keys[head],
            values: &values[head],
            queries: new_queries[head * GROUP..(head + 1) * GROUP].iter().collect(),
            new_keys: &new_keys[head],
            new_values: &new_values[head],
            encoding: Encoding::Rotary { theta: THETA },
            scale: 1.0 / (SHAPE.head_dim as f64).sqrt(),
        }
    }

    /// `[layer][head][token]` of a row.
    fn scores(&self, row: usize, normalize: bool) -> Vec<Vec<Vec<f64>>> {
        let of_head = |layer: usize, head: usize| {
            let reach: Vec<Vec<f64>> = (head * GROUP..(head + 1) * GROUP)
                .map(|query_head| {
                    let rows = projection(layer, query_head, SHAPE.head_dim);
                    let length = |value: &Vec<f64>| {
                        let output = |o: usize| {
                            value.iter().zip(&rows).map(|(x, row)| x * row[o]).sum::<f64>()
                        };
                        (0..rows[0].len()).map(|o| output(o).powi(2)).sum::<f64>().sqrt()
                    };
                    self.prompts[row][layer].qkv[2][head].iter().map(length).collect()
                })
                .collect();
            let mut scores = Vec::new();
            for part in 0..REPEATS.len() {
                let end = LENGTHS[row].min((part + 1) * PART);
                let range = (part * PART).min(end)..end;
                let asks: Vec<f64> = self.parts[part][row][layer]
                    .hidden
                    .iter()
                    .map(|x| x.iter().map(|x| x * x).sum::<f64>().sqrt())
                    .collect();
                let lengths = normalize.then_some((&asks[..], &reach[..]));
                scores.extend(self.repeated(part, row, layer, head).most(range, SINKS, lengths));
            }
            scores
        };
        let layers = 0..SHAPE.layers;
        layers.map(|layer| (0..SHAPE.kv_heads).map(|head| of_head(layer, head)).collect()).collect()
    }

    /// Weights of the tokens while the prompt is read again, `[layer][head][token]` of a row, with
    /// the mean of the layer if so.
    fn reread(&self, row: usize, layer_mean: bool) -> Vec<Vec<Vec<f64>>> {
        let parts = LENGTHS[row].div_ceil(PART);
        let of_head = |layer: usize, head: usize| {
            let parts: Vec<_> =
                (0..parts).map(|part| self.repeated(part, row, layer, head)).collect();
            reread(&parts)
        };
        let of_layer = |layer: usize| {
            let plain: Vec<Vec<f64>> =
                (0..SHAPE.kv_heads).map(|head| of_head(layer, head)).collect();
            let mean = |token: usize| {
                plain.iter().map(|head| head[token]).sum::<f64>() / plain.len() as f64
            };
            let with_mean = |head: &Vec<f64>| {
                let tokens = head.iter().enumerate();
                tokens.map(|(at, x)| if layer_mean { x + mean(at) } else { *x }).collect()
            };
            plain.iter().map(with_mean).collect()
        };
        (0..SHAPE.layers).map(of_layer).collect()
    }

    /// A cache of the prompts, and what the second pass gave; outputs are compared on the way. A
    /// policy that takes rotated queries and keys runs on them beside it, and is given the same.
    fn play(&self, policy: Policy, device: &Device) -> (KvCache, Vec<Tensor<3>>) {
        let rope = RotaryEmbedding::new(SHAPE.head_dim, 64, THETA, device).unwrap();
        let weight = |layer| {
            let rows =
                (0..SHAPE.query_heads).flat_map(|head| projection(layer, head, SHAPE.head_dim));
            let rows: Vec<Vec<f64>> = rows.collect();
            let numbers = rows.iter().flatten().map(|x| *x as f32).collect();
            Tensor::<2>::from_data(TensorData::new(numbers, [rows.len(), rows[0].len()]), device)
        };
        let config =
            CacheConfig::default().with_output_weights((0..SHAPE.layers).map(weight).collect());
        let mut cache = KvCache::with_config(SHAPE, policy, config, device).unwrap();
        let padding = LENGTHS.iter().map(|length| LENGTHS[0] - length).collect();
        cache.begin_prompt(Prompt::new(LENGTHS[0]).left_padding(padding)).unwrap();
        let qkv = |rows: &[Vec<Tokens>], layer: usize| {
            [0, 1, 2].map(|part| {
                let rows: Vec<&[Head]> = rows.iter().map(|row| &row[layer].qkv[part][..]).collect();
                tensor(&rows, device)
            })
        };
        let mut itself = cache.policy().needs_unrotated().is_none().then(|| cache.clone());
        for layer in 0..SHAPE.layers {
            let [q, k, v] = qkv(&self.prompts, layer);
            if let Some(itself) = &mut itself {
                let [q, k] = [&q, &k].map(|x| rotated(&rope, x, [0, 0], LENGTHS));
                itself.attend(layer, q, k, v.clone(), &Rotated).unwrap();
            }
            cache.attend(layer, q, k, v, &rope).unwrap();
        }
        assert_eq!(cache.kept_by_head(1).unwrap(), [[17, 17], [7, 7]], "nothing yet");

        let mut pass = cache.reconstruction().unwrap().unwrap();
        let mut its_pass = itself.as_ref().map(|cache| cache.reconstruction().unwrap().unwrap());
        for (number, (part, repeats)) in self.parts.iter().zip(REPEATS).enumerate() {
            for pass in [Some(&mut pass), its_pass.as_mut()].into_iter().flatten() {
                pass.begin(number * PART..(number + 1) * PART, &repeats).unwrap();
            }
            for layer in 0..SHAPE.layers {
                let hidden: Vec<Vec<Head>> =
                    part.iter().map(|row| vec![row[layer].hidden.clone()]).collect();
                let hidden: Vec<&[Head]> = hidden.iter().map(Vec::as_slice).collect();
                let hidden = tensor(&hidden, device).squeeze_dim::<3>(1);
                let [q, k, v] = qkv(part, layer);
                if let Some(pass) = &mut its_pass {
                    pass.hidden_states(&hidden);
                    let [q, k] = [&q, &k].map(|x| rotated(&rope, x, LENGTHS, repeats));
                    pass.attend(layer, q, k, v.clone(), &Rotated).unwrap();
                }
                pass.hidden_states(&hidden);
                let found = heads(pass.attend(layer, q, k, v, &rope).unwrap());
                for (row, found) in found.into_iter().enumerate() {
                    let padding = repeats.iter().max().unwrap() - repeats[row];
                    let found: Vec<Head> =
                        found.into_iter().map(|head| head[padding..].to_vec()).collect();
                    let expected: Vec<Head> = (0..SHAPE.kv_heads)
                        .flat_map(|head| self.repeated(number, row, layer, head).outputs())
                        .collect();
                    let place = format!("part {number}, row {row}");
                    compare(&found, &expected, tolerance(DType::F32), &place);
                }
            }
        }
        let given = pass.finish();
        for (found, expected) in its_pass.into_iter().flat_map(|pass| pass.finish()).zip(&given) {
            let apart = (found - expected.clone()).abs().max().try_into_scalar::<f32>().unwrap();
            assert!(apart < 1e-6, "rotated by the model: {apart} apart");
        }
        assert_eq!(cache.tokens_seen(), LENGTHS, "a second pass leaves the cache as it is");
        (cache, given)
    }
}

/// Row by row, head by head: the positions that a layer keeps.
fn positions(cache: &KvCache) -> Vec<Vec<Vec<Vec<usize>>>> {
    let layers: Vec<_> =
        (0..SHAPE.layers).map(|layer| cache.kept_positions(layer).unwrap()).collect();
    (0..LENGTHS.len()).map(|row| layers.iter().map(|layer| layer[row].clone()).collect()).collect()
}

fn kvzip(normalize: bool, budget: Budget) -> Policy {
    let score = KvZip { tokens: PART, normalize };
    Policy::kvzip(budget).with_sinks(SINKS).with_scorer(score)
}

/// Holds what a second pass gave to `scores`, row by row, and what is left then to `kept`.
fn assert_compressed(
    cache: &mut KvCache,
    given: &[Tensor<3>],
    scores: &[Vec<Vec<Vec<f64>>>; 2],
    kept: [Vec<Vec<Vec<usize>>>; 2],
    what: &str,
) {
    for (layer, given) in given.iter().enumerate() {
        let columns = given.dims()[2];
        let given = given.clone().try_into_vec_as::<f32>().unwrap();
        for (index, found) in given.chunks(columns).enumerate() {
            let (row, head) = (index / SHAPE.kv_heads, index % SHAPE.kv_heads);
            let expected = &scores[row][layer][head];
            let found = &found[columns - LENGTHS[row]..];
            for (a, b) in found.iter().zip(expected) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{found:?}, {expected:?}");
            }
        }
    }
    let before = cache.bytes_held();
    cache.compress_by(given).unwrap();
    assert_eq!(positions(cache), kept, "{what}");
    assert!(cache.bytes_held() < before, "{} of {before}", cache.bytes_held());
}

#[test]
fn kept_tokens_are_those_of_the_reference() {
    const KEEP: usize = 4;
    for backend in backends() {
        for normalize in [false, true] {
            for mode in [PositionMode::Written, PositionMode::Deferred, PositionMode::InCache] {
                let clear = |drawn: &Drawn| {
                    (0..2).all(|row| kept(&drawn.scores(row, normalize), SINKS, KEEP).1 > 1e-3)
                };
                let drawn = (0..100).map(Drawn::new).find(clear).unwrap();
                let policy = kvzip(normalize, Budget::Tokens(KEEP)).with_positions(mode);
                let (mut cache, given) = drawn.play(policy, &backend.device);
                let scores = [0, 1].map(|row| drawn.scores(row, normalize));
                let kept = scores.each_ref().map(|scores| kept(scores, SINKS, KEEP).0);
                let what = format!("{}, {normalize}, {mode:?}", backend.name);
                assert_compressed(&mut cache, &given, &scores, kept, &what);
            }
        }
    }
}

/// Rows of different lengths read their prompts again, and share budgets out over layers by
/// themselves.
#[test]
fn composite_tokens_are_those_of_the_reference() {
    const KEEP: usize = 3;
    for backend in backends() {
        for layer_mean in [true, false] {
            for mode in [PositionMode::Written, PositionMode::Deferred] {
                let outcome = |drawn: &Drawn, row| composed(&drawn.reread(row, layer_mean), KEEP);
                let clear = |drawn: &Drawn| {
                    let counts = |row| outcome(drawn, row).0.iter().map(|x| x[0].len()).collect();
                    let counts: [Vec<usize>; 2] = [counts(0), counts(1)];
                    counts[0] != counts[1] && (0..2).all(|row| outcome(drawn, row).1 > 1e-3)
                };
                let drawn = (0..400).map(Drawn::new).find(clear).unwrap();
                let score = KvCompose { tokens: PART, layer_mean };
                let policy =
                    Policy::kvcompose(Budget::Tokens(KEEP)).with_scorer(score).with_positions(mode);
                let (mut cache, given) = drawn.play(policy, &backend.device);
                let scores = [0, 1].map(|row| drawn.reread(row, false));
                let kept = [0, 1].map(|row| outcome(&drawn, row).0);
                let what = format!("{}, {layer_mean}, {mode:?}", backend.name);
                assert_compressed(&mut cache, &given, &scores, kept, &what);
            }
        }
    }
}

/// A scorer around it, and allocators that look at one layer at a time.
#[test]
fn other_allocators_and_scorers_around_it() {
    let drawn = Drawn::new(3);
    let budget = Budget::Tokens(4);
    let compressed = |policy| {
        let (mut cache, given) = drawn.play(policy, &host());
        cache.compress_by(&given).unwrap();
        cache
    };
    let cache = compressed(kvzip(false, budget).with_allocator(Uniform {}));
    let highest = |row: usize, layer: usize, head: usize| {
        let scores = &drawn.scores(row, false)[layer][head];
        let mut order: Vec<usize> = (SINKS..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let mut kept: Vec<usize> = (0..SINKS).chain(order.into_iter().take(4 - SINKS)).collect();
        kept.sort_unstable();
        kept
    };
    for (row, layers) in positions(&cache).iter().enumerate() {
        for (layer, heads) in layers.iter().enumerate() {
            for (head, found) in heads.iter().enumerate() {
                assert_eq!(*found, highest(row, layer, head), "{row} {layer} {head}");
            }
        }
    }
    // Layers have their own budgets, heads share them.
    let shared = HeadAdaptive { floor: 0.0, ..Default::default() };
    let cache = compressed(kvzip(false, budget).with_allocator(shared));
    for layer in 0..SHAPE.layers {
        for heads in cache.kept_by_head(layer).unwrap() {
            assert_eq!(heads.iter().sum::<usize>(), 8, "{heads:?}");
        }
    }
    let critical = CriticalKv::of(KvZip { tokens: PART, normalize: false });
    let cache = compressed(kvzip(false, budget).with_scorer(critical));
    let all =
        (0..SHAPE.layers).map(|layer| cache.kept_by_head(layer).unwrap()[0].iter().sum::<usize>());
    assert_eq!(all.sum::<usize>(), 4 * SHAPE.layers * SHAPE.kv_heads);
}

#[test]
fn what_cannot_be_repeated_is_refused() {
    let device = host();
    let every = kvzip(false, Budget::Tokens(4)).with_schedule(Schedule::always(8));
    assert!(every.check().unwrap_err().to_string().contains("schedule.decode-every"));
    let lazy = LazyLayers { window: 4, threshold: 0.5 };
    let refused = kvzip(false, Budget::Tokens(4)).with_allocator(lazy).check().unwrap_err();
    assert!(
        matches!(&refused, Error::InvalidParameter { parameter: "allocate", must_be, .. }
            if must_be.contains("looks at no queries")),
        "{refused}"
    );
    let empty = KvCache::new(SHAPE, kvzip(false, Budget::Tokens(4)), &device).unwrap();
    assert!(matches!(empty.reconstruction(), Err(Error::Stage { .. })));
    let other = KvCache::new(SHAPE, Policy::snapkv(Budget::Tokens(48)), &device).unwrap();
    assert!(other.reconstruction().unwrap().is_none());

    let drawn = Drawn::new(4);
    let (mut cache, given) = drawn.play(kvzip(true, Budget::Tokens(4)), &device);
    let mut pass = cache.reconstruction().unwrap().unwrap();
    assert!(matches!(pass.begin(0..5, &[3]), Err(Error::PaddingRows { expected: 2, found: 1 })));
    assert!(matches!(pass.begin(0..5, &[3, 0]), Err(Error::EmptyPrompt { row: 1, .. })));
    pass.begin(0..5, &[3, 3]).unwrap();
    let x = |heads: usize, tokens: usize| Tensor::<4>::zeros([2, heads, tokens, 8], &device);
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 20, THETA, &device).unwrap();
    let wrong = pass.attend(0, x(4, 2), x(2, 2), x(2, 2), &rope).unwrap_err().to_string();
    assert!(wrong.contains("2 columns that no part was begun for"), "{wrong}");
    // KVzip+ without hidden states.
    let wrong = pass.attend(0, x(4, 3), x(2, 3), x(2, 3), &rope).unwrap_err().to_string();
    assert!(wrong.contains("hidden states of layer 0"), "{wrong}");
    pass.begin(0..5, &[4, 3]).unwrap();
    let short = pass.attend(0, x(4, 4), x(2, 4), x(2, 4), &rope);
    assert!(matches!(short, Err(Error::PositionOverflow { position: 20, max: 20 })), "{short:?}");
    // Scores of something else.
    let before = positions(&cache);
    assert!(matches!(cache.compress_by(&given[..1]), Err(Error::Stage { .. })));
    let narrow = vec![Tensor::<3>::zeros([2, 2, LENGTHS[0]], &device); 2];
    assert!(matches!(cache.compress_by(&narrow), Err(Error::Stage { .. })));
    assert_eq!(positions(&cache), before);
    // Once compressed there is nothing whole to repeat.
    cache.compress_by(&given).unwrap();
    assert!(matches!(cache.reconstruction(), Err(Error::Stage { .. })));
}

/// A token that is decoded before the second pass is refused, and one pass is enough for all that
/// comes.
#[test]
fn decoded_tokens_wait_for_the_second_pass() {
    let device = host();
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 64, THETA, &device).unwrap();
    let give = |cache: &mut KvCache, tokens: usize| -> briquette::Result<()> {
        let x = |heads| Tensor::<4>::ones([LENGTHS.len(), heads, tokens, SHAPE.head_dim], &device);
        let [q, k, v] = [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(x);
        (0..SHAPE.layers).try_for_each(|layer| {
            cache.attend(layer, q.clone(), k.clone(), v.clone(), &rope).map(drop)
        })
    };
    let refuses = |cache: &mut KvCache| {
        let before = (positions(cache), cache.tokens_seen());
        let error = give(cache, 1).unwrap_err();
        assert!(matches!(error, Error::SecondPassMissing { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("`kvzip`") && text.contains("KvCache::reconstruction"), "{text}");
        assert_eq!((positions(cache), cache.tokens_seen()), before);
    };
    let folder = tempfile::tempdir().unwrap();
    let reopened = |cache: &KvCache, policy: Policy| {
        let path = folder.path().join("a.prefix");
        cache.save(&path).unwrap();
        KvCache::load(&path, SHAPE, policy, CacheConfig::default(), &device).unwrap()
    };
    // In the second everything is within the budget.
    for tokens in [4, 40] {
        let policy = || kvzip(false, Budget::Tokens(tokens));
        let (mut cache, given) = Drawn::new(5).play(policy(), &device);
        refuses(&mut cache);
        refuses(&mut cache.fork());
        refuses(&mut reopened(&cache, policy()));
        let mut later = cache.fork();
        give(&mut later, 3).unwrap();
        refuses(&mut later);
        let undone = cache.transaction::<()>(|cache| {
            cache.compress_by(&given)?;
            give(cache, 1)?;
            Err(Error::Execution("undone".into()))
        });
        assert!(matches!(undone, Err(Error::Execution(_))), "{undone:?}");
        refuses(&mut cache);

        cache.compress_by(&given).unwrap();
        for mut cache in [cache.fork(), reopened(&cache, policy())] {
            [1, 5, 1].into_iter().try_for_each(|tokens| give(&mut cache, tokens)).unwrap();
        }
        cache.reset();
        give(&mut cache, 9).unwrap();
        refuses(&mut cache);
    }
    // What never compresses needs no pass.
    let kept = Policy::full().with_scorer(KvZip { tokens: PART, normalize: false });
    let mut cache = KvCache::new(SHAPE, kept, &device).unwrap();
    [9, 1].into_iter().try_for_each(|tokens| give(&mut cache, tokens)).unwrap();
}
