//! The plugin for NCCL's GIN between two processes, by each version of its interface: what it puts,
//! gets and signals, and what it refuses.
#![allow(clippy::unwrap_used)]

use std::{
    cell::Cell,
    env,
    ffi::c_int,
    fs,
    path::PathBuf,
    process::{Child, Command},
    ptr::{null, null_mut},
    thread::sleep,
    time::{Duration, Instant},
};

use outboard_nic::{
    fabric::VARIABLE,
    gin::{
        abi::{Config, HANDLE_BYTES, Handle, PTR_HOST, SIGNAL_ADD, SIGNAL_INC},
        ncclGinPlugin_v11 as V11, ncclGinPlugin_v12 as V12, ncclGinPlugin_v13 as V13,
    },
};

const FOLDER: &str = "OUTBOARD_TEST_FOLDER";
const RANK: &str = "OUTBOARD_TEST_RANK";
const PATIENCE: Duration = Duration::from_secs(60);
/// More than an entry of the adapter's has.
const LONG_BYTES: usize = (17 << 20) + 5;
const MEMORY_BYTES: usize = 2 * LONG_BYTES + 64;
/// Places in the memory: what is put from, put to, and a word for signals.
const SOURCE: u64 = 64;
const TARGET: u64 = SOURCE + LONG_BYTES as u64;
const SIGNAL: u64 = 8;
const OK: c_int = 0;
const SYSTEM: c_int = 2;
const ARGUMENT: c_int = 4;
const REMOTE: c_int = 6;

#[test]
fn two_processes_put_get_and_signal() {
    let folder = tempfile::tempdir().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "a_rank", "--nocapture"]);
        command
            .env(FOLDER, folder.path())
            .env(RANK, rank.to_string());
        command.env(VARIABLE, folder.path().join("fabric"));
        command.spawn().unwrap()
    };
    let mut ranks: [Child; 2] = [0, 1].map(start);
    let ends = ranks.each_mut().map(|rank| rank.wait().unwrap().success());
    assert_eq!(ends, [true, true]);
}

/// One of the two, started by the test above.
#[test]
#[ignore = "a part of two_processes_put_get_and_signal"]
fn a_rank() {
    let rank = Rank {
        folder: env::var_os(FOLDER).unwrap().into(),
        number: env::var(RANK).unwrap().parse().unwrap(),
        exchanged: Cell::new(0),
    };
    exchanges(&rank, 11);
    exchanges(&rank, 12);
    exchanges(&rank, 13);
    refusals(&rank);
}

struct Rank {
    folder: PathBuf,
    number: usize,
    /// Exchanges so far.
    exchanged: Cell<usize>,
}

impl Rank {
    fn other(&self) -> u32 {
        1 - self.number as u32
    }

    /// Gives bytes to the other, and takes its own.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        self.exchanged.set(self.exchanged.get() + 1);
        let number = self.exchanged.get();
        let at = |rank: usize| self.folder.join(format!("{number}.{rank}"));
        let part = self.folder.join(format!("part.{}", self.number));
        fs::write(&part, bytes).unwrap();
        fs::rename(part, at(self.number)).unwrap();
        wait_for(|| at(1 - self.number).exists());
        fs::read(at(1 - self.number)).unwrap()
    }

    /// Waits until the other is here, too.
    fn meet(&self) {
        self.exchange(&[]);
    }
}

fn wait_for(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "nothing comes");
        sleep(Duration::from_millis(1));
    }
}

macro_rules! call {
    ($table:ident.$function:ident($($argument:expr),*)) => {
        // SAFETY: pointers are to what the test has, of the lengths that it says.
        unsafe { ($table.$function)($($argument),*) }
    };
}

/// A call that has to succeed, and what it returns.
fn made(call: impl FnOnce(*mut Handle) -> c_int) -> Handle {
    let mut handle = null_mut();
    assert_eq!(call(&raw mut handle), OK);
    assert!(!handle.is_null());
    handle
}

/// A communicator of both ranks with one piece of memory.
struct Joined {
    version: u32,
    context: Handle,
    group: Handle,
    queues: Handle,
    window: Handle,
    memory: Vec<u64>,
}

