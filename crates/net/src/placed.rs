//! An endpoint of this process, or where the GPU is. Programs open it before they use CUDA, so that
//! the place is known when it is first used.

use std::{ffi::c_void, sync::OnceLock};

use parking_lot::Mutex;

use crate::{
    block::{Export, Options},
    endpoint::{Counts, Endpoint},
    engine::Engine,
    error::Error,
    faults::Network,
    here::here,
    keys::Access,
    meet::{Meeting, Window},
    provider::Provider,
    remote::{is_remote, stub::Remote},
    way::Way,
};

/// Why a kernel is no adapter for a program whose GPU is behind a network.
const AT_SERVER: &str = "the adapter is a kernel (OUTBOARD_NET_ENGINE) only where program and GPU \
    have the same memory: without `outboard run`, or over shm";

fn impossible(why: &str) -> Error {
    Error::Impossible {
        provider: "nic".into(),
        why: why.into(),
    }
}

#[derive(Debug)]
pub(crate) struct Placed {
    /// The provider that the program has named.
    asked: Option<Provider>,
    /// The provider in this process; none if the one that was asked for is not possible here.
    here: Option<Provider>,
    network: Network,
    engine: Engine,
    placing: Mutex<()>,
    chosen: OnceLock<Box<dyn Endpoint>>,
}

impl Placed {
    pub(crate) fn new(
        asked: Option<Provider>,
        (here, engine): (Option<Provider>, Engine),
        network: Network,
    ) -> Placed {
        Placed {
            asked,
            here,
            network,
            engine,
            placing: Mutex::default(),
            chosen: OnceLock::new(),
        }
    }

    fn get(&self) -> Result<&dyn Endpoint, Error> {
        if let Some(endpoint) = self.chosen.get() {
            return Ok(&**endpoint);
        }
        let _one_at_a_time = self.placing.lock();
        if let Some(endpoint) = self.chosen.get() {
            return Ok(&**endpoint);
        }
        let is_nic = self.asked.unwrap_or(Provider::Nic) == Provider::Nic;
        let endpoint: Box<dyn Endpoint> = match (is_remote()?, self.engine) {
            (true, Engine::Gpu { .. }) if is_nic => return Err(impossible(AT_SERVER)),
            (true, _) => Box::new(Remote::open(self.asked, self.network)?),
            (false, engine) => {
                let provider = self.here.map_or_else(|| Provider::choose(self.asked), Ok)?;
                here(provider, engine, self.network)?
            }
        };
        Ok(&**self.chosen.get_or_init(|| endpoint))
    }
}

impl Endpoint for Placed {
    fn provider(&self) -> Provider {
        let known = self.here.or(self.asked).unwrap_or(Provider::Nic);
        let chosen = self.chosen.get();
        chosen.map_or(known, |chosen| chosen.provider())
    }

    fn settle(&self) -> Result<(), Error> {
        self.get().map(|_| ())
    }

    fn is_remote(&self) -> bool {
        self.chosen.get().is_some_and(|chosen| chosen.is_remote())
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        // SAFETY: the caller's duty is this one's.
        unsafe { self.get()?.register(at, bytes, access) }
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller's duty is this one's.
        unsafe { self.get()?.create(at, bytes, options) }
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        self.get()?.connect(one, other)
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        self.get()?.meet(qpn, meeting, mine)
    }

    fn way_of(&self, qpn: u32) -> Option<Way> {
        self.chosen.get()?.way_of(qpn)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.get()?.reset(qpn)
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        // SAFETY: the caller's duty is this one's.
        unsafe { self.get()?.reset_counters(qpn, counters) }
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        self.get()?.counts(qpn)
    }
}
