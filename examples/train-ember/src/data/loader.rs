use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use anyhow::{Context, Result};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{Mixture, Tasks};
use crate::model::Batch;

/// Micro-batches ready before they are asked for, each thread.
const AHEAD: usize = 2;

/// Draws of a stage.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    /// Distinguishes the draws of a stage from those of another.
    pub(crate) stage: usize,
    /// Lengths of sequences; micro-batches take them in turn.
    pub(crate) lengths: Vec<usize>,
    /// Tokens of a micro-batch.
    pub(crate) tokens: usize,
    /// Frequency of each task.
    pub(crate) mixture: Mixture,
}

/// An endless stream of micro-batches, drawn by threads ahead of the training.
///
/// A sequence depends on the seed, the stage and its number in the stage only: whatever the number
/// of threads, and wherever a run begins again, it is the same.
#[derive(Debug)]
pub struct Loader {
    /// Each thread draws every so-many-th micro-batch.
    threads: Vec<Receiver<Result<Batch>>>,
    next: usize,
}

impl Loader {
    /// Starts drawing at micro-batch number `first`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(
        tasks: &Arc<Tasks>,
        draw: &Draw,
        seed: u64,
        first: usize,
        threads: usize,
    ) -> Result<Self> {
        let threads = threads.max(1);
        let start = |thread: usize| {
            let (sender, receiver) = sync_channel(AHEAD);
            let (tasks, draw) = (tasks.clone(), draw.clone());
            thread::Builder::new()
                .name(format!("loader-{thread}"))
                .spawn(move || {
                    deliver(&tasks, &draw, seed, (first + thread..).step_by(threads), &sender);
                })
                .context("a loader thread cannot be started")?;
            Ok(receiver)
        };
        Ok(Self { threads: (0..threads).map(start).collect::<Result<_>>()?, next: 0 })
    }

    /// The next micro-batch.
    ///
    /// # Errors
    /// If a thread has ended.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let thread = self.next;
        self.next = (thread + 1) % self.threads.len();
        self.threads[thread].recv().context("a loader thread has ended")?
    }
}

/// Draws until nobody listens.
fn deliver(
    tasks: &Tasks,
    draw: &Draw,
    seed: u64,
    numbers: impl Iterator<Item = usize>,
    sender: &SyncSender<Result<Batch>>,
) {
    for number in numbers {
        if sender.send(micro_batch(tasks, draw, seed, number)).is_err() {
            return;
        }
    }
}

fn micro_batch(tasks: &Tasks, draw: &Draw, seed: u64, number: usize) -> Result<Batch> {
    let length = draw.lengths[number % draw.lengths.len()];
    let rows = (draw.tokens / length).max(1);
    let sequences: Vec<_> = (0..rows)
        .map(|row| {
            let parts = [seed, draw.stage as u64, number as u64, row as u64];
            let drawn = tasks.draw(&mut generator(&parts), length, &draw.mixture);
            (drawn.tokens, drawn.weights)
        })
        .collect();
    Batch::new(&sequences)
}

/// A generator of its own for every combination of parts.
pub(crate) fn generator(parts: &[u64]) -> ChaCha8Rng {
    let mut seed = [0; 32];
    for (bytes, part) in seed.chunks_exact_mut(8).zip(parts) {
        bytes.copy_from_slice(&part.to_le_bytes());
    }
    ChaCha8Rng::from_seed(seed)
}
