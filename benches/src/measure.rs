//! Times calls on a device.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use burn::{
    backend::{Backend, Dispatch},
    tensor::{Device, ProfileDuration, ProfileOptions, TimingMethod, capture},
};

/// The result of a call, kept so that nobody skips its computation.
pub type Kept = Box<dyn Any + Send>;

/// A call on the n-th set of inputs.
pub type Call<'a> = dyn Fn(usize) -> Result<Kept> + Sync + 'a;

/// Keeps the result of a call.
pub fn keep<T: Send + 'static>(value: T) -> Result<Kept> {
    Ok(Box::new(value))
}

/// Thoroughness of timings.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// A window of back-to-back calls lasts about this long.
    pub window: Duration,
    /// All windows together last about this long.
    pub all: Duration,
    /// Calls of one window at most.
    pub calls: usize,
    /// Windows at least.
    pub windows: usize,
    /// Calls before the first window.
    pub warm_up: usize,
}

impl Effort {
    /// The effort behind published numbers.
    pub const FULL: Self = Self {
        window: Duration::from_millis(30),
        all: Duration::from_millis(900),
        calls: 300,
        windows: 5,
        warm_up: 5,
    };
    /// Whether it runs at all.
    pub const QUICK: Self = Self {
        window: Duration::from_millis(1),
        all: Duration::from_millis(10),
        calls: 3,
        windows: 3,
        warm_up: 1,
    };
}

/// Milliseconds per call: medians over windows of back-to-back calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// The first call ever, compiling and tuning included, until the device is done.
    pub first: f64,
    /// Time on the device's own clock, from the beginning of a window to its end; on a device
    /// without one, as `call`.
    pub device: f64,
    /// Time on the host's clock, from the first call of a window until the device is done with the
    /// last.
    pub call: f64,
    /// Time on the device's clock, replayed as a graph, where the device can.
    pub graph: Option<f64>,
    /// The lowest and the highest `device` of a window.
    pub range: (f64, f64),
}

/// Times `call` on `sets` sets of inputs in turn.
///
/// # Errors
/// What the call returns, or what the device says.
pub fn time(device: &Device, effort: Effort, sets: usize, call: &Call<'_>) -> Result<Timing> {
    let started = Instant::now();
    run(device, call, 0)?;
    device.sync()?;
    let first = milliseconds(started.elapsed());
    for set in 0..effort.warm_up.max(sets) {
        run(device, call, set % sets)?;
    }
    device.sync()?;

    // Two estimates: the first still pays for what the warm-up has queued.
    let mut once = Duration::ZERO;
    for set in 0..2 {
        let started = Instant::now();
        run(device, call, set % sets)?;
        device.sync()?;
        once = started.elapsed().max(Duration::from_nanos(500));
    }
    let fits = |time: Duration, part: Duration| (time.as_secs_f64() / part.as_secs_f64()) as usize;
    let calls = fits(effort.window, once).clamp(1, effort.calls).next_multiple_of(sets);
    let windows = fits(effort.all, once * calls as u32).clamp(effort.windows, 30);

    let (mut of_device, mut of_host) = (Vec::new(), Vec::new());
    for _ in 0..windows {
        let (on_device, on_host) =
            window(device, || (0..calls).try_for_each(|index| run(device, call, index % sets)))?;
        of_host.push(on_host / calls as f64);
        of_device.push(on_device.unwrap_or(on_host) / calls as f64);
    }
    let range = range(&of_device);
    let [device, call] = [of_device, of_host].map(median);
    Ok(Timing { first, device, call, graph: None, range })
}

/// Times by how much `with` takes longer than `without`, in windows that alternate, so that drift
/// cancels. Also returns the whole time of `with`.
///
/// # Errors
/// What the calls return, or what the device says.
pub fn time_difference(
    device: &Device,
    effort: Effort,
    with: &Call<'_>,
    without: &Call<'_>,
) -> Result<(Timing, f64)> {
    let started = Instant::now();
    run(device, with, 0)?;
    device.sync()?;
    let first = milliseconds(started.elapsed());
    run(device, without, 0)?;
    let (_, about) = window(device, || run(device, with, 0))?;
    let calls = ((effort.window.as_secs_f64() * 1e3 / about) as usize).clamp(1, effort.calls);
    let pairs = (effort.all.as_secs_f64() * 1e3 / (2.0 * about * calls as f64)) as usize;
    let (mut of_device, mut of_host) = (Vec::new(), Vec::new());
    for _ in 0..pairs.clamp(3, 15) {
        let all = |call: &Call<'_>| {
            let (on_device, on_host) =
                window(device, || (0..calls).try_for_each(|_| run(device, call, 0)))?;
            anyhow::Ok((on_device.unwrap_or(on_host), on_host))
        };
        let (with, without) = (all(with)?, all(without)?);
        of_device.push((with.0 - without.0) / calls as f64);
        of_host.push((with.1 - without.1) / calls as f64);
    }
    let range = range(&of_device);
    let [of_device, of_host] = [of_device, of_host].map(median);
    Ok((Timing { first, device: of_device, call: of_host, graph: None, range }, about))
}

