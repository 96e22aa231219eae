//! Small lists that are sent to the device again and again, and kept there.

use std::{any::Any, cell::RefCell, collections::HashMap, ops::Range};

use burn::tensor::{DType, Device, Int, StreamId, Tensor, TensorData, kind::Basic};

use crate::send::send;

/// Lists that are kept per purpose: enough for as many layers of a model.
const KEPT: usize = 128;

/// Requests after which a list that none of them asked for is dropped: CubeCL 0.11 goes through all
/// buffers of a page at each small allocation, so lists of a policy that is gone would slow down
/// all others.
const IDLE: u64 = 1 << 14;

/// Requests between two looks for idle lists.
const LOOK: u64 = 1 << 10;

/// Bytes of the longest list that is kept: four numbers for each of 8 heads of 4,096 rows.
const LONGEST: usize = 1 << 20;

/// A list on the device.
struct Sent {
    data: TensorData,
    device: Device,
    dtype: DType,
    /// The stream it was sent in: a recording has tensors of its own stream alone.
    stream: StreamId,
    tensor: Box<dyn Any>,
    /// Time of the last request for it.
    last_request: u64,
}

/// The lists of each purpose.
#[derive(Default)]
struct All {
    of_use: HashMap<&'static str, Vec<Sent>>,
    time: u64,
}

thread_local! {
    static ALL: RefCell<All> = RefCell::default();
}

/// Returns a list of integers of the device's own type, and sends it there only if the device does
/// not have it: layers and steps that keep as many entries tell kernels the same numbers.
///
/// The last 128 lists of each `purpose` are kept on the device, per thread and stream. A step that
/// sends nothing does not wait for the copy, and can be recorded.
///
/// # Panics
/// As [`Tensor::from_data`], if the list does not fill the dimensions.
pub fn constant_ints<const D: usize>(
    purpose: &'static str,
    list: Vec<i64>,
    dims: [usize; D],
    device: &Device,
) -> Tensor<D, Int> {
    let dtype = DType::from(device.settings().int_dtype);
    constant(purpose, TensorData::new(list, dims), device, dtype)
}

/// Returns the integers of a range, ascending.
///
/// # Panics
/// As [`constant_ints`].
pub fn counting(range: Range<usize>, device: &Device) -> Tensor<1, Int> {
    let dims = [range.len()];
    constant_ints("counting", range.map(|number| number as i64).collect(), dims, device)
}

/// Returns a list of f32 numbers, as [`constant_ints`] returns integers.
///
/// # Panics
/// As [`constant_ints`].
pub fn constant_floats<const D: usize>(
    purpose: &'static str,
    list: Vec<f32>,
    dims: [usize; D],
    device: &Device,
) -> Tensor<D> {
    constant(purpose, TensorData::new(list, dims), device, DType::F32)
}

fn constant<const D: usize, K: Basic + 'static>(
    purpose: &'static str,
    data: TensorData,
    device: &Device,
    dtype: DType,
) -> Tensor<D, K> {
    if data.bytes().len() > LONGEST {
        return send(purpose, data, (device, dtype));
    }
    let stream = StreamId::current();
    ALL.with_borrow_mut(|All { of_use, time }| {
        *time += 1;
        let now = *time;
        if now.is_multiple_of(LOOK) {
            of_use
                .values_mut()
                .for_each(|lists| lists.retain(|sent| now - sent.last_request <= IDLE));
        }
        let lists = of_use.entry(purpose).or_default();
        let known = lists
            .iter_mut()
            .filter(|sent| sent.stream == stream && sent.dtype == dtype)
            .filter(|sent| sent.device == *device && sent.data == data)
            .find_map(|sent| {
                sent.last_request = now;
                sent.tensor.downcast_ref::<Tensor<D, K>>().cloned()
            });
        known.unwrap_or_else(|| {
            let tensor: Tensor<D, K> = send(purpose, data.clone(), (device, dtype));
            if lists.len() >= KEPT
                && let Some(oldest) =
                    (0..lists.len()).min_by_key(|&place| lists[place].last_request)
            {
                lists.swap_remove(oldest);
            }
            let (device, last_request) = (device.clone(), now);
            let kept = Box::new(tensor.clone());
            lists.push(Sent { data, device, dtype, stream, tensor: kept, last_request });
            tensor
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_what_was_asked_for() {
        let device = Device::flex();
        let numbers = |x: Tensor<2, Int>| x.try_into_vec_as::<i64>().unwrap();
        for round in 0..2 {
            for first in 0..2 * KEPT as i64 {
                let list = vec![first, -1, 7];
                let wide = constant_ints("test", list.clone(), [1, 3], &device);
                let long = constant_ints("test", list.clone(), [3, 1], &device);
                assert_eq!((wide.dims(), long.dims()), ([1, 3], [3, 1]), "{round}");
                assert_eq!((numbers(wide), numbers(long)), (list.clone(), list));
            }
        }
        ALL.with_borrow(|all| assert_eq!(all.of_use["test"].len(), KEPT));
        // Lists that nobody asks for any more go.
        for number in 0..(IDLE + 2 * LOOK) as i64 {
            constant_ints("busy", vec![number % 3], [1], &device);
        }
        ALL.with_borrow(|all| {
            assert!(all.of_use["test"].is_empty());
            assert_eq!(all.of_use["busy"].len(), 3);
        });
        // Another stream gets a copy of its own.
        let sent = || ALL.with_borrow(|all| all.of_use.get("streams").map_or(0, Vec::len));
        for stream in [StreamId { value: 1 << 40 }, StreamId { value: 1 << 41 }] {
            let before = sent();
            for _ in 0..2 {
                let list = stream.executes(|| constant_ints("streams", vec![5], [1], &device));
                assert_eq!(list.try_into_vec_as::<i64>().unwrap(), [5]);
            }
            assert_eq!(sent(), before + 1);
        }
        let half = constant_floats("test", vec![0.5], [1], &device);
        assert_eq!(half.try_into_vec_as::<f32>().unwrap(), [0.5]);
    }
}
