//! The provider `nvlink`: threads that post reach their peer's memory by loads and stores. Here is
//! only what they have to know: keys, and where the peer receives.

pub(crate) mod other;
mod queue;

use std::{collections::HashMap, ffi::c_void, sync::Arc};

use parking_lot::Mutex;

use crate::{
    block::{Export, Options},
    driver::{self, Opened},
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    mapping::is_mapped,
    meet::{Meeting, Window},
    memory::Mapped,
    provider::Provider,
};

use other::{Other, Peered};
use queue::{KEYS_MAX, Queue};

pub(crate) use queue::{Key, export_at};

/// Queues of an endpoint, whose first has this number.
const QUEUES_MAX: usize = 65_536;
const QPN_FIRST: u32 = 0x100;

/// An endpoint whose queues need nobody else.
#[derive(Debug, Default)]
pub(crate) struct Nvlink(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    keys: Vec<Key>,
    queues: Vec<Arc<Queue>>,
    /// The queues that are connected within this process, each with its peer.
    peers: HashMap<u32, u32>,
    /// Connections to other processes, by the number of their queue.
    others: HashMap<u32, Other>,
    /// Memory of other processes that is mapped here: kernels may use it until the endpoint is
    /// closed, after those connections.
    opened: Vec<Opened>,
}

impl State {
    fn queue(&self, qpn: u32) -> Result<&Arc<Queue>, Error> {
        let at = qpn.checked_sub(QPN_FIRST).ok_or(Error::NoPair(qpn))?;
        self.queues.get(at as usize).ok_or(Error::NoPair(qpn))
    }

    /// Ends the connection of a queue that was reset, for its peer, too.
    fn disconnect(&mut self, qpn: u32) {
        if let Some(peer) = self.peers.remove(&qpn)
            && peer != qpn
        {
            self.peers.remove(&peer);
            if let Ok(queue) = self.queue(peer) {
                queue.end();
            }
        }
    }
}

/// Returns the registration that a window is of, with its bytes; none of an empty window.
pub(crate) fn offered(keys: &[Key], window: &Window) -> Result<Option<Key>, Error> {
    if window.bytes == 0 {
        return Ok(None);
    }
    let no_key = Error::NoKey(window.key);
    let key = keys.iter().find(|key| key.key == window.key);
    let key = key.ok_or(no_key.clone())?;
    let offset = window.address.checked_sub(key.address);
    let is_within = offset
        .and_then(|offset| offset.checked_add(window.bytes))
        .is_some_and(|end| end <= key.bytes);
    let (address, bytes) = (window.address, window.bytes);
    let part = Key {
        address,
        bytes,
        ..*key
    };
    is_within.then_some(Some(part)).ok_or(no_key)
}

impl Peered for Queue {
    fn qpn(&self) -> u32 {
        self.export().qpn
    }

    fn connect_other(&self, offered: Option<&Key>) -> Result<(), Error> {
        self.connect_to(offered);
        Ok(())
    }

    fn lose_peer(&self) {
        self.end();
    }
}

/// Calls with memory that is known to be there.
impl Nvlink {
    /// Tells all queues, and those to come, of memory. Nothing is read or written there.
    pub(crate) fn add_key(&self, address: u64, bytes: u64, access: Access) -> Result<u32, Error> {
        address
            .checked_add(bytes)
            .ok_or(Error::Wraps { address, bytes })?;
        let mut state = self.0.lock();
        let slot = state.keys.len();
        if slot == KEYS_MAX {
            return Err(Error::TooMany {
                what: "registrations",
                count_max: KEYS_MAX,
            });
        }
        let key = Key {
            address,
            bytes,
            key: (slot as u32 + 1) << 8 | 1,
            access: access.0,
        };
        state.keys.push(key);
        state.queues.iter().for_each(|queue| queue.add_key(&key));
        Ok(key.key)
    }

    pub(crate) fn create_in(&self, block: Mapped, options: Options) -> Result<Export, Error> {
        let mut state = self.0.lock();
        if state.queues.len() == QUEUES_MAX {
            return Err(Error::TooMany {
                what: "queues",
                count_max: QUEUES_MAX,
            });
        }
        let qpn = QPN_FIRST + state.queues.len() as u32;
        let queue = Queue::create(block, options, qpn)?;
        state.keys.iter().for_each(|key| queue.add_key(key));
        let export = queue.export();
        state.queues.push(Arc::new(queue));
        Ok(export)
    }

    /// Returns the number of queues.
    pub(crate) fn queues(&self) -> usize {
        self.0.lock().queues.len()
    }

    pub(crate) fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        self.0.lock().queue(qpn).cloned()
    }

    /// Returns a queue that is not connected.
    pub(crate) fn unconnected(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        let queue = self.queue(qpn)?;
        match queue.is_connected() {
            true => Err(Error::Connected(qpn)),
            false => Ok(queue),
        }
    }

    pub(crate) fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Ok(self.queue(qpn)?.counters_bytes())
    }

    pub(crate) fn reset_counters_of(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.queue(qpn)?.reset_counters(counters)?;
        let mut state = self.0.lock();
        state.others.remove(&qpn);
        state.disconnect(qpn);
        Ok(())
    }
}

impl Endpoint for Nvlink {
    fn provider(&self) -> Provider {
        Provider::Nvlink
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        let address = at as u64;
        check_memory(address, bytes, access.writes())?;
        self.add_key(address, bytes, access)
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let block = unsafe { mapped(at, bytes, true) }?;
        self.create_in(block, options)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let mut state = self.0.lock();
        for qpn in [one, other] {
            if state.queue(qpn)?.is_connected() {
                return Err(Error::Connected(qpn));
            }
        }
        state.queue(one)?.connect(state.queue(other)?);
        state.queue(other)?.connect(state.queue(one)?);
        state.peers.extend([(one, other), (other, one)]);
        Ok(())
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        let (queue, offered) = {
            let queue = self.unconnected(qpn)?;
            (queue, offered(&self.0.lock().keys, &mine)?)
        };
        let met = other::meet(&queue, meeting, mine, offered.as_ref())?;
        let mut state = self.0.lock();
        state.opened.extend(met.opened);
        let earlier = state.others.insert(qpn, met.other);
        drop(state);
        drop(earlier);
        Ok(met.window)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        let queue = self.queue(qpn)?;
        // Its thread ends before the queue has new counters.
        let earlier = self.0.lock().others.remove(&qpn);
        drop(earlier);
        // Outside the lock: it may wait for threads that are about to post.
        queue.reset()?;
        self.0.lock().disconnect(qpn);
        Ok(())
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let bytes = self.counters_bytes(qpn)? as u64;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, bytes, true) }?;
        self.reset_counters_of(qpn, &counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        let failure = self.0.lock().queue(qpn)?.failure();
        Ok(Counts {
            failure,
            ..Counts::default()
        })
    }
}

/// Checks that memory is there: of this process, or of a GPU that the driver knows.
pub(crate) fn check_memory(address: u64, bytes: u64, is_written: bool) -> Result<(), Error> {
    if address == 0 {
        return Err(Error::Null("memory"));
    }
    let end = address
        .checked_add(bytes)
        .ok_or(Error::Wraps { address, bytes })?;
    let is_of_gpu = || driver::range_of(address).is_some_and(|range| end <= range.end);
    if is_mapped(address as usize, bytes as usize, is_written) || is_of_gpu() {
        return Ok(());
    }
    Err(Error::NotMapped {
        address,
        bytes,
        is_written,
    })
}
