//! A terminal that shows no keys and keeps them.

#[cfg(unix)]
pub(crate) use unix::Quiet;

#[cfg(not(unix))]
pub(crate) use elsewhere::Quiet;

#[cfg(unix)]
mod unix {
    use std::{
        fs::File,
        io::{self, Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
        thread,
        time::{Duration, Instant},
    };

    use nix::sys::termios::{
        InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
    };
    use signal_hook::{consts::SIGTERM, low_level};

    use crate::terminal::{interrupt, typed::Typed};

    /// Asks the terminal to mark the ends of what is pasted, and not to.
    const MARK_PASTES: (&[u8], &[u8]) = (b"\x1b[?2004h", b"\x1b[?2004l");
    /// How long more of a text may take to come that comes in pieces.
    const BETWEEN_PIECES: Duration = Duration::from_millis(20);
    /// How long the end of a paste is waited for.
    const END_OF_PASTE: Duration = Duration::from_secs(2);

    /// The terminal, which does not show what is typed and hands it over key by key; Ctrl-C stays a
    /// signal. As it was before when dropped, or when the process is asked to end.
    pub(crate) struct Quiet {
        tty: File,
        before: Termios,
    }

    impl Quiet {
        /// # Errors
        /// If the terminal cannot be set.
        pub(crate) fn new() -> io::Result<Self> {
            let tty = match File::options().read(true).write(true).open("/dev/tty") {
                Ok(tty) => tty,
                Err(_) => io::stdin().as_fd().try_clone_to_owned()?.into(),
            };
            let before = tcgetattr(&tty)?;
            let quiet = Self { tty, before };
            quiet.restore_at_end()?;
            quiet.begin()?;
            Ok(quiet)
        }

        /// Makes it quiet, again behind who has set it otherwise.
        pub(crate) fn begin(&self) -> io::Result<()> {
            let mut quiet = self.before.clone();
            quiet.local_flags &= !(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::IEXTEN);
            // What was typed before Ctrl-C stays.
            quiet.local_flags |= LocalFlags::NOFLSH;
            quiet.input_flags &= !(InputFlags::ICRNL | InputFlags::INLCR | InputFlags::ISTRIP);
            // To read is to wait for nothing.
            quiet.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
            quiet.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            tcsetattr(&self.tty, SetArg::TCSANOW, &quiet)?;
            (&self.tty).write_all(MARK_PASTES.0)
        }

        /// Takes what was typed until now.
        pub(crate) fn read(&self, typed: &mut Typed) -> io::Result<bool> {
            let mut bytes = [0; 4096];
            let mut any = false;
            loop {
                match (&self.tty).read(&mut bytes) {
                    Ok(0) => return Ok(any),
                    Ok(count) => typed.push(&bytes[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
                any = true;
            }
        }

        /// Takes what was typed, and the rest of a paste that has begun.
        pub(crate) fn read_to_end(&self, typed: &mut Typed) -> io::Result<()> {
            let mut last = Instant::now();
            loop {
                if self.read(typed)? {
                    last = Instant::now();
                } else if last.elapsed() >= BETWEEN_PIECES
                    && !(typed.in_paste() && last.elapsed() < END_OF_PASTE)
                {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(1));
            }
        }

        fn restore(&self) {
            let _ = (&self.tty).write_all(MARK_PASTES.1);
            let _ = tcsetattr(&self.tty, SetArg::TCSANOW, &self.before);
        }

        /// Ends the process at a signal to end, and restores the terminal before.
        fn restore_at_end(&self) -> io::Result<()> {
            let (mut asked, signal) = UnixStream::pair()?;
            low_level::pipe::register(SIGTERM, signal)?;
            let terminal = Self { tty: self.tty.try_clone()?, before: self.before.clone() };
            thread::spawn(move || {
                let read = asked.read_exact(&mut [0]);
                terminal.restore();
                if read.is_ok() {
                    low_level::exit(interrupt::EXIT_CODE.into());
                }
            });
            Ok(())
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            self.restore();
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use std::io;

    use crate::terminal::typed::Typed;

    /// A terminal that is left as it is: what is typed waits until a line is asked for.
    pub(crate) struct Quiet;

    impl Quiet {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn begin(&self) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn read(&self, _: &mut Typed) -> io::Result<bool> {
            Ok(false)
        }

        pub(crate) fn read_to_end(&self, _: &mut Typed) -> io::Result<()> {
            Ok(())
        }
    }
}
