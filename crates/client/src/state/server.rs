//! One server, as this process uses it.

use std::{os::fd::RawFd, sync::OnceLock};

use outboard_api::{CUresult, cuda::CUdevice};
use outboard_link::Link;
use outboard_wire::{Op, doc::DeviceCard, handshake::ServerWelcome};
use parking_lot::Mutex;

use super::{DeviceMemory, DeviceOrder, Staging, StreamRef, handles::first_number, wire_context};
use crate::{
    library_thread,
    observe::stats,
    session::{Board, Handler, Numbered, Session},
    thread,
};

pub(crate) struct Server {
    /// Its place in the process's list of servers.
    pub(crate) number: u8,
    pub(crate) session: &'static Session,
    /// Has only the visible devices.
    pub(crate) welcome: ServerWelcome,
    pub(crate) devices: DeviceOrder,
    /// The window of addresses, and what is allocated in it.
    pub(crate) memory: Mutex<DeviceMemory>,
    /// Held from a new chunk's choice until its message is sent, and confirmed where the server
    /// does: until then no other allocation may be a part of it.
    pub(crate) mapping: Mutex<()>,
    /// The words in which the GPU reports the ends of waits; opened at the first wait.
    pub(super) board: OnceLock<Option<&'static Board>>,
    pub(crate) staging: Staging,
    /// Its address, if another server can be sent there.
    pub(crate) peer_address: Option<String>,
    pub(crate) is_emulated: bool,
}

impl Server {
    /// Begins a session over a link. `fds` are the link's descriptors; `handler` gets what the
    /// server sends without a request. Fails with a reason if the window is taken in this process.
    pub(crate) fn new(
        number: u8,
        link: Link,
        fds: Vec<RawFd>,
        welcome: ServerWelcome,
        devices: DeviceOrder,
        handler: Box<dyn Handler>,
    ) -> Result<Server, String> {
        let numbers = |local| devices.program(local);
        let memory = DeviceMemory::reserve(&welcome, numbers, first_number(number))?;
        for helper in link.copy_helpers() {
            library_thread::spawn("outboard-copy", move || helper.run());
        }
        // The session is never freed: threads of the library use it until the process ends.
        let session: &'static Session = Box::leak(Box::new(Session::new(link, fds, handler)));
        session.watch_batches();
        session.start_sender();
        Ok(Server {
            number,
            session,
            welcome,
            devices,
            memory: Mutex::new(memory),
            mapping: Mutex::default(),
            board: OnceLock::new(),
            staging: Staging::default(),
            peer_address: None,
            is_emulated: false,
        })
    }

    pub(crate) fn cards(&self) -> &[DeviceCard] {
        &self.welcome.devices
    }

    pub(crate) fn card(&self, device: CUdevice) -> Result<&DeviceCard, CUresult> {
        self.welcome
            .devices
            .get(self.devices.local(device)?)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns whether an address is in the server's window, and so device memory of its.
    pub(crate) fn has_address(&self, address: u64) -> bool {
        let (base, bytes) = (self.welcome.window_base, self.welcome.window_bytes);
        address.wrapping_sub(base) < bytes
    }

    /// Returns an attribute of a device from its card; 0 if the driver refused the query.
    pub(crate) fn attribute(&self, device: CUdevice, attribute: u32) -> i32 {
        let value = self
            .card(device)
            .ok()
            .and_then(|c| c.attributes.get(attribute as usize).copied().flatten());
        value.unwrap_or(0)
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
        let numbered = Numbered::Work(None);
        self.session.submit(numbered, context, message).map(drop)
    }

    /// Sends a message of a context, and returns its number. If it `rests`, it may leave with the
    /// next one: its effect is first seen by a later message.
    #[inline(always)]
    pub(crate) fn submit_resting<'a, M: Op<'a>>(
        &self,
        (thread, context): (&thread::Local, u64),
        numbered: Numbered<'_>,
        message: &M,
        rests: bool,
    ) -> Result<u64, CUresult> {
        self.session.check_in(context)?;
        thread.has_sent();
        self.session
            .submit_resting(numbered, context, message, rests)
    }

    pub(crate) fn submit_in<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
    ) -> Result<(), CUresult> {
        self.session.check_in(context)?;
        stats::sent();
        let numbered = Numbered::Work(None);
        self.session.submit(numbered, context, message).map(drop)
    }

    /// Sends a message that is no work for the GPU.
    pub(crate) fn submit_quietly<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
    ) -> Result<(), CUresult> {
        self.session.check_in(context)?;
        stats::sent();
        let numbered = Numbered::Quietly(None);
        self.session.submit(numbered, context, message).map(drop)
    }

    /// Has the server allocate device memory. If the session shares the devices' memory with
    /// others, the server's answer is awaited: it may have none left.
    pub(crate) fn submit_allocation<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
    ) -> Result<(), CUresult> {
        match self.welcome.confirms_memory {
            false => self.submit_quietly(context, message),
            true => self.session.call(context, message, |_| ()),
        }
    }

    /// Sends work to a stream, under the stream's context.
    #[inline(always)]
    pub(crate) fn submit_to<'a, M: Op<'a>>(
        &self,
        stream: &StreamRef,
        message: &M,
    ) -> Result<(), CUresult> {
        self.submit_to_from(&thread::here(), stream, message)
            .map(drop)
    }

    /// Sends work to a stream for a caller that has already looked up its thread's own state, and
    /// returns its number.
    #[inline(always)]
    pub(crate) fn submit_to_from<'a, M: Op<'a>>(
        &self,
        thread: &thread::Local,
        stream: &StreamRef,
        message: &M,
    ) -> Result<u64, CUresult> {
        let context = stream.context();
        self.session.check_in(context)?;
        thread.has_sent();
        self.session.submit(stream.work(), context, message)
    }

    /// Sends work to a stream under a given context, for threads that have none.
    pub(crate) fn submit_to_in<'a, M: Op<'a>>(
        &self,
        context: u64,
        stream: &StreamRef,
        message: &M,
    ) -> Result<u64, CUresult> {
        self.session.check_in(context)?;
        stats::sent();
        self.session.submit(stream.work(), context, message)
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
}
