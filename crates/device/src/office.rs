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
//!        └── ticket: the office's name, the number ── by way of the programs ──┘
//! ```
//!
//! An office is a listening abstract socket. Its name is 128 random bits, so only holders of a
//! ticket find it, and it serves only processes of its own user. A descriptor is closed when its
//! memory is unmapped or its event is destroyed.

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
const TOKEN_BYTES: usize = 16;
/// Length of a ticket: the office's name and the export's number.
const TICKET_BYTES: usize = TOKEN_BYTES + 8;
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

type Exports = Arc<Mutex<FxHashMap<u64, Export>>>;

fn lock(exports: &Exports) -> MutexGuard<'_, FxHashMap<u64, Export>> {
    exports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exports of this session, and the token of the socket that hands them out.
#[derive(Default)]
pub struct Office {
    token: Option<[u8; TOKEN_BYTES]>,
    exports: Exports,
    next: u64,
}

impl Office {
    /// Withdraws an export; its number is not used again.
    pub fn remove(&mut self, number: u64) {
        lock(&self.exports).remove(&number);
    }

    /// Adds an export, and returns its number.
    pub fn add(&mut self, export: Export) -> Result<u64, Failure> {
        let mut exports = lock(&self.exports);
        if exports.len() >= EXPORTS_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {EXPORTS_MAX} exports to other processes"),
            ));
        }
        self.next += 1;
        exports.insert(self.next, export);
        Ok(self.next)
    }

    /// Returns the ticket of an export. The first call opens the office.
    pub fn ticket(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        let token = match self.token {
            Some(token) => token,
            None => {
                let token = open_office(self.exports.clone()).map_err(|error| {
                    Failure::new(
                        CUresult::CUDA_ERROR_OPERATING_SYSTEM,
                        format!("a socket to hand memory to other processes: {error}"),
                    )
                })?;
                *self.token.insert(token)
            }
        };
        Ok([&token[..], &number.to_ne_bytes()].concat())
    }

    /// Fetches the export that a ticket names. A ticket of this session itself is refused, as the
    /// driver does.
    pub fn redeem(&self, ticket: &[u8]) -> Result<Export, Failure> {
        let is_own = self
            .token
            .as_ref()
            .is_some_and(|token| ticket.starts_with(token));
        if is_own {
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
        let (token, number) = ticket
            .split_first_chunk::<TOKEN_BYTES>()
            .ok_or_else(invalid)?;
        ask(token, number).map_err(|error| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("what an IPC handle names is not there (any more): {error}"),
            )
        })
    }
}

fn address(token: &[u8; TOKEN_BYTES]) -> io::Result<SocketAddr> {
    let mut name = "outboard-ipc-".to_string();
    for byte in token {
        let _ = write!(name, "{byte:02x}");
    }
    SocketAddr::from_abstract_name(name)
}

/// Opens a socket under a new random name and serves its visitors until the process ends.
fn open_office(exports: Exports) -> io::Result<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    let listener = UnixListener::bind_addr(&address(&token)?)?;
    std::thread::Builder::new()
        .name("ipc".into())
        .spawn(move || {
            for visitor in listener.incoming().flatten() {
                if let Err(error) = serve(visitor, &exports) {
                    tracing::debug!(%error, "an IPC visitor");
                }
            }
        })?;
    Ok(token)
}

/// Answers one visitor's single question. The next visitor waits [`PATIENCE`] at most.
fn serve(mut visitor: UnixStream, exports: &Exports) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&visitor)?;
    if peer.uid != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    visitor.set_read_timeout(Some(PATIENCE))?;
    visitor.set_write_timeout(Some(PATIENCE))?;
    let mut number = [0; 8];
    visitor.read_exact(&mut number)?;
    let (answer, file) = {
        let exports = lock(exports);
        let export = exports.get(&u64::from_ne_bytes(number));
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
fn ask(token: &[u8; TOKEN_BYTES], number: &[u8]) -> io::Result<Export> {
    let mut office = UnixStream::connect_addr(&address(token)?)?;
    office.set_read_timeout(Some(PATIENCE))?;
    office.set_write_timeout(Some(PATIENCE))?;
    office.write_all(number)?;
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
