//! A training that is stopped and continued is the one that was not.

use std::{fs, path::Path, sync::Arc};

use briquette_models::{Model, ModelConfig};
use burn::tensor::DType;
use train_ember::{
    Line, Options, Outcome, Plan, Span, Stage,
    data::{Corpus, Mixture, Tasks, Words},
    export,
    model::Layout,
    prepare, read_log, train,
};

struct Setting {
    dir: tempfile::TempDir,
    tasks: Arc<Tasks>,
    config: ModelConfig,
    text: String,
    plan: Plan,
}

fn setting() -> Setting {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = root.join("models/ember-7m");
    let dir = tempfile::tempdir().unwrap();
    let (text, data) = (dir.path().join("text"), dir.path().join("data"));
    fs::create_dir(&text).unwrap();
    let prose = include_str!("../../../crates/briquette-eval/assets/haystack.txt");
    fs::write(text.join("a.txt"), &prose[..12_000]).unwrap();
    fs::write(text.join("b.txt"), &prose[12_000..20_000]).unwrap();
    let words = fs::read_to_string(model.join("recipe/words.json")).unwrap();
    let words: Words = serde_json::from_str(&words).unwrap();
    let [train, held_out] = prepare(&text, &data, &model, &words, &["b".to_owned()], None).unwrap();
    assert!(train > 2000 && held_out > 1000, "{train} {held_out}");
    let text = fs::read_to_string(model.join("config.json"))
        .unwrap()
        .replace(r#""hidden_size": 256"#, r#""hidden_size": 32"#)
        .replace(r#""intermediate_size": 768"#, r#""intermediate_size": 48"#)
        .replace(r#""num_hidden_layers": 8"#, r#""num_hidden_layers": 2"#)
        .replace(r#""num_attention_heads": 8"#, r#""num_attention_heads": 2"#)
        .replace(r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 1"#)
        .replace(r#""head_dim": 32"#, r#""head_dim": 16"#);
    let config = ModelConfig::from_json(&text).unwrap();
    let stage = |lengths: &[usize], share| Stage {
        lengths: lengths.into(),
        step_tokens: 512,
        share,
        enough: None,
        enough_variables: None,
        probe_needles: 1,
        mixture: Mixture::default(),
    };
    let plan = Plan {
        micro_tokens: 256,
        warmup_steps: 4,
        probe_steps: 4,
        probe_samples: 2,
        stages: vec![stage(&[128], 0.4), stage(&[256, 128], 0.6)],
        ..Plan::default()
    };
    let tasks = Arc::new(Tasks::new(Arc::new(Corpus::load(&data).unwrap())).unwrap());
    Setting { dir, tasks, config, text, plan }
}

impl Setting {
    fn options(&self, out: &str) -> Options {
        Options {
            out: self.dir.path().join(out),
            span: Span::Steps(10),
            resume: false,
            change_plan: false,
            pause_after: None,
            pause_after_steps: None,
            checkpoint_seconds: 1e9,
            log_steps: 1,
            threads: 2,
            seed: 3,
            dtype: DType::F32,
            show: false,
        }
    }

    fn train(&self, options: &Options) -> anyhow::Result<Outcome> {
        let device = briquette::device::open("flex")?;
        train(&self.config, &self.plan, &self.tasks, &device, options)
    }
}

fn weights(outcome: &Outcome) -> Vec<Vec<f32>> {
    [&outcome.parameters.matrices, &outcome.parameters.norms]
        .map(|x| x.clone().into_data().try_into_vec::<f32>().unwrap())
        .into()
}

fn losses(lines: &[Line]) -> Vec<(usize, f64)> {
    let loss = |line: &Line| match line {
        Line::Steps { step, loss, .. } => Some((*step, *loss)),
        Line::Probe { .. } => None,
    };
    lines.iter().filter_map(loss).collect()
}

#[test]
fn resumed_is_as_never_stopped_to_the_bit() {
    let setting = setting();
    let never = setting.options("whole");
    let whole = setting.train(&never).unwrap();
    assert!(whole.finished && whole.position.step == 10 && whole.position.tokens == 5120);

    // Stopped in each of the two stages, with another number of threads.
    let halves = setting.options("halves");
    let first = setting.train(&Options { pause_after_steps: Some(3), ..halves.clone() }).unwrap();
    assert!(!first.finished && first.position.step == 3);
    let on = Options { resume: true, threads: 1, ..halves };
    let second = setting.train(&Options { pause_after_steps: Some(4), ..on.clone() }).unwrap();
    assert!(!second.finished && second.position.step == 7 && second.position.stage == 1);
    let third = setting.train(&on).unwrap();
    assert!(third.finished);

    assert_eq!(weights(&third), weights(&whole));
    let log = read_log(&on.out).unwrap();
    // Both as read: the last bit of a number may be another than the one written.
    assert_eq!(losses(&log), losses(&read_log(&never.out).unwrap()));
    assert_eq!(losses(&log).len(), 10);
    assert!(log.iter().any(|line| matches!(line, Line::Probe { .. })));
}

#[test]
fn a_checkpoint_is_not_overwritten_nor_missed() {
    let setting = setting();
    let options = Options { pause_after_steps: Some(1), ..setting.options("one") };
    let resume = Options { resume: true, ..options.clone() };
    let error = |options: &Options| format!("{:#}", setting.train(options).unwrap_err());
    assert!(error(&resume).contains("no checkpoint"));
    setting.train(&options).unwrap();
    assert!(error(&options).contains("--resume"));
    assert!(error(&Options { seed: 4, ..resume }).contains("seed 3"));
}

#[test]
fn another_plan_or_architecture_is_refused_by_name_unless_asked_for() {
    let mut setting = setting();
    let options = Options { pause_after_steps: Some(2), ..setting.options("plans") };
    setting.train(&options).unwrap();
    let resume = Options { resume: true, ..options };
    let error = |setting: &Setting| format!("{:#}", setting.train(&resume).unwrap_err());
    setting.plan.clip = 0.5;
    setting.plan.stages[1].lengths = vec![256];
    let refused = error(&setting);
    for part in ["clip: 1.0, 0.5", "stage 1.lengths: [256,128], [256]", "--change-plan"] {
        assert!(refused.contains(part), "{refused}");
    }
    // The same number of weights, in other heads.
    let config = setting.config.clone();
    setting.config.num_attention_heads = 4;
    setting.config.num_key_value_heads = 2;
    setting.config.head_dim = 8;
    assert!(error(&setting).contains("another architecture"));
    setting.config = config;
    let changed = Options { change_plan: true, ..resume.clone() };
    assert_eq!(setting.train(&changed).unwrap().position.step, 4);
    // The new plan is the checkpoint's now.
    assert_eq!(setting.train(&resume).unwrap().position.step, 6);
    setting.plan.stages.truncate(1);
    setting.plan.stages[0].share = 1.0;
    assert!(error(&setting).contains("stages: 2, 1"));
}

#[test]
fn what_is_exported_is_a_model_with_the_trained_weights() {
    let setting = setting();
    let options = Options { pause_after_steps: Some(2), ..setting.options("out") };
    let outcome = setting.train(&options).unwrap();
    let (data, model) = (setting.dir.path().join("data"), setting.dir.path().join("model"));
    let layout = Layout::new(&setting.config).unwrap();
    export(&setting.text, &layout, &outcome.parameters, &data, &model).unwrap();
    let device = briquette::device::open("flex").unwrap();
    let llama = Model::load(&model, &device, DType::F32).unwrap();
    assert_eq!(llama.config(), &setting.config);
    assert!(briquette_models::Tokenizer::load(&model).is_ok());
}
