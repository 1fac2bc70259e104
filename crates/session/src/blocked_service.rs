//! Host functions and messages during a device call that blocks.

use std::{cell::RefCell, collections::VecDeque};

use outboard_api::CUresult;
use outboard_link::{Receiver, Wait};
use outboard_wire::{
    Message as _, Op as _, Reader,
    frame::RequestHeader,
    messages::{HostCallNote, HostFuncDone},
};

use super::{
    WaitingList, answers::send_answers, data_connections::DataConnections, limits,
    message_stats::Counters, outbox::Outbox,
};

/// Serves the client while the device blocks in a call of its own: forwards host functions, and
/// first the copies before them. A driver call that waits for a stream would otherwise wait for a
/// host function that nobody runs.
pub(super) struct BlockedService<'r, 's> {
    pub(super) receiver: &'r RefCell<&'s mut Receiver>,
    pub(super) outbox: &'r mut Outbox,
    pub(super) waiting: &'r mut WaitingList,
    pub(super) data_connections: &'r DataConnections,
    pub(super) stats: &'r Counters,
    pub(super) early: &'r mut VecDeque<Vec<u8>>,
}

impl BlockedService<'_, '_> {
    pub(super) fn turn(
        &mut self,
        reached: &[(u64, CUresult)],
        done: &mut Vec<u64>,
    ) -> Result<(), outboard_link::Error> {
        if self.waiting.poll() {
            send_answers(self.waiting, self.outbox, self.data_connections, self.stats)?;
        }
        for (call, status) in reached {
            let (call, status) = (*call, status.0);
            self.outbox
                .note(HostCallNote::NUMBER, &HostCallNote { call, status })?;
        }
        self.outbox.flush()?;
        let mut receiver = self.receiver.borrow_mut();
        while self.early.len() < limits::EARLY_MESSAGES_MAX {
            let Some(frame) = receiver.recv(Wait::Poll)? else {
                break;
            };
            match host_func_done(frame) {
                Some(call) => done.push(call),
                None => self.early.push_back(frame.to_vec()),
            }
        }
        Ok(())
    }
}

/// Returns the host function that this message reports as done, if it does.
fn host_func_done(frame: &[u8]) -> Option<u64> {
    let mut r = Reader::new(frame);
    let header = RequestHeader::decode(&mut r).ok()?;
    if header.op != HostFuncDone::NUMBER {
        return None;
    }
    HostFuncDone::decode(&mut r).ok().map(|m| m.call)
}
