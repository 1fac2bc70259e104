//! Finds the waits that the client answers itself, because an earlier wait was for the same work:
//!
//! ```text
//!  copy to device ─► wait ──► launch, launch ─► copy to host, waited for ─► wait
//!                    asks                       asks                        knows: local
//! ```
//!
//! A local recording has the class that a call has in general. The client counts the work that was
//! sent to each stream, and the part of it that is known to be done (`client/state/streams.rs`); so
//! does this module.

use outboard_trace::{Call, Class};
use rustc_hash::FxHashMap;

use crate::effect::{Effect, Subject};

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

/// The client's knowledge, call after call.
#[derive(Debug, Default)]
pub(super) struct Known {
    streams: FxHashMap<u32, Progress>,
    /// All streams together: the default stream is done if they all are.
    all: Progress,
    /// For each event, the stream of its last record and what had been sent there.
    recorded: FxHashMap<u32, (u32, u64)>,
}

impl Known {
    /// Takes note of a call. Returns true if it waits for work that is known to be done.
    pub(super) fn call(&mut self, effect: Effect, call: &Call) -> bool {
        match effect {
            Effect::Waits(Subject::Stream) => return self.wait_for_stream(call),
            Effect::Waits(Subject::Event) => return self.wait_for_event(call),
            Effect::Waits(Subject::Context) => return self.wait_for_all(),
            _ if !effect.is_in_stream() => return false,
            _ => {}
        }
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
        false
    }

    fn done(&mut self, stream: u32) {
        let progress = self.streams.entry(stream).or_default();
        progress.done = progress.sent;
        if stream == 0 {
            self.all.done = self.all.sent;
        }
    }

    fn wait_for_stream(&mut self, call: &Call) -> bool {
        let own = self.streams.entry(call.stream).or_default();
        let is_known = match call.stream {
            0 => self.all.done >= self.all.sent,
            _ => own.done >= own.sent,
        };
        self.done(call.stream);
        is_known
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

    /// Each line is a call, its stream or event, and whether it is a wait that is known.
    fn play(lines: &[(&str, Class, u32, bool)]) {
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
        play(&[
            ("cuStreamSynchronize", Synchronous, 0, false),
            ("cuStreamSynchronize", Synchronous, 0, true),
            ("cuMemcpyHtoDAsync_v2", Outstanding, 0, false),
            ("cuStreamSynchronize", Synchronous, 0, false),
            ("cuLaunchKernel", Outstanding, 0, false),
            ("cuMemcpyDtoHAsync_v2", Synchronous, 0, false),
            ("cuStreamSynchronize", Synchronous, 0, true),
            // Work of another stream is work that the default stream waits for.
            ("cuLaunchKernel", Outstanding, 1, false),
            ("cuStreamSynchronize", Synchronous, 0, false),
            ("cuStreamSynchronize", Synchronous, 1, false),
            ("cuStreamSynchronize", Synchronous, 1, true),
        ]);
    }

    #[test]
    fn an_event_is_known_with_the_work_before_its_record() {
        use Class::{Outstanding, Synchronous};
        play(&[
            ("cuEventSynchronize", Synchronous, 7, false),
            ("cuLaunchKernel", Outstanding, 1, false),
            ("cuEventRecord", Outstanding, 7, false),
            ("cuLaunchKernel", Outstanding, 1, false),
            ("cuEventSynchronize", Synchronous, 7, false),
            ("cuEventSynchronize", Synchronous, 7, true),
            ("cuStreamSynchronize", Synchronous, 1, false),
            ("cuCtxSynchronize", Synchronous, 0, false),
            ("cuCtxSynchronize", Synchronous, 0, true),
        ]);
    }
}
