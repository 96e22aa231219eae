use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::Result;

/// Values that several units need: each is made by the first unit that asks for it, while others
/// that need it wait, and dropped when the last is done.
pub(super) struct Shared<K, T> {
    slots: BTreeMap<K, Mutex<Slot<T>>>,
}

struct Slot<T> {
    value: Option<(Arc<T>, f64)>,
    /// Units that have not asked yet.
    left: usize,
}

impl<K: Ord, T> Shared<K, T> {
    /// For units that need these, one each.
    pub(super) fn new(needed: impl IntoIterator<Item = K>) -> Self {
        let mut slots = BTreeMap::new();
        for key in needed {
            let slot =
                slots.entry(key).or_insert_with(|| Mutex::new(Slot { value: None, left: 0 }));
            slot.get_mut().unwrap_or_else(PoisonError::into_inner).left += 1;
        }
        Self { slots }
    }

    /// The value for one unit, which asks once, and the seconds that another has spent on it in
    /// this one's place: below zero where it waited for longer than that.
    pub(super) fn take(&self, key: &K, make: impl FnOnce() -> Result<T>) -> Result<(Arc<T>, f64)> {
        let start = Instant::now();
        let Some(slot) = self.slots.get(key) else { return Ok((Arc::new(make()?), 0.0)) };
        let mut slot: MutexGuard<'_, Slot<T>> = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = start.elapsed().as_secs_f64();
        slot.left = slot.left.saturating_sub(1);
        let (value, saved) = match slot.value.take() {
            Some((value, took)) => ((value, took), took - waited),
            None => {
                let start = Instant::now();
                let value = Arc::new(make()?);
                ((value, start.elapsed().as_secs_f64()), -waited)
            }
        };
        if slot.left > 0 {
            slot.value = Some(value.clone());
        }
        Ok((value.0, saved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_value_is_made_once_and_dropped_after_its_last_unit() {
        let shared = Shared::new(["a", "b", "a", "a"]);
        let mut made = 0;
        let mut take = || {
            let value = shared.take(&"a", || {
                made += 1;
                Ok(String::from("value"))
            });
            value.unwrap().0
        };
        let first = take();
        let second = take();
        // Both, and the slot.
        assert_eq!((Arc::strong_count(&first), second.as_str()), (3, "value"));
        let third = take();
        assert_eq!((Arc::strong_count(&third), made), (3, 1));
    }

    #[test]
    fn a_failure_is_tried_again_by_the_next() {
        let shared = Shared::new([1, 1]);
        let fail = || Err(Error::Setting { name: "x", reason: "y".into() });
        assert!(shared.take(&1, fail).is_err());
        assert_eq!(*shared.take(&1, || Ok(7)).unwrap().0, 7);
    }

    #[test]
    fn what_another_spent_is_told() {
        let shared = Shared::new(["a", "a"]);
        let slow = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            Ok(())
        };
        let (_, first) = shared.take(&"a", slow).unwrap();
        let (_, second) = shared.take(&"a", slow).unwrap();
        assert!(first <= 0.0 && second > 0.049, "{first} {second}");
    }
}
