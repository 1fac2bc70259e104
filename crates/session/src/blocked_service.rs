//! Host functions and messages during a device call that blocks.

use std::{cell::RefCell, collections::VecDeque};

use outboard_api::CUresult;
use outboard_device::{HeldUp, Printed};
use outboard_link::{Receiver, Wait};
use outboard_wire::{
    Message as _, Op as _, Reader,
    frame::RequestHeader,
    limits::FRAME_BYTES_MAX,
    messages::{HostCallNote, HostFuncDone, HostWrite, NetHold},
};

use super::{
    End, WaitingList,
    answers::{WithoutRoom, send_answers},
    data_connections::DataConnections,
    limits,
    message_stats::Counters,
    net::Net,
    news::{send_host_pages, send_printed},
    outbox::Outbox,
};

/// Bytes that a message counts beside its own.
const FRAME_COSTS_BYTES: usize = 64;

/// Serves the client while the device blocks in a call of its own: forwards host functions, and
/// first the copies, the text and the kernels' words before them. A driver call that waits for a
/// stream would otherwise wait for a host function that nobody runs.
pub(super) struct BlockedService<'r, 's> {
    pub(super) receiver: &'r RefCell<&'s mut Receiver>,
    pub(super) outbox: &'r mut Outbox,
    pub(super) waiting: &'r mut WaitingList,
    pub(super) data_connections: &'r DataConnections,
    pub(super) stats: &'r Counters,
    pub(super) net: &'r mut Net,
    pub(super) printed: &'r mut Printed,
    pub(super) host_calls: &'r mut Vec<(u64, CUresult)>,
    pub(super) early: &'r mut Early,
}

/// Messages received while another was executed.
#[derive(Default)]
pub(super) struct Early {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Early {
    /// Whether there is room for another message. If not, the client has to wait.
    fn has_room(&self) -> bool {
        self.bytes < limits::EARLY_BYTES_MAX
            && outboard_budget::reserve(FRAME_BYTES_MAX as u64).is_ok()
    }

    fn push(&mut self, frame: &[u8]) {
        self.bytes += frame.len() + FRAME_COSTS_BYTES;
        self.frames.push_back(frame.to_vec());
    }

    /// Gives a message back that is to be taken first, in two parts if its data lies elsewhere.
    pub(super) fn push_first(&mut self, head: &[u8], data: &[u8]) {
        let frame = [head, data].concat();
        self.bytes += frame.len() + FRAME_COSTS_BYTES;
        self.frames.push_front(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len() + FRAME_COSTS_BYTES;
        Some(frame)
    }
}

impl BlockedService<'_, '_> {
    pub(super) fn turn(
        &mut self,
        held_up: &mut dyn HeldUp,
        done: &mut Vec<u64>,
    ) -> Result<(), End> {
        held_up.take_host_calls(self.host_calls);
        // After the functions were taken, so that the copies before them are ready. If the context
        // is lost the device's call ends, and what the driver says about it comes first.
        let is_ready = self.waiting.poll() && !self.waiting.any_lost();
        if is_ready || !self.host_calls.is_empty() {
            self.outbox.send_held_faults()?;
            held_up.take_printed(self.printed);
            send_printed(self.outbox, self.printed)?;
            send_host_pages(self.outbox, self.net, |changed| {
                held_up.take_host_pages(changed);
            })?;
        }
        if is_ready {
            // A host function may read what was copied out before it.
            let (connections, wait) = (self.data_connections, WithoutRoom::Wait);
            send_answers(self.waiting, self.outbox, connections, self.stats, wait)?;
        }
        for (call, status) in self.host_calls.drain(..) {
            let status = status.0;
            self.outbox
                .note(HostCallNote::NUMBER, &HostCallNote { call, status })?;
        }
        self.outbox.flush()?;
        let receiver = self.receiver;
        let mut receiver = receiver.borrow_mut();
        while self.early.has_room() {
            let Some(frame) = receiver.recv(Wait::Poll)? else {
                break;
            };
            match taken(frame, self.net, held_up, done) {
                Some(RequestHeader { token: 0, .. }) => {}
                Some(header) => self.outbox.reply(header.op, header.token, &[])?,
                None => self.early.push(frame),
            }
        }
        self.outbox.flush()?;
        Ok(())
    }
}

/// Executes a message that ends a host function, or writes to a mirror, or holds adapters while
/// mirrors are written: what the function wrote is sent before its end, and the kernel after it
/// must read that. Returns `None` for other messages.
fn taken(
    frame: &[u8],
    net: &mut Net,
    held_up: &mut dyn HeldUp,
    done: &mut Vec<u64>,
) -> Option<RequestHeader> {
    let mut r = Reader::new(frame);
    let header = RequestHeader::decode(&mut r).ok()?;
    match header.op {
        HostFuncDone::NUMBER => done.push(HostFuncDone::decode(&mut r).ok()?.call),
        HostWrite::NUMBER => {
            let m = HostWrite::decode(&mut r).ok()?;
            if !held_up.host_write(m.va, m.data) {
                return None;
            }
        }
        NetHold::NUMBER => net.hold(NetHold::decode(&mut r).ok()?.held != 0),
        _ => return None,
    }
    Some(header)
}
