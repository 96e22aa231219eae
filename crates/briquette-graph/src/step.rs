use std::{collections::BTreeMap, marker::PhantomData};

use burn::tensor::{Int, Tensor};

use briquette::{KvCache, device::Upkeep, state::Replay};
use briquette_kernels::buffer::{FUSES, of_ints};
use briquette_ops::{most_likely, note_sends};

use crate::{
    Error,
    buffer::overwrite,
    pins::{Pins, State},
    recording::{Recorder, Recording},
    spare::{Before, Spare},
};

/// Tokens for which tables of positions are made ready at a time.
const AHEAD: usize = 4096;

/// Tokens for which a cache that grows makes room at a time, at least.
const ROOM: usize = 64;

/// Share of its tokens for which it makes room at a time, where nobody knows how many will come.
const SHARE: usize = 16;

/// Returns the number of tokens that a cache which grows, and holds so many, gets room for at a
/// time: in as many steps it is recorded once. Of those [expected](StepGraph::expecting) it gets
/// room for as many as it holds.
pub fn room_of(kept: usize, expected: Option<usize>) -> usize {
    let least = ROOM.max(kept / SHARE);
    match expected {
        Some(tokens) if tokens > 0 => least.max(kept).min(tokens),
        _ => least,
    }
}

/// Why a device records nothing.
const NOTHING_IS_RECORDED: &str = if FUSES {
    "operations are put off to be fused (feature `fusion`)"
} else {
    "the device has no graphs"
};

/// Steps of one kind that run before one is recorded, the last of them made ready for it.
const BEFORE: usize = 3;

/// Recordings that are dropped before no more are tried.
const TRIES: usize = 3;

/// Decodes tokens over a cache, by steps that are recorded once and replayed.
///
/// Each [`step`](Self::step) takes a token a row, gives it to the model, and takes the most likely
/// one as the next:
///
/// ```no_run
/// # use briquette::KvCache;
/// # use briquette_graph::{Error, StepGraph};
/// # use burn::tensor::{Int, Tensor};
/// # fn decode(
/// #     cache: &mut KvCache,
/// #     tokens: Tensor<2, Int>,
/// #     forward: impl Fn(Tensor<2, Int>, &mut KvCache) -> briquette::Result<Tensor<2>> + Sync,
/// # ) -> Result<(), Error> {
/// let run = |tokens, cache: &mut KvCache| Ok::<_, Error>(forward(tokens, cache)?);
/// let mut steps = StepGraph::new(cache, tokens, run);
/// for _ in 0..100 {
///     steps.step()?;
///     println!("{}", steps.tokens());
/// }
/// # Ok(())
/// # }
/// ```
///
/// A recording holds for steps that are all alike: those of a policy that compresses at every token
/// and has come to its budget, and those of one that does not compress in decoding, as long as
/// there is room in its buffers, which is made for 64 tokens or more at a time, or for [those
/// expected](Self::expecting). Of a store that packs its tokens (KIVI, FP8) those steps are
/// launched that pack some. What a recording gives is, bit for bit, what the launched step gives.
/// Others run as they are; so do all where the device has no graphs. Between steps that run as they
/// are, and as long as none is recorded, the device's memory is cleaned up now and then: without,
/// CubeCL 0.11 becomes slower with every launch.
///
/// The model may depend on nothing but the tokens and the cache: a recording repeats what it did
/// the first time, numbers on the host among it. Reading from the device in a step, or sending to
/// it, cannot be recorded. Such a recording is [dropped](Self::dropped), and its step launched.
///
/// # Other threads
/// A step that is recorded, and the one of its kind before, run on CubeCL's thread of the device,
/// and the calls of other threads to this device wait until they have. There `run` must not wait
/// for another thread that uses the device.
pub struct StepGraph<'a, R> {
    cache: &'a mut KvCache,
    run: R,
    /// The next token of each row, `[rows, 1]`, always in the same buffer.
    tokens: Tensor<2, Int>,
    logits: Option<Tensor<2>>,
    recorder: Option<Recorder>,
    pins: Pins,
    kinds: BTreeMap<u64, Kind>,
    /// The kind that is ready to be recorded, and room for what the recording may spoil.
    prepared: Option<(u64, Spare)>,
    refused: Option<String>,
    replayed: usize,
    dropped: usize,
    dropped_because: Option<String>,
    /// Whether the last step that was compared changed numbers on the host.
    is_counted_by_host: bool,
    upkeep: Upkeep,
    /// Positions that tables are ready for.
    end: usize,
    /// Tokens that are still to come, if that is known.
    expected: Option<usize>,
    /// Recordings run in the order of the thread they were made on.
    one_thread: PhantomData<*const ()>,
}

