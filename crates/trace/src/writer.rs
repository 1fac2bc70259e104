//! Recording while the program runs: its threads put records into memory, one thread of ours writes them.
//!
//! Nothing here waits for the disk but that thread. Where it does not keep up, records are dropped and counted.

use std::{
    collections::HashMap,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    encode::Encoder,
    error::Error,
    limits::{FINISH_MS_MAX, FLUSH_MS, NAMES_MAX, ROOM_MS_MAX, SHARD_RECORDS_MAX, SHARDS},
    place,
    record::{About, Record},
};

/// Takes records from any thread.
pub struct Writer {
    path: PathBuf,
    start: Instant,
    shards: [Mutex<Vec<Record>>; SHARDS],
    lost: AtomicU64,
    names: Mutex<Names>,
    state: Mutex<State>,
    /// There is work for the drain.
    wake: Condvar,
    /// The drain has ended.
    done: Condvar,
}

/// Writes what the program's threads have put down; to be run by a thread of its own.
pub struct Drain {
    writer: Arc<Writer>,
    encoder: Encoder<Tracked>,
}

/// What became of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub path: PathBuf,
    pub records: u64,
    pub lost: u64,
}

#[derive(Default)]
struct State {
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
    /// Begins a recording at `path`, or beside it where another process has begun one there.
    pub fn create(path: &Path, about: &About) -> Result<(Arc<Writer>, Drain), Error> {
        let (file, path) = place::open(path)?;
        let file = Tracked {
            file,
            whole_bytes: 0,
        };
        let encoder = Encoder::new(file, about).map_err(|error| Error::io(&path, &error))?;
        let writer = Arc::new(Writer {
            path,
            start: Instant::now(),
            shards: [const { Mutex::new(Vec::new()) }; SHARDS],
            lost: AtomicU64::new(0),
            names: Mutex::default(),
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        });
        let drain = Drain {
            writer: writer.clone(),
            encoder,
        };
        Ok((writer, drain))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the recording began: what its times count from.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The time of the recording at an instant; 0 before it began.
    pub fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The number by which records refer to a name.
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

    /// Puts a record down, in the buffer that this thread shares with few others.
    pub fn append(&self, thread: u32, record: Record) {
        let mut shard = self.shards[thread as usize % SHARDS].lock();
        if shard.capacity() == 0 {
            shard.reserve_exact(SHARD_RECORDS_MAX);
        }
        if shard.len() >= SHARD_RECORDS_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        shard.push(record);
        if shard.len() == SHARD_RECORDS_MAX / 2 {
            drop(shard);
            self.state.lock().is_due = true;
            self.wake.notify_one();
        }
    }

    /// As [`Writer::append`], but waits for room: for threads that are not the program's.
    pub fn append_patiently(&self, thread: u32, record: Record) {
        let until = Instant::now() + Duration::from_millis(ROOM_MS_MAX);
        while self.is_full(thread) && Instant::now() < until {
            self.state.lock().is_due = true;
            self.wake.notify_one();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.append(thread, record);
    }

    fn is_full(&self, thread: u32) -> bool {
        self.shards[thread as usize % SHARDS].lock().len() >= SHARD_RECORDS_MAX
    }

    /// What is recorded is known better now.
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
        let mut written = 0;
        let ended = self.write_all(&mut written);
        if ended.is_err() {
            self.encoder.out.forget_part();
        }
        let mut state = self.writer.state.lock();
        state.ended = Some(ended.map(|()| written).map_err(|error| error.to_string()));
        self.writer.done.notify_all();
        drop(state);
        // After an error the program goes on: what it puts down now is lost, and memory stays bounded by itself.
    }

    fn write_all(&mut self, written: &mut u64) -> std::io::Result<()> {
        let mut taken: Vec<Record> = Vec::new();
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut told_lost = 0;
        loop {
            let (is_closing, about) = self.wait();
            if let Some(about) = about {
                self.encoder.about(&about)?;
            }
            for shard in &self.writer.shards {
                taken.clear();
                if taken.capacity() == 0 {
                    taken.reserve_exact(SHARD_RECORDS_MAX);
                }
                {
                    let mut shard = shard.lock();
                    if shard.is_empty() {
                        continue;
                    }
                    std::mem::swap(&mut *shard, &mut taken);
                }
                // A record's name was there before it.
                let known = names.len();
                names.extend_from_slice(&self.writer.names.lock().texts[known..]);
                for record in &taken {
                    self.encoder.record(record, |name| {
                        names.get(name as usize).map_or("?", |text| text)
                    })?;
                }
                *written += taken.len() as u64;
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

    /// Until something is to be done: whether it is the last, and what is known better.
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

/// A file that knows where its last whole block ends.
struct Tracked {
    file: File,
    whole_bytes: u64,
}

impl Write for Tracked {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A block comes in one piece.
        self.file.write_all(bytes)?;
        self.whole_bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Tracked {
    /// The disk was full in the middle of a block.
    fn forget_part(&mut self) {
        let _ = self.file.set_len(self.whole_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Mark;

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
        writer.append(0, mark);
        let drain = std::thread::spawn(move || drain.run());
        drain.join().unwrap();
        // Nobody takes them any more: memory stays bounded.
        for _ in 0..2 * SHARD_RECORDS_MAX {
            writer.append(0, mark);
        }
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        let trace = crate::read(&path).unwrap();
        assert_eq!((trace.complete, trace.records.len()), (false, 0));
    }
}
