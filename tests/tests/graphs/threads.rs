//! A step is recorded in one thread while others use the device: all of them give what they give
//! alone.

use std::{
    cell::Cell,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use briquette::{Budget, KvCache, Policy};
use briquette_graph::Error;
use briquette_tests::backends::{Backend, backends, records_steps};
use burn::tensor::{Device, Tensor};

use super::{BUDGET, Given, Model, given, launch, play, play_of, replay};

const STEPS: usize = 12;

/// A thread that answers later than this is taken to hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// A launched step of another thread takes less, once its kernels are compiled.
const MEANWHILE: Duration = Duration::from_millis(300);

fn h2o() -> Policy {
    Policy::h2o(Budget::Tokens(BUDGET))
}

/// A thread that works on the device, a piece at a time, when it is asked to.
struct Other {
    ask: Sender<()>,
    done: Receiver<()>,
    /// Pieces asked for that it has not said to be done.
    open: Cell<usize>,
}

impl Other {
    /// Whether all it was asked for is done within this time.
    fn is_done(&self, within: Duration) -> bool {
        while self.open.get() > 0 {
            if self.done.recv_timeout(within).is_err() {
                return false;
            }
            self.open.set(self.open.get() - 1);
        }
        true
    }

    fn ask(&self) {
        self.ask.send(()).expect("the other thread still runs");
        self.open.set(self.open.get() + 1);
    }
}

/// Launched steps of a cache of its own, each when it is asked for, and between them what a device
/// does for nobody else's steps: memory of a new size, a copy from the host, and reads.
fn other(device: &Device, asked: &Receiver<()>, done: &Sender<()>) -> Vec<Given> {
    let model = Model::new(1024, device);
    let (mut cache, mut next) = model.begin(&h2o());
    let mut found = Vec::new();
    while asked.recv_timeout(PATIENCE).is_ok() {
        let logits = model.forward(next, &mut cache).unwrap();
        next = logits.clone().argmax(1);
        found.push(given(next.clone(), logits, &cache));
        let numbers = vec![1.0_f32; 1000 << found.len().min(10)];
        let count = numbers.len() as f32;
        let sum = Tensor::<1>::from_floats(numbers.as_slice(), device).sum();
        assert_eq!(sum.try_into_scalar::<f32>().unwrap(), count);
        if done.send(()).is_err() {
            break;
        }
    }
    found
}

/// In every step, before it launches anything, the model lets another thread work. Where the step
/// is recorded, and where it is made ready for that, the other has to wait until it is done.
#[test]
fn another_thread_does_not_come_between() {
    for backend in backends() {
        let Backend { name, device } = &backend;
        let model = Model::new(1024, device);
        let (mut cache, first) = model.begin(&h2o());
        let alone = launch(&model, &mut cache, first, STEPS);
        let (asked, done) = (channel(), channel());
        let (taken, between) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let others = thread::scope(|scope| {
            let (answers, asks) = (done.0, asked.1);
            let working = scope.spawn(move || other(device, &asks, &answers));
            let other = Other { ask: asked.0, done: done.1, open: Cell::new(0) };
            let (mut cache, first) = model.begin(&h2o());
            let here = thread::current().id();
            let (counted, came, model) = (&taken, &between, &model);
            let run = move |tokens, cache: &mut KvCache| -> Result<_, Error> {
                other.ask();
                if thread::current().id() == here {
                    assert!(other.is_done(PATIENCE), "the other thread hangs");
                } else {
                    counted.fetch_add(1, Ordering::Relaxed);
                    came.fetch_add(other.is_done(MEANWHILE).into(), Ordering::Relaxed);
                }
                Ok(model.forward(tokens, cache)?)
            };
            // The other ends with the closure, which has the channels.
            let played = replay(&mut cache, first, run, &alone, false, name);
            assert_eq!(played.dropped, 0, "{name}: {played:?}");
            assert_eq!(played.replayed > 0, records_steps(name), "{name}: {played:?}");
            working.join().unwrap()
        });
        let times = if records_steps(name) { 2 } else { 0 };
        assert_eq!(
            taken.into_inner(),
            times,
            "{name}: made ready, then recorded, on the device's thread"
        );
        assert_eq!(between.into_inner(), 0, "{name}: another thread came between");
        let (mut cache, first) = model.begin(&h2o());
        let alone = launch(&model, &mut cache, first, others.len());
        assert_eq!(others, alone, "{name}, the other thread");
    }
}

/// Each thread records steps while the others launch, record, replay, and read what they got after
/// every step.
#[test]
fn two_threads_record() {
    for backend in backends() {
        let Backend { name, device } = &backend;
        let policies = [h2o(), Policy::snapkv(Budget::Tokens(BUDGET))];
        let begin = Barrier::new(policies.len());
        thread::scope(|scope| {
            let threads: Vec<_> = policies
                .iter()
                .map(|policy| {
                    scope.spawn(|| {
                        begin.wait();
                        let what = format!("{} beside another, {name}", policy.name());
                        let played = play(policy, 30, device, &what);
                        let recorded = played.replayed >= 20 && played.dropped == 0;
                        assert!(recorded || !records_steps(name), "{what}: {played:?}");
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

/// The model's tensors are another thread's. Where the device cannot record that, steps are
/// launched.
#[test]
fn a_model_of_another_thread_gives_the_same() {
    for backend in backends() {
        let Backend { name, device } = &backend;
        let model = Model::new(1024, device);
        let played = thread::scope(|scope| {
            scope.spawn(|| play_of(&model, &h2o(), STEPS, name)).join().unwrap()
        });
        let said = played.replayed > 0 || played.why.is_some();
        assert!(said, "{name}: {played:?}");
    }
}
