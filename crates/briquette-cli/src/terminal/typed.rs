//! Keys that were pressed while nobody asked for a line.

/// The longest escape sequence, which is told from a text.
const SEQUENCE: usize = 32;

/// Text made of the bytes that a terminal sends: of single keys and of pastes, whose ends it marks.
/// Ends of lines are text. A backspace takes a character away; keys that write none are ignored.
#[derive(Debug, Default)]
pub(crate) struct Typed {
    text: Vec<u8>,
    at: At,
    in_paste: bool,
}

/// The place in what the terminal sends.
#[derive(Debug, Default)]
enum At {
    #[default]
    Text,
    /// Behind an escape.
    Escape,
    /// Behind `ESC O`, of which one more byte comes.
    Key,
    /// Behind `ESC [`.
    Sequence(Vec<u8>),
}

impl Typed {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.at = self.next(*byte);
        }
    }

    /// Whether the end of a paste is still to come.
    pub(crate) fn in_paste(&self) -> bool {
        self.in_paste
    }

    /// Takes the text so far, without ends of lines at its end.
    pub(crate) fn take(&mut self) -> String {
        let text = std::mem::take(self).text;
        let text = String::from_utf8_lossy(&text).replace("\r\n", "\n").replace('\r', "\n");
        text.trim_end_matches('\n').to_owned()
    }

    fn next(&mut self, byte: u8) -> At {
        match std::mem::take(&mut self.at) {
            At::Text => self.character(byte),
            At::Escape => match byte {
                0x1b => At::Escape,
                b'[' => At::Sequence(Vec::new()),
                b'O' => At::Key,
                _ => At::Text,
            },
            At::Key => At::Text,
            At::Sequence(mut sequence) => {
                sequence.push(byte);
                match byte {
                    0x40..=0x7e => {
                        match &sequence[..] {
                            b"200~" => self.in_paste = true,
                            b"201~" => self.in_paste = false,
                            _ => {}
                        }
                        At::Text
                    }
                    _ if sequence.len() == SEQUENCE => At::Text,
                    _ => At::Sequence(sequence),
                }
            }
        }
    }

    fn character(&mut self, byte: u8) -> At {
        match byte {
            0x1b => return At::Escape,
            0x08 | 0x7f if !self.in_paste => {
                // The first byte of a character is none that continues one.
                while self.text.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            b'\t' | b'\n' | b'\r' => self.text.push(byte),
            _ if byte.is_ascii_control() => {}
            _ => self.text.push(byte),
        }
        At::Text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&[u8]]) -> String {
        let mut typed = Typed::default();
        for piece in pieces {
            typed.push(piece);
        }
        typed.take()
    }

    #[test]
    fn keys_are_their_text() {
        assert_eq!(typed(&[b"what is ", b"gravity?\r"]), "what is gravity?");
        assert_eq!(typed(&[b"one\rtwo\n\nthree\r\nfour\n"]), "one\ntwo\n\nthree\nfour");
        assert_eq!(typed(&["a\u{e9}\u{1f642}\x7f\x08b".as_bytes()]), "ab");
        assert_eq!(typed(&[b"\x7f\x7fa"]), "a");
        // Arrows, a function key, Alt, Ctrl-D and Ctrl-L, in pieces.
        assert_eq!(typed(&[b"a\x1b[A\x1bOPb", b"\x1b", b"[1;5", b"Cc\x1bd\x04\x0ce"]), "abce");
    }

    #[test]
    fn a_paste_is_known_by_its_ends() {
        let mut typed = Typed::default();
        typed.push(b"a \x1b[200~one\rtwo\t\x7f");
        assert!(typed.in_paste());
        typed.push(b"three\r\x1b[20");
        assert!(typed.in_paste());
        typed.push(b"1~ b\r");
        assert!(!typed.in_paste());
        assert_eq!(typed.take(), "a one\ntwo\tthree\n b");
        assert_eq!(typed.take(), "");
    }
}
