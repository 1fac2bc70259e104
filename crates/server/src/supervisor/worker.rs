//! A worker: one process for one client.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Link, RdmaOptions, Stream, Wait, emulated::Clock};
use outboard_wire::{
    handshake::{ClientHello, HandshakeError, Purpose, ServerWelcome, encode_hello},
    limits::HANDSHAKE_MS_MAX,
};
use tracing::{debug, info, info_span, warn};

use super::{
    devices::{self, DeviceOptions},
    inherit, limits, pass_fd,
    reporter::{self, Reporter},
};
use crate::{
    device::{Device, Failure},
    images::ImageStore,
    session::{
        self, End, MessageStats,
        handshake::{self, Error},
    },
};

/// The settings that the supervisor passes to a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The connection to the supervisor.
    pub control: RawFd,
    /// The client's socket and its session; without them the worker is a spare.
    pub client: Option<(RawFd, u64)>,
    /// Options for the adapter, if the client's link is rdma.
    pub rdma: Option<RdmaOptions>,
    /// A file with the management library's constant answers about the devices.
    pub facts: Option<RawFd>,
    pub device: DeviceOptions,
    /// Folder that keeps module images between sessions.
    pub cache: Option<PathBuf>,
}

/// Process names in `ps` and `top`, by which a spare can be told from a worker with a client.
const NAME_WORKER: &str = "outboard-worker";
const NAME_SPARE: &str = "outboard-spare";

/// Texts for a client that uses the wrong kind of address: first for one that does not want RDMA,
/// then for one that does.
const WRONG_LINK: [&str; 2] = [
    "this port is that of an rdma:// address, not of a tcp:// one",
    "this port is that of a tcp:// address, not of an rdma:// one",
];

/// Serves one client. The error is a failure of the server; a client's misbehaviour is only logged.
pub fn run_worker(options: WorkerOptions) -> io::Result<()> {
    let control = UnixStream::from(inherit::take(options.control)?);
    match options.client {
        Some((fd, session)) => run_fresh(&options, control, fd, session),
        None => run_spare(&options, control),
    }
}

/// Serves the client for which this worker was started, reading its hello before a device is
/// opened.
fn run_fresh(
    options: &WorkerOptions,
    mut control: UnixStream,
    fd: RawFd,
    session: u64,
) -> io::Result<()> {
    name(NAME_WORKER);
    let _span = info_span!("session", id = session).entered();
    let mut stream = stream_of(inherit::take(fd)?, options.rdma.clone())?;
    let peer = peer(&stream);
    let timeout = Duration::from_millis(HANDSHAKE_MS_MAX);
    let greeted = handshake::read_hello(&mut stream, Instant::now() + timeout);
    let hello = match greeted {
        Ok(hello) => hello,
        Err(error) => return turned_away(&peer, &error),
    };
    if hello.is_rdma != stream.rdma().is_some() {
        let error = Error::Refused(WRONG_LINK[usize::from(hello.is_rdma)].into());
        handshake::refuse(&mut stream, &error.to_string());
        return turned_away(&peer, &error);
    }
    if let Some(emulation) = &hello.emulation
        && let Err(error) = Clock::compare(&emulation.clock)
    {
        let error = Error::Refused(error.to_string());
        handshake::refuse(&mut stream, &error.to_string());
        return turned_away(&peer, &error);
    }
    let spares_to_come = match ask_supervisor(&mut control, hello.purpose, timeout) {
        Ok(WorkerChoice::Here { spares_to_come }) => spares_to_come,
        Ok(WorkerChoice::WithSpare(channel)) => {
            if hand_over(channel, &stream, &hello) {
                return Ok(());
            }
            // All wanted spares, this one too, have yet to come; the exact number matters little
            // here.
            control.write_all(&[limits::KEPT])?;
            1
        }
        Err(error) => {
            handshake::refuse(&mut stream, &error.to_string());
            return turned_away(&peer, &error);
        }
    };
    drop(control);
    let client = Client {
        stream,
        hello,
        peer,
        session,
        spares_to_come,
    };
    let opened = match client.hello.purpose {
        Purpose::Greeting => Ok(None),
        Purpose::Management => {
            let facts = options.facts.map(inherit::take).transpose()?;
            Ok(Some(
                Box::new(Reporter::new(&options.device, facts)) as Box<dyn Device>
            ))
        }
        Purpose::Session | Purpose::Query => devices::open(&options.device, false).map(Some),
    };
    let welcomed = opened.and_then(|mut device| {
        let welcome = client.welcome(device.as_deref_mut(), options)?;
        Ok((device, welcome))
    });
    match welcomed {
        Ok((device, welcome)) => client.serve(device, &welcome, options),
        Err(failure) => client.turn_away(failure.into()),
    }
}

