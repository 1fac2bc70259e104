//! Heartbeats: a thread that asks the server's worker, over a connection of its own, whether it
//! lives, while a call waits. A worker that is stopped, or a network that takes bytes and passes
//! none on, otherwise looks like a GPU that computes for long.

use std::{
    os::fd::BorrowedFd,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use outboard_link::{
    DialError, Endpoint, Heartbeats, KnownFd, LinkKind, received_bytes, unread_bytes, unsent_bytes,
};
use outboard_wire::{
    handshake::SessionKey,
    heartbeat::{Activity, Beat},
    limits::{
        HEARTBEAT_MS, HEARTBEATS_MISSED_AT_FIRST_MAX, HEARTBEATS_MISSED_MAX, HEARTBEATS_STUCK_MAX,
    },
};

use parking_lot::Mutex;

use super::Session;
use crate::{library_thread, log};

/// Seconds between questions, or `off`: then a worker may be stopped for as long as one likes, as
/// in a debugger.
const VARIABLE: &str = "OUTBOARD_HEARTBEAT";
const PERIOD_S_MIN: f64 = 0.05;
const PERIOD_S_MAX: f64 = 86_400.0;

/// Pause between looks for what the server sends to threads that do not read.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Returns the time between questions; `None` if there are to be none.
pub(crate) fn period() -> Result<Option<Duration>, String> {
    let usual = Duration::from_millis(HEARTBEAT_MS);
    let Some(said) = std::env::var_os(VARIABLE) else {
        return Ok(Some(usual));
    };
    let said = said.to_string_lossy();
    match &*said {
        // An empty variable is one that is not set.
        "" => return Ok(Some(usual)),
        "off" => return Ok(None),
        _ => {}
    }
    let seconds = said.parse().ok();
    let seconds = seconds.filter(|s| (PERIOD_S_MIN..=PERIOD_S_MAX).contains(s));
    seconds.map(|s| Some(Duration::from_secs_f64(s))).ok_or_else(|| {
        format!("{VARIABLE}={said} is neither `off` nor seconds from {PERIOD_S_MIN} to {PERIOD_S_MAX}")
    })
}

/// The socket of the heartbeats, for a forked child to close.
#[derive(Default)]
pub(super) struct Socket(Mutex<Option<KnownFd>>);

impl Socket {
    /// Returns the socket, but if another thread is just setting it none: a forked child may not
    /// wait for a thread that it has not.
    pub(super) fn get(&self) -> Option<KnownFd> {
        self.0.try_lock().and_then(|socket| *socket)
    }
}

/// The server that is asked.
struct Asked {
    endpoint: Endpoint,
    key: SessionKey,
    /// Time between questions, and time for an answer.
    period: Duration,
}

/// Facts about the session that change whenever it gets on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outstanding {
    /// The reply that is awaited for longest.
    oldest: Option<u32>,
    /// Bytes or messages that cannot be sent.
    is_unsent: bool,
    mark: u64,
    /// Bytes that have come over tcp.
    received: Option<u64>,
}

impl Outstanding {
    /// Returns whether a reply is still awaited, or bytes still cannot be sent.
    fn waits_since(&self, before: Outstanding) -> bool {
        let awaits = self.oldest.is_some() && self.oldest == before.oldest;
        awaits || self.is_unsent && before.is_unsent && self.mark == before.mark
    }

    /// Returns whether messages are sent, and nothing comes back, as by launches alone.
    fn sends_unheard_since(&self, before: Outstanding) -> bool {
        self.received.is_some() && self.received == before.received && self.mark != before.mark
    }
}

impl Session {
    /// Starts the thread that asks. Without it the session waits as long as its link lives.
    pub(crate) fn watch_server(&'static self, endpoint: &Endpoint, key: Option<SessionKey>) {
        // A wrong period has kept the session from being opened.
        let (Some(key), Ok(Some(period))) = (key, period()) else {
            return;
        };
        let server = Asked {
            endpoint: endpoint.clone(),
            key,
            period,
        };
        library_thread::spawn("outboard-alive", move || self.heartbeats_of(&server));
    }

