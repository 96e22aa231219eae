//! PyramidKV: an arithmetic decrease from the first layer to the last.

use super::apportion;

/// Entries that each layer keeps beyond the protected ones, `[layers]`: `body` in the mean, at most
/// `room`.
pub fn bodies(layers: usize, body: usize, room: usize, beta: f64) -> Vec<usize> {
    let (body_of_all, body, room) = (layers * body, body as f64, room as f64);
    let mut low = body / beta;
    let mut high = 2.0 * body - low;
    if high > room {
        high = room;
        low = 2.0 * body - high;
    }
    let of_layer = |layer: usize| match layers {
        1 => body,
        _ => high - layer as f64 * (high - low) / (layers - 1) as f64,
    };
    let weights: Vec<f64> = (0..layers).map(of_layer).collect();
    apportion(body_of_all, &weights, &vec![0; layers], &vec![room as usize; layers]).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_layer_in_three_layers() {
        // Low 10/5 = 2, high 20 − 2 = 18.
        assert_eq!(bodies(3, 10, 40, 5.0), [18, 10, 2]);
        // No more than 14 are there, so no fewer than 6.
        assert_eq!(bodies(3, 10, 14, 5.0), [14, 10, 6]);
        assert_eq!(bodies(1, 10, 40, 5.0), [10]);
        assert_eq!(bodies(2, 10, 40, 1.0), [10, 10]);
    }

    #[test]
    fn steps_that_are_not_whole() {
        // 19.5 13.17 6.83 0.5: of 2 left by 19 + 13 + 6 + 0, one goes to 6.83, one to the first
        // half.
        assert_eq!(bodies(4, 10, 40, 20.0), [20, 13, 7, 0]);
    }
}
