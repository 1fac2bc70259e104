//! The client's own knowledge, from which all local calls are answered.

mod advice;
mod arrays;
mod arrivals;
mod board;
mod capture_table;
mod connect;
pub(crate) mod context_storage;
mod contexts;
mod controls;
mod copies_from_mirrors;
mod device_memory;
mod drivers;
mod exchange;
mod exposed;
mod figures;
mod foresight;
mod graph_memory;
mod graphs;
mod handles;
mod held;
mod holding;
pub(crate) mod host_functions;
mod host_memory;
mod host_writes;
mod jit;
mod libraries;
mod linkers;
mod managed;
mod mirror;
mod mirror_copies;
mod mirrors;
mod objects;
mod pools;
mod prepared;
mod private_places;
mod reading;
mod registered;
mod resolved;
mod rest;
mod server;
mod slots;
mod staging;
mod stand_ins;
mod streams;
mod sync_memops;
mod tensor_maps;
mod user_objects;
mod variables;
mod virtual_memory;
mod visible;

use std::{ops::Deref, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice, CUdeviceptr},
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

#[cfg(test)]
pub(crate) use self::drivers::set_driver_of_thread;
use self::handles::first_number;
#[cfg(test)]
pub(crate) use self::libraries::has_plain_words;
pub(crate) use self::{
    advice::{Advice, Advices, Processor},
    arrays::Arrays,
    capture_table::{Beginning, Capture, Captures, exchange_thread_mode},
    connect::{abandon_after_fork, connect, finish_at_exit},
    contexts::{Contexts, current_context, pop_context, push_context, set_context},
    device_memory::{Access, Allocation, AllocationKind, CHUNK_BYTES, Chunk, DeviceMemory},
    drivers::{
        are_several, driver, driver_of_device, driver_of_handle, drivers, on, on_address,
        on_handle, on_stream,
    },
    exposed::Exposed,
    figures::figures,
    foresight::{Awaited, Foresight},
    graph_memory::GraphMemory,
    graphs::{AllocParams, Graphs, KernelRecord, MemOpsRecord, NodeRecord},
    handles::{HandleKind, Handles},
    held::HeldLaunch,
    host_functions::HostCall,
    host_memory::HostMemory,
    host_writes::HostWrites,
    jit::Jit,
    libraries::{Global, Kernel, Libraries, Library, PARAM_BYTES_MAX, Places, mint_library},
    linkers::Linker,
    mirrors::Mirrors,
    objects::{ObjectRecord, Objects},
    pools::{Owner, POOL_ID_BYTES, Pool, PoolId, PoolTable, PoolValue, Pools, Scope},
    prepared::Prepared,
    private_places::PrivateBounds,
    resolved::Resolved,
    server::Server,
    staging::Staging,
    stand_ins::{Pageable, StandIns},
    streams::{Event, Held, Stream, StreamRef, Streams},
    sync_memops::SyncMemops,
    tensor_maps::TensorMaps,
    user_objects::UserObjects,
    variables::Learned,
    virtual_memory::{Physical, VirtualMemory},
    visible::DeviceOrder,
};

/// The state of the process at one server, from `cuInit` to its end.
pub(crate) struct Driver {
    server: Server,
    pub(crate) contexts: Contexts,
    /// Locked after `memory`.
    pub(crate) exposed: Exposed,
    pub(crate) host: RwLock<HostMemory>,
    variables: Mutex<managed::Variables>,
    host_writes: HostWrites,
    pub(crate) mirrors: Mirrors,
    stand_ins: StandIns,
    pub(crate) streams: Streams,
    pub(crate) foresight: Foresight,
    /// Streams for copies between servers, by context.
    pub(crate) crossing_streams: Mutex<FxHashMap<usize, Arc<Stream>>>,
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
    pub(crate) arrays: Arrays,
    pub(crate) tensor_maps: Mutex<TensorMaps>,
    pub(crate) links: Mutex<FxHashMap<u64, Linker>>,
    /// By the kernel's number in messages.
    pub(crate) prepared_launches: Mutex<FxHashMap<u64, Prepared>>,
}

/// Code that names no server uses the driver's.
impl Deref for Driver {
    type Target = Server;

    #[inline(always)]
    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Driver {
    /// Creates the state of a process that has made nothing on its server yet.
    pub(crate) fn new(server: Server) -> Driver {
        let first = first_number(server.number);
        let numbers = |local| server.devices.program(local);
        Driver {
            contexts: Contexts::new(server.number, server.cards(), numbers),
            handles: Handles::of(server.number),
            host: RwLock::new(HostMemory::of(first, server.number)),
            server,
            exposed: Exposed::default(),
            variables: Mutex::default(),
            host_writes: HostWrites::default(),
            mirrors: Mirrors::default(),
            stand_ins: StandIns::default(),
            streams: Streams::of(first),
            foresight: Foresight::default(),
            crossing_streams: Mutex::default(),
            captures: Captures::of(first),
            graphs: Graphs::default(),
            graph_memory: GraphMemory::default(),
            user_objects: UserObjects::of(first),
            libraries: Libraries::default(),
            objects: Objects::default(),
            sync_memops: SyncMemops::default(),
            pools: Pools::default(),
            virtual_memory: Mutex::default(),
            arrays: Arrays::default(),
            tensor_maps: Mutex::default(),
            links: Mutex::default(),
            prepared_launches: Mutex::default(),
        }
    }

    pub(crate) fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        self.card(device)?;
        self.contexts.primary(device).map(|c| c.handle)
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
        match self.make_reachable(address) {
            Err(_) if self.learn_variable(address)? => return Ok(address),
            seen => seen?,
        }
        self.push_visible()?;
        Ok(address)
    }
}

/// Returns the current context in the form of messages; 0 if there is none.
#[inline]
pub(crate) fn wire_context() -> u64 {
    current_context().map_or(0, |c| c.0 as u64)
}
