//! Finds out if all work of the session is done, so that mirrors may be closed, and asks the server
//! when streams are.

use std::sync::{Arc, atomic::Ordering};

use outboard_wire::messages;

use super::{Driver, streams::Stream};
use crate::session::{Group, Sink};

/// Most streams of which the server is asked when their work is done, and most waits between two
/// such questions in vain.
const QUESTIONS_MAX: usize = 8;
const WAITS_BETWEEN_MAX: u64 = 4096;

/// A stream, the number of its last work when the server was asked, and the answer.
type Question = (Arc<Stream>, u64, Arc<Group>);

/// Questions when streams' work is done.
#[derive(Default)]
pub(super) struct Questions {
    /// Those without an answer so far.
    open: Vec<Question>,
    /// Number of waits before which there are no others, and how many waits lie between.
    next_at_wait: u64,
    waits_between: u64,
    /// Number of waits when the streams were looked at last.
    looked_at_wait: u64,
}

impl Questions {
    /// Notes what has been answered. Returns whether anything was.
    fn take_answers(&mut self) -> bool {
        let answered = self
            .open
            .extract_if(.., |(_, _, group)| group.is_complete());
        let mut any = false;
        for (stream, mark, group) in answered {
            any = true;
            // An error of the stream's work is told as the session's.
            if group.take().is_ok() {
                stream.progress.complete(mark);
            }
        }
        any
    }

    /// Notes that questions are asked. If they do not help, the next ones come ever later.
    fn be_patient(&mut self, waits: u64) {
        self.waits_between = (self.waits_between * 2).clamp(1, WAITS_BETWEEN_MAX);
        self.next_at_wait = waits + self.waits_between;
    }
}

impl Driver {
    /// Returns whether all work is known to be done. If not, asks the server when streams' work is,
    /// and waits for no answer: a program may join streams by events, and never wait for them.
    pub(super) fn is_at_rest(&self, may_ask: bool, waits: u64) -> bool {
        let session = &self.session.progress;
        if session.is_idle() {
            return true;
        }
        let mut questions = self.mirrors.questions.lock();
        let is_answered = questions.take_answers();
        let is_waited = std::mem::replace(&mut questions.looked_at_wait, waits) != waits;
        let may_ask = may_ask && questions.open.is_empty() && waits >= questions.next_at_wait;
        // Only waits and answers tell of work that is done.
        if !is_answered && !is_waited && !may_ask {
            return false;
        }
        let Some(busy) = self.streams.at_work(&self.contexts.handles(), session) else {
            return false;
        };
        if busy.is_empty() {
            questions.waits_between = 0;
            return true;
        }
        if may_ask {
            questions.be_patient(waits);
            questions.open = self.ask_for_ends(busy);
        }
        false
    }

    /// Has the server tell when the work of streams is done. Of a default stream it is not asked,
    /// since other streams would wait for the question; nor while one of the streams is captured.
    fn ask_for_ends(&self, mut streams: Vec<Arc<Stream>>) -> Vec<Question> {
        streams.retain(|stream| stream.handle != 0);
        let is_captured = |s: &Arc<Stream>| s.capture.load(Ordering::Acquire) != 0;
        if streams.len() > QUESTIONS_MAX || streams.iter().any(is_captured) {
            return Vec::new();
        }
        let ask = |stream: Arc<Stream>| {
            let (mark, group) = (stream.progress.mark(), Group::watching(None));
            let (slot, value) = group.word();
            let fence = messages::FenceStream {
                stream: stream.handle,
                slot,
                value,
            };
            let context = stream.context.0 as u64;
            // Of a lost context nothing is asked. If the session has ended, what is sent next
            // notices it.
            let asked = self.session.ask(context, &fence, &group, Sink::Group);
            asked.ok().map(|()| (stream, mark, group))
        };
        streams.into_iter().filter_map(ask).collect()
    }
}