/// Opens the device ahead of time, then waits for a client whose hello another worker has read.
fn run_spare(options: &WorkerOptions, mut control: UnixStream) -> io::Result<()> {
    name(NAME_SPARE);
    let span = info_span!("spare").entered();
    let mut device = devices::open(&options.device, true)
        .and_then(|mut device| device.prepare().map(|()| device))
        .map_err(io::Error::other)?;
    let facts = device
        .nvml_facts()
        .map_err(io::Error::other)
        .and_then(|document| reporter::seal_facts(&document));
    match facts {
        Ok(facts) => pass_fd::send(&control, &[limits::SPARE_READY], facts.as_fd())?,
        Err(error) => {
            debug!(%error, "the management library says nothing");
            control.write_all(&[limits::SPARE_READY])?;
        }
    }
    let mut word = [0; SPARE_TAKE_BYTES];
    let (len, channel) = pass_fd::receive(&control, &mut word)?;
    let Some(channel) = channel else {
        // The server has gone, or is stopping.
        return Ok(());
    };
    let [limits::SPARE_TAKE, session @ .., spares_to_come] = word else {
        return Err(io::Error::other("the supervisor's word is none"));
    };
    if len < word.len() {
        return Err(io::Error::other("the supervisor's word is cut"));
    }
    drop((control, span));
    name(NAME_WORKER);
    let session = u64::from_le_bytes(session);
    let _span = info_span!("session", id = session).entered();
    let mut channel = UnixStream::from(channel);
    let Some((stream, hello)) = receive_client(&channel)? else {
        debug!("the client left before the spare had it");
        return Ok(());
    };
    let client = Client {
        peer: peer(&stream),
        stream,
        hello,
        session,
        spares_to_come,
    };
    // Fails if the GPU was lost meanwhile: the channel then closes, and the other worker opens the
    // device anew.
    let welcome = client
        .welcome(Some(&mut *device), options)
        .map_err(io::Error::other)?;
    channel.write_all(&[limits::CHANNEL_DONE])?;
    drop(channel);
    client.serve(Some(device), &welcome, options)
}

/// Length of the supervisor's message to a spare: its kind, the session, the number of spares to
/// come.
const SPARE_TAKE_BYTES: usize = 1 + 8 + 1;

/// A client that has a place.
struct Client {
    stream: Stream,
    hello: ClientHello,
    peer: String,
    session: u64,
    /// Workers whose contexts will still take device memory that is free now.
    spares_to_come: u8,
}

impl Client {
    fn welcome(
        &self,
        device: Option<&mut (dyn Device + 'static)>,
        options: &WorkerOptions,
    ) -> Result<ServerWelcome, Failure> {
        let spares = self.spares_to_come.into();
        Ok(ServerWelcome {
            ptx_only: options.device.kind.is_ptx_only(),
            ..handshake::welcome(device, self.session, self.hello.purpose, spares)?
        })
    }

    /// Serves the client until it leaves.
    fn serve(
        mut self,
        device: Option<Box<dyn Device>>,
        welcome: &ServerWelcome,
        options: &WorkerOptions,
    ) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
        let linked = handshake::send_welcome(&mut self.stream, welcome, deadline).and_then(|()| {
            Ok(match &self.hello.emulation {
                None => self.stream.into_link_server()?,
                Some(emulation) => self.stream.into_emulated_server(&emulation.network)?,
            })
        });
        let link = match linked {
            Ok(link) => link,
            Err(error) => return turned_away(&self.peer, &error),
        };
        let program: String = self
            .hello
            .program
            .chars()
            .take(limits::PROGRAM_CHARS_MAX)
            .collect();
        let (peer, pid) = (self.peer, self.hello.pid);
        match self.hello.purpose {
            Purpose::Session => info!(%peer, pid, ?program, "begins"),
            purpose => debug!(%peer, pid, ?program, ?purpose, "begins"),
        }
        if let Some(emulation) = &self.hello.emulation {
            debug!(network = %emulation.network, "is emulated");
        }
        match device {
            Some(mut device) => {
                serve(
                    &mut *device,
                    link,
                    self.hello.purpose,
                    options.cache.clone(),
                );
                give_back(device);
            }
            None => part(link),
        }
        Ok(())
    }

    fn turn_away(mut self, error: Error) -> io::Result<()> {
        handshake::refuse(&mut self.stream, &error.to_string());
        turned_away(&self.peer, &error)
    }
}

enum WorkerChoice {
    Here {
        spares_to_come: u8,
    },
    /// With the spare at the other end of the channel.
    WithSpare(OwnedFd),
}

fn ask_supervisor(
    control: &mut UnixStream,
    purpose: Purpose,
    timeout: Duration,
) -> Result<WorkerChoice, Error> {
    let lost = |e: io::Error| Error::Refused(format!("the server is stopping ({e})"));
    let question = match purpose {
        Purpose::Session => limits::ASK_SESSION,
        _ => limits::ASK_QUERY,
    };
    control.set_read_timeout(Some(timeout)).map_err(lost)?;
    control.write_all(&[question]).map_err(lost)?;
    let mut word = [0];
    let (_, fd) = pass_fd::receive(control, &mut word).map_err(lost)?;
    match (word[0], fd) {
        (limits::ANSWER_HAND_OVER, Some(channel)) => Ok(WorkerChoice::WithSpare(channel)),
        (answer @ (limits::ANSWER_YES | limits::ANSWER_NO), None) => {
            let mut rest = Vec::new();
            control.read_to_end(&mut rest).map_err(lost)?;
            match answer {
                limits::ANSWER_NO => Err(Error::Refused(String::from_utf8_lossy(&rest).into())),
                _ => Ok(WorkerChoice::Here {
                    spares_to_come: rest.first().copied().unwrap_or_default(),
                }),
            }
        }
        _ => Err(Error::Refused("the server is stopping".into())),
    }
}

