//! Tests of the exported calls against a server that is a thread of the test: no process, no
//! device.
//!
//! Each test has a server and a driver of its own, so that several run at a time.

mod copies;
mod failures;
mod launches;
mod memory;
mod mirrors;
mod peer;
mod waits;

use std::{
    ffi::c_void,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUdeviceptr,
        CUfunction, CUgraph, CUgraphNode, CUmodule, CUstream,
    },
    enums::*,
};
use outboard_link::{Endpoint, Link, Listener, connect};
use outboard_wire::{
    doc::{DeviceCard, KernelCard, LaunchBounds, LibraryCard, to_bytes},
    handshake::ServerWelcome,
    messages::{Ping, Request},
    runs::Runs,
};
use parking_lot::Mutex;

use self::peer::{Answer, Notes, Peer};
use crate::{
    entry::*,
    session::Handler,
    state::{DeviceOrder, Driver, Server, set_driver_of_thread},
};

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const GONE: CUresult = CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
const MIB: usize = 1 << 20;
const QUOTA_BYTES: u64 = 64 << 20;
const WINDOW_BYTES: u64 = 1 << 30;
/// Most threads of a block, and most blocks in each dimension of a grid.
const THREADS_MAX: i32 = 1024;
const GRID_MAX: i32 = 65_535;
const PITCH_MAX: i32 = 1 << 20;

/// The kind of link between a test and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shm,
    Tcp,
}

/// A test's own client, with a context that is current for the calling thread.
struct Client {
    driver: &'static Driver,
    peer: Peer,
    printed: Printed,
}

/// Texts of kernels, each with its descriptor.
type Printed = Arc<Mutex<Vec<(u8, Vec<u8>)>>>;

/// Keeps what the server sends without a request.
struct Kept(Printed);

impl Handler for Kept {
    fn host_call(&self, _: u64, _: CUresult) {}
    fn print(&self, fd: u8, text: &[u8]) {
        self.0.lock().push((fd, text.to_vec()));
    }
    fn host_pages(&self, _: Runs<'_>) {}
    fn written_by_adapter(&self, _: u64, _: u64) {}
}

impl Client {
    /// Starts a server that answers by `script`, and a client with a current context. A thread has
    /// one client: it remembers the stream that its last call named.
    fn start(
        kind: Kind,
        script: impl FnMut(&Request<'_>, &mut Notes<'_>) -> Answer + Send + 'static,
    ) -> Client {
        let (client, server) = links(kind);
        let peer = Peer::start(server, script);
        let printed = Printed::default();
        let mut welcome = welcome();
        let welcomes = std::slice::from_mut(&mut welcome);
        let mut devices = DeviceOrder::apply(welcomes, None, None).expect("a device");
        let devices = devices.remove(0);
        let handler = Box::new(Kept(printed.clone()));
        let server =
            Server::new(0, client, Vec::new(), welcome, devices, handler).expect("a free window");
        // Threads of the session use it until the process ends, as they use a program's.
        let driver: &'static Driver = Box::leak(Box::new(Driver::new(server)));
        set_driver_of_thread(driver);
        let mut context = CUcontext::NULL;
        // SAFETY: a local output.
        unsafe {
            assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
            assert_eq!(cuCtxSetCurrent(context), SUCCESS);
        }
        Client {
            driver,
            peer,
            printed,
        }
    }

    /// Returns the messages that have arrived, after one more round trip.
    fn seen(&self) -> Vec<String> {
        self.driver.call(&Ping {}, |_| ()).expect("a reply");
        self.peer.seen()
    }

