/// The beginning of a value in a message: it may be as long as its file.
pub(crate) fn shown(value: impl ToString) -> String {
    const MOST: usize = 200;
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}
