//! Memory of the program or the GPU that is registered with the adapter once: the adapter then
//! reads and writes it in place. Registering costs a system call and pins every page, so a
//! registration is kept until its owner gives the memory up, or until a limit is reached.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use outboard_verbs::{Access, DeviceMemory, Domain, Lasting, Memory, OwnRegion, Piece, Region};
use outboard_wire::limits::{RDMA_REGISTERED_BYTES_MAX, RDMA_REGISTRATIONS_MAX};

use super::options::GpuMemory;
use crate::error::RdmaError;

/// Time without new registrations after a refusal, which most likely comes from the limit on locked
/// memory.
const REFUSED: Duration = Duration::from_secs(1);

/// Permitted use of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RdmaUse {
    /// Our own adapter reads it.
    Source,
    /// The peer's adapter may write it too, with its key.
    Target,
}

/// Address for the peer's adapter to write, and the key that the memory's owner gave for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaTarget {
    pub address: u64,
    pub key: u32,
}

/// Registers memory for one session. Its keys are invalid in other sessions and end with this one.
#[derive(Clone)]
pub struct Registrar {
    domain: Arc<Domain>,
    cache: Arc<Mutex<Cache<Region>>>,
    gpu_memory: GpuMemory,
}

/// Memory that the adapter may use while this value lives.
#[derive(Clone)]
pub struct Registered(pub(super) Arc<Region>);

impl Registrar {
    pub(super) fn new(domain: Arc<Domain>, gpu_memory: GpuMemory) -> Self {
        Self {
            domain,
            gpu_memory,
            cache: Arc::new(Mutex::new(Cache::new(
                RDMA_REGISTRATIONS_MAX,
                RDMA_REGISTERED_BYTES_MAX,
            ))),
        }
    }

    /// Returns the registration of this memory, made if there is none, and kept until the memory is
    /// [forgotten](Self::forget). `None` if the system refuses it, above all by its limit on locked
    /// memory.
    pub fn register(&self, memory: Lasting, use_: RdmaUse) -> Option<Registered> {
        self.register_beside(memory, use_, Vec::new)
    }

    /// Does the same, and drops no registration for it of memory into which data is still to be
    /// written. `awaited` lists the addresses of that memory; it is called only if registrations
    /// have to go, and then once.
    pub fn register_beside(
        &self,
        memory: Lasting,
        use_: RdmaUse,
        awaited: impl Fn() -> Vec<Range<u64>>,
    ) -> Option<Registered> {
        let mut cache = self.cache();
        let region = cache.get(memory.address(), memory.len(), use_, awaited, || {
            let access = match use_ {
                RdmaUse::Source => Access::Local,
                RdmaUse::Target => Access::Write,
            };
            Region::of_lasting(&self.domain, memory, access).ok()
        })?;
        Some(Registered(region))
    }

    /// Returns this side's option for the GPU's memory.
    pub fn gpu_memory(&self) -> GpuMemory {
        self.gpu_memory
    }

    /// Registers GPU memory until the returned value, and everything sent from it, is dropped. The
    /// peer's adapter may write it with its key.
    pub fn register_device(&self, memory: DeviceMemory) -> Result<Registered, RdmaError> {
        if memory.address() == 0 {
            return Err(RdmaError::Verbs(outboard_verbs::Error::System {
                doing: "registering memory at address 0",
                errno: libc::EINVAL,
            }));
        }
        let region = Region::of_device(&self.domain, &memory)?;
        Ok(Registered(Arc::new(region)))
    }

    /// Drops the registration of addresses that are about to hold other memory. The adapter may
    /// still use the old pages.
    pub fn forget(&self, address: u64, len: usize) {
        self.cache().forget(address, len);
    }

    /// Returns the number of registrations made so far, and the bytes registered now.
    pub fn figures(&self) -> (u64, u64) {
        let cache = self.cache();
        (cache.made, cache.bytes)
    }

    /// Makes memory of the link's own that the peer may write.
    pub(super) fn room(&self, len: usize) -> Option<Arc<OwnRegion>> {
        let memory = Memory::new(len).ok()?;
        let region = OwnRegion::new(&self.domain, memory, Access::Write);
        region.ok().map(Arc::new)
    }

