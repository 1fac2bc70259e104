//! Offices: each worker process has one, where sessions of this machine fetch what its session
//! shares.
//!
//! ```text
//!  session A                                        session B
//!    cuIpcGetMemHandle(p)                             cuIpcOpenMemHandle(handle)
//!      ── ipc_export_memory ──►                         ── ipc_open_memory ──►
//!    worker A: puts a descriptor of p's               worker B: connects to the ticket's office,
//!      physical memory in its office,                   takes the descriptor, maps the memory
//!      under a number                                   where B's client says
//!        └── ticket: the office's name, a secret ── by way of the programs ──┘
//! ```
//!
//! An office is a listening abstract socket, whose name everybody on the machine can read
//! (`/proc/net/unix`). Each export has a secret of 128 random bits, and the office hands it out to
//! nobody without that; both ends serve only processes of their own user. A descriptor is closed
//! when its memory is unmapped or its event is destroyed.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outboard_api::CUresult;
use rustc_hash::FxHashMap;

use crate::{Failure, pass_fd};

/// Timeout for reading from and writing to the other end of the socket.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a visitor that was not served.
const PAUSE: Duration = Duration::from_millis(1);
/// Length of the random part of an office's name, which only tells offices apart.
const NAME_BYTES: usize = 8;
/// Length of an export's secret.
const SECRET_BYTES: usize = 16;
/// Length of a ticket: the office's name and the export's secret.
const TICKET_BYTES: usize = NAME_BYTES + SECRET_BYTES;
/// Length of a device's UUID.
pub const UUID_BYTES: usize = 16;
/// Length of a driver's handle of a shared event (`CUipcEventHandle`).
pub const EVENT_BYTES: usize = 64;
/// Length of an office's answer: kind, length of memory, device, a driver's event handle.
const ANSWER_BYTES: usize = 1 + 8 + UUID_BYTES + EVENT_BYTES;
const KIND_MEMORY: u8 = 1;
const KIND_EVENT: u8 = 2;
/// Exports of one session at a time. Each piece of memory holds a descriptor.
const EXPORTS_MAX: usize = 4096;

/// Memory or an event that a session shares.
pub enum Export {
    Memory {
        file: OwnedFd,
        /// Length in bytes.
        len: u64,
        /// UUID of the device that has the memory.
        device: [u8; UUID_BYTES],
    },
    Event {
        /// The driver's own IPC handle.
        handle: [u8; EVENT_BYTES],
        /// Memory that holds the event's state, if no driver keeps it.
        state: Option<OwnedFd>,
    },
}

type Name = [u8; NAME_BYTES];
type Secret = [u8; SECRET_BYTES];
type Exports = Arc<Mutex<FxHashMap<Secret, Export>>>;

fn lock(exports: &Exports) -> MutexGuard<'_, FxHashMap<Secret, Export>> {
    exports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exports of this session, and the name of the socket that hands them out.
#[derive(Default)]
pub struct Office {
    name: Option<Name>,
    exports: Exports,
    /// The secrets of the exports, by number.
    secrets: FxHashMap<u64, Secret>,
    next: u64,
}

impl Office {
    /// Withdraws an export; its number is not used again.
    pub fn remove(&mut self, number: u64) {
        if let Some(secret) = self.secrets.remove(&number) {
            lock(&self.exports).remove(&secret);
        }
    }

