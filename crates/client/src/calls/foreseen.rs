//! Sends the fence of an expected wait together with the work before it (`state/foresight.rs`).

use std::sync::Arc;

use outboard_api::CUresult;
use outboard_wire::{Op, messages};

use super::Done;
use crate::{
    observe::conditions,
    session::{Group, Numbered, Sink},
    state::{Awaited, Driver, StreamRef, wire_context},
    thread,
};

impl Driver {
    /// Sends work to a stream, and if it is `AWAITED` also the fence of the wait that is expected.
    #[inline(always)]
    pub(super) fn submit_work<'a, const AWAITED: bool, M: Op<'a>>(
        &self,
        thread: &thread::Local,
        stream: &StreamRef,
        message: &M,
    ) -> Done {
        match AWAITED {
            true => {
                let is_legacy = matches!(stream, StreamRef::Legacy(_));
                let here = (thread, stream.context());
                self.submit_awaited(here, (stream.work(), is_legacy), message, false)
            }
            false => self.submit_to_from(thread, stream, message).map(drop),
        }
    }

    /// Sends a message that rests, and with it the fence of the wait that is expected next.
    #[inline(always)]
    pub(super) fn submit_resting_work<'a, M: Op<'a>>(
        &self,
        context: u64,
        numbered: Numbered<'_>,
        message: &M,
    ) -> Done {
        let thread = thread::here();
        if self.session.progress.is_wait_due() {
            let here = (&*thread, context);
            return self.submit_awaited(here, (numbered, false), message, true);
        }
        self.submit_resting((&thread, context), numbered, message, true)
            .map(drop)
    }

    #[cold]
    #[inline(never)]
    fn submit_awaited<'a, M: Op<'a>>(
        &self,
        here: (&thread::Local, u64),
        (numbered, is_legacy): (Numbered<'_>, bool),
        message: &M,
        rests: bool,
    ) -> Done {
        let is_expected = self.session.progress.take_expected();
        let awaited = self.foresight.expected(here.0).filter(|_| is_expected);
        let awaited = awaited.filter(|awaited| self.may_ask_early(awaited, is_legacy));
        // A capture that begins now reaches the server after the fence.
        let held = awaited.map(|awaited| (self.streams.hold(), awaited));
        let Some((held, awaited)) = held.filter(|(_, awaited)| self.is_there(awaited)) else {
            return self
                .submit_resting(here, numbered, message, rests)
                .map(drop);
        };
        let number = self.submit_resting(here, numbered, message, true)?;
        match self.ask_fence(awaited) {
            Ok(group) => self.foresight.asked(awaited, number, group),
            // The wait will tell why; the work has yet to leave.
            Err(_) => self.session.send_rested(),
        }
        drop(held);
        Ok(())
    }

    /// Returns whether a fence now changes nothing but the time of its answer. With mirrors the
    /// answer says what the program may read; over an emulated network each wait has a round trip
    /// of its own, as its model says. A fence of the legacy stream, or of a context in which it has
    /// work, holds up blocking streams as work of that stream does: it follows such work alone.
    fn may_ask_early(&self, awaited: &Awaited, is_legacy: bool) -> bool {
        let is_plain = !self.is_emulated && !conditions::is_unusual() && !self.has_mirrors();
        let is_of_one = awaited.stream.is_some_and(|stream| stream != 0);
        is_plain && (is_of_one || is_legacy) && awaited.context == wire_context()
    }

    /// Returns whether a fence is allowed while streams are held: its stream is there (the default
    /// stream is 0 in messages), and no capture is.
    fn is_there(&self, awaited: &Awaited) -> bool {
        let is_stream = |stream| stream == 0 || self.streams.get(stream).is_some();
        !self.captures.any() && awaited.stream.is_none_or(is_stream)
    }

    fn ask_fence(&self, awaited: Awaited) -> Result<Arc<Group>, CUresult> {
        let group = Group::watching(self.word());
        let (slot, value) = group.word();
        let (context, session) = (awaited.context, self.session);
        match awaited.stream {
            Some(stream) => {
                let fence = messages::FenceStream {
                    stream,
                    slot,
                    value,
                };
                session.ask(context, &fence, &group, Sink::Group)?;
            }
            None => {
                let fence = messages::FenceContext { slot, value };
                session.ask(context, &fence, &group, Sink::Group)?;
            }
        }
        Ok(group)
    }

    /// Returns the group of a wait's fence, which may have been sent with the work before it.
    /// `mark` is the number of the last message that is waited for.
    pub(super) fn fence_for(&self, awaited: Awaited, mark: u64) -> Result<Arc<Group>, CUresult> {
        match self.foresight.wait(awaited, mark, &self.session.progress) {
            Some(group) => Ok(group),
            None => self.ask_fence(awaited),
        }
    }
}