/// Captures calls as a graph and times its replays: milliseconds per call. `about` is the time of a
/// launched one.
///
/// # Errors
/// If the device has no graphs, if the calls cannot be captured because they read from the device
/// or write to it, or if they are so long that launches do not count.
pub fn time_graph(
    device: &Device,
    effort: Effort,
    sets: usize,
    about: f64,
    call: &Call<'_>,
) -> Result<f64> {
    if about > 10.0 {
        bail!("one call takes {about:.0} ms: launches do not count");
    }
    // Short calls come several to a graph, so that the gap between replays does not count.
    let calls = if sets > 1 {
        sets
    } else if about > 1.0 {
        1
    } else {
        10
    };
    let all = || -> Result<Vec<Kept>> { (0..calls).map(|index| call(index % sets)).collect() };
    let captured = catch_unwind(AssertUnwindSafe(|| capture(device, all)));
    let Ok(mut graph) = captured else {
        // Or everything that follows would be recorded and never run.
        drop(Dispatch::graph_stop_capture(device.as_dispatch()));
        device.sync()?;
        bail!("a call panicked while it was captured");
    };
    if let Err(error) = graph.output() {
        bail!("a call failed while it was captured: {error:#}");
    }
    if !graph.is_hardware() {
        bail!("the device did not capture it as a graph");
    }
    let mut replay = |times: usize| {
        for _ in 0..times {
            // SAFETY: the inputs are borrowed by `call`, which outlives the graph; the outputs are
            // held by the graph; nothing else runs on this device, and every window ends with a
            // sync.
            #[allow(unsafe_code)]
            let _ = unsafe { graph.replay() };
        }
        Ok(())
    };
    window(device, || replay(1))?;
    let (_, once) = window(device, || replay(1))?;
    let replays = (effort.window.as_secs_f64() * 1e3 / once.max(1e-3)) as usize;
    let replays = replays.clamp(1, effort.calls);
    let mut times = Vec::new();
    for _ in 0..effort.windows.max(if effort.calls > 10 { 15 } else { 1 }) {
        let (on_device, on_host) = window(device, || replay(replays))?;
        times.push(on_device.unwrap_or(on_host) / (replays * calls) as f64);
    }
    Ok(median(times))
}

/// One call, whose result is dropped once it has been handed to the device.
fn run(device: &Device, call: &Call<'_>, set: usize) -> Result<()> {
    let kept = call(set)?;
    if cfg!(feature = "fusion") {
        // What is put off and then dropped is never run.
        device.flush()?;
    }
    drop(kept);
    Ok(())
}

/// Milliseconds that `work` takes on the device's own clock, if it has one, and on the host's until
/// the device is done.
fn window(device: &Device, work: impl FnOnce() -> Result<()> + Send) -> Result<(Option<f64>, f64)> {
    device.sync()?;
    let started = Instant::now();
    let (done, profile) = device.profile_with(ProfileOptions::default().flush(), work)?;
    device.sync()?;
    let on_host = milliseconds(started.elapsed());
    done?;
    let on_device = match profile.timing_method() {
        TimingMethod::Device => resolve(profile),
        TimingMethod::System => None,
    };
    Ok((on_device, on_host))
}

/// Waits for a measurement.
fn resolve(profile: ProfileDuration) -> Option<f64> {
    let mut future = pin!(profile.resolve());
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(ticks) = future.as_mut().poll(&mut context) {
            return ticks.map(|ticks| milliseconds(ticks.duration()));
        }
        std::thread::yield_now();
    }
}

/// The median, the lower of the two in the middle.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

fn range(numbers: &[f64]) -> (f64, f64) {
    numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &number| {
        (low.min(number), high.max(number))
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