    /// Adds an export, and returns its number.
    pub fn add(&mut self, export: Export) -> Result<u64, Failure> {
        if self.secrets.len() >= EXPORTS_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {EXPORTS_MAX} exports to other processes"),
            ));
        }
        let secret = random().map_err(system("random numbers for an export"))?;
        lock(&self.exports).insert(secret, export);
        self.next += 1;
        self.secrets.insert(self.next, secret);
        Ok(self.next)
    }

    /// Returns the ticket of an export. The first call opens the office.
    pub fn ticket(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        let secret = self.secrets.get(&number).ok_or_else(|| {
            let text = "an export that was withdrawn";
            Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, text)
        })?;
        let name = match self.name {
            Some(name) => name,
            None => {
                let doing = "a socket to hand memory to other processes";
                *self
                    .name
                    .insert(open_office(self.exports.clone()).map_err(system(doing))?)
            }
        };
        Ok([&name[..], secret].concat())
    }

    /// Fetches the export that a ticket names. A ticket of this session itself is refused, as the
    /// driver does.
    pub fn redeem(&self, ticket: &[u8]) -> Result<Export, Failure> {
        let is_own = |name: &Name| ticket.starts_with(name);
        if self.name.as_ref().is_some_and(is_own) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "an IPC handle cannot be opened by the process that made it",
            ));
        }
        self.redeem_any(ticket)
    }

    /// Fetches the export that a ticket names, even this session's own: a file descriptor may come
    /// back to the process that exported it.
    pub fn redeem_any(&self, ticket: &[u8]) -> Result<Export, Failure> {
        let invalid = || Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, "no IPC handle of ours");
        let ticket: [u8; TICKET_BYTES] = ticket.try_into().map_err(|_| invalid())?;
        let (name, secret) = ticket
            .split_first_chunk::<NAME_BYTES>()
            .ok_or_else(invalid)?;
        ask(name, secret).map_err(|error| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("what an IPC handle names is not there (any more): {error}"),
            )
        })
    }
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| {
        Failure::new(
            CUresult::CUDA_ERROR_OPERATING_SYSTEM,
            format!("{doing}: {error}"),
        )
    }
}

fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn address(name: &Name) -> io::Result<SocketAddr> {
    let mut text = "outboard-ipc-".to_string();
    for byte in name {
        let _ = write!(text, "{byte:02x}");
    }
    SocketAddr::from_abstract_name(text)
}

