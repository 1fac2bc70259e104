//! The device against a driver of a hundred lines (`driver.c`), built by the machine's C compiler:
//! whether the table loads, what is refused, and that every object is released.

use std::{
    ffi::OsString,
    os::fd::OwnedFd,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU8, Ordering::Relaxed},
    time::{Duration, Instant},
};

use outboard_device::{HeldUp, Outcome, Placed, dispatch, images::ImageStore};
use outboard_link::{Granted, Segment};
use outboard_wire::{
    Data,
    messages::{self, Request},
};

use super::*;

mod board;
mod graphs;
mod host_copies;
mod ipc;
mod memory;
mod nvml_events;
mod settled;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 0x10;
const STREAM: u64 = 0x20;

/// A fake driver with its own state.
struct Fake {
    _folder: tempfile::TempDir,
    path: OsString,
}

impl Fake {
    fn build(extra: &[&str]) -> Fake {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/driver.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-w", "-pthread", "-o"])
            .args([&path, &source])
            .args(extra)
            .status()
            .expect("a C compiler");
        assert!(built.success());
        Fake {
            path: path.into(),
            _folder: folder,
        }
    }

    /// Calls a test function of the fake, `int name(int)`.
    fn ask(&self, name: &str, value: i32) -> i32 {
        let library = table::open_library(&self.path).expect("loaded already");
        // SAFETY: every function that tests call takes at most an int and returns at most one.
        unsafe {
            let function = library
                .get::<unsafe extern "C" fn(i32) -> i32>(name.as_bytes())
                .expect("there");
            function(value)
        }
    }

    fn open(&self) -> Nvidia {
        let driver = Driver::load_from(&self.path).expect("a driver");
        Nvidia::open(driver, NvidiaOptions::default()).expect("a device")
    }
}

/// Sends one session's messages to the device.
struct Client {
    device: Nvidia,
    images: ImageStore,
    context: u64,
    base: u64,
    /// Memory that holds the next message's data.
    placed: Option<Placed>,
}

impl Client {
    fn new(fake: &Fake) -> Client {
        // More clients at a time than one number has windows.
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let mut device = fake.open();
        let number = NEXT.fetch_add(1, Relaxed) % 8;
        let (base, _) =
            outboard_device::Host::reserve_window(&mut device, number).expect("a window");
        let mut client = Client {
            device,
            images: ImageStore::new(None, "", Default::default()),
            context: 0,
            base,
            placed: None,
        };
        client.done(Request::PrimaryContextRetain(
            messages::PrimaryContextRetain {
                context: CONTEXT,
                device: 0,
            },
        ));
        client.context = CONTEXT;
        client
    }

    fn send(&mut self, request: Request<'_>) -> Result<Outcome, Failure> {
        let mut no_fds = |_| Err(Failure::unsupported("a file descriptor"));
        self.send_with(request, &mut no_fds)
    }

    fn send_with(
        &mut self,
        request: Request<'_>,
        fds: &mut dyn FnMut(u64) -> Result<OwnedFd, Failure>,
    ) -> Result<Outcome, Failure> {
        let mut cx = Cx {
            context: self.context,
            images: &mut self.images,
            placed: self.placed.as_ref(),
            fds,
            service: &mut |_, _| true,
            unserved: None,
        };
        dispatch(&mut self.device, &mut cx, &request, &mut Vec::new())
    }

    /// Sends a message, during which the client ends the kernel that waits for a word at `word`,
    /// and all host functions.
    fn send_served(&mut self, request: Request<'_>, word: u64) -> Result<(), Failure> {
        let mut cx = Cx {
            context: self.context,
            images: &mut self.images,
            placed: None,
            fds: &mut |_| unreachable!(),
            service: &mut |device, done| {
                device.host_write(word, &[0]);
                let mut reached = Vec::new();
                device.take_host_calls(&mut reached);
                done.extend(reached.iter().map(|(call, _)| *call));
                true
            },
            unserved: None,
        };
        dispatch(&mut self.device, &mut cx, &request, &mut Vec::new()).map(drop)
    }