impl<R> Drop for StepGraph<'_, R> {
    fn drop(&mut self) {
        self.forget();
        self.cache.end_device_indexing();
    }
}

impl<R> StepGraph<'_, R> {
    /// Forgets all recordings, and one that is being made ready. Steps that were recorded are alike
    /// still.
    fn forget(&mut self) {
        self.kinds.retain(|_, kind| kind.recording.take().is_some());
        self.forget_prepared();
    }

    fn forget_prepared(&mut self) {
        if let (Some(_), Some(recorder)) = (self.prepared.take(), &self.recorder) {
            recorder.give_up();
        }
    }
}

/// Steps that make the same launches.
#[derive(Default)]
struct Kind {
    /// How many were launched in a row that left the cache as they found it.
    alike: usize,
    recording: Option<(Recording, Tensor<2>)>,
}

impl<'a, R, E> StepGraph<'a, R>
where
    R: FnMut(Tensor<2, Int>, &mut KvCache) -> Result<Tensor<2>, E> + Send,
    E: From<Error> + Send,
{
    /// Steps of a model from here on. `run` gives the tokens `[rows, 1]` to the model and returns
    /// its logits, `[rows, vocabulary]`; `tokens` are the first it is given.
    pub fn new(cache: &'a mut KvCache, tokens: Tensor<2, Int>, run: R) -> Self {
        let recorder = Recorder::of(&tokens.device());
        let refused = recorder.is_none().then(|| NOTHING_IS_RECORDED.to_owned());
        Self {
            cache,
            run,
            // A buffer of its own.
            tokens: tokens.add_scalar(0),
            logits: None,
            recorder,
            pins: Pins::default(),
            kinds: BTreeMap::new(),
            prepared: None,
            refused,
            replayed: 0,
            dropped: 0,
            dropped_because: None,
            is_counted_by_host: false,
            upkeep: Upkeep::default(),
            end: 0,
            expected: None,
            one_thread: PhantomData,
        }
    }

    /// So many tokens are to come: a cache that grows gets room for as many as it holds, and not
    /// for a few, so that it is recorded less often. More may come.
    pub fn expecting(mut self, tokens: usize) -> Self {
        self.expected = Some(tokens);
        self
    }

    /// Gives the next token of each row to the model, and chooses the most likely one as the one
    /// after it.
    ///
    /// # Errors
    /// The errors of `run`; [`Error::Cache`] for a token beyond the last position;
    /// [`Error::Replay`].
    pub fn step(&mut self) -> Result<(), E> {
        self.make_room()?;
        self.expected = self.expected.map(|tokens| tokens.saturating_sub(1));
        let Some(kind) = self.cache.step_kind() else { return self.launch_apart() };
        if let Some((recording, logits)) =
            self.kinds.get(&kind).and_then(|kind| kind.recording.as_ref())
        {
            self.cache.advance().map_err(Error::from)?;
            self.replay(recording)?;
            self.logits = Some(logits.clone());
            self.replayed += 1;
            return Ok(());
        }
        if self.refused.is_some() {
            return self.launch();
        }
        if let Some((_, spare)) = self.prepared.take_if(|(prepared, _)| *prepared == kind) {
            return self.record(kind, spare);
        }
        let alike = self.kinds.entry(kind).or_default().alike;
        if alike + 1 >= BEFORE && self.prepared.is_none() {
            self.prepare(kind);
        }
        self.launch_and_compare(kind)
    }

    /// The next token of each row, `[rows, 1]`.
    pub fn tokens(&self) -> Tensor<2, Int> {
        // A copy: the next step writes over the buffer.
        self.tokens.clone().add_scalar(0)
    }

    /// The logits of the last step, `[rows, vocabulary]`; `None` before the first.
    pub fn logits(&self) -> Option<Tensor<2>> {
        self.logits.clone().map(|logits| logits.mul_scalar(1.0))
    }

    /// Gives these to the model next, `[rows, 1]`, in the place of the most likely ones.
    ///
    /// # Errors
    /// [`Error::Tokens`] for another shape.
    pub fn set_tokens(&mut self, tokens: Tensor<2, Int>) -> Result<(), E> {
        let (found, expected) = (tokens.dims(), self.tokens.dims());
        if found != expected {
            return Err(Error::Tokens { found, expected }.into());
        }
        write(tokens, &mut self.tokens);
        Ok(())
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        self.cache
    }

    /// How many steps were replayed.
    pub fn replayed(&self) -> usize {
        self.replayed
    }

    /// How many recordings were dropped, their steps launched: because a step read from the device
    /// or sent to it, or because something else in the process used it meanwhile. After three, no
    /// more are tried.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Why no step is recorded, or the last recording was dropped; `None` if there is no reason
    /// yet.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.refused
            .as_deref()
            .or(self.dropped_because.as_deref())
            .or_else(|| self.cache.fallback_reason())
            .or(self.is_counted_by_host.then_some("the host counts what each step changes"))
    }

    /// Makes ready for the next tokens, when those it was ready for have come: tables of positions
    /// that reach further, and room in a cache that grows. Recordings know the old ones.
    fn make_room(&mut self) -> Result<(), Error> {
        let seen = self.cache.tokens_seen().into_iter().max().unwrap_or(0);
        if seen >= self.end {
            self.end = seen.saturating_add(AHEAD).next_power_of_two();
            self.cache.prepare_positions(self.end);
            self.forget();
        }
        if self.recorder.is_some() && self.refused.is_none() && self.cache.open_columns() == Some(0)
        {
            // A layer with a window grows no further than that.
            let windows = self.cache.config().windows.as_deref().unwrap_or_default();
            let layer = windows.iter().position(Option::is_none).unwrap_or(0);
            let kept = self.cache.tokens_kept(layer)?.into_iter().max().unwrap_or(0);
            // Recordings keep the memory of the buffers that a larger cache leaves.
            self.forget();
            self.cache.begin_device_indexing(room_of(kept, self.expected))?;
        }
        Ok(())
    }

    /// Cleans up now and then between launched steps: not while anything is recorded.
    fn keep_up(&self) {
        let recorded = self.kinds.values().any(|kind| kind.recording.is_some());
        if self.prepared.is_none() && !recorded {
            self.upkeep.call_on(self.cache.devices());
        }
    }

    /// Launches a step that is unlike others. Recordings of others stay if it leaves the tensors of
    /// the cache where they lay.
    fn launch_apart(&mut self) -> Result<(), E> {
        self.forget_prepared();
        if self.kinds.values().all(|kind| kind.recording.is_none()) {
            return self.launch();
        }
        let before = State::of(self.cache).map_err(Error::from)?;
        let Self { cache, run, tokens, pins, .. } = self;
        self.logits = Some(pinned(run, tokens, cache, pins, &before)?);
        let after = State::of(self.cache).map_err(Error::from)?;
        if before.numbers != after.numbers || !moved(&before, &after).is_empty() {
            self.forget();
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<(), E> {
        self.keep_up();
        let logits = (self.run)(self.tokens.clone(), self.cache)?;
        self.take(logits);
        Ok(())
    }

    /// Chooses the next tokens.
    fn take(&mut self, logits: Tensor<2>) {
        choose(&logits, &mut self.tokens);
        self.logits = Some(logits);
    }

    /// Launches a step, and looks at what it has moved.
    fn launch_and_compare(&mut self, kind: u64) -> Result<(), E> {
        let before = match State::of(self.cache) {
            Ok(before) => before,
            Err(error) => {
                self.give_up(error.to_string());
                return self.launch();
            }
        };
        self.keep_up();
        let Self { cache, run, tokens, pins, recorder, prepared, .. } = self;
        let is_prepared = prepared.as_ref().is_some_and(|(prepared, _)| *prepared == kind);
        let logits = match recorder.as_ref().filter(|_| is_prepared) {
            Some(recorder) => recorder
                .alone(|| pinned(run, tokens, cache, pins, &before))
                .map_err(Error::Replay)??,
            None => pinned(run, tokens, cache, pins, &before)?,
        };
        self.logits = Some(logits);
        let after = State::of(self.cache).map_err(Error::from)?;
        if after.places.iter().any(Option::is_none) {
            self.give_up("its tensors lie on no device of CubeCL's, or are fused".to_owned());
            return Ok(());
        }
        let is_alike = self.is_alike(kind, &before, &after);
        if is_prepared && !is_alike {
            self.forget_prepared();
        }
        Ok(())
    }

    /// Compares the cache before and after a step; true if the step left it as it found it.
    fn is_alike(&mut self, kind: u64, before: &State, after: &State) -> bool {
        let seen = self.kinds.entry(kind).or_default();
        self.is_counted_by_host = !after.has_tensors_of(before);
        if self.is_counted_by_host {
            // Not at its budget yet, or never there.
            seen.alike = 0;
            self.pins.clear();
            return false;
        }
        let moved = moved(before, after);
        if moved.is_empty() {
            seen.alike += 1;
            return true;
        }
        seen.alike = 0;
        self.pins.add(moved);
        false
    }

    /// Makes ready for the recording of such a step.
    fn prepare(&mut self, kind: u64) {
        let Some(recorder) = &self.recorder else { return };
        let Ok(spare) = Spare::new(self.cache, &self.tokens) else { return };
        match recorder.prepare() {
            Ok(()) => self.prepared = Some((kind, spare)),
            Err(error) => self.refused = Some(error),
        }
    }

    /// Records a step, and runs it. If it cannot be recorded it is launched, from where the cache
    /// was.
    fn record(&mut self, kind: u64, spare: Spare) -> Result<(), E> {
        let Some(before) = spare.fill(self.cache, &self.tokens).map_err(Error::from)? else {
            self.recorder.iter().for_each(Recorder::give_up);
            return self.launch();
        };
        // The host has counted the token already.
        let replayed = self.launch_recorded().and_then(|(recording, logits)| {
            self.replay(&recording).map_err(|error| error.to_string())?;
            Ok((recording, logits))
        });
        match replayed {
            Ok((recording, logits)) => {
                self.logits = Some(logits.clone());
                self.kinds.entry(kind).or_default().recording = Some((recording, logits));
                Ok(())
            }
            Err(why) => self.launch_again(before, why),
        }
    }

    fn launch_recorded(&mut self) -> Result<(Recording, Tensor<2>), String> {
        let Self { cache, run, tokens, pins, recorder, .. } = self;
        let recorder = recorder.as_ref().ok_or(NOTHING_IS_RECORDED)?;
        let before = State::of(cache).map_err(|error| error.to_string())?;
        let (recording, logits) =
            recorder.record(|| match note_sends(|| pinned(run, tokens, cache, pins, &before)) {
                (Err(_), _) => Err("the model gave an error".to_owned()),
                (Ok(_), Some(purpose)) => Err(format!("the step sent the {purpose}")),
                (Ok(logits), None) => Ok(logits),
            })?;
        let after = State::of(self.cache).map_err(|error| error.to_string())?;
        let moved = moved(&before, &after).len();
        if moved > 0 || before.numbers != after.numbers {
            return Err(format!("a recorded step moved {moved} tensors of the cache"));
        }
        Ok((recording, logits))
    }

    /// Goes back to before a recording that is dropped, and launches its step.
    fn launch_again(&mut self, before: Before, why: String) -> Result<(), E> {
        self.dropped += 1;
        match self.dropped < TRIES {
            // Older recordings know the tensors of the cache that is given up.
            true => {
                self.forget();
                self.dropped_because = Some(why);
            }
            false => self.give_up(why),
        }
        (*self.cache, self.tokens) = (before.cache, before.tokens);
        self.launch()
    }

    /// Runs a recording.
    fn replay(&self, recording: &Recording) -> Result<(), Error> {
        // SAFETY: the recording reads and writes the model's tensors, which `run` owns or borrows;
        // the cache's, which is borrowed for as long as this lives, and whose tensors lie where
        // they lay when it was recorded: what a step changes is written in place or over the pins,
        // and only `step` changes it; the tokens and logits, which are held here and only given out
        // as copies; and scratch memory, which CubeCL keeps for it. This is not `Send`.
        #[allow(unsafe_code)]
        unsafe { recording.replay() }.map_err(Error::Replay)
    }

    fn give_up(&mut self, why: String) {
        self.refused = Some(why);
        self.forget();
        self.pins.clear();
    }
}

/// Runs the model, writes what the cache has become over its pins, and chooses the next tokens.
/// `before` is the state of the cache.
fn pinned<E: From<Error>>(
    run: &mut impl FnMut(Tensor<2, Int>, &mut KvCache) -> Result<Tensor<2>, E>,
    tokens: &mut Tensor<2, Int>,
    cache: &mut KvCache,
    pins: &mut Pins,
    before: &State,
) -> Result<Tensor<2>, E> {
    pins.take(cache).map_err(Error::from)?;
    let logits = run(tokens.clone(), cache)?;
    pins.put_back(cache, before).map_err(Error::from)?;
    choose(&logits, tokens);
    Ok(logits)
}

/// Writes the most likely token of each row over the tokens.
fn choose(logits: &Tensor<2>, tokens: &mut Tensor<2, Int>) {
    write(most_likely(logits.clone()), tokens);
}

fn write(new: Tensor<2, Int>, tokens: &mut Tensor<2, Int>) {
    let new = new.cast(tokens.dtype());
    match (of_ints(tokens), of_ints(&new)) {
        (Some(target), Some(source)) => overwrite(&target, source),
        _ => *tokens = new,
    }
}

/// Which tensors lie elsewhere.
fn moved(before: &State, after: &State) -> Vec<usize> {
    let places = before.places.iter().zip(&after.places).enumerate();
    places.filter(|(_, (before, after))| before != after).map(|(number, _)| number).collect()
}
