//! The process's drivers, one for each of its servers, and the one that a call is for.
//!
//! A process with one server has one driver, which every call finds without a look at anything
//! else. With several, [`choose`] reads the call's arguments: handles carry their server's number,
//! addresses lie in a server's window or in memory that one driver knows, and every device has its
//! driver. What names nothing of a server is for that of the current context.

use std::{
    slice,
    sync::{OnceLock, atomic::Ordering},
};

use outboard_api::{
    CUresult,
    cuda::{
        CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream,
    },
};

use super::{Driver, HandleKind, handles, handles::kind_of};
use crate::{
    context::Context,
    observe::{
        conditions,
        servers::{self, Chosen, Named, Selected},
    },
    thread,
};

/// The driver of a process with one server.
static DRIVER: OnceLock<Driver> = OnceLock::new();
/// The drivers of a process with several, by their servers' numbers.
static SEVERAL: OnceLock<Vec<Driver>> = OnceLock::new();

#[cfg(test)]
thread_local! {
    /// The driver of a test: each has its own, on its thread.
    static OF_TEST: std::cell::Cell<Option<&'static Driver>> = const { std::cell::Cell::new(None) };
}

/// Makes a driver the calling thread's, in place of the process's.
#[cfg(test)]
pub(crate) fn set_driver_of_thread(driver: &'static Driver) {
    OF_TEST.set(Some(driver));
}

/// Returns the driver of the current call, once `cuInit` has succeeded.
#[inline]
pub(crate) fn driver() -> Result<&'static Driver, CUresult> {
    #[cfg(test)]
    if let Some(driver) = OF_TEST.get() {
        return Ok(driver);
    }
    match DRIVER.get() {
        Some(driver) => Ok(driver),
        None => of_call(),
    }
}

/// Returns all drivers of the process, by their servers' numbers; none before `cuInit`.
pub(crate) fn drivers() -> &'static [Driver] {
    #[cfg(test)]
    if let Some(driver) = OF_TEST.get() {
        return slice::from_ref(driver);
    }
    match DRIVER.get() {
        Some(driver) => slice::from_ref(driver),
        None => SEVERAL.get().map_or(&[], Vec::as_slice),
    }
}

/// Returns whether the process has several servers.
#[inline]
pub(crate) fn are_several() -> bool {
    conditions::are_several()
}

/// Keeps the drivers of the process.
pub(super) fn set(mut all: Vec<Driver>) {
    if all.len() > 1 {
        let _ = SEVERAL.set(all);
        servers::choose_by(choose);
        conditions::mark_several();
    } else if let Some(only) = all.pop() {
        let _ = DRIVER.set(only);
    }
}

#[cold]
fn of_call() -> Result<&'static Driver, CUresult> {
    let all = SEVERAL.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
    let thread = thread::here();
    let of_context = || thread.context.get().map(|context| context.server);
    let number = thread.server.get().or_else(of_context).unwrap_or(0);
    all.get(usize::from(number))
        .ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// Returns the driver of a device, by the program's number.
pub(crate) fn driver_of_device(device: CUdevice) -> Result<&'static Driver, CUresult> {
    if drivers().is_empty() {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    drivers()
        .iter()
        .find(|driver| driver.card(device).is_ok())
        .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

/// Returns the driver that made a handle, by the server's number in it.
pub(crate) fn driver_of_handle(handle: u64) -> Option<&'static Driver> {
    drivers().get(usize::from(handles::server_of(handle)))
}

/// Returns the driver that knows the memory at an address, `first` if it does.
pub(crate) fn driver_of_address(
    address: CUdeviceptr,
    first: &'static Driver,
) -> Option<&'static Driver> {
    let mut all = std::iter::once(first).chain(drivers());
    all.find(|driver| driver.knows(address))
}

impl Driver {
    /// Returns whether memory at an address is this server's: of a device, or pinned through it.
    fn knows(&self, address: u64) -> bool {
        self.has_address(address)
            || self.memory.lock().find(address).is_some()
            || self.host.read().find(address).is_some()
    }

    /// Returns whether an address is device memory of another server.
    #[inline]
    pub(crate) fn is_elsewhere(&self, address: u64) -> bool {
        are_several()
            && drivers()
                .iter()
                .any(|other| other.number != self.number && other.has_address(address))
    }

