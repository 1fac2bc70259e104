//! A worker's part of `outboard bench net`: an endpoint, queues, and the kernel that posts to them.

use std::{ffi::c_void, ptr};

use anyhow::{Context as _, bail};
use outboard_net::{
    Access, EXCLUSIVE, Endpoint, Engine, Export, Network, PATIENT, QueueOptions, open_by, rouse,
};

use super::{
    driver::{Arguments, Driver, Pinned},
    net_case::{By, LOG_ENTRIES, NetCase, NetFigures, Place, Taken, Verb},
    net_peer::Peer,
};

/// The kernels' PTX, which the build script compresses.
const KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/net.ptx.lz4"));
/// As in net.cu.
const QUEUES_MAX: usize = 64;
/// Receives of a queue that takes messages, as a logarithm, as in net.cu.
const LOG_RECEIVES: u32 = 6;
const PAGE_BYTES: usize = 4096;

/// `Work` of net.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Work {
    queues: [Export; QUEUES_MAX],
    peers: [Export; QUEUES_MAX],
    from: u64,
    to: u64,
    bytes: u64,
    wrong: u64,
    began: u64,
    ended: u64,
    posting: u64,
    key: u32,
    to_key: u32,
    verb: u32,
    scope: u32,
    posters: u32,
    queue_count: u32,
    operations: u32,
    window: u32,
    stride: u32,
    receiver: u32,
}

/// Runs a case in a worker.
pub(super) fn run(driver: &Driver, case: &NetCase) -> anyhow::Result<NetFigures> {
    case.check()?;
    let mut held = Held::new(driver);
    let figures = held.run(case);
    held.free();
    figures
}

/// The memory of a case, which is freed after its endpoint has ended.
struct Held<'d> {
    driver: &'d Driver,
    pinned: Vec<Pinned>,
    of_gpu: Vec<u64>,
}

/// Bytes that a kernel moves: the first half to the second, or to the other process.
struct Payload {
    address: u64,
    half: usize,
    of_gpu: bool,
}

