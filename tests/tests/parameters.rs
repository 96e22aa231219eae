//! No parameter of a policy or a cache, however large or odd, ends in a panic or asks for more
//! memory than there is: it is refused by a typed error, or it works.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
};

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, Policy, Prompt, Result, Schedule, methods,
    position::RotaryEmbedding,
};
use briquette_tests::{backends::host, named, profiles::profile};
use burn::tensor::{Device, Distribution, Tensor};
use serde_json::{Map, Value, json};

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 32 };
const ROWS: usize = 2;

/// The numbers that every parameter is set to: the ends of the integer types, and floats around
/// what they hold.
fn numbers() -> Vec<Value> {
    let whole =
        [0, 1, 2, 3, 7, 63, 1000, i32::MAX as u64, u64::from(u32::MAX), i64::MAX as u64, u64::MAX];
    let fractions = [-1.0, -0.0, 1e-308, 1e-9, 0.5, 1.5, 1e18, 1e19, 1e300, f64::MAX];
    whole.into_iter().map(Value::from).chain(fractions.into_iter().map(Value::from)).collect()
}

/// The places of all numbers of a file form.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(at),
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| places(value, format!("{at}/{key}"), found));
        }
        _ => {}
    }
}

/// A prompt with padding in two chunks, decoding, and a prompt behind it. The first error ends it.
fn play(policy: Policy, config: CacheConfig, device: &Device) -> Result<()> {
    let rope = RotaryEmbedding::new(SHAPE.head_dim, 256, 10_000.0, device)?;
    let mut cache = KvCache::with_config(SHAPE, policy, config, device)?;
    let random = |heads, tokens| {
        Tensor::random(
            [ROWS, heads, tokens, SHAPE.head_dim],
            Distribution::Normal(0.0, 1.0),
            device,
        )
    };
    let give = |cache: &mut KvCache, tokens| -> Result<()> {
        for layer in 0..SHAPE.layers {
            let (q, k, v) = (
                random(SHAPE.query_heads, tokens),
                random(SHAPE.kv_heads, tokens),
                random(SHAPE.kv_heads, tokens),
            );
            cache.attend(layer, q, k, v, &rope)?;
        }
        Ok(())
    };
    cache.begin_prompt(Prompt::new(70).left_padding(vec![0, 9]))?;
    [60, 10].into_iter().try_for_each(|tokens| give(&mut cache, tokens))?;
    (0..4).try_for_each(|_| give(&mut cache, 1))?;
    [5, 1].into_iter().try_for_each(|tokens| give(&mut cache, tokens))?;
    let _ = (cache.bytes_held(), cache.bytes_full(), cache.tokens_kept(1)?);
    Ok(())
}

