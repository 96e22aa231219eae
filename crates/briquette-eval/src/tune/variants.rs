//! The parameters tried of each method.

/// Changes to the policy file of each method that are tried beside the paper's own parameters, each
/// a list of `key=value` joined by `:`. Kernels and windows matter where what is kept are islands
/// of tokens; shares where the last tokens compete with the rest; sinks and a window where a score
/// protects nothing; bits and the residual where numbers are rounded.
const VARIANTS: &[(&str, &[&str])] = &[
    ("streaming-llm", &["protect.sinks=1", "protect.sinks=16"]),
    ("h2o", &["protect.recent.share=0.25", "protect.recent.share=0.75"]),
    ("roco", &["protect.recent.tokens=32", "score.std-share=0.1"]),
    (
        "snapkv",
        &[
            "score.pool.kernel=15",
            "score.window=16:protect.recent.tokens=16",
            "score.window=16:protect.recent.tokens=16:score.pool.kernel=15",
            "score.pool.kind=max",
        ],
    ),
    ("pyramidkv", &["score.pool.kernel=15", "allocate.beta=10.0"]),
    (
        "cake",
        &["score.pool.kernel=15", "score.window=16:allocate.window=16:protect.recent.tokens=16"],
    ),
    ("adakv", &["score.pool.kernel=15", "allocate.floor=0.5"]),
    ("headkv", &["score.pool.kernel=15", "allocate.beta=2.0"]),
    ("cam", &["protect.recent.share=0.75"]),
    ("kvmerger", &["protect.recent.share=0.2286:reduce.protect=0.0571"]),
    ("d2o", &["protect.recent.heavy-to-recent=[1, 1]", "protect.recent.heavy-to-recent=[1, 3]"]),
    ("ems", &["score.pool.kernel=15", "reduce.tau=0.8"]),
    ("ems-pyramidkv", &["reduce.tau=0.8"]),
    ("compresskv", &["score.pool.kernel=15", "score.window=32:protect.recent.tokens=32"]),
    ("compresskv-adakv", &["score.pool.kernel=15:allocate.by.pool.kernel=15"]),
    ("compresskv-headkv", &["score.pool.kernel=15"]),
    (
        "compresskv-kivi",
        &[
            "score.pool.kernel=15",
            "store.bits=4",
            "score.pool.kernel=15:store.bits=4",
            "store.bits=4:store.residual=32",
        ],
    ),
    ("kivi", &["store.bits=4", "store.bits=8", "store.residual=32"]),
    ("tova", &["protect.sinks=4"]),
    (
        "knorm",
        &["protect.sinks=4:protect.recent.tokens=32", "protect.sinks=64:protect.recent.tokens=64"],
    ),
    ("keydiff", &["protect.sinks=4:protect.recent.tokens=32"]),
    ("keydiff-adakv", &["allocate.floor=0.5", "protect.sinks=4:protect.recent.tokens=32"]),
    ("lagkv", &["score.lag=32"]),
    ("curdkv", &["score.window=64"]),
    ("leverage", &["protect.sinks=4:protect.recent.tokens=32"]),
    ("non-causal", &["score.pool.kernel=15"]),
    ("compactor", &["score.attention.pool.kernel=15"]),
    ("expected-attention", &["score.epsilon=0.01"]),
    ("expected-attention-adakv", &["allocate.floor=0.5"]),
    ("capkv", &["score.tau=1.0"]),
    ("chunkkv", &["score.of.pool.kernel=15", "score.length=10"]),
    ("finch", &["score.window=64:protect.recent.tokens=64"]),
    ("r-kv", &["score.attention.pool.kernel=15", "score.lambda=0.3"]),
    ("dropkv", &["score.window=16:protect.recent.tokens=16"]),
    ("q-filter", &["protect.sinks=4:protect.recent.tokens=32"]),
    ("triattention", &["protect.recent.share=0.25"]),
    ("simlayerkv", &["allocate.threshold=0.7"]),
    ("duoattention", &["allocate.tokens=256"]),
    ("ems-needle", &["score.pool.kernel=15"]),
];

/// Methods without a parameter that decides what is kept, or under a second name.
#[cfg(test)]
const WITHOUT: [&str; 9] = [
    "full",
    "local-window",
    "random",
    "fp8",
    "kvzip",
    "kvzip-plus",
    "kvcompose",
    "kvmerger-50",
    "kvmerger-35",
];

/// The policies tried for a method, as text that names a policy: the method itself with its paper's
/// parameters, then `NAME:key=value:…`, the keys those of the policy file.
pub fn variants(method: &str) -> Vec<String> {
    let changes = VARIANTS.iter().find(|(name, _)| *name == method);
    let changes = changes.map_or(&[][..], |(_, changes)| changes);
    let changed = changes.iter().map(|change| format!("{method}:{change}"));
    std::iter::once(method.to_owned()).chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_method() {
        let methods = briquette::methods();
        for (name, changes) in VARIANTS {
            assert!(methods.iter().any(|method| method.name == *name), "{name}");
            assert!(!changes.is_empty(), "{name}");
        }
        for method in methods {
            let varied = VARIANTS.iter().any(|(name, _)| *name == method.name);
            assert!(varied != WITHOUT.contains(&method.name.as_str()), "{}", method.name);
        }
        assert_eq!(variants("local-window"), ["local-window"]);
        assert_eq!(variants("h2o")[0], "h2o");
        assert_eq!(variants("h2o").len(), 3);
    }
}
