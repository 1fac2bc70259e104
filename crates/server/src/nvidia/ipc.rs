//! CUDA IPC: memory and events of one session in another, each in a worker process of its own.
//!
//! ```text
//!  session A                                             session B
//!    cuIpcGetMemHandle(p) ── ipc_export_memory ──►         cuIpcOpenMemHandle(handle) ── ipc_open_memory ──►
//!    worker A: a descriptor of p's physical memory         worker B: connects to the office that the ticket names,
//!      in its office, a number for it                        takes the descriptor, maps it where B's client says
//!        └── ticket: the office's name, the number ── by way of the programs ──┘
//! ```
//!
//! An office is a listening socket without a file; its name is 128 random bits, so that only who was given a ticket finds
//! it, and it serves processes of its own user alone. Descriptors go when their memory is unmapped or their event destroyed.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outboard_api::{CUresult, cuda::CUipcEventHandle, enums::*};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{
    Nvidia,
    owned::Owned,
    streams::Event,
    table::{Driver, Refused, real},
};
use crate::{
    device::{Cx, Failure},
    supervisor::pass_fd,
};

/// Ends of the socket that do not read or write within this are left.
const PATIENCE: Duration = Duration::from_secs(2);
const TOKEN_BYTES: usize = 16;
/// The office's name, the number of what is exported.
const TICKET_BYTES: usize = TOKEN_BYTES + 8;
const UUID_BYTES: usize = 16;
const EVENT_BYTES: usize = 64;
/// What an office answers: kind, length of memory, its device, a driver's event handle.
const ANSWER_BYTES: usize = 1 + 8 + UUID_BYTES + EVENT_BYTES;
const KIND_MEMORY: u8 = 1;
const KIND_EVENT: u8 = 2;
/// Exports of one session at a time. Each piece of memory holds a descriptor.
const EXPORTS_MAX: usize = 4096;

/// What a session lets others have.
enum Export {
    Memory {
        file: OwnedFd,
        len: u64,
        device: [u8; UUID_BYTES],
    },
    Event(CUipcEventHandle),
}

type Exports = Arc<Mutex<FxHashMap<u64, Export>>>;

fn lock(exports: &Exports) -> MutexGuard<'_, FxHashMap<u64, Export>> {
    exports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this session exports, and where it hands it out.
#[derive(Default)]
pub(super) struct Ipc {
    token: Option<[u8; TOKEN_BYTES]>,
    exports: Exports,
    next: u64,
    /// The numbers of mapped memory by its address.
    memory: FxHashMap<u64, u64>,
    /// The numbers of events by the client's.
    events: FxHashMap<u64, u64>,
}

impl Ipc {
    /// Memory is no longer mapped there.
    pub(super) fn withdraw_memory(&mut self, va: u64) {
        if let Some(number) = self.memory.remove(&va) {
            lock(&self.exports).remove(&number);
        }
    }

    pub(super) fn withdraw_event(&mut self, event: u64) {
        if let Some(number) = self.events.remove(&event) {
            lock(&self.exports).remove(&number);
        }
    }

    fn add(&mut self, export: Export) -> Result<u64, Failure> {
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

    /// The ticket of an export. The first one opens the office.
    fn ticket(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
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

    /// What a ticket is for. One of this very session is refused, as the driver refuses it.
    fn redeem(&self, ticket: &[u8]) -> Result<Export, Failure> {
        let invalid = || Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, "no IPC handle of ours");
        let ticket: [u8; TICKET_BYTES] = ticket.try_into().map_err(|_| invalid())?;
        let (token, number) = ticket
            .split_first_chunk::<TOKEN_BYTES>()
            .ok_or_else(invalid)?;
        if self.token.as_ref() == Some(token) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "an IPC handle cannot be opened by the process that made it",
            ));
        }
        ask(token, number).map_err(|error| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("what an IPC handle names is not there (any more): {error}"),
            )
        })
    }
}

