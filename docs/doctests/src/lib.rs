//! The pages of the book and the README, so that `cargo test --doc` compiles and runs their code.

/// Defines a module for each page, documented by the page.
macro_rules! pages {
    ($($module:ident: $path:literal,)*) => {
        /// Every page that is compiled, from `docs/src`.
        pub const PAGES: &[&str] = &[$($path),*];

        $(
            #[doc = include_str!(concat!("../../src/", $path))]
            pub mod $module {}
        )*
    };
}

pages! {
    start: "start.md",
    speed: "speed.md",
    papers: "papers.md",
    memory: "memory.md",
    troubleshooting: "troubleshooting.md",
    faq: "faq.md",
    fields: "evaluate/fields.md",
    add_to_your_model: "add-to-your-model.md",
    position_encodings: "position-encodings.md",
    prompts: "prompts.md",
    cache_settings: "cache-settings.md",
    models: "models.md",
    chat: "chat.md",
    write_a_policy: "write-a-policy.md",
    which_policy: "which-policy.md",
    methods: "methods.md",
    full: "methods/full.md",
    local_window: "methods/local-window.md",
    streaming_llm: "methods/streaming-llm.md",
    h2o: "methods/h2o.md",
    tova: "methods/tova.md",
    roco: "methods/roco.md",
    snapkv: "methods/snapkv.md",
    pyramidkv: "methods/pyramidkv.md",
    cake: "methods/cake.md",
    adakv: "methods/adakv.md",
    headkv: "methods/headkv.md",
    cam: "methods/cam.md",
    kvmerger: "methods/kvmerger.md",
    d2o: "methods/d2o.md",
    ems: "methods/ems.md",
    compresskv: "methods/compresskv.md",
    kivi: "methods/kivi.md",
    random: "methods/random.md",
    knorm: "methods/knorm.md",
    keydiff: "methods/keydiff.md",
    lagkv: "methods/lagkv.md",
    curdkv: "methods/curdkv.md",
    leverage: "methods/leverage.md",
    non_causal: "methods/non-causal.md",
    compactor: "methods/compactor.md",
    expected_attention: "methods/expected-attention.md",
    capkv: "methods/capkv.md",
    chunkkv: "methods/chunkkv.md",
    finch: "methods/finch.md",
    r_kv: "methods/r-kv.md",
    kvzip: "methods/kvzip.md",
    kvcompose: "methods/kvcompose.md",
    dropkv: "methods/dropkv.md",
    q_filter: "methods/q-filter.md",
    triattention: "methods/triattention.md",
    simlayerkv: "methods/simlayerkv.md",
    duoattention: "methods/duoattention.md",
    fp8: "methods/fp8.md",
    sparse_prefill: "methods/sparse-prefill.md",
    think: "methods/think.md",
    turboquant: "methods/turboquant.md",
    combinations: "methods/combinations.md",
    prefixes: "prefixes.md",
    recorded_steps: "recorded-steps.md",
    readings: "readings.md",
    backends: "backends.md",
    kernels: "kernels.md",
    evaluate: "evaluate.md",
    evaluate_runs: "evaluate/runs.md",
    evaluate_report: "evaluate/report.md",
    evaluate_tasks_generated: "evaluate/tasks-generated.md",
    evaluate_tasks_files: "evaluate/tasks-files.md",
    evaluate_metrics: "evaluate/metrics.md",
    evaluate_fidelity: "evaluate/fidelity.md",
    evaluate_tune: "evaluate/tune.md",
    how_it_is_built: "how-it-is-built.md",
    glossary: "glossary.md",
    test_it: "test-it.md",
    leaderboard: "leaderboard.md",
    reliability: "reliability.md",
    what_does_not_work_yet: "what-does-not-work-yet.md",
}

#[doc = include_str!("../../../README.md")]
pub mod readme {}
