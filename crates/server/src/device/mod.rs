//! What a session asks of a device.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use outboard_api::CUresult;
use outboard_link::{DeviceMemory, GpuMemory, Lasting, Segment};
use outboard_ptx::Printed;
use outboard_wire::{
    Message,
    codec::Writer,
    doc::DeviceCard,
    messages::{self, Request},
};

use crate::images::ImageStore;

include!(concat!(env!("OUT_DIR"), "/device.rs"));

/// The parts of a device that no message of a client asks for.
pub trait Host: Send {
    /// Does ahead, without a client, what takes long once there is one.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// What the management library says that does not change: a document of `NVML_FACTS`.
    fn nvml_facts(&mut self) -> Result<Vec<u8>, Failure> {
        Err(Failure::unsupported("the management library"))
    }
    /// One card for each device, in order; the quota is what this session may allocate there: what is free now, less the
    /// contexts of so many workers that are yet to come.
    fn cards(&mut self, workers_to_come: u32) -> Result<Vec<DeviceCard>, Failure>;
    /// CUDA version of the driver: 13000 is 13.0.
    fn driver_version(&mut self) -> u32;
    /// Names the program's call that the messages to come are of, while the client profiles; 0 for none.
    fn of_call(&mut self, call: u32) {
        let _ = call;
    }
    /// Reserves the address window in which the client will place device memory: base and length.
    fn reserve_window(&mut self) -> Result<(u64, u64), Failure>;
    /// Whether the client is to give every allocation memory of its own: [`ServerWelcome::exact_memory`].
    ///
    /// [`ServerWelcome::exact_memory`]: outboard_wire::handshake::ServerWelcome::exact_memory
    fn exact_memory(&self) -> bool {
        false
    }
    /// Appends what kernels have printed since the last call. Asked before a wait is answered; `lost`: a fault has
    /// just ended the context, of which the driver may have something to say.
    fn take_printed(&mut self, out: &mut Printed, lost: bool);
    /// Host functions that the streams have reached since the last call: number and status for the client.
    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>);
    /// Hands over the pages of watched mirrors that kernels have changed. Asked before a wait is answered.
    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8]));
    /// Whether host functions are queued, so that the session must keep looking for them.
    fn awaits_host_calls(&self) -> bool;
    /// Memory for just `len` bytes of data that are about to be received, which the message then brings as
    /// [`Cx::placed`]: a device that copies from there need not take the bytes over. `None`: memory of the session's.
    fn room(&mut self, len: usize) -> Option<Box<dyn Segment>> {
        let _ = len;
        None
    }
    /// In which ways an RDMA adapter may be let at device memory, the best first: asked once, before memory is mapped, for it
    /// may have to be mapped otherwise then. An error says why there is none.
    fn expose(&mut self, wanted: GpuMemory) -> Result<Vec<Way>, String> {
        let _ = wanted;
        Err("this device has no memory that an adapter could reach".into())
    }
    /// The mapping that holds all of these bytes, by its first address and length. It stays what it is until the client has it
    /// unmapped or gives other access to it. `None`: there is none, or an adapter cannot be let at it now.
    fn mapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let _ = (address, len);
        None
    }
    /// Memory of one mapping, for an adapter.
    fn reach(&mut self, address: u64, len: u64, way: Way) -> Result<DeviceMemory, Failure> {
        let _ = (address, len, way);
        Err(Failure::unsupported("adapters that use its memory"))
    }
    /// A point in a stream, in whose order it is as a copy out of memory would be.
    fn mark(&mut self, cx: &mut Cx<'_>, stream: u64) -> Result<Pending, Failure> {
        let _ = (cx, stream);
        Err(Failure::unsupported("marks"))
    }
    /// The same for threads that receive beside the session.
    fn rooms(&self) -> Option<Arc<dyn Rooms>> {
        None
    }
}

/// What an adapter's driver makes out device memory by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A dma-buf of the device's driver.
    DmaBuf,
    /// Its address alone.
    Address,
}

impl Way {
    /// As people know it, where the device is a GPU.
    pub fn name(self) -> &'static str {
        match self {
            Way::DmaBuf => "dma-buf",
            Way::Address => "its address (nvidia-peermem, on an NVIDIA GPU)",
        }
    }
}

/// Memory of a device for data about to be received; see [`Host::room`].
pub trait Rooms: Send + Sync {
    fn room(&self, len: usize) -> Option<Box<dyn Segment>>;
}

/// What a message comes with beside its fields.
pub struct Cx<'s> {
    /// The context current for the calling thread; 0 where none is.
    pub context: u64,
    pub images: &'s mut ImageStore,
    /// What the message's data lies in, if the device gave it: [`Host::room`].
    pub placed: Option<&'s Arc<dyn Segment>>,
    /// Takes a file descriptor that the client sent beside its messages.
    pub fds: &'s mut dyn FnMut(u64) -> Result<OwnedFd, Failure>,
    /// Hands host functions that streams have reached to the client, and collects those that it has run: for a device
    /// whose own call cannot return before they are.
    pub service: &'s mut Service<'s>,
}

/// Reached on the way in, done on the way out.
pub type Service<'s> = dyn FnMut(&[(u64, CUresult)], &mut Vec<u64>) + 's;

/// How a message ends.
pub enum Outcome {
    Done,
    /// Answered when the GPU is done.
    Wait(Pending),
}

pub type Pending = Box<dyn Wait>;

/// A point in the GPU's work that a client waits for.
pub trait Wait: Send {
    /// Whether the point is reached; an error where the GPU failed before it. Never blocks.
    fn ready(&mut self) -> Result<bool, Failure>;
    /// Once ready: the reply's `data`, where the message has one.
    fn data(&self) -> Option<&[u8]> {
        None
    }
    /// The memory that this data is part of, if it is there for longer than the session.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

/// A call that failed, as the client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub status: CUresult,
    /// For the client's log: what failed, and what can be done.
    pub message: String,
}

impl Failure {
    pub fn new(status: CUresult, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
        }
    }

    pub fn unsupported(what: &str) -> Failure {
        Failure::new(
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            format!("this device does not support {what}"),
        )
    }

    /// A handle that this session never minted, or destroyed.
    pub fn wild(kind: &'static str, id: u64) -> Failure {
        Failure::new(
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            format!("{id:#x} is no {kind} of this session"),
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}

impl std::error::Error for Failure {}

fn encode<'a, M: Message<'a>>(reply: &M, out: &mut Vec<u8>) -> Result<(), Failure> {
    let start = out.len();
    out.resize(start + reply.encoded_len(), 0);
    reply
        .encode(&mut Writer::new(&mut out[start..]))
        .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, format!("{}: {e}", M::NAME)))
}