    fn heartbeats_of(&self, server: &Asked) {
        let mut judge = Judge::default();
        let mut connection = None;
        let mut is_first = true;
        let (mut before, mut is_stuck) = (self.outstanding(), false);
        loop {
            self.pass_period(server.period, is_stuck);
            if self.is_gone() {
                return;
            }
            let now = self.outstanding();
            let waits = now.waits_since(before);
            let sends_unheard = now.sends_unheard_since(before);
            before = now;
            is_stuck = waits && now.is_unsent;
            // The first question makes the connection, before a server can be too busy for it.
            if !waits && !sends_unheard && !is_first {
                judge.gets_on();
                continue;
            }
            is_first = false;
            let heard = self.heard(&mut connection, server);
            let judged = match (waits, sends_unheard) {
                (true, _) => judge.hears(heard),
                (false, true) => judge.hears_sending(heard),
                (false, false) => {
                    judge.hears_early(heard);
                    Ok(())
                }
            };
            if let Err(why) = judged {
                self.lost(why);
                return;
            }
        }
    }

    /// Sleeps until the next question. If a thread is stuck in sending, this one reads meanwhile:
    /// if no thread reads, the server may be stuck in sending, too.
    fn pass_period(&self, period: Duration, is_stuck: bool) {
        let start = Instant::now();
        while is_stuck && !self.is_gone() && start.elapsed() + READ_PAUSE < period {
            if !self.outstanding().is_unsent {
                break;
            }
            self.poll();
            std::thread::sleep(READ_PAUSE);
        }
        std::thread::sleep(period.saturating_sub(start.elapsed()));
    }

    /// Asks once, over a new connection if there is none.
    fn heard(&self, connection: &mut Option<Heartbeats>, server: &Asked) -> Heard {
        let asked = match connection.take() {
            Some(open) => Ok(open),
            None => Heartbeats::connect(&server.endpoint, server.key, server.period),
        };
        let mut open = match asked {
            Ok(open) => open,
            Err(error) => {
                log::debug(format_args!("no heartbeats: {error}"));
                return match error {
                    DialError::Link(_) => Heard::Nothing(self.traffic()),
                    DialError::Handshake(error) if error.is_not_awaited() => Heard::Unknown,
                    DialError::Handshake(_) => Heard::Refusal,
                };
            }
        };
        *self.heartbeats.0.lock() = open.socket();
        match open.ask(Instant::now() + server.period) {
            Ok(beat) => {
                *connection = Some(open);
                Heard::Beat(beat, self.received_bytes())
            }
            Err(error) => {
                log::debug(format_args!("no heartbeat: {error}"));
                *self.heartbeats.0.lock() = None;
                Heard::Nothing(self.traffic())
            }
        }
    }

    fn outstanding(&self) -> Outstanding {
        let oldest = self.waiters.lock().keys().copied().min();
        let is_unsent = match self.kind {
            LinkKind::Tcp => self.sum(unsent_bytes).is_some_and(|n| n > 0),
            _ => self.sender.try_lock().is_none(),
        };
        Outstanding {
            oldest,
            is_unsent,
            mark: self.progress.mark(),
            received: self.traffic().0,
        }
    }

    /// Returns the bytes that have come over tcp; 0 if the kernel does not count them, or this
    /// process is slow to read what came.
    fn received_bytes(&self) -> u64 {
        let is_slow = self.takes_note.load(Ordering::Relaxed) || self.has_unread();
        match self.kind {
            LinkKind::Tcp if !is_slow => self.sum(received_bytes).unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns whether bytes have come that could be read. Those of the session's own connection
    /// could not while a frame there waits for data of another.
    fn has_unread(&self) -> bool {
        let holds = self.data_connections.holds();
        let own = self.fds.iter().filter(|_| !holds);
        let readable = own.chain(self.data_connections.fds());
        sockets(readable).map(unread_bytes).sum::<Option<u64>>() != Some(0)
    }

    /// Returns counts that change while bytes move over tcp, in either direction.
    fn traffic(&self) -> Traffic {
        match self.kind {
            LinkKind::Tcp => (self.sum(received_bytes), self.sum(unsent_bytes)),
            _ => (None, None),
        }
    }

    fn sum(&self, count: fn(BorrowedFd<'_>) -> Option<u64>) -> Option<u64> {
        let fds = self.fds.iter().chain(self.data_connections.fds());
        sockets(fds).map(count).sum()
    }
}

/// Borrows the sockets of a session's link.
fn sockets<'f>(fds: impl Iterator<Item = &'f KnownFd>) -> impl Iterator<Item = BorrowedFd<'f>> {
    // SAFETY: the link's sockets, open until the process ends. A program that closes all
    // descriptors may have another file under the number, which is only asked for a count.
    fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd.fd()) })
}

