//! The adapter that is a kernel: its code for a GPU, compiled for the CPU, passes the tests of the
//! adapter that is a thread, and writes the same bytes for entries that are made up.
#![allow(clippy::unwrap_used)]

mod alike;
#[macro_use]
mod ends;
mod order;
mod refused;

use std::{
    ops::{Deref, DerefMut},
    path::Path,
    process::Command,
    sync::OnceLock,
};

use libloading::{Library, Symbol};
use outboard_net::{
    Access, CompletionsSetup, Error, KernelAdapter, Mapped, Network, PairSetup, Registered,
};

/// `outboard_net_adapter_poll` of kernel.cpp.
type Poll = unsafe extern "C" fn(u64, u64) -> u32;

/// Compiles the adapter's code, once.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("kernel.so");
        let compiled = Command::new("g++")
            .args([
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-shared",
                "-fPIC",
                "-I",
            ])
            .arg(here.join("../../include"))
            .arg(here.join("tests/adapter/kernel.cpp"))
            .arg("-o")
            .arg(&built)
            .status();
        assert!(compiled.unwrap().success());
        // SAFETY: the library has no initialisers.
        unsafe { Library::new(&built) }.unwrap()
    })
}

/// [`KernelAdapter`] and its kernel, with the calls of `outboard_net::Adapter`.
pub(crate) struct Adapter(KernelAdapter);

impl Deref for Adapter {
    type Target = KernelAdapter;

    fn deref(&self) -> &KernelAdapter {
        &self.0
    }
}

impl DerefMut for Adapter {
    fn deref_mut(&mut self) -> &mut KernelAdapter {
        &mut self.0
    }
}

impl Adapter {
    pub(crate) fn new(_perfect: Network) -> Adapter {
        let tables = Mapped::allocate(KernelAdapter::BYTES).unwrap();
        Adapter(KernelAdapter::new(tables, 2).unwrap())
    }

    pub(crate) fn register(
        &mut self,
        domain: u32,
        memory: impl Into<Registered>,
        access: Access,
    ) -> Result<u32, Error> {
        let memory = memory.into();
        self.0
            .register(domain, memory.address(), memory.len() as u64, access)
    }

    pub(crate) fn create_pair(&mut self, setup: PairSetup) -> Result<u32, Error> {
        self.0.create_pair(&setup)
    }

    pub(crate) fn reset(&mut self, qpn: u32, setup: PairSetup) -> Result<(), Error> {
        self.0.reset(qpn, &setup)
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        // SAFETY: the function has this type.
        let poll: Symbol<Poll> = unsafe { library().get(b"outboard_net_adapter_poll\0") }.unwrap();
        // SAFETY: the tables are there, and what they name is; the tests of one binary run in
        // threads, but this function keeps its state for a call only.
        unsafe { poll(self.0.address(), now_ns) as usize }
    }
}

engine!(Adapter);
