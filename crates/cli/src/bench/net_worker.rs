//! A worker's part of `outboard bench net`: an adapter, queues, and the kernel that posts to them.

use std::{ptr::NonNull, sync::atomic::Ordering};

use anyhow::{Context as _, bail};
use outboard_net::{Access, EXCLUSIVE, Export, Mapped, Network, Nic, Queue, QueueOptions};

use super::{
    driver::{Arguments, Driver, Pinned},
    net_case::{NetCase, NetFigures, Place, Verb},
};

/// The kernel's PTX, which the build script compresses.
const KERNEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/net.ptx.lz4"));
/// As in net.cu.
const QUEUES_MAX: usize = 64;
/// Entries of each ring, as a logarithm.
const LOG_ENTRIES: u32 = 10;
const DOMAIN: u32 = 1;

/// `Work` of net.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Work {
    queues: [Export; QUEUES_MAX],
    from: u64,
    to: u64,
    bytes: u64,
    wrong: u64,
    began: u64,
    ended: u64,
    posting: u64,
    key: u32,
    verb: u32,
    scope: u32,
    posters: u32,
    queue_count: u32,
    operations: u32,
    window: u32,
    stride: u32,
}

/// Runs a case in a worker.
pub(super) fn run(driver: &Driver, case: &NetCase) -> anyhow::Result<NetFigures> {
    case.check()?;
    let mut held = Held::new(driver);
    let figures = held.run(case);
    held.free();
    figures
}

/// The memory of a case, which is freed after its adapter has ended.
struct Held<'d> {
    driver: &'d Driver,
    pinned: Vec<Pinned>,
    counters: Vec<u64>,
}

impl<'d> Held<'d> {
    fn new(driver: &'d Driver) -> Held<'d> {
        Held {
            driver,
            pinned: Vec::new(),
            counters: Vec::new(),
        }
    }

    fn free(self) {
        for pinned in self.pinned {
            let _ = self.driver.free_pinned(pinned);
        }
        for counters in self.counters {
            let _ = self.driver.free(counters);
        }
    }

    /// Allocates zeroed memory that the adapter and kernels use.
    fn memory(&mut self, bytes: usize) -> anyhow::Result<Mapped> {
        // Whole pages, so that what is made after it begins at one, too.
        let mut pinned = self.driver.pinned(bytes.next_multiple_of(4096))?;
        pinned.bytes().fill(0);
        let at = NonNull::new(pinned.bytes().as_mut_ptr()).context("memory at 0")?;
        self.pinned.push(pinned);
        // SAFETY: freed after the adapter and the kernels have ended, and no reference is used
        // before.
        Ok(unsafe { Mapped::new(at, bytes, at.as_ptr() as u64) })
    }

    fn queue(&mut self, nic: &Nic, case: &NetCase) -> anyhow::Result<Queue> {
        let alone = case.posters() == 1;
        let mut options = QueueOptions {
            log_blocks: LOG_ENTRIES,
            flags: if alone { EXCLUSIVE } else { 0 },
            ..QueueOptions::default()
        };
        if case.counters == Place::Gpu {
            let bytes = options.counters_bytes();
            options.counters = self.driver.allocate(bytes)?;
            self.counters.push(options.counters);
            self.driver.memset(options.counters, 0, bytes)?;
            self.driver.synchronize()?;
        }
        let block = self.memory(options.bytes())?;
        let other = QueueOptions {
            log_blocks: LOG_ENTRIES,
            ..QueueOptions::default()
        };
        let far = self.memory(other.bytes())?;
        let queue = Queue::create(nic, block, options)?;
        Queue::connect(nic, &queue, &Queue::create(nic, far, other)?)?;
        Ok(queue)
    }

    fn run(&mut self, case: &NetCase) -> anyhow::Result<NetFigures> {
        let kernel = lz4_flex::decompress_size_prepended(KERNEL)?;
        let module = self.driver.load(std::str::from_utf8(&kernel)?)?;
        let function = self.driver.function(module, "net")?;
        let nic = Nic::start(Network::default())?;
        let (work, payload, times) = self.prepare(&nic, case)?;
        let place = self.memory(size_of::<Work>())?;
        place.write(0, work.bytes());
        let arguments = Arguments::new(&[place.address()]);
        nic.rouse();
        self.driver.launch(function, case.threads, &arguments)?;
        self.driver.synchronize()?;
        let word = |at: usize| times.u64(at * 8).load(Ordering::Acquire);
        let failure = word(0);
        if failure != 0 {
            let (cause, syndrome) = (failure >> 8, failure & 0xff);
            bail!("a post failed: cause {cause}, syndrome {syndrome:#x}");
        }
        if case.verb == Verb::Put && !is_copied(&payload) {
            bail!("what arrived is not what was put");
        }
        let posters = case.posters() as usize;
        let words = |first: usize| (first..first + posters).map(word);
        let began = words(1).min().unwrap_or(0);
        let ended = words(1 + posters).max().unwrap_or(0);
        Ok(NetFigures::new(
            case,
            ended.saturating_sub(began),
            words(1 + 2 * posters).sum(),
        ))
    }

    /// Makes queues and memory. Returns the kernel's parameters, what it moves, and the memory for
    /// its times.
    fn prepare(&mut self, nic: &Nic, case: &NetCase) -> anyhow::Result<(Work, Mapped, Mapped)> {
        let mut queues = [Export::default(); QUEUES_MAX];
        let count = (case.queues as usize).min(QUEUES_MAX);
        for queue in queues.iter_mut().take(count) {
            *queue = self.queue(nic, case)?.export();
        }
        let posters = case.posters() as usize;
        let half = case.stride() as usize * posters;
        let payload = self.memory(2 * half)?;
        let (bytes, stride) = (case.bytes as usize, case.stride() as usize);
        let byte = |i: usize| if i % stride < bytes { i * 7 + 1 } else { 0 };
        let pattern: Vec<u8> = (0..half).map(|i| byte(i) as u8).collect();
        payload.write(0, &pattern);
        let key = nic.with(|adapter| adapter.register(DOMAIN, payload.clone(), Access::ALL))?;
        let times = self.memory((1 + 3 * posters) * 8)?;
        let at = |word: usize| times.address() + 8 * word as u64;
        let work = Work {
            queues,
            from: payload.address(),
            to: payload.address() + half as u64,
            bytes: case.bytes,
            wrong: at(0),
            began: at(1),
            ended: at(1 + posters),
            posting: at(1 + 2 * posters),
            key,
            verb: case.verb.number(),
            scope: case.scope as u32,
            posters: case.posters(),
            queue_count: count as u32,
            operations: case.operations,
            window: case.window,
            stride: u32::try_from(case.stride())?,
        };
        Ok((work, payload, times))
    }
}

/// Returns whether the second half of the memory is as the first.
fn is_copied(payload: &Mapped) -> bool {
    let mut bytes = vec![0; payload.len()];
    payload.read(0, &mut bytes);
    let (from, to) = bytes.split_at(bytes.len() / 2);
    from == to
}

impl Work {
    fn bytes(&self) -> &[u8] {
        // SAFETY: integers without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Work>()) }
    }
}

const _: () = assert!(size_of::<Work>() == QUEUES_MAX * size_of::<Export>() + 7 * 8 + 8 * 4);
