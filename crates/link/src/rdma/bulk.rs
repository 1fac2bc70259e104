//! Sends and receives long data over a rdma link. The adapter reads it in place if the memory is
//! registered, otherwise in the mirror; it writes it where the peer wants it if the peer has said
//! so, otherwise into the peer's ring. A process that cannot register memory loses only speed.

use std::time::Instant;

use super::{
    grants::{GRANTS_MAX, Grant},
    layout::{CHECKED_BYTES_MAX, SeparateData},
    long::{Long, To},
    receiver::Receiver,
    registry::{RdmaTarget, RdmaUse, Registered, Registrar},
    ring::Port,
    sender::{Kept, Sender},
};
use crate::{
    Error, Wait,
    parts::scatter,
    segment::{Frame, Granted, Payload},
};

/// Longest head of such a frame: it is written together with the description of the data.
pub(crate) const BULK_HEAD_BYTES_MAX: usize = CHECKED_BYTES_MAX / 2;

/// The data at the end of a long frame.
pub struct Bulk<'a> {
    pub data: &'a [u8],
    /// The registered memory that holds `data`: the adapter reads it some time after the call, and
    /// it must not change before.
    pub source: Option<&'a Registered>,
    /// Memory that the peer named for the data; the peer recognises the frame by its head.
    pub target: Option<RdmaTarget>,
}

impl<'a> Bulk<'a> {
    /// Data that is copied before the call returns.
    pub(crate) fn copied(data: &'a [u8]) -> Self {
        Self {
            data,
            source: None,
            target: None,
        }
    }
}

/// Data at the end of a long frame that only the adapter can read: `len` bytes of GPU memory from
/// `address` on.
#[derive(Clone, Copy)]
pub struct DeviceBulk<'a> {
    pub address: u64,
    pub len: usize,
    pub source: &'a Registered,
    /// Memory that the peer named for the data; `None` for its ring.
    pub target: Option<RdmaTarget>,
}

impl Sender {
    /// Returns the object that registers memory with the adapter.
    pub fn registrar(&self) -> Registrar {
        self.registrar.clone()
    }

    /// Sends one frame of a short `head` and data of at least
    /// [`PLACED_BYTES_MIN`](outboard_wire::limits::PLACED_BYTES_MIN). The adapter may read the data
    /// in place and write it where the peer asked for it: see [`Bulk`]. Sent at once.
    pub fn send_bulk(&mut self, head: &[&[u8]], bulk: Bulk<'_>) -> Result<(), Error> {
        self.send_long(head, bulk).map(drop)
    }

    /// Sends a frame of `head` and `bulk`, of more bytes than [`CHECKED_BYTES_MAX`]; `head` is
    /// short. Without a target the data goes to the peer's next grant if it has room for the data,
    /// otherwise it is part of the frame. Returns true if the adapter reads the data after the
    /// call.
    #[cold]
    pub(crate) fn send_long(&mut self, head: &[&[u8]], bulk: Bulk<'_>) -> Result<bool, Error> {
        let Bulk {
            data,
            source,
            target,
        } = bulk;
        let head_len = head.iter().map(|part| part.len()).sum::<usize>();
        if !(1..=BULK_HEAD_BYTES_MAX).contains(&head_len) || data.len() <= CHECKED_BYTES_MAX {
            return Err(Error::Misuse(
                "a long frame whose head is long, or its data short",
            ));
        }
        self.reap();
        let from = source.and_then(|registered| registered.piece(data));
        let to = match target {
            Some(target) => To::Named(target),
            None => self.given.look(data.len()).map_or(To::Ring, To::Granted),
        };
        let long = Long {
            head: head_len,
            data: data.len(),
            from,
            to,
        };
        self.post_long(head, &long, data)?;
        if let (Some(_), Some(source)) = (from, source) {
            self.keep(source);
        }
        Ok(from.is_some())
    }

    /// Sends a frame of `head` and GPU memory. The adapter reads the memory some time after the
    /// call: see [`wait_until_device_read`](Self::wait_until_device_read).
    pub fn send_device(&mut self, head: &[&[u8]], bulk: DeviceBulk<'_>) -> Result<(), Error> {
        let DeviceBulk {
            address,
            len,
            source,
            target,
        } = bulk;
        let head_len = head.iter().map(|part| part.len()).sum::<usize>();
        let from = source.piece_at(address, len);
        if !(1..=BULK_HEAD_BYTES_MAX).contains(&head_len)
            || len <= CHECKED_BYTES_MAX
            || from.is_none()
        {
            return Err(Error::Misuse(
                "a long frame whose head is long, or its data short or elsewhere",
            ));
        }
        self.reap();
        let long = Long {
            head: head_len,
            data: len,
            from,
            to: target.map_or(To::Ring, To::Named),
        };
        self.post_long(head, &long, &[])?;
        self.keep(source);
        self.device_read_behind = self.producer.port.queue.progress().0;
        Ok(())
    }