impl<'d> Held<'d> {
    fn new(driver: &'d Driver) -> Held<'d> {
        Held {
            driver,
            pinned: Vec::new(),
            of_gpu: Vec::new(),
        }
    }

    fn free(self) {
        for pinned in self.pinned {
            let _ = self.driver.free_pinned(pinned);
        }
        for address in self.of_gpu {
            let _ = self.driver.free(address);
        }
    }

    /// Allocates zeroed memory that the host and kernels use.
    fn memory(&mut self, bytes: usize) -> anyhow::Result<&mut [u8]> {
        // A page more: the driver's own may begin in the midst of one, which a queue may not.
        let mut pinned = self.driver.pinned(bytes + PAGE_BYTES)?;
        pinned.bytes().fill(0);
        self.pinned.push(pinned);
        let last = self.pinned.last_mut().context("memory")?.bytes();
        let first = last.as_ptr().align_offset(PAGE_BYTES);
        last.get_mut(first..first + bytes).context("memory")
    }

    /// Allocates zeroed memory of the GPU.
    fn gpu_memory(&mut self, bytes: usize) -> anyhow::Result<u64> {
        let address = self.driver.allocate(bytes)?;
        self.of_gpu.push(address);
        self.driver.memset(address, 0, bytes)?;
        self.driver.synchronize()?;
        Ok(address)
    }

    fn queue(&mut self, endpoint: &dyn Endpoint, options: QueueOptions) -> anyhow::Result<Export> {
        let memory = self.memory(options.bytes())?;
        let (at, bytes) = (memory.as_mut_ptr().cast(), memory.len() as u64);
        // SAFETY: freed after the endpoint has ended.
        Ok(unsafe { endpoint.create(at, bytes, options) }?)
    }

    /// Makes the queue that a kernel posts to.
    fn near(&mut self, endpoint: &dyn Endpoint, case: &NetCase) -> anyhow::Result<Export> {
        let alone = case.posters() == 1;
        let mut options = QueueOptions {
            log_blocks: LOG_ENTRIES,
            flags: if alone { EXCLUSIVE } else { 0 },
            ..QueueOptions::default()
        };
        if case.counters == Place::Gpu {
            options.counters = self.gpu_memory(options.counters_bytes())?;
        }
        self.queue(endpoint, options)
    }

    /// Makes the queue's peer in this process.
    fn far(&mut self, endpoint: &dyn Endpoint, case: &NetCase) -> anyhow::Result<Export> {
        let is_received = case.verb.is_received();
        let options = QueueOptions {
            log_blocks: LOG_ENTRIES,
            log_receives: if is_received { LOG_RECEIVES } else { 0 },
            flags: if is_received { PATIENT } else { 0 },
            ..QueueOptions::default()
        };
        self.queue(endpoint, options)
    }

    fn payload(&mut self, case: &NetCase) -> anyhow::Result<Payload> {
        let half = case.stride() as usize * case.posters() as usize;
        let (bytes, stride) = (case.bytes as usize, case.stride() as usize);
        let byte = |i: usize| if i % stride < bytes { i * 7 + 1 } else { 0 };
        let pattern: Vec<u8> = (0..half).map(|i| byte(i) as u8).collect();
        let of_gpu = case.provider == By::Nvlink;
        let address = if of_gpu {
            let address = self.gpu_memory(2 * half)?;
            self.driver.copy_to_device(address, &pattern)?;
            address
        } else {
            let memory = self.memory(2 * half)?;
            memory
                .get_mut(..half)
                .context("memory")?
                .copy_from_slice(&pattern);
            memory.as_ptr() as u64
        };
        Ok(Payload {
            address,
            half,
            of_gpu,
        })
    }

    /// Returns whether the second half of the payload is as the first.
    fn is_copied(&self, payload: &Payload) -> anyhow::Result<bool> {
        let mut bytes = vec![0; 2 * payload.half];
        if payload.of_gpu {
            self.driver.copy_to_host(&mut bytes, payload.address)?;
        } else {
            // SAFETY: memory of this struct, which no kernel writes any more.
            unsafe {
                ptr::copy_nonoverlapping(
                    ptr::with_exposed_provenance(payload.address as usize),
                    bytes.as_mut_ptr(),
                    bytes.len(),
                );
            }
        }
        let (from, to) = bytes.split_at(payload.half);
        Ok(from == to)
    }

    fn run(&mut self, case: &NetCase) -> anyhow::Result<NetFigures> {
        let kernels = lz4_flex::decompress_size_prepended(KERNELS)?;
        let module = self.driver.load(std::str::from_utf8(&kernels)?)?;
        let name = match case.provider {
            By::Nvlink => "net_nvlink",
            _ => "net",
        };
        let function = self.driver.function(module, name)?;
        let (asked, engine) = (case.provider.provider(), case.provider.engine()?);
        let of_adapter = match engine {
            Some(Engine::Gpu { blocks, .. }) => blocks,
            _ => 0,
        };
        let taken = Taken {
            registers: self.driver.registers(function)?,
            processors: 1 + of_adapter,
        };
        let endpoint = open_by(Some(asked), engine, Network::default())?;
        let mut peer = case
            .provider
            .way()
            .map(|way| Peer::start(case, way))
            .transpose()?;
        let payload = self.payload(case)?;
        let posters = case.posters() as usize;
        let times = self.memory((1 + 3 * posters) * 8)?.as_ptr() as u64;
        let work = self.prepare(&*endpoint, case, peer.as_mut(), &payload, times)?;
        let place = self.memory(size_of::<Work>())?;
        place.copy_from_slice(work.bytes());
        let arguments = Arguments::new(&[place.as_ptr() as u64]);
        rouse(work.queues[0].doorbell);
        let threads = case.threads_with_receivers().1;
        self.driver.launch(function, threads, &arguments)?;
        self.driver.synchronize()?;
        let word = |at: usize| {
            let at = ptr::with_exposed_provenance::<u64>(times as usize + 8 * at);
            // SAFETY: a word of this struct's memory, which no kernel writes any more.
            unsafe { at.read_volatile() }
        };
        let failure = word(0);
        if failure != 0 {
            let (cause, syndrome) = (failure >> 8, failure & 0xff);
            bail!("a post failed: cause {cause}, syndrome {syndrome:#x}");
        }
        if case.verb == Verb::Put && peer.is_none() && !self.is_copied(&payload)? {
            bail!("what arrived is not what was put");
        }
        let words = |first: usize| (first..first + posters).map(word);
        let began = words(1).min().unwrap_or(0);
        let ended = words(1 + posters).max().unwrap_or(0);
        let ns = ended.saturating_sub(began);
        Ok(NetFigures::new(
            case,
            ns,
            words(1 + 2 * posters).sum(),
            taken,
        ))
    }

    /// Makes queues, and returns the kernel's parameters.
    fn prepare(
        &mut self,
        endpoint: &dyn Endpoint,
        case: &NetCase,
        mut peer: Option<&mut Peer>,
        payload: &Payload,
        times: u64,
    ) -> anyhow::Result<Work> {
        let at = ptr::with_exposed_provenance_mut::<c_void>(payload.address as usize);
        // SAFETY: freed after the endpoint has ended.
        let key = unsafe { endpoint.register(at, 2 * payload.half as u64, Access::ALL) }?;
        let (mut to, mut to_key) = (payload.address + payload.half as u64, key);
        let mut queues = [Export::default(); QUEUES_MAX];
        let mut peers = queues;
        let count = (case.queues as usize).min(QUEUES_MAX);
        for (number, (queue, other)) in queues.iter_mut().zip(&mut peers).take(count).enumerate() {
            *queue = self.near(endpoint, case)?;
            if let Some(peer) = peer.as_mut() {
                let there = peer.meet(endpoint, queue.qpn, number)?;
                (to, to_key) = (there.address, there.key);
            } else {
                *other = self.far(endpoint, case)?;
                endpoint.connect(queue.qpn, other.qpn)?;
            }
        }
        let posters = u64::from(case.posters());
        Ok(Work {
            queues,
            peers,
            from: payload.address,
            to,
            bytes: case.bytes,
            wrong: times,
            began: times + 8,
            ended: times + 8 * (1 + posters),
            posting: times + 8 * (1 + 2 * posters),
            key,
            to_key,
            verb: case.verb.number(),
            scope: case.scope as u32,
            posters: case.posters(),
            queue_count: count as u32,
            operations: case.operations,
            window: case.window,
            stride: u32::try_from(case.stride())?,
            receiver: case.threads_with_receivers().0,
        })
    }
}

impl Work {
    fn bytes(&self) -> &[u8] {
        // SAFETY: integers without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Work>()) }
    }
}

const _: () = assert!(size_of::<Work>() == 2 * QUEUES_MAX * size_of::<Export>() + 7 * 8 + 10 * 4);