/// Offers the client to a spare; returns whether the spare took it. Ends when the spare answers or
/// dies.
fn hand_over(channel: OwnedFd, stream: &Stream, hello: &ClientHello) -> bool {
    let mut channel = UnixStream::from(channel);
    let offer = |channel: &mut UnixStream| -> io::Result<u8> {
        pass_fd::send(channel, &[limits::CHANNEL_CLIENT], stream.as_fd())?;
        channel.write_all(&rdma_word(stream.rdma())?)?;
        channel.write_all(&encode_hello(hello).map_err(io::Error::other)?)?;
        let mut answer = [0];
        channel.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    match offer(&mut channel) {
        Ok(answer) => answer == limits::CHANNEL_DONE,
        Err(error) => {
            debug!(%error, "the spare worker failed");
            false
        }
    }
}

/// Receives the client that [`hand_over`] sends; `None` if the worker that had it is gone.
fn receive_client(channel: &UnixStream) -> io::Result<Option<(Stream, ClientHello)>> {
    let timeout = Duration::from_millis(HANDSHAKE_MS_MAX);
    channel.set_read_timeout(Some(timeout))?;
    let mut word = [0];
    let (_, Some(socket)) = pass_fd::receive(channel, &mut word)? else {
        return Ok(None);
    };
    let mut channel_in = channel;
    let rdma = read_rdma_word(&mut channel_in)?;
    let stream = stream_of(socket, rdma)?;
    let mut words =
        Stream::try_from(OwnedFd::from(channel.try_clone()?)).map_err(io::Error::other)?;
    match handshake::read_hello(&mut words, Instant::now() + timeout) {
        Ok(hello) => Ok(Some((stream, hello))),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Tells a spare the kind of link: the byte 0 for a link over the socket itself; otherwise one byte
/// with the length of the RDMA options plus one, then the options' text.
fn rdma_word(options: Option<&RdmaOptions>) -> io::Result<Vec<u8>> {
    let Some(options) = options else {
        return Ok(vec![0]);
    };
    let text = options.to_string();
    let len = u8::try_from(text.len() + 1).map_err(io::Error::other)?;
    Ok([&[len], text.as_bytes()].concat())
}

fn read_rdma_word(channel: &mut impl Read) -> io::Result<Option<RdmaOptions>> {
    let mut len = [0];
    channel.read_exact(&mut len)?;
    let Some(len) = len[0].checked_sub(1) else {
        return Ok(None);
    };
    let mut text = vec![0; len.into()];
    channel.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    text.parse().map(Some).map_err(io::Error::other)
}

fn stream_of(socket: OwnedFd, rdma: Option<RdmaOptions>) -> io::Result<Stream> {
    let stream = Stream::try_from(socket).map_err(io::Error::other)?;
    match rdma {
        None => Ok(stream),
        Some(options) => stream.with_rdma(options).map_err(io::Error::other),
    }
}

fn peer(stream: &Stream) -> String {
    match stream.peer() {
        Ok(peer) => peer.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Names this process. A failure is ignored: the name is only a convenience.
fn name(name: &str) {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    let _ = rustix::thread::set_name(&name);
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
    let (end, stats) = session::serve(device, link, purpose, ImageStore::new(cache));
    let total = stats.total();
    let seconds = start.elapsed().as_secs_f64();
    match (&end, purpose) {
        (End::ClientLeft, Purpose::Session) => info!("ended after {seconds:.3} s: {total}"),
        (End::ClientLeft, _) => debug!("ended after {seconds:.3} s: {total}"),
        (end, _) => warn!("ended after {seconds:.3} s, because {end}: {total}"),
    }
    report(&stats);
}

fn report(stats: &MessageStats) {
    for (name, op) in stats.by_name() {
        debug!("{name}: {op}");
    }
}

/// Waits briefly for a client that has its answer to leave.
fn part(link: Link) {
    let (_sender, mut receiver) = link.split();
    let until = Instant::now() + Duration::from_millis(limits::GREETING_MS_MAX);
    // Anything that it sends instead is ignored.
    let _ = receiver.recv(Wait::Until(until));
}

/// Releases the device within a time limit; after it the process exits, which releases the rest.
fn give_back(device: Box<dyn Device>) {
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(limits::GIVE_BACK_MS_MAX));
        warn!("the device does not come to an end; the worker exits without it");
        std::process::exit(0);
    });
    drop(device);
}
