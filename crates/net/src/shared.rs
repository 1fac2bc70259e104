//! Memory that two processes of one machine share: one makes it, and hands its file to the other
//! over a socket with a name of the kernel's, which processes of one network namespace have in
//! common.
//!
//! ```text
//!  listens                       connects
//!    offer: name, secret ── tcp ──►│          name of zeros: no memory here, then the reason
//!    ◄──────────── secret ── unix ─┤
//!    file ────────────────── unix ─►│         checked, mapped
//!    ◄────────── 1 or reason ─ tcp ─┤         1: both use it
//! ```
//!
//! A reason is one byte: 0 if it is not told, 2 if this process wants no such memory, else 2 and a
//! number of `errno`.
//!
//! Both have to be of one user. The name says nothing: who has not heard the secret gets no file.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
        sendmsg, socket_with, sockopt::socket_peercred,
    },
    process::{Resource, geteuid, getrlimit},
    rand::{GetRandomFlags, getrandom},
};

use crate::{
    memory::Mapped,
    stream::{Stream, read_by},
};

const NAME: &str = "outboard-net-";
const SECRET_BYTES: usize = 16;
const OFFER_BYTES: usize = 2 * SECRET_BYTES;
const UNWANTED: &str = "this process shares no memory";
const TAKEN: u8 = 1;
/// Reason of a process that wants no memory.
const NOT_WANTED: u8 = 2;
/// Time between two looks for the other process.
const LOOK: Duration = Duration::from_millis(1);
/// Patience with a process that has connected, and with one that is to send the file.
const STEP: Duration = Duration::from_secs(2);

/// Terms on which a process shares memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// This one makes it, the other takes it.
    pub(crate) gives: bool,
    /// Bytes that both want; 0 if this one wants no such memory.
    pub(crate) bytes: usize,
    pub(crate) deadline: Instant,
    /// The other hears reasons.
    pub(crate) says_why: bool,
}

/// Why a process has no memory to share: what it says itself, and the byte that it tells the other.
struct Refused {
    why: String,
    reason: u8,
}

impl Refused {
    fn unwanted() -> Refused {
        Refused {
            why: UNWANTED.into(),
            reason: NOT_WANTED,
        }
    }

    fn told(&self, says_why: bool) -> u8 {
        if says_why { self.reason } else { 0 }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        let number = match error.kind() {
            ErrorKind::FileTooLarge => libc::EFBIG,
            _ => error.raw_os_error().unwrap_or(0),
        };
        let told = u8::try_from(number).ok().filter(|number| *number > 0);
        let reason = told.and_then(|number| number.checked_add(NOT_WANTED));
        Refused {
            why: error.to_string(),
            reason: reason.unwrap_or(0),
        }
    }
}

/// Returns why the other process has no memory, by its byte.
fn theirs(failed: &str, reason: u8) -> String {
    match reason {
        NOT_WANTED => "the other process shares no memory".into(),
        ..NOT_WANTED => format!("the other process {failed}"),
        _ => {
            let number = i32::from(reason - NOT_WANTED);
            let error = io::Error::from_raw_os_error(number);
            format!("the other process {failed}: {error}")
        }
    }
}

/// Returns memory that the process at the other end of the connection has, too; or why there is
/// none: then entries travel over the connection. An error ends it.
pub(crate) fn agree<S: Stream>(stream: &S, terms: Terms) -> io::Result<Result<Mapped, String>>
where
    for<'a> &'a S: Read + Write,
{
    let agreed = match terms.gives {
        true => give(stream, terms),
        false => take(stream, terms),
    };
    stream.set_patience(None)?;
    agreed
}

