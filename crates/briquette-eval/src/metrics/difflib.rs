//! The ratio of Python's `difflib.SequenceMatcher` (Ratcliff and Metzener 1988).

use std::collections::HashMap;

/// 2 · matches / both lengths, in characters. Matches are those of the longest common block, and of
/// the longest common blocks on either side of it, and so on. In a text `b` of 200 characters or
/// more those that make up more than a hundredth of it begin no block ("popular" ones). 1 for two
/// empty texts.
pub(super) fn ratio(a: &str, b: &str) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    let places = places(&b);
    let mut matches = 0;
    let mut queue = vec![(0, a.len(), 0, b.len())];
    while let Some((a_from, a_to, b_from, b_to)) = queue.pop() {
        let (i, j, size) = longest(&a, &b, &places, (a_from, a_to, b_from, b_to));
        if size > 0 {
            matches += size;
            queue.push((a_from, i, b_from, j));
            queue.push((i + size, a_to, j + size, b_to));
        }
    }
    2.0 * matches as f64 / (a.len() + b.len()) as f64
}

/// Places of each character in `b`, in order, without the popular ones.
fn places(b: &[char]) -> HashMap<char, Vec<usize>> {
    let mut places: HashMap<char, Vec<usize>> = HashMap::new();
    for (j, &c) in b.iter().enumerate() {
        places.entry(c).or_default().push(j);
    }
    if b.len() >= 200 {
        places.retain(|_, at| at.len() <= b.len() / 100 + 1);
    }
    places
}

/// The first longest block within these bounds: where it begins in `a` and in `b`, and its length.
fn longest(
    a: &[char],
    b: &[char],
    places: &HashMap<char, Vec<usize>>,
    (a_from, a_to, b_from, b_to): (usize, usize, usize, usize),
) -> (usize, usize, usize) {
    let (mut best_a, mut best_b, mut size) = (a_from, b_from, 0);
    // Lengths of the blocks that end at the last character of `a` looked at, by their end in `b`.
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for (i, c) in a.iter().enumerate().take(a_to).skip(a_from) {
        let mut next = HashMap::new();
        let at = places.get(c).map_or(&[][..], Vec::as_slice);
        for &j in at.iter().filter(|j| (b_from..b_to).contains(*j)) {
            let before = j.checked_sub(1).and_then(|j| ending.get(&j)).copied().unwrap_or(0);
            next.insert(j, before + 1);
            if before + 1 > size {
                (best_a, best_b, size) = (i - before, j - before, before + 1);
            }
        }
        ending = next;
    }
    // Popular characters lengthen a block on both sides.
    while best_a > a_from && best_b > b_from && a[best_a - 1] == b[best_b - 1] {
        (best_a, best_b, size) = (best_a - 1, best_b - 1, size + 1);
    }
    while best_a + size < a_to && best_b + size < b_to && a[best_a + size] == b[best_b + size] {
        size += 1;
    }
    (best_a, best_b, size)
}
