//! Finds the waits that the client answers itself, because an earlier wait was for the same work:
//!
//! ```text
//!  copy to device ─► wait ──► launch, launch ─► copy to host, waited for ─► wait
//!                    asks                       asks                        knows: local
//! ```
//!
//! A local recording has the class that a call has in general. The client counts the work that was
//! sent to each stream, and the part of it that is known to be done (`client/state/streams.rs`); so
//! does this module. If all work but copies to the device is known to be done, and the calls have
//! taken the copies' bytes, the client sends a message in place of the wait
//! (`client/calls/stream.rs`):
//!
//! ```text
//!  copy to host, waited for ─► copy to device ─► wait ─► launch
//!  asks                                          spared
//! ```

use outboard_trace::{Call, Class};
use outboard_wire::limits::FRAME_BYTES_MAX;
use rustc_hash::FxHashMap;

use crate::effect::{Effect, Effects, Subject};

/// Counts of what was sent and of what is known to be done.
#[derive(Debug, Clone, Copy)]
struct Progress {
    sent: u64,
    done: u64,
}

impl Default for Progress {
    /// Nothing is known of the work before the iteration.
    fn default() -> Progress {
        Progress { sent: 1, done: 0 }
    }
}

/// The cost of a call that waits, by what the client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It asks the server, or the call is no wait.
    Asks,
    /// The work is known to be done.
    Known,
    /// Only copies are left, whose bytes were taken: a message.
    Spared,
}

/// The client's knowledge, call after call.
#[derive(Debug, Default)]
pub(super) struct Known {
    streams: FxHashMap<u32, Progress>,
    /// All streams together: the default stream is done if they all are.
    all: Progress,
    /// The last copy to the device before which all work was done or was such copies: its stream,
    /// and how much had been sent to all streams.
    taken: Option<(u32, u64)>,
    /// For each event, the stream of its last record and what had been sent there.
    recorded: FxHashMap<u32, (u32, u64)>,
}

/// Returns what each call of a recording costs if it waits. A program repeats what it does, so
/// that it knows at the beginning of its recording what it knows at the end.
pub(super) fn waits(effects: &Effects, calls: &[&Call]) -> Vec<Wait> {
    let mut known = Known::default();
    let mut pass = || {
        let wait = |call: &&Call| known.call(effects.of(call.function), call);
        calls.iter().map(wait).collect()
    };
    let _: Vec<Wait> = pass();
    pass()
}

impl Known {
    /// Takes note of a call, and returns what a wait costs.
    pub(super) fn call(&mut self, effect: Effect, call: &Call) -> Wait {
        let known = |is_known| match is_known {
            true => Wait::Known,
            false => Wait::Asks,
        };
        match effect {
            Effect::Waits(Subject::Stream) => return self.wait_for_stream(call),
            Effect::Waits(Subject::Event) => return known(self.wait_for_event(call)),
            Effect::Waits(Subject::Context) => return known(self.wait_for_all()),
            _ if !effect.is_in_stream() => return Wait::Asks,
            _ => {}
        }
        let is_taken = effect == Effect::CopiesToDevice && self.is_taken(call);
        let progress = self.streams.entry(call.stream).or_default();
        progress.sent += 1;
        self.all.sent += 1;
        if effect == Effect::RecordsEvent && call.event != 0 {
            self.recorded
                .insert(call.event, (call.stream, progress.sent));
        }
        if call.class == Class::Synchronous {
            self.done(call.stream);
        }
        if is_taken {
            self.taken = Some((call.stream, self.all.sent));
        }
        Wait::Asks
    }

    /// Returns true if a copy to the device waits for nothing but such copies, and is one message.
    fn is_taken(&self, call: &Call) -> bool {
        let is_done = |progress: Progress| progress.done >= progress.sent;
        let of = |stream| self.streams.get(&stream).copied().unwrap_or_default();
        let is_alone = match call.stream {
            0 => is_done(self.all),
            // It may wait for the default stream, too.
            stream => is_done(of(stream)) && (is_done(of(0)) || !self.streams.contains_key(&0)),
        };
        let follows = self.taken == Some((call.stream, self.all.sent));
        call.request_bytes <= FRAME_BYTES_MAX as u64 && (is_alone || follows)
    }

