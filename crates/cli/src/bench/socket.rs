//! Cost of a plain tcp connection over loopback on this machine: the least that a tcp link can
//! cost.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use outboard_link::cores;

use super::cases::{RawExchange, Receiver};

pub(super) const PING_BYTES: usize = 64;
/// Part of a large transfer that is passed to the kernel, or requested of it, at once.
const CHUNK_BYTES: usize = 1 << 20;
const WARM_UP_ROUND_TRIPS: usize = 100;
/// Silence after which a connection of this process with itself counts as broken, in milliseconds.
const SILENCE_MS_MAX: u64 = 10_000;

/// Returns the nanoseconds of each exchange, until there are `samples` or the time is used up.
pub(super) fn measure(raw: RawExchange, samples: usize, budget: Duration) -> io::Result<Vec<f64>> {
    let (receiver, shape) = match raw {
        RawExchange::RoundTrip { receiver } => {
            (receiver, (PING_BYTES, PING_BYTES, WARM_UP_ROUND_TRIPS))
        }
        RawExchange::OneWay { bytes } => (Receiver::Usual, (bytes, 1, 1)),
    };
    let is_busy = match receiver {
        Receiver::Blocking => false,
        Receiver::Busy => true,
        Receiver::Usual => !cores::are_few(),
    };
    exchange(shape, is_busy, samples, budget)
}

fn exchange(
    (there, back, warm_up): (usize, usize, usize),
    is_busy: bool,
    samples: usize,
    budget: Duration,
) -> io::Result<Vec<f64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(is_busy)?;
        stream.set_read_timeout(Some(Duration::from_millis(SILENCE_MS_MAX)))?;
        stream.set_write_timeout(Some(Duration::from_millis(SILENCE_MS_MAX)))?;
    }
    thread::scope(|scope| {
        let echo = scope.spawn(move || -> io::Result<()> {
            let mut room = vec![0; there.clamp(back, CHUNK_BYTES.max(back))];
            let answer = vec![1; back];
            while receive(&mut far, there, &mut room)? {
                send(&mut far, back, &answer)?;
            }
            Ok(())
        });
        let out = vec![1; there.min(CHUNK_BYTES)];
        let mut room = vec![0; back];
        let mut once = || -> io::Result<()> {
            send(&mut near, there, &out)?;
            match receive(&mut near, back, &mut room)? {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let mut times = Vec::new();
        let result = (|| {
            (0..warm_up).try_for_each(|_| once())?;
            let deadline = Instant::now() + budget;
            while times.len() < samples && (times.is_empty() || Instant::now() < deadline) {
                let start = Instant::now();
                once()?;
                times.push(start.elapsed().as_nanos() as f64);
            }
            Ok(times)
        })();
        let _ = near.shutdown(Shutdown::Both);
        match echo.join() {
            Ok(echoed) => result.and_then(|times| echoed.map(|()| times)),
            Err(_) => Err(io::Error::other("the echo panicked")),
        }
    })
}

fn send(stream: &mut TcpStream, bytes: usize, data: &[u8]) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        left -= patiently(|| stream.write(&data[..left.min(data.len())]))?;
    }
    Ok(())
}

/// Receives `bytes` bytes. Returns false if the peer has finished instead.
fn receive(stream: &mut TcpStream, bytes: usize, room: &mut [u8]) -> io::Result<bool> {
    let mut left = bytes;
    while left > 0 {
        let want = left.min(room.len());
        match patiently(|| stream.read(&mut room[..want]))? {
            0 => return Ok(false),
            count => left -= count,
        }
    }
    Ok(true)
}

/// Retries while the socket would have to wait. A blocking socket only retries after its own
/// timeout.
fn patiently(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut deadline = None;
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let silence = Duration::from_millis(SILENCE_MS_MAX);
                if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + silence) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                if cores::are_few() {
                    thread::yield_now();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exchange_ends_and_takes_time() {
        let raws = [Receiver::Blocking, Receiver::Busy, Receiver::Usual]
            .map(|receiver| RawExchange::RoundTrip { receiver })
            .into_iter()
            .chain([4, 3 << 20].map(|bytes| RawExchange::OneWay { bytes }));
        for raw in raws {
            let times = measure(raw, 5, Duration::from_secs(5)).unwrap();
            assert_eq!(times.len(), 5, "{raw:?}");
            assert!(times.iter().all(|ns| *ns > 0.0), "{raw:?}: {times:?}");
        }
    }

    #[test]
    fn one_sample_is_taken_however_short_the_time() {
        let raw = RawExchange::OneWay { bytes: 1 << 20 };
        assert_eq!(measure(raw, 100, Duration::ZERO).unwrap().len(), 1);
    }
}
