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
    Access, CQN_FIRST, CompletionsSetup, Error, KernelAdapter, Mapped, Network, PairSetup,
    Registered,
    wqe::{Data, Operation, Remote, Segment},
};
use smallvec::smallvec;

use ends::{End, connect, run, write};

/// Groups of queues, as if for as many blocks.
const GROUPS: u32 = 2;

/// `outboard_net_adapter_poll` of kernel.cpp.
type Poll = unsafe extern "C" fn(u64, u64, u32, u64) -> u32;

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
pub(crate) struct Adapter {
    host: KernelAdapter,
    /// Each group's copy of the tables.
    regions: Mapped,
}

impl Deref for Adapter {
    type Target = KernelAdapter;

    fn deref(&self) -> &KernelAdapter {
        &self.host
    }
}

impl DerefMut for Adapter {
    fn deref_mut(&mut self) -> &mut KernelAdapter {
        &mut self.host
    }
}

impl Adapter {
    pub(crate) fn new(_perfect: Network) -> Adapter {
        let tables = Mapped::allocate(KernelAdapter::BYTES).unwrap();
        Adapter {
            host: KernelAdapter::new(tables, GROUPS).unwrap(),
            regions: Mapped::allocate(KernelAdapter::BYTES * GROUPS as usize).unwrap(),
        }
    }

    pub(crate) fn register(
        &mut self,
        domain: u32,
        memory: impl Into<Registered>,
        access: Access,
    ) -> Result<u32, Error> {
        let memory = memory.into();
        let (address, bytes) = (memory.address(), memory.len() as u64);
        self.host.register(domain, address, bytes, access)
    }

    pub(crate) fn create_pair(&mut self, setup: PairSetup) -> Result<u32, Error> {
        self.host.create_pair(&setup)
    }

    pub(crate) fn reset(&mut self, qpn: u32, setup: PairSetup) -> Result<(), Error> {
        self.host.reset(qpn, &setup)
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        // SAFETY: the function has this type.
        let poll: Symbol<Poll> = unsafe { library().get(b"outboard_net_adapter_poll\0") }.unwrap();
        let (tables, regions) = (self.host.address(), self.regions.address());
        // SAFETY: tables and regions are there, and what they name is; the tests of one binary run
        // in threads, but this function keeps its state for a call only.
        unsafe { poll(tables, regions, GROUPS, now_ns) as usize }
    }
}

engine!(Adapter);

/// A block sees nothing of what completes in another: such an entry would wait for ever.
#[test]
fn a_wait_for_a_queue_of_another_block_is_refused() {
    let mut adapter = Adapter::new(Network::default());
    let [first, mut second, peer, other] = [(); 4].map(|()| End::new(&mut adapter, false, 1));
    connect(&mut adapter, &first, &peer);
    connect(&mut adapter, &second, &other);
    second.post(Operation::Wait {
        completions: CQN_FIRST + first.setup.send_completions,
        number: 0,
    });
    run(&mut adapter, &mut 0);
    assert_eq!(second.completion().map(|done| done.syndrome), Some(2));
}

#[test]
fn a_queue_whose_entries_are_large_lets_others_go_first() {
    let mut adapter = Adapter::new(Network::default());
    let [mut a, b] = [(); 2].map(|()| End::new(&mut adapter, false, 1));
    connect(&mut adapter, &a, &b);
    let large = Mapped::allocate(9 << 20).unwrap();
    let key = adapter.register(1, large.clone(), Access::ALL).unwrap();
    let whole = Segment {
        length: 9 << 20,
        lkey: key,
        address: large.address(),
    };
    for _ in 0..3 {
        a.post(Operation::Write {
            remote: Remote {
                address: large.address(),
                rkey: key,
            },
            imm: None,
            data: Data::Gather(smallvec![whole]),
        });
    }
    a.post(write(&a, &b));
    let mut done = || std::iter::from_fn(|| a.completion()).count();
    adapter.poll(1);
    assert_eq!(done(), 2, "16 MiB, and what was begun before");
    adapter.poll(2);
    assert_eq!(done(), 2);
}
