//! Byte streams between two processes, which say that both are there.

use std::{
    io::{Read, Result as IoResult, Write},
    net::{Shutdown, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use rustix::net::{SendFlags, send as send_now};

/// A byte stream between two processes.
pub trait Stream: Read + Write + Send + Sync + Sized + 'static {
    fn duplicate(&self) -> IoResult<Self>;
    fn end(&self, how: Shutdown) -> IoResult<()>;
    /// Limits the time that a read waits.
    fn set_patience(&self, time: Option<Duration>) -> IoResult<()>;
    /// Writes what goes in without waiting. Returns how many bytes.
    fn write_some(&self, bytes: &[u8]) -> usize;
}

fn write_some(to: impl AsFd, bytes: &[u8]) -> usize {
    send_now(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0)
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
}
