//! The client's own knowledge, from which all local calls are answered.

mod advice;
mod arrivals;
mod board;
mod capture_table;
mod connect;
pub(crate) mod context_storage;
mod contexts;
mod device_memory;
mod exposed;
mod figures;
mod graph_memory;
mod graphs;
mod handles;
pub(crate) mod host_functions;
mod host_memory;
mod host_writes;
mod jit;
mod libraries;
mod linkers;
mod managed;
mod mirror;
mod mirrors;
mod objects;
mod pools;
mod prepared;
mod registered;
mod slots;
mod staging;
mod stand_ins;
mod streams;
mod sync_memops;
mod tensor_maps;
mod user_objects;
mod virtual_memory;
mod visible;

use std::sync::OnceLock;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice, CUdeviceptr},
};
use outboard_wire::{Op, doc::DeviceCard, handshake::ServerWelcome};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::{
    observe::stats,
    session::{Board, Session},
    thread,
};

pub(crate) use self::{
    advice::{Advice, Advices, Processor},
    capture_table::{Beginning, Capture, Captures, exchange_thread_mode},
    connect::{abandon_after_fork, connect, send_all_at_exit},
    contexts::{Contexts, current_context, pop_context, push_context, set_context},
    device_memory::{Access, Allocation, AllocationKind, CHUNK_BYTES, Chunk, DeviceMemory},
    exposed::Exposed,
    figures::figures,
    graph_memory::GraphMemory,
    graphs::{AllocParams, Graphs, KernelRecord, MemOpsRecord, NodeRecord},
    handles::{HandleKind, Handles},
    host_functions::HostCall,
    host_memory::HostMemory,
    host_writes::HostWrites,
    jit::Jit,
    libraries::{Global, Kernel, Libraries, Library, PARAM_BYTES_MAX},
    linkers::Linker,
    mirrors::Mirrors,
    objects::{ObjectRecord, Objects},
    pools::{Owner, POOL_ID_BYTES, Pool, PoolId, PoolTable, PoolValue, Pools, Scope},
    prepared::Prepared,
    staging::{SEGMENT_BYTES, Staging},
    stand_ins::{Pageable, StandIns},
    streams::{Event, Progress, Stream, StreamRef, Streams},
    sync_memops::SyncMemops,
    tensor_maps::TensorMaps,
    user_objects::UserObjects,
    virtual_memory::{Physical, VirtualMemory},
    visible::DeviceOrder,
};

/// The state of the process, from `cuInit` to its end.
pub(crate) struct Driver {
    pub(crate) session: &'static Session,
    /// Has only the visible devices.
    pub(crate) welcome: ServerWelcome,
    pub(crate) devices: DeviceOrder,
    pub(crate) contexts: Contexts,
    pub(crate) memory: Mutex<DeviceMemory>,
    /// Locked after `memory`.
    pub(crate) exposed: Exposed,
    pub(crate) host: RwLock<HostMemory>,
    variables: Mutex<managed::Variables>,
    host_writes: HostWrites,
    pub(crate) mirrors: Mirrors,
    stand_ins: StandIns,
    pub(crate) streams: Streams,
    pub(crate) captures: Captures,
    pub(crate) graphs: Graphs,
    pub(crate) graph_memory: GraphMemory,
    pub(crate) user_objects: UserObjects,
    pub(crate) libraries: Libraries,
    pub(crate) handles: Handles,
    pub(crate) objects: Objects,
    pub(crate) sync_memops: SyncMemops,
    pub(crate) pools: Pools,
    /// Locked before `memory`.
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
    pub(crate) tensor_maps: Mutex<TensorMaps>,
    pub(crate) links: Mutex<FxHashMap<u64, Linker>>,
    /// By the kernel's number in messages.
    pub(crate) prepared_launches: Mutex<FxHashMap<u64, Prepared>>,
    /// The words in which the GPU reports the ends of waits; opened at the first wait.
    board: OnceLock<Option<&'static Board>>,
    pub(crate) staging: Staging,
    /// Progress of all work sent, to any stream.
    pub(crate) progress: Progress,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Returns the driver, once `cuInit` has succeeded.
#[inline]
pub(crate) fn driver() -> Result<&'static Driver, CUresult> {
    DRIVER.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

impl Driver {
    pub(crate) fn cards(&self) -> &[DeviceCard] {
        &self.welcome.devices
    }

