//! The part of a session that executes messages, apart from the link that they come over.

use std::{cell::Cell, os::fd::OwnedFd};

use outboard_api::CUresult;
use outboard_device::{Cx, Device, Failure, HeldUp, Pending, Placed, Service, images::ImageStore};
use outboard_link::Destination;
use outboard_wire::{
    DecodeError, Reader,
    frame::{RequestHeader, copied_data_at},
    handshake::Purpose,
    messages::{FenceContext, FenceStream, is_bulk},
};
use rustix::fs::SealFlags;

use super::{
    answers::restaged,
    execute::{self, Executed},
    exposed::Exposed,
    foresight::Fence,
    waiting::WaitingList,
};

pub(super) struct Executor<'d> {
    pub(super) device: &'d mut dyn Device,
    pub(super) purpose: Purpose,
    pub(super) images: ImageStore,
    pub(super) exposed: Exposed,
    /// Reply of the message in execution.
    pub(super) reply: Vec<u8>,
    /// The program's call that the device was last told of (a profile's call number).
    call: u32,
}

/// Functions with which the session helps the device while a message is executed.
pub(super) struct Aids<'a> {
    pub(super) fds: &'a mut dyn FnMut(u64) -> Result<OwnedFd, Failure>,
    pub(super) service: &'a mut Service<'a>,
    /// As [`Cx::unserved`].
    pub(super) unserved: Option<&'a Cell<bool>>,
}

impl<'d> Executor<'d> {
    pub(super) fn new(
        device: &'d mut dyn Device,
        purpose: Purpose,
        images: ImageStore,
        exposed: Exposed,
    ) -> Executor<'d> {
        Executor {
            device,
            purpose,
            images,
            exposed,
            reply: Vec::new(),
            call: 0,
        }
    }

    /// Tells the device of the program's call that the next messages are of.
    #[inline]
    pub(super) fn of_call(&mut self, call: u32) {
        if call != self.call {
            self.call = call;
            self.device.of_call(call);
        }
    }

    /// Chooses memory for a long frame: data of a copy to the device goes into memory that the
    /// device copies from.
    pub(super) fn place(&mut self, head: &[u8], len: usize) -> Option<Destination> {
        if self.purpose != Purpose::Session {
            return None;
        }
        let skip = copied_data_at(head, len)?;
        let memory = self.device.room(len - skip)?;
        Some(Destination { skip, memory })
    }

    /// Makes a fence that no message has asked for yet, if the device can.
    pub(super) fn fence_early(&mut self, fence: Fence) -> Option<Pending> {
        if self.purpose != Purpose::Session
            || !self.device.can_fence_early(fence.context, fence.stream)
        {
            return None;
        }
        let refuse = |_| {
            Err(Failure::new(
                CUresult::CUDA_ERROR_NOT_SUPPORTED,
                "no message",
            ))
        };
        let mut cx = Cx {
            context: fence.context,
            images: &mut self.images,
            placed: None,
            fds: &mut { refuse },
            service: &mut |_, _| false,
            unserved: Some(&Cell::new(false)),
        };
        let (slot, value) = (0, 0);
        let made = match fence.stream {
            Some(stream) => self.device.fence_stream(
                &mut cx,
                &FenceStream {
                    stream,
                    slot,
                    value,
                },
            ),
            None => self
                .device
                .fence_context(&mut cx, &FenceContext { slot, value }),
        };
        // What was refused will be refused again when the client asks.
        made.ok()
    }

    /// Makes ordinary copies of those that the adapter has yet to read, before their memory may
    /// change or a fence may be answered.
    pub(super) fn restage(&mut self, waiting: &mut WaitingList) {
        waiting.restage(|source| restaged(&mut *self.device, &mut self.images, source));
    }

    /// Executes a message of bulk data, which is used where it was received. Returns `None` for
    /// another message, and if the client has to be served meanwhile.
    #[inline(always)]
    pub(super) fn in_place(
        &mut self,
        header: &RequestHeader,
        placed: Option<&Placed>,
        body: Reader<'_>,
    ) -> Result<Option<Executed>, DecodeError> {
        if !is_bulk(header.op) {
            return Ok(None);
        }
        let mut no_fds = |_| Err(Failure::unsupported("a file descriptor with bulk data"));
        let service = &mut |_: &mut dyn HeldUp, _: &mut _| true;
        let unserved = Cell::new(false);
        let aids = Aids {
            fds: &mut no_fds,
            service,
            unserved: Some(&unserved),
        };
        let executed = self.execute(header, placed, aids, body)?;
        Ok((!unserved.get()).then_some(executed))
    }

    /// Executes a message during which more frames may be received, so that its own bytes lie
    /// elsewhere.
    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        header: &RequestHeader,
        placed: Option<&Placed>,
        aids: Aids<'_>,
        body: Reader<'_>,
    ) -> Result<Executed, DecodeError> {
        let mut cx = Cx {
            context: header.context,
            images: &mut self.images,
            placed,
            fds: aids.fds,
            service: aids.service,
            unserved: aids.unserved,
        };
        execute::execute(
            &mut *self.device,
            self.purpose,
            &mut cx,
            &mut self.exposed,
            header.op,
            body,
            &mut self.reply,
        )
    }
}

/// Accepts the client's shared memory only if it is sealed against shrinking. Otherwise the client
/// could end this process with SIGBUS by removing pages that are mapped here. Only memory files
/// have seals.
pub(super) fn unshrinkable(file: OwnedFd) -> Result<OwnedFd, Failure> {
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    match seals.contains(SealFlags::SHRINK) {
        true => Ok(file),
        false => Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "shared memory that is not sealed against shrinking",
        )),
    }
}
