//! Measures the kernel's bare sockets on this machine.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("to listen");
    let a = TcpStream::connect(listener.local_addr().expect("an address")).expect("to connect");
    let (b, _) = listener.accept().expect("a peer");
    for socket in [&a, &b] {
        socket.set_nodelay(true).expect("no delay");
    }
    (a, b)
}

/// Times of round trips of `len` bytes. If spinning, both sides ask the socket until bytes arrive.
pub(crate) fn round_trips(len: usize, is_spinning: bool, span: Duration) -> Vec<Duration> {
    fn fill(socket: &mut TcpStream, bytes: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < bytes.len() {
            match socket.read(&mut bytes[filled..]) {
                Ok(0) => return false,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // On few cores the peer needs this one.
                    if outboard_link::cores::are_few() {
                        thread::yield_now();
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }
    let (mut near, mut far) = sockets();
    for socket in [&near, &far] {
        socket.set_nonblocking(is_spinning).expect("a mode");
    }
    let echo = thread::spawn(move || {
        let mut bytes = vec![0; len];
        while fill(&mut far, &mut bytes) {
            if far.write_all(&bytes).is_err() {
                break;
            }
        }
    });
    let mut bytes = vec![0; len];
    let mut times = Vec::new();
    let end = Instant::now() + span;
    while Instant::now() < end {
        let start = Instant::now();
        near.write_all(&bytes).expect("to write");
        assert!(fill(&mut near, &mut bytes));
        times.push(start.elapsed());
    }
    drop(near);
    echo.join().expect("the echo");
    times
}

/// Bytes per nanosecond over `count` connections, each with two threads and writes and reads of
/// `len` bytes.
pub(crate) fn one_way(count: usize, len: usize, span: Duration) -> f64 {
    let start = Instant::now();
    let pairs: Vec<_> = (0..count)
        .map(|_| {
            let (mut near, mut far) = sockets();
            let writer = thread::spawn(move || {
                let data = vec![1; len];
                while start.elapsed() < span {
                    near.write_all(&data).expect("to write");
                }
            });
            let reader = thread::spawn(move || {
                let mut buffers = vec![vec![0; len]; 4];
                let mut bytes = 0u64;
                loop {
                    let mut filled = 0;
                    while filled < len {
                        match far.read(&mut buffers[0][filled..]).expect("to read") {
                            0 => return bytes,
                            count => filled += count,
                        }
                    }
                    bytes += filled as u64;
                    buffers.rotate_left(1);
                }
            });
            (writer, reader)
        })
        .collect();
    let mut bytes = 0;
    for (writer, reader) in pairs {
        writer.join().expect("the writer");
        bytes += reader.join().expect("the reader");
    }
    bytes as f64 / start.elapsed().as_nanos() as f64
}

pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[times.len() * percent / 100]
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