/// Plays each case on two threads; the names of those that panicked.
fn panicked(cases: &[(String, Policy, CacheConfig)]) -> Vec<String> {
    let (next, found) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    let work = || {
        let device = host();
        loop {
            let case = next.lock().unwrap().next();
            let Some((name, policy, config)) = case else { break };
            let (policy, config) = (policy.clone(), config.clone());
            // A failed allocation ends the process: the last name says where.
            eprintln!("{name}");
            let played = catch_unwind(AssertUnwindSafe(|| drop(play(policy, config, &device))));
            if played.is_err() {
                found.lock().unwrap().push(name.clone());
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    found.into_inner().unwrap()
}

#[test]
fn every_parameter_of_every_method_is_refused_or_works() {
    let mut cases = Vec::new();
    for method in methods() {
        let base = named(&method.name, Budget::Tokens(48));
        let form: Value = serde_json::from_str(&base.to_json().unwrap()).unwrap();
        let mut all = Vec::new();
        places(&form, String::new(), &mut all);
        // What is left out of the file has a default.
        let mut forms: Vec<(Value, String)> =
            all.into_iter().map(|at| (form.clone(), at)).collect();
        let mut protected = form.clone();
        protected["protect"] = json!({ "sinks": 1, "recent": { "share": 0.1 } });
        forms.push((protected, "/protect/recent/share".into()));
        for (form, at) in forms {
            for number in numbers() {
                let name = format!("{}{at} = {number}", method.name);
                let mut form = form.clone();
                *form.pointer_mut(&at).unwrap() = number;
                // Most are refused here.
                if let Ok(policy) = Policy::from_json(&form.to_string()) {
                    let policy = policy.with_profile(profile(SHAPE));
                    cases.push((name, policy, CacheConfig::default()));
                }
            }
        }
    }
    assert!(cases.len() > 900, "{} cases", cases.len());
    let found = panicked(&cases);
    assert!(found.is_empty(), "{} of {} panicked: {found:#?}", found.len(), cases.len());
}

#[test]
fn every_budget_of_every_method_is_refused_or_works() {
    let budgets = [
        Budget::Tokens(1),
        Budget::Tokens(usize::MAX),
        Budget::Tokens(usize::MAX / 2),
        Budget::Ratio(f64::MIN_POSITIVE),
        Budget::Ratio(1.0),
        Budget::Ratio(f64::NAN),
        Budget::Bytes(1),
        Budget::Bytes(1_000_000_000 << 30),
        Budget::Bytes(u64::MAX),
    ];
    let schedules = [Schedule::never(), Schedule::always(1), Schedule::always(usize::MAX)];
    let mut cases = Vec::new();
    for method in methods() {
        for budget in budgets {
            let policy = named(&method.name, budget).with_profile(profile(SHAPE));
            cases.push((format!("{} at {budget}", method.name), policy.clone(), None));
            for schedule in schedules {
                let name = format!("{} at {budget}, {schedule:?}", method.name);
                cases.push((name, policy.clone().with_schedule(schedule), None));
            }
            let name = format!("{} at {budget}, capacity", method.name);
            cases.push((name, policy, Some(usize::MAX)));
        }
    }
    let config = |capacity: Option<usize>| {
        let config = CacheConfig::default();
        capacity.map_or(config.clone(), |columns| config.with_capacity(columns))
    };
    let cases: Vec<_> = cases
        .into_iter()
        .map(|(name, policy, capacity)| (name, policy, config(capacity)))
        .collect();
    let found = panicked(&cases);
    assert!(found.is_empty(), "{} of {} panicked: {found:#?}", found.len(), cases.len());
}

#[test]
fn sizes_that_no_memory_holds_are_refused() {
    let device = host();
    let shapes: [fn(&mut CacheShape); 4] = [
        |shape| shape.layers = usize::MAX,
        |shape| shape.query_heads = usize::MAX - 1,
        |shape| (shape.query_heads, shape.kv_heads) = (1 << 40, 1 << 40),
        |shape| shape.head_dim = usize::MAX,
    ];
    for change in shapes {
        let mut shape = SHAPE;
        change(&mut shape);
        let error = KvCache::new(shape, Policy::full(), &device).unwrap_err();
        assert!(matches!(error, Error::InvalidShape { .. }), "{error}");
        assert!(error.to_string().contains("at most"), "{error}");
    }
    let mut cache = KvCache::new(SHAPE, Policy::full(), &device).unwrap();
    for columns in [usize::MAX, 1 << 40] {
        let error = cache.begin_prompt(Prompt::new(columns)).unwrap_err();
        assert!(error.to_string().contains(&columns.to_string()), "{error}");
    }
    // Nothing has begun.
    cache.begin_prompt(Prompt::new(3)).unwrap();
    for capacity in [usize::MAX, 1 << 40] {
        let config = CacheConfig::default().with_capacity(capacity);
        let error = KvCache::with_config(SHAPE, Policy::full(), config, &device).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "capacity", .. }), "{error}");
    }
}

#[test]
fn other_fields_of_a_policy_file_are_refused_or_work() {
    // A file is data too: names and numbers of the wrong kind are errors.
    let form = Policy::snapkv(Budget::Tokens(48)).to_json().unwrap();
    let form: Map<String, Value> = serde_json::from_str(&form).unwrap();
    for key in form.keys() {
        for value in [json!(null), json!([]), json!({}), json!(-1), json!("\u{1b}[2J")] {
            let mut form = form.clone();
            form.insert(key.clone(), value.clone());
            let read = Policy::from_json(&Value::Object(form).to_string());
            let stays = key == "name" && value.is_string()
                || ["budget", "profile"].contains(&key.as_str()) && value.is_null()
                || key == "protect" && (value == json!({}) || value == json!([]));
            assert_eq!(read.is_ok(), stays, "{key} = {value}: {read:?}");
        }
    }
}