    /// Returns how many messages of this name the server has got.
    fn count(&self, name: &str) -> usize {
        self.seen().iter().filter(|m| is_named(m, name)).count()
    }
}

/// Returns whether a message, printed as `Name { ... }` within its enum, has this name.
fn is_named(message: &str, name: &str) -> bool {
    message.split(['(', ' ']).next() == Some(name)
}

/// Both ends of a link in this process: the client's and the server's.
fn links(kind: Kind) -> (Link, Link) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let socket: PathBuf = std::env::temp_dir().join(format!(
        "outboard-client-{}-{number}.sock",
        std::process::id()
    ));
    let url = match kind {
        Kind::Shm => format!("shm://{}", socket.display()),
        Kind::Tcp => "tcp://127.0.0.1:0".to_owned(),
    };
    let endpoint: Endpoint = url.parse().expect("an address");
    let listener = Listener::bind(&endpoint).expect("to listen");
    let endpoint = listener.endpoint().clone();
    let client = thread::spawn(move || {
        connect(&endpoint, Duration::from_secs(10))
            .and_then(|stream| stream.into_link_client(soon()))
            .expect("a link")
    });
    let (server, _) = listener.accept(Some(soon())).expect("a client");
    let server = server.into_link_server().expect("a link");
    (client.join().expect("the client's thread"), server)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// One device, and a window that no other test has.
fn welcome() -> ServerWelcome {
    static WINDOW: AtomicU64 = AtomicU64::new(0x5000_0000_0000);
    let mut attributes = vec![None; 256];
    for (attribute, value) in [
        (CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, THREADS_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, THREADS_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, THREADS_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, GRID_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, GRID_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, GRID_MAX),
        (CU_DEVICE_ATTRIBUTE_MAX_PITCH, PITCH_MAX),
    ] {
        attributes[attribute as usize] = Some(value);
    }
    ServerWelcome {
        release: String::new(),
        session: 1,
        driver_version: 13_000,
        ptx_only: false,
        window_base: WINDOW.fetch_add(WINDOW_BYTES, Ordering::Relaxed),
        window_bytes: WINDOW_BYTES,
        exact_memory: false,
        confirms_memory: false,
        devices: vec![DeviceCard {
            name: "a test's device".into(),
            memory_bytes: QUOTA_BYTES,
            quota_bytes: QUOTA_BYTES,
            attributes,
            ..DeviceCard::default()
        }],
        key: None,
    }
}

/// The document about a library with one kernel, whose parameters are an address and an int.
fn library() -> Vec<u8> {
    let kernel = KernelCard {
        name: "kernel".into(),
        params: vec![(0, 8), (8, 4)],
        bounds: LaunchBounds {
            threads: THREADS_MAX as u32,
            dynamic_shared_bytes: 48 << 10,
        },
    };
    to_bytes(&LibraryCard {
        kernels: vec![kernel],
    })
    .expect("a document")
}

/// Loads the library above.
fn load() -> CUfunction {
    let image = c".version 8.0\n.target sm_80\n.address_size 64\n";
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    // SAFETY: local outputs and strings with their NULs.
    unsafe {
        assert_eq!(
            cuModuleLoadData(&mut module, image.as_ptr().cast()),
            SUCCESS
        );
        let name = c"kernel".as_ptr();
        assert_eq!(cuModuleGetFunction(&mut function, module, name), SUCCESS);
    }
    function
}

/// Launches the kernel of [`load`].
fn launch(function: CUfunction, grid: [u32; 3], block: [u32; 3], stream: CUstream) -> CUresult {
    launch_with(0x1122_3344_5566_7788, function, grid, block, stream)
}

/// Launches the kernel of [`load`] with this address as its argument.
fn launch_with(
    mut address: u64,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    stream: CUstream,
) -> CUresult {
    let mut number = 0x99aa_bbccu32;
    let mut params: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut number).cast()];
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    let params = params.as_mut_ptr();
    // SAFETY: the kernel's two parameters, which are local variables.
    unsafe {
        cuLaunchKernel(
            function,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            0,
            stream,
            params,
            std::ptr::null_mut(),
        )
    }
}

fn allocate(bytes: usize) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: a local output.
    match unsafe { cuMemAlloc_v2(&mut address, bytes) } {
        SUCCESS => Ok(address),
        error => Err(error),
    }
}

/// Waits for the default stream.
fn synchronize() -> CUresult {
    // SAFETY: a call without pointers.
    unsafe { cuStreamSynchronize(CUstream::NULL) }
}

/// Runs a test over each kind of link, each on a thread of its own.
fn over_each_link(test: impl Fn(Kind) + Sync) {
    thread::scope(|scope| {
        for kind in [Kind::Shm, Kind::Tcp] {
            let test = &test;
            scope.spawn(move || test(kind));
        }
    });
}

/// Runs a test's call on a thread of its own, which must return in time.
fn in_time<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, wait) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let _ = done.send(call());
    });
    wait.recv_timeout(Duration::from_secs(20))
        .expect("the call to return")
}
