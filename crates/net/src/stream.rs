//! Byte streams between two processes, which say that both are there.

use std::{
    io::{ErrorKind, Read, Result as IoResult, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use libc::c_int;
use rustix::net::{SendFlags, send as send_now};

/// Most time that one read waits. The kernel rounds a socket's time up by an eighth.
const PATIENCE_MAX: Duration = Duration::from_millis(50);

/// A byte stream between two processes.
pub trait Stream: Read + Write + Send + Sync + Sized + 'static {
    fn duplicate(&self) -> IoResult<Self>;
    fn end(&self, how: Shutdown) -> IoResult<()>;
    /// Limits the time that a read waits.
    fn set_patience(&self, time: Option<Duration>) -> IoResult<()>;
    /// Writes what goes in without waiting. Returns how many bytes.
    fn write_some(&self, bytes: &[u8]) -> usize;
    /// Bytes that were written and that the other end has not taken.
    fn untaken(&self) -> usize;
}

fn write_some(to: impl AsFd, bytes: &[u8]) -> usize {
    send_now(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0)
}

fn untaken(of: &impl AsRawFd) -> usize {
    let mut count: c_int = 0;
    // SAFETY: the call writes one number. Without one the count stays 0.
    unsafe { libc::ioctl(of.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    count.max(0) as usize
}

/// Reads all these bytes before the deadline, however slowly they come. The stream's patience is
/// what it leaves then: the caller sets it.
pub(crate) fn read_by<S: Stream>(mut stream: &S, into: &mut [u8], deadline: Instant) -> IoResult<()>
where
    for<'a> &'a S: Read,
{
    let mut got = 0;
    while got < into.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_patience(Some(left.min(PATIENCE_MAX)))?;
        match stream.read(&mut into[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Stream for TcpStream {
    fn duplicate(&self) -> IoResult<Self> {
        self.try_clone()
    }

    fn end(&self, how: Shutdown) -> IoResult<()> {
        self.shutdown(how)
    }

    fn set_patience(&self, time: Option<Duration>) -> IoResult<()> {
        self.set_read_timeout(time)
    }

    fn write_some(&self, bytes: &[u8]) -> usize {
        write_some(self, bytes)
    }

    fn untaken(&self) -> usize {
        untaken(self)
    }
}

impl Stream for UnixStream {
    fn duplicate(&self) -> IoResult<Self> {
        self.try_clone()
    }

    fn end(&self, how: Shutdown) -> IoResult<()> {
        self.shutdown(how)
    }

    fn set_patience(&self, time: Option<Duration>) -> IoResult<()> {
        self.set_read_timeout(time)
    }

    fn write_some(&self, bytes: &[u8]) -> usize {
        write_some(self, bytes)
    }

    fn untaken(&self) -> usize {
        untaken(self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        net::TcpListener,
        thread::{sleep, spawn},
    };

    use super::*;

    /// A connection to a process that says one byte after the other, without end.
    pub(crate) fn trickling() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut there = listener.accept().unwrap().0;
        spawn(move || {
            while there.write_all(&[0]).is_ok() {
                sleep(Duration::from_millis(20));
            }
        });
        here
    }

    /// A deadline before 32 bytes of such a process have come.
    pub(crate) fn soon() -> Instant {
        Instant::now() + Duration::from_millis(200)
    }

    /// A stream on which nothing comes, and how long it was waited for at a time.
    #[derive(Default)]
    struct Silent(parking_lot::Mutex<Vec<Duration>>);

    impl Read for &Silent {
        fn read(&mut self, _: &mut [u8]) -> IoResult<usize> {
            sleep(Duration::from_millis(1));
            Err(ErrorKind::WouldBlock.into())
        }
    }

    impl Read for Silent {
        fn read(&mut self, into: &mut [u8]) -> IoResult<usize> {
            (&*self).read(into)
        }
    }

    impl Write for Silent {
        fn write(&mut self, from: &[u8]) -> IoResult<usize> {
            Ok(from.len())
        }

        fn flush(&mut self) -> IoResult<()> {
            Ok(())
        }
    }

    impl Stream for Silent {
        fn duplicate(&self) -> IoResult<Self> {
            Ok(Silent::default())
        }

        fn end(&self, _: Shutdown) -> IoResult<()> {
            Ok(())
        }

        fn set_patience(&self, time: Option<Duration>) -> IoResult<()> {
            self.0.lock().extend(time);
            Ok(())
        }

        fn write_some(&self, bytes: &[u8]) -> usize {
            bytes.len()
        }

        fn untaken(&self) -> usize {
            0
        }
    }

    /// Of 30 s the kernel makes up to 32, of a twentieth of a second nothing that matters.
    #[test]
    fn a_long_wait_is_made_of_short_ones_that_end_with_the_clock() {
        let silent = Silent::default();
        let late = read_by(&silent, &mut [0; 32], soon()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let waits = silent.0.lock();
        assert!(waits.len() > 1 && waits.iter().all(|wait| *wait <= PATIENCE_MAX));
    }

    #[test]
    fn bytes_that_trickle_are_waited_for_until_the_deadline_alone() {
        let late = read_by(&trickling(), &mut [0; 32], soon()).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let deadline = Instant::now() + Duration::from_secs(60);
        read_by(&trickling(), &mut [0; 3], deadline).unwrap();
    }
}