impl Joined {
    fn new(rank: &Rank, version: u32) -> Joined {
        let context = made(|to| call!(V13.init(to, 1, null())));
        let (mut handle, mut device) = ([0_u8; HANDLE_BYTES], null());
        let listener = made(|to| call!(V13.listen(context, 0, handle.as_mut_ptr(), to)));
        let other = rank.exchange(&handle);
        let mut handles = [handle.as_ptr(), other.as_ptr()];
        if rank.number == 1 {
            handles.reverse();
        }
        let (at, number) = (handles.as_ptr(), rank.number as c_int);
        let group = made(|to| match version {
            11 => call!(V11.connect(context, at, 2, number, listener, to)),
            12 => call!(V12.connect(context, at, 2, number, 2, 0, listener, to)),
            _ => call!(V13.connect(null_mut(), at, 2, number, listener, to)),
        });
        assert_eq!(call!(V13.close_listener(listener)), OK);
        let config = config(2);
        let queues = made(|to| match version {
            11 => call!(V11.create_context(group, 1, 1, to, &raw mut device)),
            12 => call!(V12.create_context(group, 1, 1, 2, to, &raw mut device)),
            _ => call!(V13.create_context(group, &raw const config, to, &raw mut device)),
        });
        assert!(!device.is_null());
        let mut memory = vec![0_u64; MEMORY_BYTES / 8];
        let window = register(group, memory.as_mut_ptr().cast(), MEMORY_BYTES);
        let (context, window) = (context, window.unwrap());
        Joined {
            version,
            context,
            group,
            queues,
            window,
            memory,
        }
    }

    fn bytes(&mut self, at: u64, count: usize) -> &mut [u8] {
        let at = self
            .memory
            .as_mut_ptr()
            .cast::<u8>()
            .wrapping_add(at as usize);
        // SAFETY: within the memory; what the other writes meanwhile is looked at afterwards.
        unsafe { std::slice::from_raw_parts_mut(at, count) }
    }

    fn signals(&self) -> u64 {
        let word = &raw const self.memory[SIGNAL as usize / 8];
        // SAFETY: a word of the memory.
        unsafe { word.read_volatile() }
    }

    fn put(&self, context: c_int, bytes: usize, to: u32, request: *mut Handle) -> c_int {
        self.put_at(context, SOURCE, bytes, TARGET, to, request)
    }

    fn put_at(
        &self,
        context: c_int,
        from: u64,
        bytes: usize,
        at: u64,
        to: u32,
        request: *mut Handle,
    ) -> c_int {
        let (group, window) = (self.group, self.window);
        {
            match self.version {
                11 => call!(V11.put(group, from, window, bytes, at, window, to, request)),
                12 => call!(V12.put(group, from, window, bytes, at, window, to, context, request)),
                _ => {
                    let queues = self.queues;
                    call!(V13.put(
                        queues, context, from, window, bytes, at, window, to, request
                    ))
                }
            }
        }
    }

    fn signal(&self, bytes: usize, to: u32, at: u64, add: u64, op: u32, of: *mut Handle) -> c_int {
        let (group, window, queues) = (self.group, self.window, self.queues);
        let from = if bytes == 0 { null_mut() } else { window };
        {
            match self.version {
                11 => call!(V11.put_signal(
                    group, SOURCE, from, bytes, TARGET, from, to, at, window, add, op, of
                )),
                12 => call!(V12.put_signal(
                    group, SOURCE, from, bytes, TARGET, from, to, at, window, add, op, 1, of
                )),
                _ => call!(V13.put_signal(
                    queues, 1, SOURCE, from, bytes, TARGET, from, to, at, window, add, op, of
                )),
            }
        }
    }

    /// Waits for a request; returns the result of its last test.
    fn finish(&self, request: Handle) -> c_int {
        let mut done = 0;
        let mut result = OK;
        wait_for(|| {
            call!(V13.progress(self.queues));
            result = call!(V13.test(self.group, request, &raw mut done));
            done == 1 || result != OK
        });
        result
    }

    fn close(self) {
        assert_eq!(call!(V13.deregister(self.group, self.window)), OK);
        assert_eq!(call!(V13.destroy_context(self.queues)), OK);
        assert_eq!(call!(V13.close_group(self.group)), OK);
        assert_eq!(call!(V13.finalize(self.context)), OK);
    }
}