/// The outcome of one question.
#[derive(Debug, Clone, Copy)]
enum Heard {
    /// An answer, and the bytes that have come over tcp.
    Beat(Beat, u64),
    /// The server lives, but does not let this session ask.
    Refusal,
    /// The server knows no such session.
    Unknown,
    /// No answer, and how far bytes have moved on the session's own connections.
    Nothing(Traffic),
}

/// Bytes received and bytes not yet taken by the peer, over tcp.
type Traffic = (Option<u64>, Option<u64>);

/// Decides when the server, or the connection to it, is lost.
#[derive(Debug, Default)]
struct Judge {
    has_answered: bool,
    missed: u32,
    /// As of the last question without an answer.
    traffic: Option<Traffic>,
    stuck: u32,
    /// The server's messages, and the bytes that it and the client had received, at the last
    /// answer.
    last: Option<(u64, u64, u64)>,
}

impl Judge {
    /// Nothing has waited for long.
    fn gets_on(&mut self) {
        (self.missed, self.stuck) = (0, 0);
        (self.traffic, self.last) = (None, None);
    }

    /// Takes an outcome while nothing waits.
    fn hears_early(&mut self, heard: Heard) {
        self.has_answered |= matches!(heard, Heard::Beat(..));
        self.gets_on();
    }

