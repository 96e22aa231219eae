//! Independent steps on several threads.

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{Error, Result};

/// Runs `work` on every item, on so many threads, and tells `done` of each result as it comes, in
/// any order, on the calling thread. After the first failure no new item is begun.
///
/// One thread is the calling one: on CUDA no other may record steps of a model that it has loaded,
/// and each launch of another waits for an event.
pub(crate) fn run<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
    mut done: impl FnMut(&T, R) -> Result<()>,
) -> Result<()> {
    let work = |item, found: &mut Found<'_, _>| found((item, work(item)?));
    run_each(items, threads, work, |(item, result)| done(item, result))
}

/// Where `work` gives its results. An error of it ends the work, and is that of the run unless an
/// earlier one is.
pub(crate) type Found<'a, R> = dyn FnMut(R) -> Result<()> + 'a;

/// As [`run`], where an item has several results, each told as it comes.
pub(crate) fn run_each<'a, T: Sync, R: Send>(
    items: &'a [T],
    threads: usize,
    work: impl Fn(&'a T, &mut Found<'_, R>) -> Result<()> + Sync,
    mut done: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    if threads.min(items.len()) < 2 {
        return items.iter().try_for_each(|item| work(item, &mut done));
    }
    let next = AtomicUsize::new(0);
    let (send, results) = mpsc::channel();
    // Nobody listens after a failure.
    let unheard = |_| Error::Setting { name: "jobs", reason: "another has failed".into() };
    let worker = |send: mpsc::Sender<_>| {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            let worked = work(item, &mut |result| send.send(Ok(result)).map_err(unheard));
            if let Err(error) = worked
                && send.send(Err(error)).is_err()
            {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            let send = send.clone();
            scope.spawn(|| worker(send));
        }
        drop(send);
        for result in results {
            done(result?)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Error {
        Error::Setting { name: "items", reason: "13".into() }
    }

    #[test]
    fn every_item_is_done_once() {
        for (threads, count) in [(0, 5), (1, 5), (4, 100), (8, 3), (3, 0)] {
            let items: Vec<usize> = (0..count).collect();
            let mut seen = Vec::new();
            let work = |item: &usize| Ok(item * item);
            run(&items, threads, work, |item, square| {
                assert_eq!(square, item * item);
                seen.push(*item);
                Ok(())
            })
            .unwrap();
            seen.sort_unstable();
            assert_eq!(seen, items);
        }
    }

    #[test]
    fn an_item_may_have_several_results() {
        for threads in [1, 3] {
            let mut seen = Vec::new();
            let work = |item: &usize, found: &mut Found<'_, usize>| {
                (0..*item).try_for_each(|_| found(*item))
            };
            run_each(&[1, 2, 0, 3], threads, work, |item| {
                seen.push(item);
                Ok(())
            })
            .unwrap();
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 2, 3, 3, 3]);
        }
    }

    #[test]
    fn a_failure_ends_it() {
        let items: Vec<usize> = (0..1000).collect();
        let work = |item: &usize| if *item == 13 { Err(failure()) } else { Ok(()) };
        assert!(run(&items, 4, work, |_, ()| Ok(())).is_err());
        let mut calls = 0;
        let done = |_: &usize, ()| {
            calls += 1;
            Err(failure())
        };
        assert!(run(&items, 1, |_| Ok(()), done).is_err());
        assert_eq!(calls, 1);
    }
}
