/// Seconds in which something was measured, by begin and end of each measurement: those that ran
/// at a time count once, and the time between two runs does not. `None` if one of them is unknown.
pub fn wall_seconds(spans: impl IntoIterator<Item = Option<[f64; 2]>>) -> Option<f64> {
    let mut spans = spans.into_iter().collect::<Option<Vec<_>>>()?;
    spans.sort_by(|[a, b], [c, d]| a.total_cmp(c).then(b.total_cmp(d)));
    let (mut wall, mut reached) = (0.0, f64::NEG_INFINITY);
    for [begin, end] in spans {
        wall += (end - begin.max(reached)).max(0.0);
        reached = end.max(reached);
    }
    Some(wall)
}

#[cfg(test)]
mod tests {
    use super::wall_seconds;

    #[test]
    fn what_runs_at_a_time_counts_once_and_a_pause_does_not() {
        let spans = [[10.0, 14.0], [12.0, 13.0], [13.0, 15.0], [100.0, 101.5]].map(Some);
        assert_eq!(wall_seconds(spans), Some(6.5));
        assert_eq!(wall_seconds(spans.into_iter().rev()), Some(6.5));
        assert_eq!(wall_seconds(spans.into_iter().chain([None])), None);
        assert_eq!(wall_seconds([]), Some(0.0));
    }
}
