//! Records while the program runs: its threads put records into memory, and one thread of ours
//! writes them.
//!
//! Only that thread waits for the disk. If it does not keep up, records are dropped and counted.

use std::{
    collections::HashMap,
    fs::File,
    hint::black_box,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    clock::{Clock, Lines, Ticks},
    encode::Encoder,
    error::Error,
    limits::{
        FINISH_MS_MAX, FLUSH_MS, NAMES_MAX, RING_RECORDS, RINGS_MAX, ROOM_MS_MAX,
        SHARED_RECORDS_MAX, TAKEN_RECORDS,
    },
    place::{self, Place},
    record::{About, CallCost, Mark, Record},
    ring::{Pushed, Ring},
};

/// Takes records from any thread.
pub struct Writer {
    path: PathBuf,
    /// True if the file asked for has older contents.
    is_beside: bool,
    clock: Clock,
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Records of threads without a ring; the times of calls and marks are ticks, as in the rings,
    /// or nanoseconds of the recording.
    shared: Mutex<Vec<(Record, Times)>>,
    lost: AtomicU64,
    names: Mutex<Names>,
    state: Mutex<DrainState>,
    /// Signalled when there is work for the drain.
    wake: Condvar,
    /// Signalled when the drain has ended.
    done: Condvar,
}

/// Unit of the times of a record in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    Ticks,
    Ns,
}

/// Writes what the program's threads have recorded; runs on a thread of its own.
pub struct Drain {
    writer: Arc<Writer>,
    encoder: Encoder<Tracked>,
    lines: Lines,
    names: Vec<Arc<str>>,
    written: u64,
}

/// Result of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub path: PathBuf,
    pub records: u64,
    pub lost: u64,
}

#[derive(Default)]
struct DrainState {
    is_due: bool,
    is_closing: bool,
    about: Option<About>,
    ended: Option<Result<u64, String>>,
}

