//! The audit file: one line of JSON for each session that has ended, and for refused connections.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outboard_wire::doc::{Refusal, SessionEnd, Usage};
use serde::Serialize;
use tracing::{error, info};

use super::limits;

pub(super) struct Audit<F = File> {
    file: F,
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
        Ok(Audit::to(file))
    }
}

impl<F: io::Write> Audit<F> {
    fn to(file: F) -> Audit<F> {
        Audit {
            file,
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
            // A line may have been written in part.
            if self.append(b"\n", &lost).is_err() {
                self.lost += 1;
                return;
            }
            info!(lines = self.lost, "the audit file can be written again");
            self.lost = 0;
        }
        if let Err(error) = self.append(b"", line) {
            // Said once, however many lines are lost.
            error!(%error, "the audit file cannot be written; the server goes on without it");
            self.lost += 1;
        }
    }

    fn append(&mut self, before: &[u8], line: &Line<'_>) -> io::Result<()> {
        let mut bytes = before.to_vec();
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes)
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

    fn lines(written: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(written).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
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
        let disk = Disk {
            written: Vec::new(),
            room: 40,
        };
        let mut audit = Audit::to(disk);
        for _ in 0..3 {
            audit.refusal(Refusal::Sessions, "", Some(5), None);
        }
        assert_eq!(lines(&audit.file.written).len(), 0, "a part of a line");
        audit.file.room = 10_000;
        audit.refusal(Refusal::Queries, "", Some(5), None);
        let lines = lines(&audit.file.written);
        assert_eq!(lines[0]["event"], "lost");
        assert_eq!(lines[0]["lines"], 3);
        assert_eq!(lines[1]["reason"], "queries");
        assert_eq!(lines.len(), 2);
    }
}
