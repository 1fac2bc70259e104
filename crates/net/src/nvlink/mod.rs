//! The provider `nvlink`: threads that post reach their peer's memory by loads and stores. Here is
//! only what they have to know: keys, and where the peer receives.

mod other;
mod queue;

use std::{collections::HashMap, ffi::c_void, sync::Arc};

use parking_lot::Mutex;

use crate::{
    block::{Export, Options},
    driver,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    keys::Access,
    link::Meeting,
    mapping::is_mapped,
    meet::Window,
    provider::Provider,
};

use other::Other;
use queue::{KEYS_MAX, Key, Queue};

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
    /// closed.
    opened: Vec<u64>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.others.clear();
        self.opened.drain(..).for_each(driver::close);
    }
}

impl State {
    fn queue(&self, qpn: u32) -> Result<&Arc<Queue>, Error> {
        let at = qpn.checked_sub(QPN_FIRST).ok_or(Error::NoPair(qpn))?;
        self.queues.get(at as usize).ok_or(Error::NoPair(qpn))
    }

    /// Returns the registration that a window is of, with its bytes; none of an empty window.
    fn offered(&self, window: &Window) -> Result<Option<Key>, Error> {
        if window.bytes == 0 {
            return Ok(None);
        }
        let no_key = Error::NoKey(window.key);
        let key = self.keys.iter().find(|key| key.key == window.key);
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

    /// Ends the connection of a queue that was reset, for its peer, too.
    fn disconnect(&mut self, qpn: u32) {
        if let Some(peer) = self.peers.remove(&qpn)
            && peer != qpn
        {
            self.peers.remove(&peer);
            if let Ok(queue) = self.queue(peer) {
                queue.lose_peer();
            }
        }
    }
}

impl Endpoint for Nvlink {
    fn provider(&self) -> Provider {
        Provider::Nvlink
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        let address = at as u64;
        check_memory(address, bytes, access.writes())?;
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

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        // SAFETY: the caller keeps the memory mapped.
        let block = unsafe { mapped(at, bytes, true) }?;
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
            let state = self.0.lock();
            let queue = state.queue(qpn)?.clone();
            if queue.is_connected() {
                return Err(Error::Connected(qpn));
            }
            (queue, state.offered(&mine)?)
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
        let mut state = self.0.lock();
        // Its thread ends before the queue has new counters.
        state.others.remove(&qpn);
        state.queue(qpn)?.reset()?;
        state.disconnect(qpn);
        Ok(())
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let mut state = self.0.lock();
        let queue = state.queue(qpn)?;
        // SAFETY: the caller lends the counters for this call.
        let counters = unsafe { mapped(counters, queue.counters_bytes() as u64, true) }?;
        queue.reset_counters(&counters)?;
        state.others.remove(&qpn);
        state.disconnect(qpn);
        Ok(())
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
fn check_memory(address: u64, bytes: u64, is_written: bool) -> Result<(), Error> {
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
