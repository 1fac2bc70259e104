//! A screen of `outboard top` as text.

use std::{cmp::Reverse, fmt::Write as _};

use outboard_wire::doc::{Doing, ServerStatus, SessionStatus};

use crate::args::SortArg;

/// Columns of a session's line, up to the last one, which takes the rest.
const HEAD: &str = "  NO.     PID USER/HOST     PROGRAM    GPU   MEM MSG/S   B/S  WAIT  AGE AWAITS";

/// The form of a screen.
pub(super) struct Screen<'a> {
    address: &'a str,
    sort: SortArg,
    columns: usize,
}

impl<'a> Screen<'a> {
    pub(super) fn new(address: &'a str, sort: SortArg, columns: usize) -> Screen<'a> {
        Screen {
            address,
            sort,
            columns,
        }
    }

    /// Returns the screen. No line is longer than the terminal's.
    pub(super) fn text(&self, status: &ServerStatus) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            let cut: String = text.chars().map(shown).take(self.columns).collect();
            // Writing to a string does not fail.
            let _ = writeln!(out, "{}", cut.trim_end());
        };
        line(format!(
            "{}: release {}, {}, up {}",
            self.address,
            status.release,
            status.device,
            time(status.uptime_ms)
        ));
        let sum =
            |number: fn(&SessionStatus) -> u64| status.sessions.iter().map(number).sum::<u64>();
        line(format!(
            "{} of {} sessions, {} ready; {} messages/s, {}B/s in, {}B/s out; {} refused",
            status.sessions.len(),
            status.sessions_max,
            status.spares_ready,
            count(sum(|s| s.messages_per_s)),
            binary(sum(|s| s.received_bytes_per_s)),
            binary(sum(|s| s.sent_bytes_per_s)),
            status.totals.refusals.iter().sum::<u64>(),
        ));
        for (at, gpu) in status.gpus.iter().enumerate() {
            line(format!(
                "GPU {at:<2} {:32} {:>6}B of {:>6}B used, {} sessions",
                gpu.name,
                binary(gpu.used_bytes),
                binary(gpu.memory_bytes),
                gpu.sessions
            ));
        }
        line(String::new());
        line(HEAD.into());
        let mut sessions: Vec<_> = status.sessions.iter().collect();
        sessions.sort_by_key(|session| (Reverse(self.rank(session)), session.session));
        for session in sessions {
            line(of_session(session));
        }
        out
    }

    /// Returns the number by which a session is sorted, the greatest first.
    fn rank(&self, session: &SessionStatus) -> u64 {
        match self.sort {
            SortArg::Messages => session.messages_per_s,
            SortArg::Bytes => session.received_bytes_per_s + session.sent_bytes_per_s,
            SortArg::Memory => session.usage.memory_bytes.iter().sum(),
            SortArg::Wait => session.wait_us,
            SortArg::Age => session.age_ms,
            SortArg::Session => 0,
        }
    }
}

fn of_session(session: &SessionStatus) -> String {
    let usage = &session.usage;
    let used = usage.memory_bytes.iter().enumerate();
    let gpus: Vec<_> = used
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(at, _)| at.to_string())
        .collect();
    let host = match session.uid {
        Some(uid) => format!("user {uid}"),
        // The port tells nothing.
        None => session
            .address
            .rsplit_once(':')
            .map_or("", |(host, _)| host)
            .into(),
    };
    let awaits = match &usage.doing {
        Doing::Busy => "-",
        Doing::AwaitsClient => "client",
        Doing::AwaitsData => "data",
        Doing::AwaitsGpu(message) => message,
    };
    format!(
        "{:>5} {:>7} {:13.13} {:10.10} {:3.3} {:>5} {:>5} {:>5} {:>5} {:>4} {awaits}",
        session.session,
        session.pid,
        host,
        session.program,
        gpus.join(","),
        binary(usage.memory_bytes.iter().sum()),
        count(session.messages_per_s),
        binary(session.received_bytes_per_s + session.sent_bytes_per_s),
        wait(session.wait_us),
        time(session.age_ms),
    )
}

