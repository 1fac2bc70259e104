//! Output of kernels and messages of failed assertions. The driver writes them to standard output
//! and standard error, which are therefore redirected into pipes.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use outboard_api::CUresult;
use outboard_device::{Failure, log};

/// Capacity of the pipe; the reader empties it long before it is full.
const PIPE_BYTES: i32 = 1 << 20;
/// Printed text kept until it is taken; more is cut, and the cut is shown.
const TEXT_BYTES_MAX: usize = 16 << 20;
const CUT: &[u8] = b"\n[outboard: kernels printed more than is kept]\n";
const READ_BYTES: usize = 64 << 10;

/// Tracks launches that may have printed text which no wait has made the driver write out. The
/// driver writes it in calls that synchronise, which cost microseconds, so they are made only if
/// there may be text.
#[derive(Default)]
pub(super) struct Printing {
    /// Launches of kernels that may print, and of graphs that may hold some.
    launched: u64,
    written_out: Arc<AtomicU64>,
    /// Value of `written_out` when the text was last taken.
    taken: u64,
    /// The stream of all launches not written out, if it is a single one.
    stream: Option<StreamKey>,
    /// The context of all launches not written out, if it is a single one.
    context: Option<u64>,
    in_graphs: bool,
}

/// The client's numbers of a context and a stream.
pub(super) type StreamKey = (u64, u64);

/// The part of the GPU's work that a wait covers.
pub(super) enum Reach {
    Context(u64),
    Stream(StreamKey),
    /// Part of a stream.
    Part,
}

/// Text to write out after a wait.
pub(super) struct Due {
    /// The count of launches, if the wait covers all of them.
    launched: Option<u64>,
    written_out: Arc<AtomicU64>,
}

impl Printing {
    /// Counts a launch of a kernel that may print.
    pub(super) fn launches(&mut self, stream: StreamKey) {
        if !self.is_due() {
            (self.stream, self.context) = (Some(stream), Some(stream.0));
        }
        self.stream = self.stream.filter(|other| *other == stream);
        self.context = self.context.filter(|other| *other == stream.0);
        self.launched += 1;
    }

    /// Notes that a kernel that may print was captured into a graph.
    pub(super) fn captures(&mut self) {
        self.in_graphs = true;
    }

    pub(super) fn launches_graph(&mut self, stream: StreamKey) {
        if self.in_graphs {
            self.launches(stream);
        }
    }

    /// Whether anything was written out since the last call.
    pub(super) fn is_news(&mut self) -> bool {
        let written_out = self.written_out.load(Ordering::Acquire);
        std::mem::replace(&mut self.taken, written_out) < written_out
    }

    pub(super) fn is_due(&self) -> bool {
        self.launched > self.written_out.load(Ordering::Acquire)
    }

    pub(super) fn due(&self, reach: Reach) -> Option<Due> {
        let is_all = match reach {
            Reach::Context(context) => self.context == Some(context),
            Reach::Stream(stream) => self.stream == Some(stream),
            Reach::Part => false,
        };
        self.is_due().then(|| Due {
            launched: is_all.then_some(self.launched),
            written_out: self.written_out.clone(),
        })
    }
}

impl Due {
    /// Notes that the output of all launches before the wait was written out.
    pub(super) fn done(&self) {
        if let Some(launched) = self.launched {
            self.written_out.fetch_max(launched, Ordering::AcqRel);
        }
    }
}

/// Redirected standard output or standard error; restored when dropped.
pub(super) struct Captured {
    text: Arc<Mutex<Text>>,
    fd: i32,
    saved: OwnedFd,
}

/// The read end, and the bytes read from it. Readers hold the lock, so the bytes keep the pipe's
/// order.
struct Text {
    pipe: OwnedFd,
    bytes: Vec<u8>,
}

impl Captured {
    pub(super) fn stdout() -> Result<Captured, Failure> {
        Captured::capture(libc::STDOUT_FILENO)
    }

    /// Redirects standard error. This process's own log keeps going to the original stream.
    pub(super) fn stderr() -> Result<Captured, Failure> {
        log::keep(duplicate(libc::STDERR_FILENO).map_err(failed)?);
        Captured::capture(libc::STDERR_FILENO)
    }

    fn capture(fd: i32) -> Result<Captured, Failure> {
        let (read, write) = pipe().map_err(failed)?;
        flush();
        let saved = duplicate(fd).map_err(failed)?;
        replace(fd, &write).map_err(failed)?;
        let poll_end = duplicate(read.as_raw_fd()).map_err(failed)?;
        let text = Arc::new(Mutex::new(Text {
            pipe: read,
            bytes: Vec::new(),
        }));
        let shared = text.clone();
        // A thread reads the pipe, because the driver must never block on a full one.
        std::thread::Builder::new()
            .name("printed".into())
            .spawn(move || drain_until_closed(&poll_end, &shared))
            .map_err(failed)?;
        Ok(Captured { text, fd, saved })
    }