/// Opens a socket under a new random name and serves its visitors until the process ends.
fn open_office(exports: Exports) -> io::Result<Name> {
    let name = random()?;
    let listener = UnixListener::bind_addr(&address(&name)?)?;
    std::thread::Builder::new()
        .name("ipc".into())
        .spawn(move || {
            for visitor in listener.incoming() {
                if let Err(error) = visitor.and_then(|visitor| serve(visitor, &exports)) {
                    tracing::debug!(%error, "an IPC visitor");
                    // Without descriptors, accepting fails again at once.
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
    Ok(name)
}

/// Fails if the process at the other end is another user's.
fn check_user(end: &UnixStream) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(end)?;
    match peer.uid == rustix::process::geteuid() {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Answers one visitor's single question. The next visitor waits [`PATIENCE`] at most.
fn serve(mut visitor: UnixStream, exports: &Exports) -> io::Result<()> {
    check_user(&visitor)?;
    visitor.set_read_timeout(Some(PATIENCE))?;
    visitor.set_write_timeout(Some(PATIENCE))?;
    let mut secret: Secret = [0; SECRET_BYTES];
    visitor.read_exact(&mut secret)?;
    let (answer, file) = {
        let exports = lock(exports);
        let export = exports.get(&secret);
        match export.ok_or(io::ErrorKind::NotFound)? {
            found @ Export::Memory { file, .. } => (encode(found), Some(file.try_clone()?)),
            found @ Export::Event { state, .. } => {
                let state = state.as_ref().map(OwnedFd::try_clone).transpose()?;
                (encode(found), state)
            }
        }
    };
    match file {
        Some(file) => pass_fd::send(&visitor, &answer, &[file.as_fd()]),
        None => visitor.write_all(&answer),
    }
}

fn encode(export: &Export) -> [u8; ANSWER_BYTES] {
    let mut answer = [0; ANSWER_BYTES];
    match export {
        Export::Memory { len, device, .. } => {
            answer[0] = KIND_MEMORY;
            answer[1..9].copy_from_slice(&len.to_ne_bytes());
            answer[9..9 + UUID_BYTES].copy_from_slice(device);
        }
        Export::Event { handle, .. } => {
            answer[0] = KIND_EVENT;
            answer[9 + UUID_BYTES..].copy_from_slice(handle);
        }
    }
    answer
}

/// Asks another worker's office for an export.
fn ask(name: &Name, secret: &[u8]) -> io::Result<Export> {
    let mut office = UnixStream::connect_addr(&address(name)?)?;
    // Whoever takes the name of an office that has closed must not hand out memory of its own.
    check_user(&office)?;
    office.set_read_timeout(Some(PATIENCE))?;
    office.set_write_timeout(Some(PATIENCE))?;
    office.write_all(secret)?;
    let mut answer = [0; ANSWER_BYTES];
    let (len, files) = pass_fd::receive(&office, &mut answer)?;
    if len != ANSWER_BYTES {
        return Err(io::ErrorKind::NotFound.into());
    }
    decode(&answer, files.into_iter().next()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn decode(answer: &[u8; ANSWER_BYTES], file: Option<OwnedFd>) -> Option<Export> {
    let (kind, rest) = answer.split_first()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (device, rest) = rest.split_first_chunk::<UUID_BYTES>()?;
    match *kind {
        KIND_MEMORY => Some(Export::Memory {
            file: file?,
            len: u64::from_ne_bytes(*len),
            device: *device,
        }),
        KIND_EVENT => Some(Export::Event {
            handle: rest.try_into().ok()?,
            state: file,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Seek as _};

    use super::*;

    fn file_with(text: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file.into()
    }

    #[test]
    fn a_ticket_is_good_in_another_session_for_as_long_as_the_export() {
        let (mut exporter, importer) = (Office::default(), Office::default());
        let memory = Export::Memory {
            file: file_with("physical memory"),
            len: 2 << 20,
            device: [7; UUID_BYTES],
        };
        let number = exporter.add(memory).unwrap();
        let memory = number;
        let ticket = exporter.ticket(number).unwrap();
        let handle = std::array::from_fn(|i| i as u8);
        let state = None;
        let number = exporter.add(Export::Event { handle, state }).unwrap();
        let event = exporter.ticket(number).unwrap();

        match importer.redeem(&ticket) {
            Ok(Export::Memory { file, len, device }) => {
                let mut text = String::new();
                File::from(file).read_to_string(&mut text).unwrap();
                assert_eq!(
                    (text.as_str(), len, device),
                    ("physical memory", 2 << 20, [7; 16])
                );
            }
            _ => panic!("no memory"),
        }
        assert!(
            matches!(importer.redeem(&event), Ok(Export::Event { handle: got, .. }) if got == handle)
        );
        let status = |ipc: &Office, ticket: &[u8]| ipc.redeem(ticket).err().map(|f| f.status);
        // Neither the session that made it nor, once it is withdrawn, any other can redeem it.
        let own = Some(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(status(&exporter, &ticket), own);
        assert!(exporter.redeem_any(&ticket).is_ok());
        exporter.remove(memory);
        let gone = Some(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(status(&importer, &ticket), gone);
        // Neither can a malformed ticket or one of an office that does not exist.
        assert_eq!(status(&importer, &ticket[1..]), gone);
        assert_eq!(status(&importer, &[9; TICKET_BYTES]), gone);
        // Nor does the office's name, which everybody can read, open anything.
        let guess = |number: u64| {
            let mut guess = event.clone();
            guess[NAME_BYTES..].fill(0);
            guess[TICKET_BYTES - 8..].copy_from_slice(&number.to_ne_bytes());
            guess
        };
        for number in 0..4 {
            assert_eq!(status(&importer, &guess(number)), gone);
        }
    }

    #[test]
    fn an_answer_without_its_descriptor_is_none() {
        let mut answer = [0; ANSWER_BYTES];
        answer[0] = KIND_MEMORY;
        assert!(decode(&answer, None).is_none());
        answer[0] = 3;
        assert!(decode(&answer, Some(file_with(""))).is_none());
    }
}