    /// Takes an outcome while messages are sent, and no call waits. Only a server that knows no
    /// such session has lost it.
    fn hears_sending(&mut self, heard: Heard) -> Result<(), &'static str> {
        if matches!(heard, Heard::Unknown) {
            return self.hears(heard);
        }
        self.hears_early(heard);
        Ok(())
    }

    /// Takes an outcome while a call waits. An error says why the session is lost.
    fn hears(&mut self, heard: Heard) -> Result<(), &'static str> {
        match heard {
            Heard::Nothing(traffic) => {
                let moves = self
                    .traffic
                    .replace(traffic)
                    .is_some_and(|last| last != traffic);
                self.missed = if moves { 0 } else { self.missed + 1 };
                self.may_miss(
                    "the server does not answer: its worker is stopped, or the network between passes nothing on (OUTBOARD_HEARTBEAT=off waits for ever)",
                )
            }
            // Bytes that still move go to something between that has lost the server.
            Heard::Unknown => {
                self.missed += 1;
                self.may_miss(
                    "the server knows no such session any more, and the end of its connection has not come here: a proxy or an address translation between may hold it back",
                )
            }
            Heard::Refusal => {
                self.gets_on();
                Ok(())
            }
            Heard::Beat(beat, received_bytes) => {
                (self.has_answered, self.missed) = (true, 0);
                self.is_stuck(beat, received_bytes)
            }
        }
    }

    /// Returns an error with this reason if too many questions in a row had no answer.
    fn may_miss(&self, why: &'static str) -> Result<(), &'static str> {
        let max = match self.has_answered {
            true => HEARTBEATS_MISSED_MAX,
            false => HEARTBEATS_MISSED_AT_FIRST_MAX,
        };
        match self.missed >= max {
            true => Err(why),
            false => Ok(()),
        }
    }

    /// Counts answers by which the server waits for the client, while the client waits for the
    /// server, and no byte moves between them.
    fn is_stuck(&mut self, beat: Beat, received_bytes: u64) -> Result<(), &'static str> {
        let now = (beat.messages, beat.received_bytes, received_bytes);
        let is_known = beat.received_bytes > 0 && received_bytes > 0;
        let is_same = self.last.replace(now) == Some(now);
        if !is_known || !is_same || beat.activity == Activity::Busy {
            self.stuck = 0;
            return Ok(());
        }
        self.stuck += 1;
        match self.stuck >= HEARTBEATS_STUCK_MAX {
            true => Err("a connection of it takes bytes and passes none on"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Heard = Heard::Nothing((Some(7), Some(0)));

    fn beat(messages: u64, received_bytes: u64, activity: Activity) -> Beat {
        Beat {
            question: 0,
            messages,
            received_bytes,
            activity,
        }
    }

    /// Returns after how many outcomes of this kind the session is lost, if it is.
    fn lost_after(judge: &mut Judge, heard: Heard) -> Option<u32> {
        (1..100).find(|_| judge.hears(heard).is_err())
    }

    #[test]
    fn silence_ends_a_session_later_if_the_server_never_answered() {
        let mut judge = Judge::default();
        let last = lost_after(&mut judge, NOTHING);
        assert_eq!(last, Some(HEARTBEATS_MISSED_AT_FIRST_MAX));
        let mut judge = Judge::default();
        judge
            .hears(Heard::Beat(beat(1, 1, Activity::Busy), 1))
            .unwrap();
        assert_eq!(lost_after(&mut judge, NOTHING), Some(HEARTBEATS_MISSED_MAX));
        let mut judge = Judge::default();
        for _ in 0..10 {
            judge.hears(NOTHING).unwrap();
            judge.hears(Heard::Refusal).unwrap();
            judge.hears(NOTHING).unwrap();
            judge.gets_on();
        }
    }

    #[test]
    fn a_server_that_knows_no_such_session_has_lost_it() {
        let mut judge = Judge::default();
        let last = lost_after(&mut judge, Heard::Unknown);
        assert_eq!(last, Some(HEARTBEATS_MISSED_AT_FIRST_MAX));
        let mut judge = Judge::default();
        judge
            .hears(Heard::Beat(beat(1, 1, Activity::Busy), 1))
            .unwrap();
        // The connection that there was ends first, with or without a word.
        judge.hears(NOTHING).unwrap();
        let last = lost_after(&mut judge, Heard::Unknown);
        assert_eq!(last, Some(HEARTBEATS_MISSED_MAX - 1));
        // A program that launches alone awaits nothing.
        let mut judge = Judge::default();
        judge.hears_sending(NOTHING).unwrap();
        let last = (1..100).find(|_| judge.hears_sending(Heard::Unknown).is_err());
        assert_eq!(last, Some(HEARTBEATS_MISSED_AT_FIRST_MAX));
        let last = (1..100).find(|_| judge.hears_sending(NOTHING).is_err());
        assert_eq!(last, None);
        // Another refusal says nothing about the session.
        let mut judge = Judge::default();
        for _ in 0..10 {
            judge.hears(Heard::Unknown).unwrap();
            judge.hears(Heard::Refusal).unwrap();
        }
    }

    #[test]
    fn a_server_whose_bytes_move_is_waited_for_without_answers() {
        let mut judge = Judge::default();
        for n in 0..100 {
            judge.hears(Heard::Nothing((Some(n), Some(0)))).unwrap();
        }
        for n in 0..100 {
            judge.hears(Heard::Nothing((Some(100), Some(n)))).unwrap();
        }
    }

    #[test]
    fn silence_while_nothing_waits_is_no_loss() {
        let mut judge = Judge::default();
        judge.hears_early(NOTHING);
        assert!(!judge.has_answered && judge.missed == 0);
        judge.hears_early(Heard::Beat(beat(1, 1, Activity::Idle), 1));
        assert!(judge.has_answered && judge.last.is_none());
    }

    #[test]
    fn a_server_that_computes_is_waited_for() {
        let mut judge = Judge::default();
        let busy = Heard::Beat(beat(7, 70, Activity::Busy), 9);
        assert_eq!(lost_after(&mut judge, busy), None);
    }

    #[test]
    fn two_sides_that_wait_for_each_other_have_lost_bytes() {
        for activity in [Activity::Idle, Activity::AwaitsData] {
            let mut judge = Judge::default();
            let stuck = Heard::Beat(beat(7, 70, activity), 9);
            assert_eq!(
                lost_after(&mut judge, stuck),
                Some(HEARTBEATS_STUCK_MAX + 1)
            );
        }
    }

    #[test]
    fn bytes_that_move_are_waited_for() {
        let mut judge = Judge::default();
        for n in 1..100 {
            judge
                .hears(Heard::Beat(beat(7, n, Activity::Idle), 9))
                .unwrap();
        }
        for n in 1..100 {
            judge
                .hears(Heard::Beat(beat(7, 1, Activity::AwaitsData), n))
                .unwrap();
        }
        // Nothing is concluded from counts that a kernel does not have.
        let unknown = Heard::Beat(beat(7, 0, Activity::Idle), 9);
        assert_eq!(lost_after(&mut judge, unknown), None);
    }
}