/// Returns what a terminal may get of a text that a client chose.
fn shown(c: char) -> char {
    match c.is_ascii_graphic() || c == ' ' {
        true => c,
        false => '?',
    }
}

/// Three digits and a unit, by powers of 1,024.
fn binary(number: u64) -> String {
    scaled(number, 1_024.0, &["", "K", "M", "G", "T", "P", "E"])
}

fn count(number: u64) -> String {
    scaled(number, 1_000.0, &["", "k", "M", "G", "T", "P", "E"])
}

fn scaled(number: u64, step: f64, units: &[&str]) -> String {
    let mut rest = number as f64;
    let mut at = 0;
    while rest >= 999.5 && at + 1 < units.len() {
        rest /= step;
        at += 1;
    }
    match at > 0 && rest < 9.95 {
        true => format!("{rest:.1}{}", units[at]),
        false => format!("{rest:.0}{}", units[at]),
    }
}

fn wait(us: u64) -> String {
    match us {
        0 => "-".into(),
        1..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{}ms", us / 1_000),
        _ => format!("{}s", us / 1_000_000),
    }
}

fn time(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m", s / 60),
        3_600..86_400 => format!("{}h", s / 3_600),
        _ => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::doc::{GpuStatus, Totals, Usage};

    use super::*;

    fn status() -> ServerStatus {
        let session = |session, program: &str, messages_per_s| SessionStatus {
            session,
            pid: 4_194_304,
            program: program.into(),
            address: "[2001:db8:1111:2222:3333:4444:5555:6666]:41234".into(),
            messages_per_s,
            received_bytes_per_s: 123_456_789_000,
            wait_us: 999_999,
            age_ms: 86_399_999,
            usage: Usage {
                memory_bytes: vec![0, 150 << 30],
                doing: Doing::AwaitsGpu("fence_context".into()),
                ..Usage::default()
            },
            ..SessionStatus::default()
        };
        ServerStatus {
            release: "0.1.0".into(),
            device: "nvidia".into(),
            sessions_max: 64,
            gpus: vec![GpuStatus::default(); 2],
            sessions: vec![
                session(1, "slow", 5),
                session(99_999, "a\x1b[2Jprogram", 1_234_567),
            ],
            totals: Totals::default(),
            ..ServerStatus::default()
        }
    }

    #[test]
    fn a_screen_fits_80_columns_and_has_no_escapes() {
        let text = Screen::new("shm:///run/user/1000/outboard.sock", SortArg::Messages, 80)
            .text(&status());
        for line in text.lines() {
            assert!(line.len() <= 80, "{line}");
            assert!(
                line.bytes().all(|b| b.is_ascii_graphic() || b == b' '),
                "{line}"
            );
        }
        let busy = text.lines().nth(6).unwrap();
        assert!(
            busy.contains(
                "99999 4194304 [2001:db8:111 a?[2Jprogr 1    150G  1.2M  115G 999ms  23h fence"
            ),
            "{text}"
        );
    }

    #[test]
    fn sessions_are_sorted_by_the_column_asked_for() {
        let first = |sort| {
            let text = Screen::new("x", sort, 80).text(&status());
            text.lines()
                .nth(6)
                .unwrap()
                .split_whitespace()
                .next()
                .unwrap()
                .to_string()
        };
        assert_eq!(first(SortArg::Messages), "99999");
        assert_eq!(first(SortArg::Session), "1");
    }

    #[test]
    fn numbers_have_at_most_five_characters() {
        for number in [0, 999, 1_000, 1_023, 1_024, 9_999, 999_500, u64::MAX] {
            assert!(binary(number).len() <= 4, "{}", binary(number));
            assert!(count(number).len() <= 4, "{}", count(number));
        }
        assert_eq!(
            (binary(1_536), count(12_345)),
            ("1.5K".into(), "12k".into())
        );
    }
}
