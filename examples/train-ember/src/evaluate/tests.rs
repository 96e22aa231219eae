use std::{fs, path::Path, sync::Arc};

use burn::tensor::{DType, Device, Distribution, Tensor};

use super::*;
use crate::{
    data::{Corpus, Words},
    export, import,
    model::Parameters,
};

/// Added to every weight of the damaged checkpoint, at most.
const NOISE: f64 = 0.06;

fn answer(tokens: &[u32]) -> Drawn {
    let count = tokens.len();
    Drawn { tokens: tokens.to_vec(), weights: vec![0.0; count], answer: 1..count - 1 }
}

#[test]
fn an_answer_counts_by_its_digits_and_by_its_end() {
    let mut tally = Tally::default();
    let drawn = answer(&[9, 4, 5, 6, END]);
    tally.add(&drawn, &[4, 5, 6], true);
    tally.add(&drawn, &[4, 5, 6], false);
    tally.add(&drawn, &[4, 0, 6], true);
    tally.add(&drawn, &[4], true);
    let expected = Accuracy { exact: 0.5, ended: 0.25, digits: 9.0 / 12.0, samples: 4 };
    assert_eq!(tally.accuracy(), expected);
}

/// On the checkpoint of this repository, and on one damaged by noise, which answers wrong at times.
#[test]
fn what_is_right_with_the_answer_fed_is_what_greedy_decoding_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m");
    let device = Device::flex();
    let words = fs::read_to_string(folder.join("recipe/words.json")).unwrap();
    let words: Words = serde_json::from_str(&words).unwrap();
    let prose = include_str!("../../../../crates/briquette-eval/assets/haystack.txt");
    let dir = tempfile::tempdir().unwrap();
    let (text, data) = (dir.path().join("text"), dir.path().join("data"));
    fs::create_dir(&text).unwrap();
    fs::write(text.join("a.txt"), &prose[..9000]).unwrap();
    fs::write(text.join("b.txt"), &prose[9000..18_000]).unwrap();
    crate::prepare(&text, &data, &folder, &words, &["b".to_owned()], None).unwrap();
    let tasks = Tasks::new(Arc::new(Corpus::load(&data).unwrap())).unwrap();

    let (layout, whole) = import(&folder, &device).unwrap();
    let noise = |x: &Tensor<1>| x.random_like(Distribution::Uniform(-NOISE, NOISE));
    device.seed(5);
    let damaged =
        Parameters { matrices: whole.matrices.clone() + noise(&whole.matrices), ..whole.clone() };
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    let damaged_folder = dir.path().join("damaged");
    export(&config, &layout, &damaged, &data, &damaged_folder).unwrap();
    let (_, damaged) = import(&damaged_folder, &device).unwrap();
    let body = Body::new(&layout, 256, DType::F32, &device);
    let mut wrong = 0;
    // And how many at least are right.
    for (folder, parameters, least) in [(folder, whole, 0.75), (damaged_folder, damaged, 0.0)] {
        let weights = Weights::new(&layout, &parameters, DType::F32);
        let model = Model::load(&folder, &device, DType::F32).unwrap();
        for question in [Question::Needle(1), Question::Variable] {
            let asked = questions(&tasks, question, 256, 8, 7).unwrap();
            let fed = accuracy(&body, &weights, &asked).unwrap();
            let written = greedy(&model, &asked).unwrap();
            println!("{question:?}: {fed:?}");
            assert_eq!(fed.exact, written.exact, "{question:?}");
            assert_eq!(fed.ended, written.ended, "{question:?}");
            assert!(fed.digits >= written.digits, "{} and {}", fed.digits, written.digits);
            assert!(fed.exact >= least, "{question:?}: {fed:?}");
            wrong += usize::from(fed.exact < 1.0 && fed.digits > 0.0);
        }
    }
    assert!(wrong > 0, "both checkpoints answer everything");
}