    /// Calls the device directly and returns its answer.
    fn with<T>(&mut self, call: impl FnOnce(&mut Nvidia, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx {
            context: self.context,
            images: &mut self.images,
            placed: None,
            fds: &mut |_| Err(Failure::unsupported("a file descriptor")),
            service: &mut |_, _| true,
            unserved: None,
        };
        call(&mut self.device, &mut cx)
    }

    fn done(&mut self, request: Request<'_>) {
        assert!(matches!(self.send(request), Ok(Outcome::Done)));
    }

    fn wait(&mut self, request: Request<'_>) -> Pending {
        match self.send(request) {
            Ok(Outcome::Wait(pending)) => pending,
            Ok(Outcome::Done) => unreachable!("this message waits"),
            Err(failure) => unreachable!("{failure}"),
        }
    }

    fn refused(&mut self, request: Request<'_>) -> CUresult {
        self.send(request).err().expect("refused").status
    }

    /// Loads a library of a kernel, a plain and a managed variable.
    fn load(&mut self, library: u64) -> Result<messages::LibraryLoadReply<'static>, Failure> {
        let image = b".version 8.0\n.target sm_80\n.address_size 64\n\
            .visible .global .u64 plain;\n.visible .global .attribute(.managed) .u64 managed;\n\
            .visible .entry kernel() { ret; }\n";
        let (hash, len) = (*blake3::hash(image).as_bytes(), image.len() as u64);
        self.images.put(&hash, 0, len, image).expect("taken");
        self.with(|device, cx| {
            device.library_load(
                cx,
                &messages::LibraryLoad {
                    library,
                    hash: &hash,
                    len,
                    options: &[],
                },
            )
        })
    }

    fn map(&mut self, offset: u64, len: u64) -> u64 {
        let va = self.base + offset;
        self.done(Request::MemMap(messages::MemMap { va, len }));
        va
    }
}

#[test]
fn the_driver_loads_and_describes_itself() {
    let fake = Fake::build(&[]);
    let mut device = fake.open();
    let cards = outboard_device::Host::cards(&mut device, 0).expect("cards");
    assert_eq!(cards.len(), 1);
    assert_eq!((cards[0].name.as_str(), cards[0].uuid), ("Fake", [7; 16]));
    assert_eq!(cards[0].attributes[2], Some(20));
    assert_eq!(cards[0].attributes[3], None, "the driver refuses this one");
    assert_eq!(cards[0].quota_bytes, (1 << 29) - (256 << 20));
    assert_eq!(cards[0].stream_priorities, (0, -5));
    drop(device);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn the_quota_is_what_is_free_when_the_client_is_there() {
    let fake = Fake::build(&[]);
    let mut device = fake.open();
    device.memory_bytes = None;
    outboard_device::Host::prepare(&mut device).expect("prepared");
    let mut quota = |free_mib, workers_to_come| {
        fake.ask("fake_free_mib", free_mib);
        let cards = outboard_device::Host::cards(&mut device, workers_to_come).expect("cards");
        cards[0].quota_bytes
    };
    assert_eq!(quota(1000, 0), 744 * MIB);
    assert_eq!(quota(900, 0), 644 * MIB);
    assert_eq!(quota(900, 1), 644 * MIB - CONTEXT_BYTES_MAX);
    assert_eq!(quota(100, 3), 0);
    device.memory_bytes = Some(300 * MIB);
    let cards = outboard_device::Host::cards(&mut device, 1).expect("cards");
    assert_eq!(cards[0].quota_bytes, 300 * MIB);
}

#[test]
fn data_is_copied_from_where_it_was_received() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 4 * MIB);
    let mut places = Vec::new();
    for round in 0..20u8 {
        let len = 1 << 20;
        let mut room = outboard_device::Host::room(&mut client.device, len).expect("room");
        room.room().fill(round);
        let placed: Arc<dyn Segment> = Arc::from(room);
        let place = placed.bytes().as_ptr().addr();
        client.placed = Some(Placed::Own(placed.clone()));
        client.done(Request::CopyIn(messages::CopyIn {
            dst: va,
            stream: 0,
            sync: 0,
            data: placed.bytes().into(),
        }));
        // The GPU's copy keeps the memory alive.
        client.placed = None;
        assert_eq!(Arc::strong_count(&placed), 2);
        drop(placed);
        if !places.contains(&place) {
            places.push(place);
        }
        let mut out = client.wait(Request::CopyOut(messages::CopyOut {
            src: va,
            len: 1000,
            stream: 0,
        }));
        assert_eq!(out.ready(), Ok(true));
        assert_eq!(out.data(), Some(&[round; 1000][..]));
    }
    // Four slots are pinned at a time, and reused once their copy is done.
    assert_eq!(places.len(), 4);
    // A part of such memory can be copied like any memory.
    let mut room = outboard_device::Host::room(&mut client.device, 20_000).expect("room");
    room.room().fill(77);
    let placed: Arc<dyn Segment> = Arc::from(room);
    client.placed = Some(Placed::Own(placed.clone()));
    client.done(Request::CopyIn(messages::CopyIn {
        dst: va,
        stream: 0,
        data: placed.bytes()[1..].into(),
        sync: 0,
    }));
    client.placed = None;
    assert_eq!(Arc::strong_count(&placed), 1);
    assert!(outboard_device::Host::room(&mut client.device, usize::MAX).is_none());
    drop((placed, client));
    assert_eq!(fake.ask("fake_live", 0), 0);
}