    fn done(&mut self, stream: u32) {
        let progress = self.streams.entry(stream).or_default();
        progress.done = progress.sent;
        if stream == 0 {
            self.all.done = self.all.sent;
        }
    }

    fn wait_for_stream(&mut self, call: &Call) -> Wait {
        let own = *self.streams.entry(call.stream).or_default();
        let is_known = match call.stream {
            0 => self.all.done >= self.all.sent,
            _ => own.done >= own.sent,
        };
        let is_spared = match self.taken {
            Some((0, sent)) => call.stream == 0 && sent == self.all.sent,
            Some((stream, sent)) => stream == call.stream && sent == self.all.sent,
            None => false,
        };
        self.done(call.stream);
        match (is_known, is_spared) {
            (true, _) => Wait::Known,
            (false, true) => Wait::Spared,
            (false, false) => Wait::Asks,
        }
    }

    fn wait_for_event(&mut self, call: &Call) -> bool {
        let Some((stream, sent)) = self.recorded.get(&call.event) else {
            return false;
        };
        let progress = self.streams.entry(*stream).or_default();
        let is_known = progress.done >= *sent;
        progress.done = progress.done.max(*sent);
        is_known
    }

    fn wait_for_all(&mut self) -> bool {
        let is_known = self.all.done >= self.all.sent;
        self.all.done = self.all.sent;
        for progress in self.streams.values_mut() {
            progress.done = progress.sent;
        }
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(class: Class, stream: u32, event: u32) -> Call {
        Call {
            function: 0,
            class,
            thread: 0,
            start_ns: 0,
            duration_ns: 0,
            request_bytes: 0,
            response_bytes: 0,
            stream,
            event,
            correlation: 0,
            status: 0,
            server: 0,
        }
    }

    /// Each line is a call, its stream or event, and what it costs if it waits.
    fn play(lines: &[(&str, Class, u32, Wait)]) {
        let mut known = Known::default();
        for (number, (name, class, of, expected)) in lines.iter().enumerate() {
            let made = match *name {
                "cuEventRecord" => call(*class, 1, *of),
                "cuEventSynchronize" => call(*class, 0, *of),
                _ => call(*class, *of, 0),
            };
            let is_known = known.call(Effect::of(name), &made);
            assert_eq!(is_known, *expected, "line {number}: {name}");
        }
    }

    #[test]
    fn a_second_wait_for_the_same_work_is_known() {
        use Class::{Outstanding, Synchronous};
        use Wait::{Asks, Known};
        play(&[
            ("cuStreamSynchronize", Synchronous, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Known),
            ("cuLaunchKernel", Outstanding, 0, Asks),
            ("cuMemcpyDtoHAsync_v2", Synchronous, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Known),
            // Work of another stream is work that the default stream waits for.
            ("cuLaunchKernel", Outstanding, 1, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 1, Asks),
            ("cuStreamSynchronize", Synchronous, 1, Known),
        ]);
    }

    #[test]
    fn an_event_is_known_with_the_work_before_its_record() {
        use Class::{Outstanding, Synchronous};
        use Wait::{Asks, Known};
        play(&[
            ("cuEventSynchronize", Synchronous, 7, Asks),
            ("cuLaunchKernel", Outstanding, 1, Asks),
            ("cuEventRecord", Outstanding, 7, Asks),
            ("cuLaunchKernel", Outstanding, 1, Asks),
            ("cuEventSynchronize", Synchronous, 7, Asks),
            ("cuEventSynchronize", Synchronous, 7, Known),
            ("cuStreamSynchronize", Synchronous, 1, Asks),
            ("cuCtxSynchronize", Synchronous, 0, Asks),
            ("cuCtxSynchronize", Synchronous, 0, Known),
        ]);
    }

    #[test]
    fn a_wait_for_copies_alone_is_spared() {
        use Class::{Outstanding, Synchronous};
        use Wait::{Asks, Spared};
        play(&[
            // Earlier work is not known.
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Asks),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, Asks),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Spared),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Spared),
            ("cuLaunchKernel", Outstanding, 0, Asks),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, Asks),
            ("cuStreamSynchronize", Synchronous, 0, Asks),
            // A stream may wait for the default stream.
            ("cuStreamSynchronize", Synchronous, 1, Asks),
            ("cuLaunchKernel", Outstanding, 0, Asks),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 1, Asks),
            ("cuStreamSynchronize", Synchronous, 1, Asks),
        ]);
    }
}
