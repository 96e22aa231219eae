//! Chinese texts: words as jieba cuts them, and normalisation.

use std::sync::LazyLock;

use jieba_rs::Jieba;

use super::{is_space, pattern};

/// Punctuation of Chinese texts that the scorers of LongBench and InfiniteBench drop beside
/// ASCII's. `《` is not among it, as in their lists.
const PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

/// Lower case, without punctuation and white space: `normalize_zh_answer` of LongBench.
pub(in crate::metrics) fn normalize(text: &str) -> String {
    let mut text = text.to_lowercase();
    text.retain(|c| !c.is_ascii_punctuation() && !PUNCTUATION.contains(c) && !is_space(c));
    text
}

/// The words of a text, all of it: `jieba.cut(text, cut_all=False)`.
///
/// The crate `jieba-rs` knows the same words, but leaves together what has a letter, a digit or a
/// sign between two others (`a.b`, `1.2.3`) and takes rare characters for words of Chinese. So the
/// text is cut here where jieba first cuts it, and Latin words that the dictionary lacks are cut as
/// jieba cuts them.
pub(in crate::metrics) fn words(text: &str) -> Vec<&str> {
    static JIEBA: LazyLock<Jieba> = LazyLock::new(Jieba::new);
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (block, behind) = if is_block(first) {
            rest.split_at(rest.find(|c| !is_block(c)).unwrap_or(rest.len()))
        } else {
            rest.split_at(if rest.starts_with("\r\n") { 2 } else { first.len_utf8() })
        };
        rest = behind;
        if !is_block(first) {
            words.push(block);
            continue;
        }
        for token in JIEBA.cut(block, true) {
            if token.word.is_ascii() && !JIEBA.has_word(token.word) {
                cut_latin(token.word, &mut words);
            } else {
                words.push(token.word);
            }
        }
    }
    words
}

/// Characters that jieba looks for words in; each other one is a word.
fn is_block(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fd5}' | '+' | '#' | '&' | '.' | '_' | '%' | '-')
        || c.is_ascii_alphanumeric()
}

fn cut_latin<'a>(text: &'a str, words: &mut Vec<&'a str>) {
    let mut end = 0;
    for word in pattern!(r"[a-zA-Z0-9]+(?:\.[0-9]+)?%?").find_iter(text) {
        words.extend([&text[end..word.start()], word.as_str()]);
        end = word.end();
    }
    words.push(&text[end..]);
    words.retain(|word| !word.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_jieba() {
        let cut = |text| words(text).join("|");
        assert_eq!(cut("我来到北京清华大学"), "我|来到|北京|清华大学");
        assert_eq!(cut("他来到了网易杭研大厦"), "他|来到|了|网易|杭研|大厦");
        assert_eq!(
            cut("foo_bar@x.com 1.2.3，3.5%\r\n"),
            "foo|_|bar|@|x|.|com| |1.2|.|3|，|3.5%|\r\n"
        );
        assert_eq!(cut("AT&T公司"), "AT&T|公司");
        assert_eq!(cut(""), "");
    }

    #[test]
    fn punctuation_of_both_scripts_is_dropped() {
        assert_eq!(normalize("《红楼梦》，A　b！（c）."), "《红楼梦abc");
    }
}
