//! Keys from a terminal, one by one.

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Enter,
    Back,
    /// The user or the system wants the program to end.
    Stop,
}

/// The terminal, which passes keys on at once while this lives.
pub(super) struct Keyboard {
    /// Settings to return to; `None` if standard input is no terminal.
    before: Option<Termios>,
    is_stopped: Arc<AtomicBool>,
}

impl Keyboard {
    pub(super) fn open() -> io::Result<Keyboard> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&is_stopped))?;
        }
        let stdin = io::stdin();
        let before = match stdin.is_terminal() && io::stdout().is_terminal() {
            true => Some(tcgetattr(&stdin)?),
            false => None,
        };
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        }
        Ok(Keyboard { before, is_stopped })
    }

    /// Returns the terminal's width.
    pub(super) fn columns(&self) -> Option<usize> {
        let size = tcgetwinsize(io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// Waits for a key; `None` if none has come until the deadline.
    pub(super) fn key(&mut self, deadline: Instant) -> io::Result<Option<Key>> {
        loop {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Ok(Some(Key::Stop));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if self.before.is_none() {
                // A signal that has come is seen within this time.
                thread::sleep(left.min(Duration::from_millis(100)));
                continue;
            }
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let limit = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut fds, Some(&limit)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut byte = [0];
            let key = match rustix::io::read(&stdin, &mut byte)? {
                0 => Some(Key::Stop),
                _ => key_of(byte[0]),
            };
            if key.is_some() {
                return Ok(key);
            }
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
            println!();
        }
    }
}

fn key_of(byte: u8) -> Option<Key> {
    match byte {
        // Ctrl-C, Ctrl-D.
        3 | 4 => Some(Key::Stop),
        b'\r' | b'\n' => Some(Key::Enter),
        8 | 127 => Some(Key::Back),
        byte if byte.is_ascii_graphic() => Some(Key::Letter(char::from(byte))),
        _ => None,
    }
}
