//! The audit file: one line of JSON for each session that has ended, and for refused connections.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outboard_wire::doc::{Refusal, SessionEnd, Usage};
use rustix::fs::{Access, access};
use serde::Serialize;
use tracing::{error, info};

use super::limits;

pub(super) struct Audit<F = File> {
    file: F,
    /// The file ends within a line.
    is_torn: bool,
    /// Lines that could not be written since the last one that could.
    lost: u64,
    second: Instant,
    refusals_in_second: u32,
    refusals_left_out: u64,
}

/// A session that has ended.
pub(super) struct SessionRecord<'a> {
    pub(super) session: u64,
    pub(super) start: SystemTime,
    pub(super) peer: &'a str,
    pub(super) uid: Option<u32>,
    pub(super) token: Option<&'a str>,
    pub(super) tenant: &'a str,
    pub(super) pid: u32,
    pub(super) program: &'a str,
    pub(super) link: &'static str,
    pub(super) device: &'static str,
    pub(super) memory_peak_bytes: &'a [u64],
    pub(super) host_memory_peak_bytes: u64,
    pub(super) usage: &'a Usage,
    pub(super) end: SessionEnd,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Session {
        session: u64,
        /// Seconds since 1970.
        start: f64,
        end: f64,
        address: &'a str,
        uid: Option<u32>,
        token: Option<&'a str>,
        /// The one whose share it used.
        tenant: &'a str,
        pid: u32,
        program: &'a str,
        link: &'a str,
        device: &'a str,
        memory_peak_bytes: &'a [u64],
        host_memory_peak_bytes: u64,
        memory_refusals: u64,
        messages: u64,
        received_bytes: u64,
        sent_bytes: u64,
        reason: &'a str,
    },
    Refusal {
        time: f64,
        address: &'a str,
        uid: Option<u32>,
        /// The one whose share is used up.
        tenant: Option<&'a str>,
        reason: &'a str,
        /// Refusals before this one that have no line.
        left_out: u64,
    },
    /// Lines before this one could not be written.
    Lost { time: f64, lines: u64 },
}

impl Audit {
    /// Opens the file, to append to it; a new one can be read by its owner alone. A device, or a
    /// pipe that somebody reads, is taken, too: `/dev/stderr`.
    pub(super) fn open(path: &Path) -> io::Result<Audit> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let file = match outboard_files::open_with(&mut options, path) {
            Err(error) if outboard_files::is_no_file(&error) => outboard_files::open_stream(path)?,
            opened => opened?,
        };
        let is_torn = file.metadata()?.is_file() && ends_within_a_line(path).unwrap_or(true);
        Ok(Audit {
            is_torn,
            ..Audit::to(file)
        })
    }
}

/// Fails if an audit file cannot be written at this path. Nothing is made or changed.
pub fn check(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(_) => Audit::open(path).map(|_| ()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            if !folder.metadata()?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error),
    }
}

/// Whether an earlier server ended, or its disk was full, in the middle of a line.
fn ends_within_a_line(path: &Path) -> io::Result<bool> {
    let file = outboard_files::open(path)?;
    let mut last = [0];
    match file.metadata()?.len() {
        0 => Ok(false),
        len => {
            file.read_exact_at(&mut last, len - 1)?;
            Ok(last != *b"\n")
        }
    }
}

/// A file whose last bytes can be taken back.
pub(super) trait Lines: io::Write {
    fn take_back(&mut self, bytes: usize) -> io::Result<()>;
}