    fn cache(&self) -> MutexGuard<'_, Cache<Region>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    /// Returns what the peer needs to write at `address`, inside this memory.
    pub fn target(&self, address: u64) -> RdmaTarget {
        RdmaTarget {
            address,
            key: self.0.rkey(),
        }
    }

    /// Returns `data` in the device's terms, if it is in this memory.
    pub(super) fn piece(&self, data: &[u8]) -> Option<Piece> {
        self.piece_at(data.as_ptr().addr() as u64, data.len())
    }

    /// Like [`piece`](Self::piece), for bytes that only the device can read.
    pub(super) fn piece_at(&self, address: u64, len: usize) -> Option<Piece> {
        let offset = usize::try_from(address.checked_sub(self.0.address())?).ok()?;
        let whole = self.0.len();
        let is_inside = offset <= whole && whole - offset >= len;
        is_inside.then(|| self.0.piece(offset, len))
    }
}

/// Registrations by address. There are few: pinned memory is allocated in large pieces.
struct Cache<R> {
    entries: Vec<Entry<R>>,
    bytes: u64,
    made: u64,
    clock: u64,
    refused_at: Option<Instant>,
    entries_max: usize,
    bytes_max: u64,
}

struct Entry<R> {
    address: u64,
    len: u64,
    use_: RdmaUse,
    region: Arc<R>,
    used_at: u64,
}

impl<R> Cache<R> {
    fn new(entries_max: usize, bytes_max: u64) -> Self {
        Self {
            entries: Vec::new(),
            bytes: 0,
            made: 0,
            clock: 0,
            refused_at: None,
            entries_max,
            bytes_max,
        }
    }

    fn get(
        &mut self,
        address: u64,
        len: usize,
        use_: RdmaUse,
        awaited: impl Fn() -> Vec<Range<u64>>,
        make: impl Fn() -> Option<R>,
    ) -> Option<Arc<R>> {
        let bytes = len as u64;
        let end = address.checked_add(bytes).filter(|_| len > 0)?;
        self.clock += 1;
        let found = self
            .entries
            .iter_mut()
            .find(|entry| entry.address <= address && entry.end() >= end && entry.use_ >= use_);
        if let Some(entry) = found {
            entry.used_at = self.clock;
            return Some(Arc::clone(&entry.region));
        }
        if self.refused_at.is_some_and(|at| at.elapsed() < REFUSED) {
            return None;
        }
        let mut idle = None;
        while self.entries.len() >= self.entries_max || self.bytes + bytes > self.bytes_max {
            if !self.evict(idle.get_or_insert_with(|| self.idle(&awaited))) {
                return None;
            }
        }
        // Idle registrations may be what keeps this one from being locked.
        let made = loop {
            match make() {
                Some(made) => break Some(made),
                None if self.evict(idle.get_or_insert_with(|| self.idle(&awaited))) => {}
                None => break None,
            }
        };
        let Some(made) = made else {
            self.refused_at = Some(Instant::now());
            return None;
        };
        self.refused_at = None;
        self.made += 1;
        self.bytes += bytes;
        let region = Arc::new(made);
        self.entries.push(Entry {
            address,
            len: bytes,
            use_,
            region: Arc::clone(&region),
            used_at: self.clock,
        });
        Some(region)
    }

    /// Returns when the registrations that may go were used last: those that are not in use, nor of
    /// memory into which data is still to be written. The most recent comes first.
    fn idle(&self, awaited: impl Fn() -> Vec<Range<u64>>) -> Vec<u64> {
        let unused = self.entries.iter();
        let unused: Vec<&Entry<R>> = unused
            .filter(|entry| Arc::strong_count(&entry.region) == 1)
            .collect();
        // After the counts: memory is in use until it is awaited, and no new use begins meanwhile.
        let awaited = Awaited::new(awaited());
        let idle = unused.iter().filter(|entry| {
            entry.use_ != RdmaUse::Target || !awaited.overlaps(entry.address, entry.end())
        });
        let mut idle: Vec<u64> = idle.map(|entry| entry.used_at).collect();
        idle.sort_unstable_by(|one, other| other.cmp(one));
        idle
    }