/// Granted memory of this length, filled as an adapter does: not through a reference.
fn written_by_an_adapter(client: &mut Client, len: usize, value: u8) -> (Arc<dyn Granted>, u64) {
    let mut memory =
        outboard_device::Host::grantable(&mut client.device, MIB as usize).expect("memory");
    let lasting = memory.lasting().expect("a range");
    assert!(lasting.len() >= len);
    let start = std::ptr::with_exposed_provenance_mut::<u8>(lasting.address() as usize);
    // SAFETY: the range is mapped, and nothing else uses it.
    unsafe { start.write_bytes(value, len) };
    memory.truncate(len);
    (memory.into(), lasting.address())
}

#[test]
fn data_that_an_adapter_wrote_is_copied_from_there_and_never_referred_to() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 4 * MIB);
    let mut places = Vec::new();
    for round in 0..20u8 {
        let (memory, place) = written_by_an_adapter(&mut client, 5000, round);
        client.placed = Some(Placed::Granted(memory.clone()));
        client.done(Request::CopyIn(messages::CopyIn {
            dst: va,
            stream: 0,
            sync: 0,
            data: Data::Granted(5000),
        }));
        client.placed = None;
        // The GPU reads it there.
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(memory);
        if !places.contains(&place) {
            places.push(place);
        }
        let mut out = client.wait(Request::CopyOut(messages::CopyOut {
            src: va,
            len: MIB,
            stream: 0,
        }));
        assert_eq!(out.ready(), Ok(true));
        let data = out.data().expect("data");
        assert_eq!(data[..5000], [round; 5000]);
        // A reply is sent from memory that no adapter may write.
        assert!(!places.contains(&(data.as_ptr().addr() as u64)));
    }
    assert_eq!(places.len(), 4);
    // Data that did not come with the message is refused.
    let (memory, _) = written_by_an_adapter(&mut client, 100, 1);
    for (placed, len) in [(None, 100), (Some(Placed::Granted(memory)), 101)] {
        client.placed = placed;
        let copy = messages::CopyIn {
            dst: va,
            stream: 0,
            sync: 0,
            data: Data::Granted(len),
        };
        assert_eq!(
            client.refused(Request::CopyIn(copy)),
            CUresult::CUDA_ERROR_UNKNOWN
        );
    }
    client.placed = None;
    // Half of what may be pinned, and no more.
    let many =
        std::iter::from_fn(|| outboard_device::Host::grantable(&mut client.device, MIB as usize));
    let many: Vec<_> = many.collect();
    assert_eq!(many.len(), 128);
    drop((many, client));
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn what_an_image_contains_is_found_out_once() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let folder = tempfile::tempdir().expect("a folder");
    let mut image = b".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry first(.param .u64 a) { ret; }\n"
        .to_vec();
    // Padded to the length from which notes are kept.
    image.resize(128 << 10, b'\n');
    let hash = *blake3::hash(&image).as_bytes();
    let mut kernels = |images: &mut ImageStore| -> Vec<String> {
        let mut cx = Cx {
            context: client.context,
            images,
            placed: None,
            fds: &mut |_| unreachable!(),
            service: &mut |_, _| true,
            unserved: None,
        };
        client.device.enter(&cx).expect("a context");
        let contents = client.device.contents(&mut cx, &hash, &image);
        let kernels = contents.expect("an image").card.kernels;
        kernels.into_iter().map(|kernel| kernel.name).collect()
    };
    let mut images = ImageStore::new(Some(folder.path().into()), "", Default::default());
    images
        .put(&hash, 0, image.len() as u64, &image)
        .expect("taken");
    assert_eq!(kernels(&mut images), ["first"]);
    // The fake's compute capability is 750.760.
    let label = "contents-2-sm_750760";
    let note = images.note(&hash, label).expect("kept");
    // Another session reads the note, and not the image.
    let renamed: Vec<u8> = String::from_utf8(note)
        .expect("names and small numbers")
        .replace("first", "other")
        .into();
    images.keep_note(&hash, label, &renamed);
    let mut images = ImageStore::new(Some(folder.path().into()), "", Default::default());
    assert_eq!(kernels(&mut images), ["other"]);
    // An unreadable note counts as none.
    images.keep_note(&hash, label, &[0xff; 3]);
    assert_eq!(kernels(&mut images), ["first"]);
}

