//! Destinations of kernels' text.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The stream that a program would print to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Text of `printf` in kernels.
    Stdout,
    /// Messages of failed `assert`s, as in CUDA.
    Stderr,
}

/// Receives whole messages from any worker thread.
pub trait Output: Sync {
    fn write(&self, to: To, text: &[u8]);
}

/// Text by stream, each in the order in which it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Printed {
    pub fn append(&mut self, to: To, text: &[u8]) {
        match to {
            To::Stdout => self.stdout.extend_from_slice(text),
            To::Stderr => self.stderr.extend_from_slice(text),
        }
    }
}

/// Discards everything.
#[derive(Debug, Default, Clone, Copy)]
pub struct Discard;

impl Output for Discard {
    fn write(&self, _: To, _: &[u8]) {}
}

/// Messages that are kept at most, however short they are.
const MESSAGES_MAX: usize = 1 << 18;

/// Keeps the last messages written. Like CUDA's buffer it overwrites the oldest ones when full; a
/// message longer than the buffer is lost.
#[derive(Debug)]
pub struct Fifo {
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    messages: VecDeque<Message>,
    /// Bytes of messages that count.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Message {
    to: To,
    text: Vec<u8>,
    /// Whether it is a kernel's message, which takes room and may be overwritten.
    counts: bool,
}

impl Fifo {
    /// Makes a buffer; CUDA's default is 1 MiB.
    pub fn new(bytes_max: usize) -> Self {
        Fifo {
            kept: Mutex::new(Kept {
                messages: VecDeque::new(),
                bytes: 0,
                bytes_max,
            }),
        }
    }

    /// Sets the bytes of text kept from now on.
    pub fn resize(&self, bytes_max: usize) {
        let mut kept = self.kept.lock();
        kept.bytes_max = bytes_max;
        kept.make_room(0);
    }

    /// Appends everything written since the last call.
    pub fn take(&self, out: &mut Printed) {
        let mut kept = self.kept.lock();
        kept.bytes = 0;
        let messages = std::mem::take(&mut kept.messages);
        drop(kept);
        for message in messages {
            out.append(message.to, &message.text);
        }
    }

    /// Adds a message of the device itself, which kernels' output never overwrites. The caller
    /// limits their number.
    pub fn report(&self, text: Vec<u8>) {
        self.kept.lock().messages.push_back(Message {
            to: To::Stdout,
            text,
            counts: false,
        });
    }
}

impl Kept {
    /// Removes the oldest messages until `bytes` fit, and this process may use so many more.
    fn make_room(&mut self, bytes: usize) {
        while (self.bytes + bytes > self.bytes_max
            || self.messages.len() >= MESSAGES_MAX
            || outboard_budget::reserve(bytes as u64).is_err())
            && let Some(oldest) = self.messages.iter().position(|m| m.counts)
            && let Some(gone) = self.messages.remove(oldest)
        {
            self.bytes -= gone.text.len();
        }
    }
}

impl Output for Fifo {
    fn write(&self, to: To, text: &[u8]) {
        let mut kept = self.kept.lock();
        if text.len() <= kept.bytes_max {
            kept.make_room(text.len());
            kept.bytes += text.len();
            kept.messages.push_back(Message {
                to,
                text: text.to_vec(),
                counts: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(fifo: &Fifo) -> Vec<u8> {
        let mut printed = Printed::default();
        fifo.take(&mut printed);
        assert!(printed.stderr.is_empty());
        printed.stdout
    }

    #[test]
    fn fifo_keeps_the_newest_whole_messages() {
        let fifo = Fifo::new(6);
        let print = |text: &[u8]| fifo.write(To::Stdout, text);
        print(b"ab");
        print(b"cd");
        print(b"efg");
        assert_eq!(taken(&fifo), b"cdefg");
        print(b"ab");
        print(b"0123456789");
        print(b"cd");
        assert_eq!(taken(&fifo), b"abcd", "what never fits is lost alone");
        fifo.report(b"report".to_vec());
        print(b"abc");
        print(b"def");
        print(b"ghi");
        assert_eq!(taken(&fifo), b"reportdefghi");
        print(b"abcdef");
        fifo.resize(3);
        print(b"xyz");
        assert_eq!(taken(&fifo), b"xyz");
        fifo.resize(0);
        print(b"x");
        print(b"");
        assert_eq!(taken(&fifo), b"");
    }

    #[test]
    fn what_goes_to_standard_error_is_kept_apart() {
        let (fifo, mut printed) = (Fifo::new(8), Printed::default());
        fifo.write(To::Stdout, b"ab");
        fifo.write(To::Stderr, b"cd");
        fifo.write(To::Stdout, b"ef");
        fifo.take(&mut printed);
        assert_eq!(
            (printed.stdout.as_slice(), printed.stderr.as_slice()),
            (&b"abef"[..], &b"cd"[..])
        );
    }
}
