//! Host functions and messages during a device call that blocks.

use std::{cell::RefCell, collections::VecDeque};

use outboard_api::CUresult;
use outboard_device::{HeldUp, Printed};
use outboard_link::{Receiver, Wait};
use outboard_wire::{
    Message as _, Op as _, Reader,
    frame::RequestHeader,
    messages::{HostCallNote, HostFuncDone, HostWrite},
};

use super::{
    End, WaitingList,
    answers::send_answers,
    data_connections::DataConnections,
    limits,
    message_stats::Counters,
    net::Net,
    news::{send_host_pages, send_printed},
    outbox::Outbox,
};

/// Serves the client while the device blocks in a call of its own: forwards host functions, and
/// first the copies, the text and the kernels' words before them. A driver call that waits for a
/// stream would otherwise wait for a host function that nobody runs.
pub(super) struct BlockedService<'r, 's> {
    pub(super) receiver: &'r RefCell<&'s mut Receiver>,
    pub(super) outbox: &'r mut Outbox,
    pub(super) waiting: &'r mut WaitingList,
    pub(super) data_connections: &'r DataConnections,
    pub(super) stats: &'r Counters,
    pub(super) net: &'r Net,
    pub(super) printed: &'r mut Printed,
    pub(super) host_calls: &'r mut Vec<(u64, CUresult)>,
    pub(super) early: &'r mut VecDeque<Vec<u8>>,
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
            send_answers(self.waiting, self.outbox, self.data_connections, self.stats)?;
        }
        for (call, status) in self.host_calls.drain(..) {
            let status = status.0;
            self.outbox
                .note(HostCallNote::NUMBER, &HostCallNote { call, status })?;
        }
        self.outbox.flush()?;
        let mut receiver = self.receiver.borrow_mut();
        while self.early.len() < limits::EARLY_MESSAGES_MAX {
            let Some(frame) = receiver.recv(Wait::Poll)? else {
                break;
            };
            if !is_taken(frame, held_up, done) {
                self.early.push_back(frame.to_vec());
            }
        }
        Ok(())
    }
}

/// Executes a message that ends a host function, or writes to a mirror: what the function wrote is
/// sent before its end, and the kernel after it must read that. Returns false for other messages.
fn is_taken(frame: &[u8], held_up: &mut dyn HeldUp, done: &mut Vec<u64>) -> bool {
    let mut r = Reader::new(frame);
    match RequestHeader::decode(&mut r).map(|header| header.op) {
        Ok(HostFuncDone::NUMBER) => {
            let message = HostFuncDone::decode(&mut r);
            message.map(|m| done.push(m.call)).is_ok()
        }
        Ok(HostWrite::NUMBER) => {
            let message = HostWrite::decode(&mut r);
            message.is_ok_and(|m| held_up.host_write(m.va, m.data))
        }
        _ => false,
    }
}