#[test]
fn our_own_client_library_is_refused() {
    let fake = Fake::build(&["-Wl,--defsym=outboard_client=cuInit"]);
    let refused = Driver::load_from(&fake.path).err().expect("refused");
    assert_eq!(refused.status, CUresult::CUDA_ERROR_STUB_LIBRARY);
    assert!(refused.message.contains("OUTBOARD_DRIVER"), "{refused}");
}

#[test]
fn a_missing_library_is_explained() {
    let refused = Driver::load_from(&"/nowhere/libcuda.so.1".into())
        .err()
        .expect("refused");
    assert_eq!(refused.status, CUresult::CUDA_ERROR_NO_DEVICE);
    assert!(
        refused.message.contains("/nowhere/libcuda.so.1"),
        "{refused}"
    );
}

#[test]
fn what_an_older_driver_lacks_is_named_when_it_is_used() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let failure = client
        .send(Request::CuCtxResetPersistingL2Cache(
            messages::CuCtxResetPersistingL2Cache {},
        ))
        .err()
        .expect("the fake has no such call");
    assert_eq!(failure.status, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert!(
        failure.message.contains("cuCtxResetPersistingL2Cache"),
        "{failure}"
    );
}

#[test]
fn wild_addresses_and_handles_never_reach_the_driver() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = client.map(0, 2 * MIB);
    let local = std::ptr::from_ref(&fake) as u64;
    for (dst, src, len) in [
        (va, local, 8),
        (local, va, 8),
        (va, va + 2 * MIB - 4, 8),
        (va, 0, 1),
        (va, u64::MAX, 8),
    ] {
        let stream = 0;
        let copy = messages::Copy {
            dst,
            src,
            len,
            stream,
            sync: 0,
        };
        let status = client.refused(Request::Copy(copy));
        assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let memset = messages::CuMemsetD8Async {
        dst_device: va,
        uc: 0,
        n: 2 * MIB + 1,
        h_stream: 0,
    };
    let status = client.refused(Request::CuMemsetD8Async(memset));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE);
    let outside = messages::MemMap {
        va: local & !(2 * MIB - 1),
        len: 2 * MIB,
    };
    let status = client.refused(Request::MemMap(outside));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_VALUE);
    let status = client.refused(Request::FenceStream(messages::FenceStream {
        stream: 77,
        slot: 0,
        value: 0,
    }));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_HANDLE);
    client.context = 99;
    let status = client.refused(Request::FenceContext(messages::FenceContext {
        slot: 0,
        value: 0,
    }));
    assert_eq!(status, CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

#[test]
fn an_event_that_is_waited_for_is_recorded_again_while_another_context_is_current() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let (event, stream, flags) = (3, 5, 2);
    client.done(Request::EventCreate(messages::EventCreate { event, flags }));
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream,
        flags: 1,
        priority: 0,
    }));
    client.done(Request::ContextCreate(messages::ContextCreate {
        context: 8,
        device: 0,
        flags: 0,
    }));
    client.context = 8;
    let record = || {
        let flags = 0;
        Request::EventRecord(messages::EventRecord {
            event,
            stream,
            flags,
        })
    };
    client.done(record());
    let waits = client.wait(Request::FenceEvent(messages::FenceEvent { event }));
    client.done(record());
    drop(waits);
}

#[test]
fn a_wait_keeps_its_record_when_the_event_is_recorded_again() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let event = 3;
    let record = || {
        Request::EventRecord(messages::EventRecord {
            event,
            stream: 0,
            flags: 0,
        })
    };
    client.done(Request::EventCreate(messages::EventCreate {
        event,
        flags: 2,
    }));
    client.done(record());
    let mut first = client.wait(Request::FenceEvent(messages::FenceEvent { event }));
    fake.ask("fake_hold", 1);
    client.done(record());
    let mut second = client.wait(Request::FenceEvent(messages::FenceEvent { event }));
    assert_eq!(first.ready(), Ok(true));
    assert_eq!(second.ready(), Ok(false));
    fake.ask("fake_hold", 0);
    assert_eq!(second.ready(), Ok(true));
}