    /// Posts a long frame; `data` is used only if it is not in registered memory.
    fn post_long(&mut self, head: &[&[u8]], long: &Long, data: &[u8]) -> Result<(), Error> {
        let at = self.place(long.footprint())?;
        let (room, copied) = self.producer.reserve_long(at, long);
        scatter(room, head);
        if long.from.is_none() {
            copied.copy_from_slice(data);
        }
        if matches!(long.to, To::Granted(_)) {
            self.given.use_up();
        }
        let committed = self.producer.commit_long(long);
        self.after(committed)?;
        let counts = &mut self.data_counts;
        match long.from {
            Some(_) => counts.direct_bytes += long.data as u64,
            None => counts.copied_bytes += long.data as u64,
        }
        if long.to != To::Ring {
            counts.placed_bytes += long.data as u64;
        }
        Ok(())
    }

    fn keep(&mut self, source: &Registered) {
        self.kept.push_back(Kept {
            behind: self.producer.port.queue.progress().0,
            _source: source.clone(),
            owner: None,
        });
    }

    /// Returns true if all GPU memory that was sent has been read, so that it may change.
    pub(crate) fn device_is_read(&mut self) -> bool {
        if self.producer.port.queue.progress().1 < self.device_read_behind {
            self.reap();
        }
        self.producer.port.queue.progress().1 >= self.device_read_behind
    }

    /// Waits until the adapter has read all GPU memory that was sent.
    pub fn wait_until_device_read(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while !self.device_is_read() {
            self.producer.port.wait_a_moment(start)?;
        }
        Ok(())
    }

    /// Sends data like [`send_bulk`](Self::send_bulk), and keeps its owner until the adapter has
    /// read it.
    pub fn send_owned(
        &mut self,
        head: &[&[u8]],
        owner: Box<dyn Payload>,
        source: Option<&Registered>,
        target: Option<RdmaTarget>,
    ) -> Result<(), Error> {
        let data = owner.bytes();
        let bulk = Bulk {
            data,
            source,
            target,
        };
        if self.send_long(head, bulk)?
            && let Some(kept) = self.kept.back_mut()
        {
            kept.owner = Some(owner);
        }
        Ok(())
    }

    /// Drops what the device is known to have read.
    fn reap(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        // The next send reports an error of the connection.
        let _ = self.producer.port.poll();
        let (_, done) = self.producer.port.queue.progress();
        while self.kept.front().is_some_and(|kept| kept.behind <= done) {
            drop(self.kept.pop_front().and_then(|kept| kept.owner));
        }
    }

    /// Waits until the adapter has read all data that it reads in place; its owner may change the
    /// data afterwards.
    pub fn wait_until_read(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            self.reap();
            if self.kept.is_empty() {
                return Ok(());
            }
            self.producer.port.wait_a_moment(start)?;
        }
    }

    /// Drops what is known at once to have been read; does not wait.
    pub fn drop_read_owners(&mut self) {
        self.reap();
    }
}

impl Receiver {
    /// Grants the peer memory for the data of a long frame: the caller's, which outlives the link,
    /// or `len` bytes of the link's own. Returns false if nothing was granted: the grants at a time
    /// are limited, and so is what can be registered.
    pub fn grant(&mut self, memory: Option<Box<dyn Granted>>, len: usize) -> Result<bool, Error> {
        if self.granting.open() >= GRANTS_MAX {
            return Ok(false);
        }
        let registrar = &self.registrar;
        let grant = match memory {
            Some(memory) => memory.lasting().and_then(|lasting| {
                let registered = registrar.register(lasting, RdmaUse::Target)?;
                Some(Grant::Placed {
                    memory,
                    target: registered.target(lasting.address()),
                    _registered: registered,
                })
            }),
            None => self.granting.own(len, || registrar.room(len)),
        };
        let Some(grant) = grant else {
            return Ok(false);
        };
        let index = self.granting.put(grant);
        self.consumer.grant(index).map(|()| true)
    }

    /// Number of grants not used yet.
    pub fn granted(&self) -> usize {
        self.granting.open()
    }

    #[inline(never)]
    pub(crate) fn recv_placed(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        let Some((offset, len, separate)) = self.next(wait)? else {
            return Ok(None);
        };
        let tail = match separate {
            Some(SeparateData {
                len,
                is_granted: true,
            }) => Some(self.granting.take(len)?),
            _ => None,
        };
        self.consumer.copy(offset, len, &mut self.frame);
        let head = &self.frame[..];
        Ok(Some(Frame { head, tail }))
    }

    #[inline(never)]
    pub(crate) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        match self.next(wait)? {
            None => Ok(None),
            Some((
                offset,
                len,
                Some(SeparateData {
                    len: data_len,
                    is_granted: true,
                }),
            )) => {
                let data = self.granting.take(data_len)?;
                self.consumer.copy(offset, len, &mut self.frame);
                self.frame.extend_from_slice(&data.copied());
                Ok(Some(&self.frame))
            }
            Some((offset, len, _)) => {
                self.consumer.copy(offset, len, &mut self.frame);
                Ok(Some(&self.frame))
            }
        }
    }
}