    pub(crate) fn card(&self, device: CUdevice) -> Result<&DeviceCard, CUresult> {
        let index = usize::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        self.welcome
            .devices
            .get(index)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns an attribute of a device from its card; 0 if the driver refused the query.
    pub(crate) fn attribute(&self, device: CUdevice, attribute: u32) -> i32 {
        let value = self
            .card(device)
            .ok()
            .and_then(|c| c.attributes.get(attribute as usize).copied().flatten());
        value.unwrap_or(0)
    }

    pub(crate) fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        self.card(device)?;
        self.contexts.primary(device).map(|c| c.handle)
    }

    /// Sends a message under the current context, if there is one.
    #[inline(always)]
    pub(crate) fn submit<'a, M: Op<'a>>(&self, message: &M) -> Result<(), CUresult> {
        self.submit_from(&thread::here(), message)
    }

    /// Sends a message for a caller that has already looked up its thread's own state.
    #[inline(always)]
    pub(crate) fn submit_from<'a, M: Op<'a>>(
        &self,
        thread: &thread::Local,
        message: &M,
    ) -> Result<(), CUresult> {
        self.session.check()?;
        thread.has_sent();
        let context = thread.context.get().map_or(0, |c| c.handle.0 as u64);
        self.submit_now(context, message)
    }

    pub(crate) fn submit_in<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
    ) -> Result<(), CUresult> {
        self.session.check()?;
        stats::sent();
        self.submit_now(context, message)
    }

    /// Sends a message that is no work for the GPU.
    pub(crate) fn submit_quietly<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
    ) -> Result<(), CUresult> {
        self.session.check()?;
        stats::sent();
        self.session.submit(context, message)?;
        self.progress.submit_quietly();
        Ok(())
    }

    #[inline(always)]
    fn submit_now<'a, M: Op<'a>>(&self, context: u64, message: &M) -> Result<(), CUresult> {
        self.session.submit(context, message)?;
        // Counted after sending: a mark taken before does not cover the message.
        self.progress.submit();
        Ok(())
    }

    /// Sends work to a stream.
    #[inline(always)]
    pub(crate) fn submit_to<'a, M: Op<'a>>(
        &self,
        stream: &StreamRef,
        message: &M,
    ) -> Result<(), CUresult> {
        self.submit(message)?;
        stream.progress().submit();
        Ok(())
    }

    /// Sends work to a stream under a given context, for threads that have none.
    pub(crate) fn submit_to_in<'a, M: Op<'a>>(
        &self,
        context: u64,
        stream: &StreamRef,
        message: &M,
    ) -> Result<(), CUresult> {
        self.submit_in(context, message)?;
        stream.progress().submit();
        Ok(())
    }

    /// Sends a request under the current context and waits for its reply. Errors of earlier calls
    /// are left for a call that waits for the GPU.
    pub(crate) fn call<'a, M: Op<'a>, R>(
        &self,
        message: &M,
        read: impl FnOnce(M::Reply<'_>) -> R,
    ) -> Result<R, CUresult> {
        self.session.call(wire_context(), message, read)
    }

    /// Checks an address for a memset or a stream operation: memory that this process allocated.
    pub(crate) fn device_address(&self, address: CUdeviceptr) -> Result<u64, CUresult> {
        if self
            .memory
            .lock()
            .find(address)
            .is_some_and(|a| a.may_be_used())
        {
            return Ok(address);
        }
        // Pinned memory is allowed too, if the device sees it.
        self.make_visible(address)?;
        self.push_visible()?;
        Ok(address)
    }
}

/// Returns the current context in the form of messages; 0 if there is none.
#[inline]
pub(crate) fn wire_context() -> u64 {
    current_context().map_or(0, |c| c.0 as u64)
}