#[test]
fn a_host_function_is_announced_and_answered() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    client.done(Request::HostFunc(messages::HostFunc {
        stream: 0,
        call: 11,
    }));
    let mut told = Vec::new();
    let start = Instant::now();
    while told.is_empty() && start.elapsed() < Duration::from_secs(10) {
        outboard_device::Host::take_host_calls(&mut client.device, &mut told);
    }
    assert_eq!(told, [(11, CUresult::CUDA_SUCCESS)]);
    assert!(outboard_device::Host::awaits_host_calls(&client.device));
    client.done(Request::HostFuncDone(messages::HostFuncDone { call: 11 }));
    assert!(!outboard_device::Host::awaits_host_calls(&client.device));
    let status = client.refused(Request::HostFuncDone(messages::HostFuncDone { call: 11 }));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_HANDLE);
}

/// Starts a kernel that waits for a word of the client's: until the byte at `va` is another.
fn kernel_that_waits(client: &mut Client, va: u64) {
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va,
        uc: 0xee,
        n: 1,
        h_stream: 0,
    }));
}

/// A client with a library of a plain and a managed variable.
fn client_with_variables(fake: &Fake) -> Client {
    let mut client = Client::new(fake);
    client.load(7).expect("loaded");
    client
}

#[test]
fn a_library_that_cannot_be_loaded_is_unloaded_once_the_device_is_idle() {
    let fake = Fake::build(&[]);
    let mut client = client_with_variables(&fake);
    let va = client.map(0, 2 * MIB);
    let unloads = |client: &mut Client, load: &dyn Fn(&mut Client)| {
        fake.ask("fake_hold", 1);
        client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
            dst_device: va,
            uc: 1,
            n: 1,
            h_stream: 0,
        }));
        load(client);
        client.device.reap();
        assert_eq!(fake.ask("fake_libraries", 0), 2);
        fake.ask("fake_hold", 0);
        client.device.reap();
        assert_eq!(fake.ask("fake_libraries", 0), 1);
    };
    fake.ask("fake_modules_fail", 1);
    unloads(&mut client, &|client| {
        let reply = client.load(8).expect("answered");
        assert_eq!(reply.status, CUresult::CUDA_ERROR_OUT_OF_MEMORY.0);
    });
    fake.ask("fake_modules_fail", 0);
    // Its number is another's.
    unloads(&mut client, &|client| {
        let refused = client.load(7).expect_err("refused");
        assert_eq!(refused.status, CUresult::CUDA_ERROR_INVALID_HANDLE);
    });
}

/// Asks for a variable while a stream waits for the client to run a host function.
fn variable_behind_host_function(
    client: &mut Client,
    service: &mut outboard_device::Service<'_>,
) -> Result<messages::LibraryGlobalReply, Failure> {
    client.done(Request::HostFunc(messages::HostFunc {
        stream: 0,
        call: 11,
    }));
    let mut cx = Cx {
        context: client.context,
        images: &mut client.images,
        placed: None,
        fds: &mut |_| unreachable!(),
        service,
        unserved: None,
    };
    let asked = messages::LibraryGlobal {
        library: 7,
        name: b"plain",
    };
    client.device.library_global(&mut cx, &asked)
}

#[test]
fn a_variable_that_the_driver_loads_leaves_host_functions_running() {
    let fake = Fake::build(&[]);
    let mut client = client_with_variables(&fake);
    let mut run = |device: &mut dyn HeldUp, done: &mut Vec<u64>| {
        let mut reached = Vec::new();
        device.take_host_calls(&mut reached);
        done.extend(reached.iter().map(|(call, _)| *call));
        true
    };
    let found = variable_behind_host_function(&mut client, &mut run).expect("found");
    assert_eq!((found.len, found.managed), (8, 0));
    assert!(!outboard_device::Host::awaits_host_calls(&client.device));
    let managed = client.with(|device, cx| {
        let asked = messages::LibraryGlobal {
            library: 7,
            name: b"managed",
        };
        device.library_global(cx, &asked)
    });
    assert_eq!(managed.expect("found").managed, 1);
}