impl Nvidia {
    pub(super) fn ipc_export_memory(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcExportMemory,
    ) -> Result<messages::IpcExportMemoryReply<'static>, Failure> {
        self.enter(cx)?;
        let (base, len, device, memory) = self.memory.exportable(m.va).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{:#x} is no memory of cuMemAlloc", m.va),
            )
        })?;
        let number = match self.ipc.memory.get(&base) {
            Some(number) => *number,
            None => {
                let ordinal = self.devices[device].ordinal;
                let export = Export::Memory {
                    file: self.driver.export_memory(memory)?,
                    len,
                    device: self.driver.cuDeviceGetUuid_v2(ordinal)?.bytes,
                };
                let number = self.ipc.add(export)?;
                self.ipc.memory.insert(base, number);
                number
            }
        };
        Ok(messages::IpcExportMemoryReply {
            ticket: self.ipc.ticket(number)?.into(),
            base,
            len,
        })
    }

    pub(super) fn ipc_open_memory(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenMemory<'_>,
    ) -> Result<messages::IpcOpenMemoryReply, Failure> {
        self.enter(cx)?;
        let wrong = |why| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, why);
        let Export::Memory { file, len, device } = self.ipc.redeem(m.ticket)? else {
            return Err(wrong(
                "an IPC handle of an event where one of memory is wanted",
            ));
        };
        if len != m.len {
            return Err(wrong("an IPC handle names memory of another length"));
        }
        let mut uuids = self.devices.iter().map(|gpu| {
            let uuid = self.driver.cuDeviceGetUuid_v2(gpu.ordinal);
            uuid.is_ok_and(|uuid| uuid.bytes == device)
        });
        let device = uuids.position(|is_it| is_it).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_DEVICE,
                "memory of a device that this session does not have",
            )
        })?;
        drop(uuids);
        let hold = self.hold_of(device)?;
        let handle = self.driver.import_memory(&file)?;
        let allocation = Owned::new(&hold, handle, |driver, handle| driver.cuMemRelease(handle));
        self.map_foreign(device, Arc::new(allocation), m.va, len)?;
        Ok(messages::IpcOpenMemoryReply {
            device: device as u32,
        })
    }

    pub(super) fn ipc_export_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcExportEvent,
    ) -> Result<messages::IpcExportEventReply<'static>, Failure> {
        self.enter(cx)?;
        let event = self.real_event(m.event)?;
        let number = match self.ipc.events.get(&m.event) {
            Some(number) => *number,
            None => {
                let mut handle = CUipcEventHandle {
                    reserved: [0; EVENT_BYTES],
                };
                // SAFETY: room for the handle.
                unsafe { self.driver.cuIpcGetEventHandle(&mut handle, event) }?;
                let number = self.ipc.add(Export::Event(handle))?;
                self.ipc.events.insert(m.event, number);
                number
            }
        };
        Ok(messages::IpcExportEventReply {
            ticket: self.ipc.ticket(number)?.into(),
        })
    }

    pub(super) fn ipc_open_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenEvent<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let Export::Event(handle) = self.ipc.redeem(m.ticket)? else {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                "an IPC handle of memory where one of an event is wanted",
            ));
        };
        let mut event = real::Event::NULL;
        // SAFETY: room for the event; the handle is what the driver gave another worker of this server.
        unsafe { self.driver.cuIpcOpenEventHandle(&mut event, handle) }?;
        let owned = Owned::new(self.current_hold(), event, |driver, event| {
            driver.cuEventDestroy_v2(event)
        });
        self.events.insert(m.event, Event::shared(owned))
    }
}

impl Driver {
    fn export_memory(&self, memory: real::Allocation) -> Result<OwnedFd, Refused> {
        let mut fd: std::ffi::c_int = -1;
        // SAFETY: room for the descriptor that a handle of this type is.
        unsafe {
            self.cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                memory,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                0,
            )
        }?;
        // SAFETY: the driver has just made it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn import_memory(&self, file: &OwnedFd) -> Result<real::Allocation, Refused> {
        let mut memory = real::Allocation::NULL;
        let fd = file.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: a handle of this type is the descriptor itself; the driver keeps none of it.
        unsafe {
            self.cuMemImportFromShareableHandle(
                &mut memory,
                fd,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            )
        }?;
        Ok(memory)
    }
}

fn address(token: &[u8; TOKEN_BYTES]) -> io::Result<SocketAddr> {
    let mut name = "outboard-ipc-".to_string();
    for byte in token {
        let _ = write!(name, "{byte:02x}");
    }
    SocketAddr::from_abstract_name(name)
}

/// Listens under a new name and serves whoever comes, until the process ends.
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

/// One question, one answer. Others wait for [`PATIENCE`] at most.
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
            found @ Export::Event(_) => (encode(found), None),
        }
    };
    match file {
        Some(file) => pass_fd::send(&visitor, &answer, file.as_fd()),
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
        Export::Event(handle) => {
            answer[0] = KIND_EVENT;
            answer[9 + UUID_BYTES..].copy_from_slice(&handle.reserved);
        }
    }
    answer
}

/// Asks another worker's office.
fn ask(token: &[u8; TOKEN_BYTES], number: &[u8]) -> io::Result<Export> {
    let mut office = UnixStream::connect_addr(&address(token)?)?;
    office.set_read_timeout(Some(PATIENCE))?;
    office.set_write_timeout(Some(PATIENCE))?;
    office.write_all(number)?;
    let mut answer = [0; ANSWER_BYTES];
    let (len, file) = pass_fd::receive(&office, &mut answer)?;
    if len != ANSWER_BYTES {
        return Err(io::ErrorKind::NotFound.into());
    }
    decode(&answer, file).ok_or_else(|| io::ErrorKind::InvalidData.into())
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
        KIND_EVENT => Some(Export::Event(CUipcEventHandle {
            reserved: rest.try_into().ok()?,
        })),
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
        let (mut exporter, importer) = (Ipc::default(), Ipc::default());
        let memory = Export::Memory {
            file: file_with("physical memory"),
            len: 2 << 20,
            device: [7; UUID_BYTES],
        };
        let number = exporter.add(memory).unwrap();
        exporter.memory.insert(0x1000, number);
        let ticket = exporter.ticket(number).unwrap();
        let handle = CUipcEventHandle {
            reserved: std::array::from_fn(|i| i as u8),
        };
        let number = exporter.add(Export::Event(handle)).unwrap();
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
            matches!(importer.redeem(&event), Ok(Export::Event(got)) if got.reserved == handle.reserved)
        );
        let status = |ipc: &Ipc, ticket: &[u8]| ipc.redeem(ticket).err().map(|f| f.status);
        // Not in the session that made it, and not once it is withdrawn.
        let own = Some(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(status(&exporter, &ticket), own);
        exporter.withdraw_memory(0x1000);
        let gone = Some(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(status(&importer, &ticket), gone);
        // Nor is nonsense, or an office that is not there.
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