    /// Drops the last one of these, the least recently used. Returns false if there is none.
    fn evict(&mut self, idle: &mut Vec<u64>) -> bool {
        let oldest = idle.pop();
        let at = oldest.and_then(|used_at| {
            let mut entries = self.entries.iter();
            entries.position(|entry| entry.used_at == used_at)
        });
        match at {
            Some(at) => {
                self.bytes -= self.entries.swap_remove(at).len;
                true
            }
            None => false,
        }
    }

    fn forget(&mut self, address: u64, len: usize) {
        let end = address.saturating_add(len as u64);
        let before = self.entries.len();
        self.entries
            .retain(|entry| entry.end() <= address || entry.address >= end);
        if self.entries.len() < before {
            self.bytes = self.entries.iter().map(|entry| entry.len).sum();
            self.refused_at = None;
        }
    }
}

impl<R> Entry<R> {
    fn end(&self) -> u64 {
        self.address + self.len
    }
}

/// Addresses into which data is still to be written: apart, and rising.
struct Awaited(Vec<Range<u64>>);

impl Awaited {
    fn new(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut apart: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match apart.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        Self(apart)
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|range| range.end <= start);
        self.0.get(first).is_some_and(|range| range.start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        RdmaUse::{Source, Target},
        *,
    };

    /// Each registration is represented by its number.
    fn get(cache: &mut Cache<u64>, address: u64, len: usize, use_: RdmaUse) -> Option<Arc<u64>> {
        let number = cache.made;
        cache.get(address, len, use_, Vec::new, || Some(number))
    }

    #[test]
    fn what_is_still_to_be_written_is_kept() {
        let cache = &mut Cache::new(2, 10_000);
        get(cache, 0, 1_000, Target).unwrap();
        get(cache, 1_000, 1_000, Target).unwrap();
        let mut awaiting = |at: u64| {
            let awaited = move || Vec::from_iter(Some(at..at + 1));
            let number = cache.made;
            let made = cache.get(at + 2_000, 1_000, Source, awaited, || Some(number));
            made.unwrap();
            let left = cache.entries.iter().map(|entry| entry.address);
            left.collect::<Vec<_>>()
        };
        // The second goes, although it was used later.
        assert_eq!(awaiting(500), [0, 2_500]);
        let all = || Vec::from_iter(Some(0..u64::MAX));
        cache
            .entries
            .iter_mut()
            .for_each(|entry| entry.use_ = Target);
        assert!(cache.get(5_000, 1_000, Source, all, || Some(9)).is_none());
    }

    #[test]
    fn what_is_awaited_is_asked_for_once_and_only_to_make_room() {
        const ENTRIES: u64 = 512;
        let cache = &mut Cache::new(ENTRIES as usize, 1 << 40);
        let asked = std::cell::Cell::new(0);
        let awaited = || {
            asked.set(asked.get() + 1);
            // Of every second one its last byte.
            let odd = (0..ENTRIES).filter(|number| number % 2 == 1);
            odd.map(|number| number * 1_000 + 999..number * 1_000 + 1_000)
                .rev()
                .collect()
        };
        for number in 0..ENTRIES {
            let at = number * 1_000;
            cache.get(at, 1_000, Target, awaited, || Some(0)).unwrap();
        }
        assert_eq!(asked.get(), 0);
        // The adapter refuses, so that all go but those that are awaited.
        let made = cache.get(1 << 30, 1_000, Source, awaited, || None);
        assert!(made.is_none());
        assert_eq!((asked.get(), cache.entries.len()), (1, 256));
        assert!(
            cache
                .entries
                .iter()
                .all(|entry| entry.address % 2_000 == 1_000)
        );
    }