#[derive(Default)]
struct Names {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Writer {
    /// Begins a recording at `path`, or beside it if another process has begun one there.
    pub fn create(path: &Path, about: &About) -> Result<(Arc<Writer>, Drain), Error> {
        let Place {
            file,
            path,
            is_beside,
        } = place::open(path)?;
        let file = Tracked {
            file,
            whole_bytes: 0,
        };
        let encoder = Encoder::new(file, about).map_err(|error| Error::io(&path, &error))?;
        let writer = Arc::new(Writer {
            path,
            is_beside,
            clock: Clock::new(),
            rings: Mutex::default(),
            shared: Mutex::default(),
            lost: AtomicU64::new(0),
            names: Mutex::default(),
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        let drain = Drain {
            writer: writer.clone(),
            encoder,
            lines: Lines::default(),
            names: Vec::new(),
            written: 0,
        };
        Ok((writer, drain))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file asked for has older contents, and this recording lies beside it.
    pub fn is_beside(&self) -> bool {
        self.is_beside
    }

    /// Returns the time stamp for calls.
    #[inline(always)]
    pub fn now(&self) -> Ticks {
        self.clock.now()
    }

    /// Returns the recording's time at an instant; 0 before it began. Within a microsecond of the
    /// stamps of calls.
    pub fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.clock.start());
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the number by which records refer to a name.
    pub fn name(&self, text: &str) -> u32 {
        let mut names = self.names.lock();
        if let Some(number) = names.numbers.get(text) {
            return *number;
        }
        let text: Arc<str> = match names.texts.len() + 1 < NAMES_MAX {
            true => text.into(),
            false => "(too many names)".into(),
        };
        if let Some(number) = names.numbers.get(&text) {
            return *number;
        }
        let number = names.texts.len() as u32;
        names.texts.push(text.clone());
        names.numbers.insert(text, number);
        number
    }

    /// Claims a ring for the calling thread, if one is left.
    pub(crate) fn ring(&self) -> Option<Arc<Ring>> {
        let mut rings = self.rings.lock();
        if let Some(free) = rings.iter().find(|ring| ring.claim()) {
            return Some(free.clone());
        }
        if rings.len() >= RINGS_MAX {
            return None;
        }
        let ring = Arc::new(Ring::new());
        ring.claim();
        rings.push(ring.clone());
        Some(ring)
    }

    /// Adds a call or a mark whose times are [`Ticks`].
    ///
    /// # Safety
    /// The calling thread must have claimed the ring.
    #[inline]
    pub(crate) unsafe fn put(&self, ring: Option<&Ring>, record: Record) {
        let Some(ring) = ring else {
            return self.share(record, Times::Ticks);
        };
        // SAFETY: this thread has claimed the ring, by this function's contract.
        match unsafe { ring.push(record) } {
            Pushed::In => {}
            Pushed::Half => self.wake(),
            Pushed::Lost => self.lose(),
        }
    }

    /// Measures the cost of stamping a call twice and putting it into a ring: the least of several
    /// rounds.
    pub(crate) fn cost(&self) -> CallCost {
        const ROUNDS: u32 = 8;
        const CALLS: u32 = (RING_RECORDS / 2) as u32;
        let each_ns = |since: Instant| since.elapsed().as_nanos() as f64 / f64::from(CALLS);
        let (mut stamp_ns, mut call_ns) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let since = Instant::now();
            for _ in 0..CALLS {
                black_box(self.now());
            }
            stamp_ns = stamp_ns.min(each_ns(since));
            let ring = Ring::new();
            ring.claim();
            let since = Instant::now();
            for number in 0..CALLS {
                let (start, end) = (self.now(), self.now());
                let mark = Mark {
                    name: number,
                    thread: number,
                    at_ns: start.0 ^ end.0,
                    is_end: false,
                };
                // SAFETY: this thread claimed the ring above, so only it puts records in.
                black_box(unsafe { ring.push(Record::Mark(mark)) });
            }
            call_ns = call_ns.min(each_ns(since));
        }
        CallCost {
            inside_ns: stamp_ns,
            outside_ns: (call_ns - stamp_ns).max(0.0),
        }
    }

    /// Adds a record whose times are the recording's.
    pub fn append(&self, record: Record) {
        self.share(record, Times::Ns);
    }

    /// Like [`Writer::append`], but waits for room, for callers that have time.
    pub fn append_patiently(&self, record: Record) {
        let until = Instant::now() + Duration::from_millis(ROOM_MS_MAX);
        while self.shared.lock().len() >= SHARED_RECORDS_MAX && Instant::now() < until {
            self.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.append(record);
    }

    fn share(&self, record: Record, times: Times) {
        let mut shared = self.shared.lock();
        if shared.len() >= SHARED_RECORDS_MAX {
            return self.lose();
        }
        shared.push((record, times));
        if shared.len() == SHARED_RECORDS_MAX / 2 {
            drop(shared);
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.state.lock().is_due = true;
        self.wake.notify_one();
    }

    #[cold]
    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces the description of the recording when more is known.
    pub fn set_about(&self, about: About) {
        self.state.lock().about = Some(about);
    }

    /// Ends the recording, and waits until it is written.
    pub fn finish(&self) -> Result<Finished, Error> {
        let until = Instant::now() + Duration::from_millis(FINISH_MS_MAX);
        let mut state = self.state.lock();
        state.is_closing = true;
        self.wake.notify_one();
        while state.ended.is_none() {
            if self.done.wait_until(&mut state, until).timed_out() {
                return Err(self.unfinished(format!("not written after {FINISH_MS_MAX} ms")));
            }
        }
        match &state.ended {
            Some(Ok(records)) => Ok(Finished {
                path: self.path.clone(),
                records: *records,
                lost: self.lost.load(Ordering::Relaxed),
            }),
            Some(Err(what)) => Err(self.unfinished(what.clone())),
            None => Err(self.unfinished("it is not written".into())),
        }
    }

    fn unfinished(&self, what: String) -> Error {
        Error::Unfinished {
            what: format!("{}: {what}", self.path.display()),
        }
    }
}

impl Drain {
    /// Writes until the recording is finished.
    pub fn run(mut self) {
        let ended = self.write_all();
        if ended.is_err() {
            self.encoder.out.forget_part();
        }
        let mut state = self.writer.state.lock();
        let written = self.written;
        state.ended = Some(ended.map(|()| written).map_err(|error| error.to_string()));
        self.writer.done.notify_all();
        drop(state);
        // After an error the program goes on: its later records are lost, and memory remains
        // bounded.
    }

    fn write_all(&mut self) -> io::Result<()> {
        let mut taken: Vec<Record> = Vec::with_capacity(TAKEN_RECORDS);
        let mut shared = Vec::new();
        let mut told_lost = 0;
        loop {
            let (is_closing, about) = self.wait();
            if let Some(about) = about {
                self.encoder.about(&about)?;
            }
            self.lines.compare(&self.writer.clock);
            let rings = self.writer.rings.lock().clone();
            for ring in rings {
                // Records that come meanwhile are for the next round.
                for _ in 0..RING_RECORDS / TAKEN_RECORDS {
                    taken.clear();
                    // SAFETY: only this thread takes records out.
                    unsafe { ring.drain(TAKEN_RECORDS, &mut taken) };
                    if taken.is_empty() {
                        break;
                    }
                    self.learn_names();
                    for record in &taken {
                        self.write(record, Times::Ticks)?;
                    }
                }
            }
            std::mem::swap(&mut *self.writer.shared.lock(), &mut shared);
            self.learn_names();
            for (record, times) in shared.drain(..) {
                self.write(&record, times)?;
            }
            let lost = self.writer.lost.load(Ordering::Relaxed);
            self.encoder.lost(lost - told_lost)?;
            told_lost = lost;
            match is_closing {
                true => return self.encoder.end(),
                false => self.encoder.flush()?,
            }
        }
    }

    /// Copies new names. Called after records were taken, since a name is added before records that
    /// refer to it.
    fn learn_names(&mut self) {
        let known = self.names.len();
        self.names
            .extend_from_slice(&self.writer.names.lock().texts[known..]);
    }

    fn write(&mut self, record: &Record, times: Times) -> io::Result<()> {
        let mut record = *record;
        if times == Times::Ticks {
            record.map_times(|ticks| self.lines.ns(ticks));
        }
        self.written += 1;
        let names = &self.names;
        let text = |name: u32| names.get(name as usize).map_or("?", |text| text);
        self.encoder.record(&record, text)
    }

    /// Waits until there is work. Returns true for the last round, and a new description if there
    /// is one.
    fn wait(&self) -> (bool, Option<About>) {
        let mut state = self.writer.state.lock();
        if !state.is_due && !state.is_closing {
            let wait = Duration::from_millis(FLUSH_MS);
            self.writer.wake.wait_for(&mut state, wait);
        }
        state.is_due = false;
        (state.is_closing, state.about.take())
    }
}

/// A file that keeps the offset after its last whole block.
struct Tracked {
    file: File,
    whole_bytes: u64,
}

impl Write for Tracked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A block is written with one call.
        self.file.write_all(bytes)?;
        self.whole_bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Tracked {
    /// Removes a part of a block, written before the disk was full.
    fn forget_part(&mut self) {
        let _ = self.file.set_len(self.whole_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_fills_up_ends_the_recording_not_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let (writer, mut drain) = Writer::create(&path, &About::default()).unwrap();
        drain.encoder.out.file = File::options().write(true).open("/dev/full").unwrap();
        let name = writer.name("a mark");
        let mark = Record::Mark(Mark {
            name,
            thread: 0,
            at_ns: 1,
            is_end: false,
        });
        writer.append(mark);
        let drain = std::thread::spawn(move || drain.run());
        drain.join().unwrap();
        // The drain no longer takes them: memory remains bounded.
        for _ in 0..2 * SHARED_RECORDS_MAX {
            writer.append(mark);
        }
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        let trace = crate::read(&path).unwrap();
        assert_eq!((trace.complete, trace.records.len()), (false, 0));
    }
}