    /// Returns a context for work with the memory at an address.
    fn context_of_address(&self, address: u64) -> Option<&'static Context> {
        let memory = self.memory.lock();
        let found = memory.find(address).map(|found| found.context);
        drop(memory);
        found
            .and_then(|context| self.contexts.get(context).ok())
            .or_else(|| self.contexts.any_made())
    }

    /// Returns the context of an object, or another of the server's.
    fn context_of_object(&self, handle: u64) -> Option<&'static Context> {
        let of_stream = |handle| self.streams.get(handle).map(|stream| stream.context);
        let of_event = |handle: u64| {
            let event = self.streams.event(CUevent(handle as usize));
            event.ok().map(|event| event.context)
        };
        let found = match kind_of(handle) {
            // The call itself says what it does with a context.
            kind if kind == HandleKind::Context as u8 => return None,
            kind if kind == HandleKind::Stream as u8 => of_stream(handle),
            kind if kind == HandleKind::Event as u8 => of_event(handle),
            _ => self.libraries.context_of(handle),
        };
        found
            .and_then(|context: CUcontext| self.contexts.get(context).ok())
            .or_else(|| self.contexts.any_made())
    }
}

/// Makes the thread's calls go to a driver until the result is dropped. `context` is current
/// meanwhile if the thread's own belongs to another server.
pub(crate) fn on(driver: &Driver, context: Option<&'static Context>) -> Selected {
    servers::enter(chosen(driver, context))
}

/// Makes the thread's calls go to the driver of the memory at an address.
pub(crate) fn on_address(driver: &Driver, address: u64) -> Selected {
    on(driver, driver.context_of_address(address))
}

/// Makes the thread's calls go to the driver of a stream.
pub(crate) fn on_stream(stream: CUstream) -> Selected {
    servers::enter(choose(&[Named::Stream(stream)]))
}

/// Makes the thread's calls go to the driver that an object belongs to, if there are several.
pub(crate) fn on_handle(handle: u64) -> Option<Selected> {
    are_several().then(|| servers::enter(choose(&[Named::Handle(handle)])))
}

fn chosen(driver: &Driver, context: Option<&'static Context>) -> Chosen {
    let current = thread::here().context.get();
    let is_foreign = current.is_some_and(|current| current.server != driver.number);
    Chosen {
        server: driver.number,
        context: is_foreign.then_some(context),
    }
}

/// Chooses the server of a call by its arguments.
fn choose(named: &[Named]) -> Chosen {
    let current = thread::here().context.get();
    let number = current.map_or(0, |context| context.server);
    let (Some(here), all) = (drivers().get(usize::from(number)), drivers()) else {
        return Chosen {
            server: 0,
            context: None,
        };
    };
    let is_stream = |named: &&Named| matches!(named, Named::Stream(_));
    let (streams, others) = (
        named.iter().filter(is_stream),
        named.iter().filter(|named| !is_stream(named)),
    );
    let found = streams.chain(others).find_map(|named| match *named {
        Named::Stream(stream) if is_default(stream) => current.map(|_| chosen(here, current)),
        Named::Stream(stream) => by_handle(stream.0 as u64),
        Named::Handle(handle) => by_handle(handle),
        Named::Address(address) => {
            let found = driver_of_address(address, here)?;
            Some(chosen(found, found.context_of_address(address)))
        }
        Named::Device(device) => {
            let found = all.iter().find(|driver| driver.card(device).is_ok())?;
            let primary = found.contexts.primary(device).ok();
            let made = |context: &&Context| context.created.load(Ordering::Acquire);
            Some(chosen(found, primary.filter(made)))
        }
    });
    found.unwrap_or(chosen(here, current))
}

pub(crate) fn is_default(stream: CUstream) -> bool {
    stream.is_null() || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD
}

/// Returns the choice of an object's server; `None` if the handle is of no server, or of all, as a
/// library's is.
fn by_handle(handle: u64) -> Option<Chosen> {
    let driver = match HandleKind::is_of_library(handle) {
        true => drivers()
            .iter()
            .find(|driver| driver.libraries.context_of(handle).is_some()),
        false if HandleKind::is_known(handle) => driver_of_handle(handle),
        false => None,
    }?;
    Some(chosen(driver, driver.context_of_object(handle)))
}