    /// Appends everything written so far.
    pub(super) fn take(&self, out: &mut Vec<u8>) {
        flush();
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.drain();
        out.append(&mut text.bytes);
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        flush();
        // Closes the last write end, which ends the reader.
        let _ = replace(self.fd, &self.saved);
    }
}

impl Text {
    /// Reads until the pipe is empty; returns whether its other end is closed.
    fn drain(&mut self) -> bool {
        let mut room = [0; READ_BYTES];
        loop {
            // SAFETY: `room` has the length said; the pipe does not block.
            let read =
                unsafe { libc::read(self.pipe.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
            match usize::try_from(read) {
                Ok(0) => return true,
                Ok(len) => self.keep(&room[..len]),
                Err(_) => return io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.bytes.len() > TEXT_BYTES_MAX {
            return;
        }
        let room = TEXT_BYTES_MAX - self.bytes.len().min(TEXT_BYTES_MAX);
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.bytes.extend_from_slice(CUT);
        }
    }
}

fn drain_until_closed(pipe: &OwnedFd, text: &Mutex<Text>) {
    loop {
        let mut poll = libc::pollfd {
            fd: pipe.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one record, as the count says.
        let ready = unsafe { libc::poll(&mut poll, 1, -1) };
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
        let closed = text.lock().unwrap_or_else(PoisonError::into_inner).drain();
        if closed {
            return;
        }
    }
}

/// Makes a pipe: a non-blocking read end and a write end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new, so nothing else owns them.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: fcntl touches no memory; a pipe smaller than asked for does as well.
    unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
    // SAFETY: fcntl touches no memory.
    if unsafe { libc::fcntl(read.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((read, write))
}

fn duplicate(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: duplicating touches no memory.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn replace(fd: i32, with: &OwnedFd) -> io::Result<()> {
    // SAFETY: dup2 touches no memory. It replaces descriptor 1 or 2, as the device's `open`
    // documents.
    match unsafe { libc::dup2(with.as_raw_fd(), fd) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Flushes the C library's streams: the driver prints through it, and it buffers text if standard
/// output is no terminal.
fn flush() {
    // SAFETY: null stands for all open streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

fn failed(error: io::Error) -> Failure {
    Failure::new(
        CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        format!("standard output or standard error cannot be led into a pipe: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_due_until_a_wait_covers_all_that_may_print() {
        let (one, other) = ((1, 0), (1, 7));
        let mut printing = Printing::default();
        assert!(printing.due(Reach::Context(1)).is_none());
        printing.launches(one);
        let due = printing.due(Reach::Stream(one)).expect("launched");
        printing.due(Reach::Part).expect("launched").done();
        printing.due(Reach::Stream(other)).expect("launched").done();
        assert!(printing.is_due(), "they were for less");
        due.done();
        assert!(!printing.is_due() && printing.is_news() && !printing.is_news());
        // Two streams: only a wait for all work will do.
        printing.launches(one);
        printing.launches(other);
        printing.due(Reach::Stream(other)).expect("launched").done();
        assert!(printing.is_due());
        let early = printing.due(Reach::Context(1)).expect("launched");
        printing.launches(one);
        early.done();
        assert!(printing.is_due(), "one came later");
        printing.due(Reach::Context(1)).expect("launched").done();
        assert!(!printing.is_due());
        printing.launches(one);
        printing.launches((2, 0));
        printing.due(Reach::Context(1)).expect("launched").done();
        assert!(printing.is_due(), "another context prints too");
        let mut printing = Printing::default();
        // Graphs count once one of them may print.
        printing.launches_graph(one);
        assert!(!printing.is_due());
        printing.captures();
        printing.launches_graph(one);
        assert!(printing.is_due());
    }
    use std::{fs::File, io::Write};

    fn text() -> (Text, File) {
        let (read, write) = pipe().expect("a pipe");
        let text = Text {
            pipe: read,
            bytes: Vec::new(),
        };
        (text, File::from(write))
    }

    #[test]
    fn draining_keeps_the_order_and_notices_the_end() {
        let (mut text, mut write) = text();
        assert!(!text.drain());
        write.write_all(b"one ").expect("room");
        assert!(!text.drain());
        write.write_all(b"two").expect("room");
        drop(write);
        assert!(text.drain());
        assert_eq!(text.bytes, b"one two");
    }

    #[test]
    fn too_much_text_is_cut_visibly_and_once() {
        let (mut text, _write) = text();
        text.keep(&vec![b'x'; TEXT_BYTES_MAX - 1]);
        text.keep(b"yz");
        text.keep(b"more");
        assert_eq!(text.bytes.len(), TEXT_BYTES_MAX + CUT.len());
        assert!(text.bytes.ends_with(CUT));
    }
}