/// Makes a file of this many zeroed bytes, which nobody can make shorter, and maps it.
fn make(bytes: usize) -> io::Result<(OwnedFd, Mapped)> {
    // The kernel ends a process by a signal that makes a longer file than it may.
    if let Some(max) = getrlimit(Resource::Fsize).current
        && bytes as u64 > max
    {
        let why = format!(
            "{bytes} bytes of memory to share count as a file, and files of this process are limited to {max} bytes (ulimit -f)"
        );
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    let file = memfd_create(
        "outboard-net",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, bytes as u64)?;
    // Pages are there before they are used: without room this fails, and not a store later.
    fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let memory = Mapped::of_file(file.as_fd(), bytes)?;
    Ok((file, memory))
}

/// The place where a file waits for the other process.
struct Offer {
    file: OwnedFd,
    memory: Mapped,
    listener: UnixListener,
    /// Name and secret.
    words: [u8; OFFER_BYTES],
    is_taken: bool,
    /// Why the file could not be given.
    failed: Option<io::Error>,
}

impl Offer {
    fn make(bytes: usize) -> io::Result<Offer> {
        let (file, memory) = make(bytes)?;
        let mut words = [0; OFFER_BYTES];
        if getrandom(&mut words, GetRandomFlags::empty())? != words.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let address = SocketAddr::from_abstract_name(name(&words))?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        // One more descriptor is needed for the process that comes.
        drop(file.try_clone()?);
        Ok(Offer {
            file,
            memory,
            listener,
            words,
            is_taken: false,
            failed: None,
        })
    }

    /// Gives the file to a process that has come, if it is this user's and knows the secret.
    fn serve(&mut self, deadline: Instant) {
        let guest = match self.listener.accept() {
            Ok((guest, _)) => guest,
            Err(error) => {
                if error.kind() != ErrorKind::WouldBlock {
                    self.failed = Some(error);
                }
                return;
            }
        };
        if !is_of_this_user(&guest) || guest.set_nonblocking(false).is_err() {
            return;
        }
        let mut secret = [0; SECRET_BYTES];
        let has_said = read_by(&guest, &mut secret, deadline.min(Instant::now() + STEP));
        if has_said.is_ok() && secret == self.words[SECRET_BYTES..] {
            match send_file(&guest, &self.file) {
                Ok(()) => self.is_taken = true,
                Err(error) => self.failed = Some(error),
            }
        }
    }
}

fn name(words: &[u8; OFFER_BYTES]) -> String {
    let hex = words[..SECRET_BYTES].iter();
    hex.fold(NAME.into(), |name, byte| format!("{name}{byte:02x}"))
}

fn is_of_this_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|of| of.uid == geteuid())
}

fn send_file(to: &UnixStream, file: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(to, &[IoSlice::new(&[1])], &mut control, flags)?;
    Ok(())
}