#[test]
fn host_memory_that_was_freed_is_asked_for_again_until_the_device_is_idle() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let va = 0x5300_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let map = || {
        Request::HostMap(messages::HostMap {
            va,
            len: 4096,
            flags: 0,
            fd_tag: 0,
        })
    };
    client.done(map());
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va,
        uc: 1,
        n: 1,
        h_stream: 0,
    }));
    fake.ask("fake_hold", 1);
    client.done(Request::HostUnmap(messages::HostUnmap { va }));
    assert_eq!(client.refused(map()), CUresult::CUDA_ERROR_NOT_READY);
    fake.ask("fake_hold", 0);
    client.done(map());
}

#[test]
fn words_of_kernels_are_there_while_a_driver_call_is_held_up() {
    let fake = Fake::build(&[]);
    let mut client = client_with_variables(&fake);
    let va = 0x5100_0000_0000 + std::ptr::from_ref(&client) as u64 % (1 << 30) / 4096 * 4096;
    let (len, flags, fd_tag) = (4096, 0, 0);
    client.done(Request::HostMap(messages::HostMap {
        va,
        len,
        flags,
        fd_tag,
    }));
    client.done(Request::HostWatch(messages::HostWatch { va, len }));
    client.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: va + 8,
        uc: 6,
        n: 1,
        h_stream: 0,
    }));
    let mut changed = Vec::new();
    let mut run = |device: &mut dyn HeldUp, done: &mut Vec<u64>| {
        device.take_host_pages(&mut |va, word| changed.push((va, word[0])));
        let mut reached = Vec::new();
        device.take_host_calls(&mut reached);
        done.extend(reached.iter().map(|(call, _)| *call));
        true
    };
    variable_behind_host_function(&mut client, &mut run).expect("found");
    assert_eq!(changed, [(va + 8, 6)]);
}

#[test]
fn a_variable_is_found_by_an_address_until_a_library_goes() {
    let fake = Fake::build(&[]);
    let mut client = client_with_variables(&fake);
    let global = |device: &mut Nvidia, cx: &mut Cx<'_>| {
        let (library, name) = (7, &b"plain"[..]);
        device.library_global(cx, &messages::LibraryGlobal { library, name })
    };
    let va = client.with(global).expect("found").va;
    let find = |va| {
        move |device: &mut Nvidia, cx: &mut Cx<'_>| {
            let found = device.variable_find(cx, &messages::VariableFind { va });
            found.map(|reply| (reply.base, reply.len))
        }
    };
    assert!(client.device.addresses.check(va, 16).is_err());
    assert_eq!(client.with(find(va + 9)).expect("answered"), (va, 16));
    assert!(client.device.addresses.check(va, 16).is_ok());
    assert_eq!(client.with(find(va + 16)).expect("answered"), (0, 0));
    assert_eq!(client.with(find(u64::MAX)).expect("answered"), (0, 0));
    client.done(Request::LibraryUnload(messages::LibraryUnload {
        library: 7,
    }));
    assert!(client.device.addresses.check(va, 1).is_err());
}

#[test]
fn a_driver_call_that_waits_for_a_client_ends_with_the_client() {
    let fake = Fake::build(&[]);
    let mut client = client_with_variables(&fake);
    let found = variable_behind_host_function(&mut client, &mut |_, _| false);
    assert_eq!(found.expect("found").len, 8);
}

#[test]
fn a_context_goes_with_its_objects_once_nobody_waits_for_them() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    client.done(Request::ContextCreate(messages::ContextCreate {
        context: 0x30,
        device: 0,
        flags: 0,
    }));
    client.context = 0x30;
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream: STREAM,
        flags: 0,
        priority: 0,
    }));
    fake.ask("fake_hold", 1);
    let mut fence = client.wait(Request::FenceStream(messages::FenceStream {
        stream: STREAM,
        slot: 0,
        value: 0,
    }));
    client.context = CONTEXT;
    client.done(Request::ContextDestroy(messages::ContextDestroy {
        context: 0x30,
    }));
    let status = client.refused(Request::FenceStream(messages::FenceStream {
        stream: STREAM,
        slot: 0,
        value: 0,
    }));
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(fence.ready(), Ok(false));
    fake.ask("fake_hold", 0);
    // The fake writes no word, so the driver is asked at intervals.
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(fence.ready(), Ok(true));
    drop(fence);
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}
