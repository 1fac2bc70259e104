//! Where the text of kernels goes.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Where a program would print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// What `printf` in kernels writes.
    Stdout,
    /// What a failed `assert` says, as CUDA has it.
    Stderr,
}

/// Receives whole messages from any worker thread.
pub trait Output: Sync {
    fn write(&self, to: To, text: &[u8]);
}

/// Text, in the order in which it was written to each.
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

/// Throws everything away.
#[derive(Debug, Default, Clone, Copy)]
pub struct Discard;

impl Output for Discard {
    fn write(&self, _: To, _: &[u8]) {}
}

/// Keeps the last messages written: like CUDA's buffer, it overwrites the oldest ones when it is full. What does not fit at
/// all is lost.
#[derive(Debug)]
pub struct Fifo {
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    messages: VecDeque<Message>,
    /// Of messages that count.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Message {
    to: To,
    text: Vec<u8>,
    /// Of a kernel: takes room, and gives it to later ones.
    counts: bool,
}

impl Fifo {
    /// CUDA's default is 1 MiB.
    pub fn new(bytes_max: usize) -> Self {
        Fifo {
            kept: Mutex::new(Kept {
                messages: VecDeque::new(),
                bytes: 0,
                bytes_max,
            }),
        }
    }

    /// How much text is kept from now on.
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

    /// A message of ours, which no kernel's output pushes out. The caller bounds how many there are.
    pub fn report(&self, text: Vec<u8>) {
        self.kept.lock().messages.push_back(Message {
            to: To::Stdout,
            text,
            counts: false,
        });
    }
}

impl Kept {
    /// Lets the oldest messages go until so many bytes fit.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.bytes_max
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