fn config(contexts: c_int) -> Config {
    Config {
        signals: 1,
        counters: 1,
        contexts,
        queue_depth: 0,
        traffic_class: 0,
    }
}

fn register(group: Handle, memory: Handle, bytes: usize) -> Result<Handle, c_int> {
    let (mut window, mut device) = (null_mut(), null_mut());
    let (to, for_device) = (&raw mut window, &raw mut device);
    match call!(V13.register(group, memory, bytes, PTR_HOST, 0, to, for_device)) {
        OK => {
            assert_eq!(window, device);
            Ok(window)
        }
        failed => Err(failed),
    }
}

fn pattern(rank: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at % 251) as u8 ^ (rank as u8 + 1))
        .collect()
}

fn exchanges(rank: &Rank, version: u32) {
    let mut joined = Joined::new(rank, version);
    let other = rank.other();
    let mine = pattern(rank.number as u32, LONG_BYTES);
    joined.bytes(SOURCE, LONG_BYTES).copy_from_slice(&mine);
    for bytes in [0, 1, 4096, LONG_BYTES] {
        let put = made(|to| joined.put(0, bytes, other, to));
        assert_eq!(joined.finish(put), OK);
        rank.meet();
        assert!(
            joined.bytes(TARGET, bytes) == pattern(other, bytes),
            "{bytes} bytes"
        );
        joined.bytes(TARGET, bytes).fill(0);
        rank.meet();
    }
    // The signal comes behind the data, and adds what it says.
    let signal = made(|to| joined.signal(5000, other, SIGNAL, 7, SIGNAL_ADD, to));
    wait_for(|| joined.signals() >= 7);
    assert!(joined.bytes(TARGET, 5000) == pattern(other, 5000));
    assert_eq!(joined.finish(signal), OK);
    let signal = made(|to| joined.signal(0, other, SIGNAL, 99, SIGNAL_INC, to));
    assert_eq!(joined.finish(signal), OK);
    wait_for(|| joined.signals() == 8);
    // Each rank is its own peer, too.
    let own = made(|to| joined.put(0, 10, rank.number as u32, to));
    assert_eq!(joined.finish(own), OK);
    assert!(joined.bytes(TARGET, 10) == &mine[..10]);
    if version == 13 {
        gets(&mut joined, other);
    }
    let mut has_error = true;
    assert_eq!(call!(V13.last_error(joined.queues, &raw mut has_error)), OK);
    assert!(!has_error);
    rank.meet();
    joined.close();
}

fn gets(joined: &mut Joined, other: u32) {
    let (queues, window) = (joined.queues, joined.window);
    let get = made(|to| {
        call!(V13.get(
            queues, 1, SOURCE, window, LONG_BYTES, TARGET, window, other, to
        ))
    });
    let flush = made(|to| call!(V13.flush(queues, 1, window, other, to)));
    assert_eq!(joined.finish(flush), OK);
    assert!(joined.bytes(TARGET, LONG_BYTES) == pattern(other, LONG_BYTES));
    assert_eq!(joined.finish(get), OK);
}

fn refusals(rank: &Rank) {
    let (joined, second) = (Joined::new(rank, 13), Joined::new(rank, 12));
    wrong_places(&joined, rank.other());
    wrong_handles(&joined, &second, rank.other());
    uneven_ranks(rank, &joined);
    gone(rank, joined);
    second.close();
}