fn receive_file(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let bytes = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(from, bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    files.next().ok_or(ErrorKind::InvalidData.into())
}

fn give<S: Stream>(mut stream: &S, terms: Terms) -> io::Result<Result<Mapped, String>>
where
    for<'a> &'a S: Read + Write,
{
    let Terms {
        bytes, deadline, ..
    } = terms;
    let made = match bytes {
        0 => Err(Refused::unwanted()),
        _ => Offer::make(bytes).map_err(Refused::from),
    };
    let mut offer = match made {
        Ok(offer) => offer,
        Err(refused) => {
            let mut words = [0; OFFER_BYTES];
            words[SECRET_BYTES] = refused.told(terms.says_why);
            stream.write_all(&words)?;
            return Ok(Err(refused.why));
        }
    };
    stream.write_all(&offer.words)?;
    stream.set_patience(Some(LOOK))?;
    let mut verdict = [0];
    loop {
        // A verdict that came while a stranger was heard is read, late or not.
        let is_late = Instant::now() > deadline;
        match stream.read(&mut verdict) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => break,
            Err(_) if is_late => return Err(ErrorKind::TimedOut.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => offer.serve(deadline),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    match (verdict, offer.is_taken) {
        ([TAKEN], true) => Ok(Ok(offer.memory)),
        ([TAKEN], false) => Err(ErrorKind::InvalidData.into()),
        ([reason], is_taken) => Ok(Err(match offer.failed.filter(|_| !is_taken) {
            Some(error) => format!("this process could not give the memory: {error}"),
            None => theirs("could not take the memory", reason),
        })),
    }
}

fn take<S: Stream>(mut stream: &S, terms: Terms) -> io::Result<Result<Mapped, String>>
where
    for<'a> &'a S: Read + Write,
{
    let Terms {
        bytes, deadline, ..
    } = terms;
    let mut words = [0; OFFER_BYTES];
    read_by(stream, &mut words, deadline)?;
    if words[..SECRET_BYTES] == [0; SECRET_BYTES] {
        let reason = words[SECRET_BYTES];
        return Ok(Err(theirs("could not make memory to share", reason)));
    }
    let fetched = match bytes {
        0 => Err(Refused::unwanted()),
        _ => fetch(&words, bytes).map_err(Refused::from),
    };
    let verdict = match &fetched {
        Ok(_) => TAKEN,
        Err(refused) => refused.told(terms.says_why),
    };
    stream.write_all(&[verdict])?;
    Ok(fetched.map_err(|refused| refused.why))
}

/// Asks for the file of an offer, and maps it.
fn fetch(words: &[u8; OFFER_BYTES], bytes: usize) -> io::Result<Mapped> {
    let address = SocketAddrUnix::new_abstract_name(name(words).as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Connects at once or not at all: the other end listens.
    connect(&socket, &address)?;
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP))?;
    if !is_of_this_user(&stream) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.write_all(&words[SECRET_BYTES..])?;
    let file = receive_file(&stream).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::InvalidData => {
            io::Error::new(error.kind(), "the other process has not given the memory")
        }
        _ => error,
    })?;
    Mapped::of_file(file.as_fd(), bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        fs::File,
        net::{TcpListener, TcpStream},
        os::fd::BorrowedFd,
        sync::atomic::Ordering,
        thread::{scope, spawn},
    };

    use super::*;

    const BYTES: usize = 1 << 16;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn terms(gives: bool, deadline: Instant) -> Terms {
        let bytes = BYTES;
        Terms {
            gives,
            bytes,
            deadline,
            says_why: true,
        }
    }

    fn within(time: Duration) -> Instant {
        Instant::now() + time
    }

    fn memfd(bytes: u64, seals: SealFlags, flags: MemfdFlags) -> OwnedFd {
        let flags = flags | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("other", flags).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn both_have_the_memory_and_nobody_shortens_it() {
        let (one, other) = connection();
        let giving = spawn(move || agree(&one, terms(true, within(STEP))));
        let taken = agree(&other, terms(false, within(STEP))).unwrap().unwrap();
        let given = giving.join().unwrap().unwrap().unwrap();
        given.u64(BYTES - 8).store(7, Ordering::Relaxed);
        assert_eq!(taken.u64(BYTES - 8).load(Ordering::Relaxed), 7);
        let (file, _) = make(BYTES).unwrap();
        assert!(ftruncate(&file, 0).is_err() && ftruncate(&file, 1 << 20).is_err());
    }

    /// Runs a process that offers, and then gives this file, or hangs up.
    fn taken_of(file: Option<BorrowedFd<'_>>) -> String {
        let (one, other) = connection();
        let mut offer = Offer::make(BYTES).unwrap();
        (&one).write_all(&offer.words).unwrap();
        offer.listener.set_nonblocking(false).unwrap();
        scope(|scope| {
            scope.spawn(|| {
                let (mut guest, _) = offer.listener.accept().unwrap();
                guest.read_exact(&mut offer.words[..SECRET_BYTES]).unwrap();
                if let Some(file) = file {
                    send_file(&guest, &file.try_clone_to_owned().unwrap()).unwrap();
                }
            });
            let taken = agree(&other, terms(false, within(STEP))).unwrap();
            let mut verdict = [9];
            (&one).read_exact(&mut verdict).unwrap();
            assert_eq!(verdict == [TAKEN], taken.is_ok());
            taken.map_or_else(|why| why, |_| String::new())
        })
    }

    #[test]
    fn a_file_that_may_become_shorter_or_has_other_pages_is_not_mapped() {
        let (all, none) = (SealFlags::SHRINK | SealFlags::GROW, SealFlags::empty());
        let plain = MemfdFlags::CLOEXEC;
        let right = memfd(BYTES as u64, all, plain);
        assert_eq!(taken_of(Some(right.as_fd())), "");
        for wrong in [
            memfd(BYTES as u64, none, plain),
            memfd(BYTES as u64 - 4096, all, plain),
            memfd(BYTES as u64 + 4096, all, plain),
        ] {
            assert!(!taken_of(Some(wrong.as_fd())).is_empty());
        }
        let null = File::open("/dev/zero").unwrap();
        assert!(!taken_of(Some(null.as_fd())).is_empty());
        let ordinary = tempfile::tempfile().unwrap();
        ordinary.set_len(BYTES as u64).unwrap();
        assert!(!taken_of(Some(ordinary.as_fd())).is_empty());
        assert!(!taken_of(None).is_empty());
    }

    #[test]
    fn without_memory_there_or_here_the_connection_stays() {
        let (one, other) = connection();
        (&one).write_all(&[0; OFFER_BYTES]).unwrap();
        let why = agree(&other, terms(false, within(STEP))).unwrap();
        assert!(why.unwrap_err().contains("could not make"));
        // Nobody listens by that name.
        (&one).write_all(&[7; OFFER_BYTES]).unwrap();
        assert!(agree(&other, terms(false, within(STEP))).unwrap().is_err());
        let mut said = [9];
        (&one).read_exact(&mut said).unwrap();
        assert_eq!(said, [NOT_WANTED + libc::ECONNREFUSED as u8]);
        (&one).write_all(&[0]).unwrap();
        let why = agree(&other, terms(true, within(STEP))).unwrap();
        assert!(why.unwrap_err().contains("could not take"));
    }

    #[test]
    fn either_side_may_want_none() {
        for gives in [true, false] {
            let (one, other) = UnixStream::pair().unwrap();
            let unwanted = Terms {
                bytes: 0,
                ..terms(gives, within(STEP))
            };
            let asked = spawn(move || agree(&one, unwanted));
            let agreed = agree(&other, terms(!gives, within(STEP))).unwrap();
            assert_eq!(
                asked.join().unwrap().unwrap().err().as_deref(),
                Some(UNWANTED)
            );
            let why = agreed.err();
            assert_eq!(why.as_deref(), Some("the other process shares no memory"));
        }
    }

    #[test]
    fn reasons_are_told_as_numbers_of_errors() {
        for number in [libc::EMFILE, libc::EFBIG, libc::ENOMEM] {
            let error = io::Error::from_raw_os_error(number);
            let refused = Refused::from(io::Error::from_raw_os_error(number));
            assert_eq!(refused.told(false), 0);
            let said = theirs("failed", refused.told(true));
            assert_eq!(said, format!("the other process failed: {error}"));
        }
        assert_eq!(Refused::from(io::Error::other("no number")).reason, 0);
        assert_eq!(theirs("failed", 0), "the other process failed");
    }

    #[test]
    fn who_says_nothing_or_claims_to_have_it_ends_the_meeting_in_time() {
        let soon = || within(Duration::from_millis(20));
        for gives in [false, true] {
            let (_silent, other) = connection();
            let late = agree(&other, terms(gives, soon())).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            let (one, other) = connection();
            drop(one);
            assert!(agree(&other, terms(gives, within(STEP))).is_err());
        }
        let (one, other) = connection();
        (&one).write_all(&[1]).unwrap();
        let claimed = agree(&other, terms(true, within(STEP))).unwrap_err();
        assert_eq!(claimed.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_stranger_without_the_secret_gets_no_file() {
        let mut offer = Offer::make(BYTES).unwrap();
        let address = SocketAddr::from_abstract_name(name(&offer.words)).unwrap();
        for secret in [&[0; SECRET_BYTES][..], &[1; 3]] {
            let mut stranger = UnixStream::connect_addr(&address).unwrap();
            stranger.write_all(secret).unwrap();
            stranger.shutdown(std::net::Shutdown::Write).unwrap();
            offer.serve(within(STEP));
            assert!(!offer.is_taken && receive_file(&stranger).is_err());
        }
    }

    /// A stranger that says too little delays a meeting, which ends as it would have without.
    #[test]
    fn a_verdict_that_comes_while_a_stranger_is_heard_counts() {
        let (one, other) = connection();
        let giving = spawn(move || agree(&one, terms(true, within(STEP / 4))));
        let mut words = [0; OFFER_BYTES];
        (&other).read_exact(&mut words).unwrap();
        let address = SocketAddr::from_abstract_name(name(&words)).unwrap();
        let mut stranger = UnixStream::connect_addr(&address).unwrap();
        stranger.write_all(&[1]).unwrap();
        // It is heard meanwhile.
        std::thread::sleep(LOOK * 20);
        (&other).write_all(&[0]).unwrap();
        let why = giving.join().unwrap().unwrap().unwrap_err();
        assert!(why.contains("could not take"));
        drop(stranger);
    }
}
