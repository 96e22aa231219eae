use super::{split, word_runs};

/// Lower case, without ASCII punctuation, without the articles a, an and the, with single spaces:
/// `normalize_answer` of SQuAD (Rajpurkar et al. 2016), which LongBench, CoQA, ZeroSCROLLS and
/// InfiniteBench share.
pub(in crate::metrics) fn normalize(text: &str) -> String {
    let mut text = text.to_lowercase();
    text.retain(|c| !c.is_ascii_punctuation());
    let mut kept = String::with_capacity(text.len());
    let mut end = 0;
    for word in word_runs(&text) {
        if matches!(&text[word.clone()], "a" | "an" | "the") {
            kept += &text[end..word.start];
            kept.push(' ');
            end = word.end;
        }
    }
    kept += &text[end..];
    split(&kept).collect::<Vec<_>>().join(" ")
}

/// The words of a text so normalised.
pub(in crate::metrics) fn words(text: &str) -> Vec<String> {
    split(&normalize(text)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_and_punctuation_are_dropped() {
        assert_eq!(normalize("The  U.S.A., a_an (an) «the» thé!"), "usa aan « » thé");
        assert_eq!(normalize("A.N."), "");
        assert_eq!(words("An apple\u{3000}a day"), ["apple", "day"]);
    }
}