fn wrong_places(joined: &Joined, other: u32) {
    let mut request = null_mut();
    let of = &raw mut request;
    let end = MEMORY_BYTES as u64;
    let results = [
        ("a rank that is not there", joined.put(0, 8, 2, of)),
        ("a context that is not there", joined.put(2, 8, other, of)),
        ("a negative one", joined.put(-1, 8, other, of)),
        (
            "beyond its memory",
            joined.put_at(0, end - 7, 8, TARGET, other, of),
        ),
        (
            "beyond the other's",
            joined.put_at(0, SOURCE, 8, end - 7, other, of),
        ),
        (
            "beyond all addresses",
            joined.put_at(0, u64::MAX, 8, TARGET, other, of),
        ),
        ("all bytes", joined.put(0, usize::MAX, other, of)),
        (
            "no room for the request",
            joined.put(0, 8, other, null_mut()),
        ),
        (
            "a word that is not aligned",
            joined.signal(8, other, SIGNAL + 1, 1, SIGNAL_INC, of),
        ),
        (
            "a word beyond the memory",
            joined.signal(8, other, end - 4, 1, SIGNAL_INC, of),
        ),
        (
            "no operation of a signal",
            joined.signal(8, other, SIGNAL, 1, 7, of),
        ),
    ];
    for (what, result) in results {
        assert_eq!(result, ARGUMENT, "{what}");
    }
    assert_eq!(joined.signals(), 0);
}

fn wrong_handles(joined: &Joined, second: &Joined, other: u32) {
    let (mut request, mut done) = (null_mut(), 0);
    let of = &raw mut request;
    let (queues, group, window) = (joined.queues, joined.group, joined.window);
    let put = |queues, here, there| call!(V13.put(queues, 0, 0, here, 8, 0, there, other, of));
    for handle in [null_mut(), group, queues, 0x7fff_0000_1234_usize as Handle] {
        assert_eq!(
            put(queues, handle, window),
            ARGUMENT,
            "{handle:p} is no memory"
        );
        assert_eq!(
            put(queues, window, handle),
            ARGUMENT,
            "{handle:p} is no memory"
        );
        assert_eq!(call!(V13.test(group, handle, &raw mut done)), ARGUMENT);
        assert_eq!(call!(V13.deregister(group, handle)), ARGUMENT);
        if handle != queues {
            assert_eq!(
                put(handle, window, window),
                ARGUMENT,
                "{handle:p} is no context"
            );
        }
    }
    let foreign = put(queues, second.window, window);
    assert_eq!(foreign, ARGUMENT, "another communicator's memory");
    let mut device = null();
    for contexts in [0, -1, 1 << 20] {
        let config = config(contexts);
        let created = call!(V13.create_context(group, &raw const config, of, &raw mut device));
        assert_eq!(created, ARGUMENT, "{contexts} contexts");
    }
}

/// Where ranks do not ask for the same, each hears so.
fn uneven_ranks(rank: &Rank, joined: &Joined) {
    let (third, mut created, mut device) = (Joined::new(rank, 13), null_mut(), null());
    let config = config(1 + rank.number as c_int);
    let (of, to, for_device) = (&raw const config, &raw mut created, &raw mut device);
    assert_eq!(
        call!(V13.create_context(third.group, of, to, for_device)),
        SYSTEM
    );
    assert_eq!(
        register(third.group, to.cast(), 8),
        Err(SYSTEM),
        "they are apart"
    );
    third.close();
    let nothing = register(
        joined.group,
        null_mut(),
        if rank.number == 0 { 0 } else { 64 },
    );
    assert_eq!(nothing, Err(ARGUMENT));
    // Where one has no memory, none has.
    let mut words = [0_u64; 8];
    let words = [words.as_mut_ptr().cast(), null_mut()][rank.number];
    let registered = register(joined.group, words, 64);
    assert_eq!(registered, Err([SYSTEM, ARGUMENT][rank.number]));
}

/// Memory that the other has deregistered is an error of the other's, and of all that follows.
fn gone(rank: &Rank, joined: Joined) {
    if rank.number == 1 {
        assert_eq!(call!(V13.deregister(joined.group, joined.window)), OK);
    }
    rank.meet();
    if rank.number == 0 {
        let put = made(|to| joined.put(0, 8, 1, to));
        assert_eq!(joined.finish(put), REMOTE);
        let mut has_error = false;
        assert_eq!(call!(V13.last_error(joined.queues, &raw mut has_error)), OK);
        assert!(has_error);
        let mut done = 0;
        let again = call!(V13.test(joined.group, put, &raw mut done));
        assert_eq!(again, ARGUMENT, "a request is over once");
    }
    rank.meet();
    assert_eq!(call!(V13.destroy_context(joined.queues)), OK);
    assert_eq!(call!(V13.close_group(joined.group)), OK);
}