impl Lines for File {
    fn take_back(&mut self, bytes: usize) -> io::Result<()> {
        let about = self.metadata()?;
        match about.is_file() {
            true => self.set_len(about.len().saturating_sub(bytes as u64)),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl<F: Lines> Audit<F> {
    fn to(file: F) -> Audit<F> {
        Audit {
            file,
            is_torn: false,
            lost: 0,
            second: Instant::now(),
            refusals_in_second: 0,
            refusals_left_out: 0,
        }
    }

    pub(super) fn session(&mut self, record: &SessionRecord<'_>) {
        self.write(&Line::Session {
            session: record.session,
            start: seconds(record.start),
            end: seconds(SystemTime::now()),
            address: record.peer,
            uid: record.uid,
            token: record.token,
            tenant: record.tenant,
            pid: record.pid,
            program: record.program,
            link: record.link,
            device: record.device,
            memory_peak_bytes: record.memory_peak_bytes,
            host_memory_peak_bytes: record.host_memory_peak_bytes,
            memory_refusals: record.usage.memory_refusals,
            messages: record.usage.messages,
            received_bytes: record.usage.received_bytes,
            sent_bytes: record.usage.sent_bytes,
            reason: record.end.name(),
        });
    }

    /// Writes a refusal, unless there were too many in this second: strangers must not fill the
    /// disk.
    pub(super) fn refusal(
        &mut self,
        refusal: Refusal,
        address: &str,
        uid: Option<u32>,
        tenant: Option<&str>,
    ) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            self.second = Instant::now();
            self.refusals_in_second = 0;
        }
        if self.refusals_in_second >= limits::AUDIT_REFUSALS_PER_S_MAX {
            self.refusals_left_out += 1;
            return;
        }
        self.refusals_in_second += 1;
        let left_out = std::mem::take(&mut self.refusals_left_out);
        self.write(&Line::Refusal {
            time: seconds(SystemTime::now()),
            address,
            uid,
            tenant,
            reason: refusal.name(),
            left_out,
        });
    }

    fn write(&mut self, line: &Line<'_>) {
        if self.lost > 0 {
            let lost = Line::Lost {
                time: seconds(SystemTime::now()),
                lines: self.lost,
            };
            if self.append(&lost).is_err() {
                self.lost += 1;
                return;
            }
            info!(lines = self.lost, "the audit file can be written again");
            self.lost = 0;
        }
        if let Err(error) = self.append(line) {
            // Said once, however many lines are lost.
            error!(%error, "the audit file cannot be written; the server goes on without it");
            self.lost += 1;
        }
    }

    /// Appends a whole line, or nothing. If a part cannot be taken back, the next line is on a line
    /// of its own.
    fn append(&mut self, line: &Line<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        if self.is_torn {
            bytes.push(b'\n');
        }
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        let mut done = 0;
        while done < bytes.len() {
            let error = match self.file.write(&bytes[done..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    done += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if done > 0 && self.file.take_back(done).is_err() {
                self.is_torn = true;
            }
            return Err(error);
        }
        self.is_torn = false;
        Ok(())
    }
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // To a millisecond.
    since.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Returns the lines, each of which must be whole.
    fn lines(written: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(written).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect(line))
            .collect()
    }

    impl Lines for Vec<u8> {
        fn take_back(&mut self, bytes: usize) -> io::Result<()> {
            self.truncate(self.len() - bytes);
            Ok(())
        }
    }

    #[test]
    fn many_refusals_are_one_number() {
        let mut audit = Audit::to(Vec::new());
        for _ in 0..1_000 {
            audit.refusal(Refusal::Key, "10.0.0.1:5", None, None);
        }
        let max = limits::AUDIT_REFUSALS_PER_S_MAX as usize;
        assert_eq!(lines(&audit.file).len(), max);
        audit.second -= Duration::from_secs(2);
        audit.refusal(Refusal::Key, "10.0.0.1:5", None, None);
        let last = lines(&audit.file).pop().unwrap();
        assert_eq!(last["left_out"], 1_000 - max);
    }

    /// A disk that has room for some bytes.
    struct Disk {
        written: Vec<u8>,
        room: usize,
        is_pipe: bool,
    }

    impl Lines for Disk {
        fn take_back(&mut self, bytes: usize) -> io::Result<()> {
            if self.is_pipe {
                return Err(io::ErrorKind::Unsupported.into());
            }
            self.room += bytes;
            self.written.take_back(bytes)
        }
    }

    impl io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.written.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_says_how_many() {
        for is_pipe in [false, true] {
            let disk = Disk {
                written: Vec::new(),
                room: 150,
                is_pipe,
            };
            let mut audit = Audit::to(disk);
            for _ in 0..4 {
                audit.refusal(Refusal::Sessions, "", Some(5), None);
            }
            let part = audit.file.written.split_off(0);
            let whole = part.iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
            assert_eq!(lines(&part[..whole]).len(), 1);
            assert_eq!(whole < part.len(), is_pipe, "a part of a line");
            audit.file.room = 10_000;
            audit.refusal(Refusal::Queries, "", Some(5), None);
            let later = &audit.file.written[usize::from(is_pipe)..];
            let lines = lines(later);
            assert_eq!(lines[0]["event"], "lost");
            assert_eq!(lines[0]["lines"], 3);
            assert_eq!(lines[1]["reason"], "queries");
            assert_eq!(lines.len(), 2);
            assert_eq!(audit.file.written[0] == b'\n', is_pipe, "a fresh line");
        }
    }

    #[test]
    fn a_file_that_ends_within_a_line_goes_on_at_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        for (before, begins) in [("", ""), ("{}\n", "{}\n"), ("{}\n{\"a", "{}\n{\"a\n")] {
            std::fs::write(&path, before).unwrap();
            check(&path).unwrap();
            let mut audit = Audit::open(&path).unwrap();
            audit.refusal(Refusal::Queries, "", None, None);
            let text = std::fs::read_to_string(&path).unwrap();
            let added = text.strip_prefix(begins).expect(&text);
            assert_eq!(lines(added.as_bytes()).len(), 1);
        }
        assert!(check(&folder.path().join("new")).is_ok());
        assert!(check(&folder.path().join("missing/new")).is_err());
        assert!(check(folder.path()).is_err(), "a folder");
        assert!(!folder.path().join("new").exists());
    }
}
