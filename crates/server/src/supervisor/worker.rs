//! A worker: one process, one client.

use std::{
    io::{self, Read, Write},
    os::{fd::RawFd, unix::net::UnixStream},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Link, Stream, Wait};
use outboard_wire::{
    handshake::{ClientHello, HandshakeError, Purpose},
    limits::HANDSHAKE_MS_MAX,
};
use tracing::{debug, info, info_span, warn};

use super::{
    devices::{self, DeviceOptions},
    inherit, limits,
};
use crate::{
    device::Device,
    images::ImageStore,
    session::{
        self, End, Tally,
        handshake::{self, Error},
    },
};

/// What the supervisor tells a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The client's socket, and the way back to the supervisor.
    pub fd: RawFd,
    pub control: RawFd,
    pub session: u64,
    pub device: DeviceOptions,
    /// Where module images are kept between sessions.
    pub cache: Option<PathBuf>,
}

/// Serves one client. An error is the server's trouble; a client's misbehaviour is only logged.
pub fn run_worker(options: WorkerOptions) -> io::Result<()> {
    let _span = info_span!("session", id = options.session).entered();
    let mut stream = Stream::try_from(inherit::take(options.fd)?).map_err(io::Error::other)?;
    let mut control = UnixStream::from(inherit::take(options.control)?);
    let peer = match stream.peer() {
        Ok(peer) => peer.to_string(),
        Err(error) => error.to_string(),
    };
    let welcomed = shake_hands(&mut stream, &mut control, &options)
        .and_then(|(hello, device)| Ok((hello, device, stream.into_link_server()?)));
    drop(control);
    let (hello, device, link) = match welcomed {
        Ok(welcomed) => welcomed,
        Err(error) => return turned_away(&peer, &error),
    };
    let program: String = hello
        .program
        .chars()
        .take(limits::PROGRAM_CHARS_MAX)
        .collect();
    match hello.purpose {
        Purpose::Session => info!(%peer, pid = hello.pid, ?program, "begins"),
        purpose => debug!(%peer, pid = hello.pid, ?program, ?purpose, "begins"),
    }
    match device {
        Some(mut device) => {
            serve(&mut *device, link, hello.purpose, options.cache);
            give_back(device);
        }
        None => part(link),
    }
    Ok(())
}

/// The hello is answered when this returns. A greeting gets no device.
fn shake_hands(
    stream: &mut Stream,
    control: &mut UnixStream,
    options: &WorkerOptions,
) -> Result<(ClientHello, Option<Box<dyn Device>>), Error> {
    let timeout = Duration::from_millis(HANDSHAKE_MS_MAX);
    let hello = handshake::read_hello(stream, Instant::now() + timeout)?;
    let welcomed = ask_for_a_place(control, hello.purpose, timeout).and_then(|()| {
        let mut device = match hello.purpose {
            Purpose::Greeting => None,
            Purpose::Session | Purpose::Query => Some(devices::open(&options.device)?),
        };
        let welcome = handshake::welcome(device.as_deref_mut(), options.session, hello.purpose)?;
        Ok((device, welcome))
    });
    match welcomed {
        Ok((device, welcome)) => {
            handshake::send_welcome(stream, &welcome, Instant::now() + timeout)?;
            Ok((hello, device))
        }
        Err(error) => {
            handshake::refuse(stream, &error.to_string());
            Err(error)
        }
    }
}

fn ask_for_a_place(
    control: &mut UnixStream,
    purpose: Purpose,
    timeout: Duration,
) -> Result<(), Error> {
    let lost = |e: io::Error| Error::Refused(format!("the server is stopping ({e})"));
    let question = match purpose {
        Purpose::Session => limits::ASK_SESSION,
        Purpose::Query | Purpose::Greeting => limits::ASK_QUERY,
    };
    control.set_read_timeout(Some(timeout)).map_err(lost)?;
    control.write_all(&[question]).map_err(lost)?;
    let mut answer = Vec::new();
    control.read_to_end(&mut answer).map_err(lost)?;
    match answer.split_first() {
        Some((&limits::ANSWER_YES, [])) => Ok(()),
        Some((&limits::ANSWER_NO, why)) => {
            Err(Error::Refused(String::from_utf8_lossy(why).into_owned()))
        }
        _ => Err(Error::Refused("the server is stopping".into())),
    }
}

fn turned_away(peer: &str, error: &Error) -> io::Result<()> {
    match error {
        // A port scan, or a client that changed its mind.
        Error::Link(error) => debug!(peer, %error, "no session"),
        Error::Handshake(error @ HandshakeError::NotOutboard { .. }) => {
            info!(peer, %error, "no session")
        }
        error => warn!(peer, %error, "no session"),
    }
    match error {
        Error::Device(failure) => Err(io::Error::other(failure.to_string())),
        _ => Ok(()),
    }
}

fn serve(device: &mut dyn Device, link: Link, purpose: Purpose, cache: Option<PathBuf>) {
    let start = Instant::now();
    let (end, tally) = session::serve(device, link, purpose, ImageStore::new(cache));
    let total = tally.total();
    let seconds = start.elapsed().as_secs_f64();
    match (&end, purpose) {
        (End::ClientLeft, Purpose::Session) => info!("ended after {seconds:.3} s: {total}"),
        (End::ClientLeft, _) => debug!("ended after {seconds:.3} s: {total}"),
        (end, _) => warn!("ended after {seconds:.3} s, because {end}: {total}"),
    }
    report(&tally);
}

fn report(tally: &Tally) {
    for (name, op) in tally.by_name() {
        debug!("{name}: {op}");
    }
}

/// The client has what it wanted to know, and leaves.
fn part(link: Link) {
    let (_sender, mut receiver) = link.split();
    let until = Instant::now() + Duration::from_millis(limits::GREETING_MS_MAX);
    // Whatever it says instead is not listened to.
    let _ = receiver.recv(Wait::Until(until));
}

/// What the device cannot give back in time, the end of the process will.
fn give_back(device: Box<dyn Device>) {
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(limits::GIVE_BACK_MS_MAX));
        warn!("the device does not come to an end; the worker exits without it");
        std::process::exit(0);
    });
    drop(device);
}