    #[test]
    fn awaited_memory_overlaps_what_it_touches() {
        let awaited = Awaited::new(vec![50..60, 10..20, 15..30, 12..13, 30..31]);
        for (start, end, overlaps) in [
            (0, 10, false),
            (0, 11, true),
            (19, 29, true),
            (30, 40, true),
            (31, 50, false),
            (59, 60, true),
            (60, 70, false),
        ] {
            assert_eq!(awaited.overlaps(start, end), overlaps, "{start} {end}");
        }
        assert!(!Awaited::new(Vec::new()).overlaps(0, u64::MAX));
    }

    #[test]
    fn what_is_registered_is_not_registered_again() {
        let cache = &mut Cache::new(10, 1 << 20);
        let whole = get(cache, 0x1000, 0x1000, Source).unwrap();
        for (address, len) in [(0x1000, 0x1000), (0x1800, 0x800), (0x1fff, 1)] {
            let part = get(cache, address, len, Source).unwrap();
            assert!(Arc::ptr_eq(&whole, &part), "{address:#x}");
        }
        // Neither past an end, nor for more than it was registered for.
        for (address, len, use_) in [
            (0xfff, 2, Source),
            (0x1fff, 2, Source),
            (0x1000, 0x1000, Target),
        ] {
            let made = cache.made;
            get(cache, address, len, use_).unwrap();
            assert_eq!(cache.made, made + 1, "{address:#x}");
        }
        // Our adapter may read what the peer may write.
        get(cache, 0x1000, 0x10, Target).unwrap();
        assert_eq!(cache.made, 4);
        assert!(get(cache, 0, 0, Source).is_none());
        assert!(get(cache, u64::MAX, 2, Source).is_none());
    }

    #[test]
    fn too_much_is_not_kept_and_what_is_in_use_is() {
        let cache = &mut Cache::new(3, 10_000);
        let used = get(cache, 0, 1_000, Source).unwrap();
        for at in 1..6 {
            get(cache, at * 10_000, 1_000, Source).unwrap();
            assert!(cache.entries.len() <= 3);
        }
        assert!(Arc::ptr_eq(&used, &get(cache, 0, 1_000, Source).unwrap()));
        // The most recently used one goes last.
        let last = cache.made;
        get(cache, 50_000, 1_000, Source).unwrap();
        assert_eq!(cache.made, last);
        get(cache, 70_000, 9_000, Source).unwrap();
        assert_eq!((cache.entries.len(), cache.bytes), (2, 10_000));
        assert!(get(cache, 90_000, 9_500, Source).is_none(), "one is in use");
        assert!(get(cache, 90_000, 10_001, Source).is_none());
    }

    #[test]
    fn a_refusal_is_no_error_and_is_not_asked_for_at_every_copy() {
        let cache = &mut Cache::<u64>::new(3, 10_000);
        get(cache, 0, 1_000, Source).unwrap();
        let asked = std::cell::Cell::new(0);
        let refused = |cache: &mut Cache<u64>| {
            cache.get(20_000, 1_000, Source, Vec::new, || {
                asked.set(asked.get() + 1);
                None
            })
        };
        for _ in 0..5 {
            assert!(refused(cache).is_none());
        }
        // Once more after idle registrations were dropped.
        assert_eq!(asked.get(), 2);
        assert!(cache.entries.is_empty());
        cache.refused_at = None;
        get(cache, 20_000, 1_000, Source).unwrap();
    }

    #[test]
    fn memory_that_is_given_up_is_forgotten() {
        let cache = &mut Cache::new(10, 1 << 20);
        let kept = get(cache, 0x1000, 0x1000, Target).unwrap();
        get(cache, 0x2000, 0x1000, Source).unwrap();
        get(cache, 0x3000, 0x1000, Source).unwrap();
        cache.forget(0x2800, 0x1000);
        assert_eq!((cache.entries.len(), cache.bytes), (1, 0x1000));
        let made = cache.made;
        get(cache, 0x2000, 0x1000, Source).unwrap();
        assert_eq!(cache.made, made + 1);
        assert!(Arc::ptr_eq(
            &kept,
            &get(cache, 0x1000, 0x1000, Target).unwrap()
        ));
    }
}
