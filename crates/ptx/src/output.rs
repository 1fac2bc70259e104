//! Where the text of kernels goes.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Receives whole messages from any worker thread.
pub trait Output: Sync {
    fn write(&self, text: &[u8]);
}

/// Throws everything away.
#[derive(Debug, Default, Clone, Copy)]
pub struct Discard;

impl Output for Discard {
    fn write(&self, _: &[u8]) {}
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

    /// Everything written since the last call.
    pub fn take(&self) -> Vec<u8> {
        let mut kept = self.kept.lock();
        kept.bytes = 0;
        let messages = std::mem::take(&mut kept.messages);
        drop(kept);
        messages.into_iter().flat_map(|m| m.text).collect()
    }

    /// A message of ours, which no kernel's output pushes out. The caller bounds how many there are.
    pub fn report(&self, text: Vec<u8>) {
        let counts = false;
        self.kept
            .lock()
            .messages
            .push_back(Message { text, counts });
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
    fn write(&self, text: &[u8]) {
        let mut kept = self.kept.lock();
        if text.len() <= kept.bytes_max {
            kept.make_room(text.len());
            kept.bytes += text.len();
            kept.messages.push_back(Message {
                text: text.to_vec(),
                counts: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_keeps_the_newest_whole_messages() {
        let fifo = Fifo::new(6);
        fifo.write(b"ab");
        fifo.write(b"cd");
        fifo.write(b"efg");
        assert_eq!(fifo.take(), b"cdefg");
        fifo.write(b"ab");
        fifo.write(b"0123456789");
        fifo.write(b"cd");
        assert_eq!(fifo.take(), b"abcd", "what never fits is lost alone");
        fifo.report(b"report".to_vec());
        fifo.write(b"abc");
        fifo.write(b"def");
        fifo.write(b"ghi");
        assert_eq!(fifo.take(), b"reportdefghi");
        fifo.write(b"abcdef");
        fifo.resize(3);
        fifo.write(b"xyz");
        assert_eq!(fifo.take(), b"xyz");
        fifo.resize(0);
        fifo.write(b"x");
        fifo.write(b"");
        assert_eq!(fifo.take(), b"");
    }
}
