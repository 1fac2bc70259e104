//! An endpoint of the adapter in software, of memory that is known to be there.

use std::{collections::HashMap, os::unix::net::UnixStream, sync::Arc};

use parking_lot::Mutex;

use crate::{
    adapter::Peer,
    block::{Export, Options},
    counts::Counts,
    distant::Registered,
    error::Error,
    faults::Network,
    keys::Access,
    link::Link,
    meet::{Meeting, Window},
    memory::Mapped,
    nic::Nic,
    queue::Queue,
    way::Way,
};

/// Domain of all memory of a program.
const DOMAIN: u32 = 1;

/// An adapter, its thread, its queues and their connections.
#[derive(Debug)]
pub(crate) struct Own {
    /// Connections to other processes, by the number of their queue. They end before the adapter.
    links: Mutex<HashMap<u32, Link>>,
    nic: Nic,
    queues: Mutex<HashMap<u32, Arc<Queue>>>,
}

impl Own {
    pub(crate) fn start(network: Network) -> Result<Own, Error> {
        Ok(Own {
            links: Mutex::default(),
            nic: Nic::start(network)?,
            queues: Mutex::default(),
        })
    }

    pub(crate) fn queue(&self, qpn: u32) -> Result<Arc<Queue>, Error> {
        self.queues
            .lock()
            .get(&qpn)
            .cloned()
            .ok_or(Error::NoPair(qpn))
    }

    /// Returns the number of queues.
    pub(crate) fn queues(&self) -> usize {
        self.queues.lock().len()
    }

    /// Returns the adapter, awake: a program that sets something up is about to post.
    fn awake(&self) -> &Nic {
        self.nic.rouse();
        &self.nic
    }

    /// Wakes the adapter, which looks if it is not held.
    pub(crate) fn rouse(&self) {
        self.nic.rouse();
    }

    /// Lets the adapter look at nothing until it is let go, which wakes it.
    pub(crate) fn hold(&self, is_held: bool) {
        self.nic.hold(is_held);
        if !is_held {
            self.nic.rouse();
        }
    }

    pub(crate) fn register(
        &self,
        memory: impl Into<Registered>,
        access: Access,
    ) -> Result<u32, Error> {
        self.awake()
            .with(|adapter| adapter.register(DOMAIN, memory, access))
    }

    pub(crate) fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        let queue = Queue::create(self.awake(), memory, options)?;
        let export = queue.export();
        self.queues.lock().insert(export.qpn, Arc::new(queue));
        Ok(export)
    }

    pub(crate) fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        let (one, other) = (self.queue(one)?, self.queue(other)?);
        Queue::connect(self.awake(), &one, &other)
    }

    pub(crate) fn meet(
        &self,
        qpn: u32,
        meeting: Meeting<'_>,
        mine: Window,
    ) -> Result<Window, Error> {
        let queue = self.queue(qpn)?;
        let (link, window) = Link::meet(&self.nic, &queue, meeting, mine)?;
        // The connection from before a reset ends here, outside the lock.
        let earlier = self.links.lock().insert(qpn, link);
        drop(earlier);
        self.nic.rouse();
        Ok(window)
    }

    /// Returns a queue that is not connected as a peer of another process names it.
    pub(crate) fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        self.queue(qpn)?;
        self.nic.with(|adapter| adapter.unconnected(qpn))
    }

    /// Connects a queue to one of another process, which is at the other end of a stream.
    pub(crate) fn join(&self, qpn: u32, peer: Peer, stream: UnixStream) -> Result<(), Error> {
        let queue = self.queue(qpn)?;
        if queue.is_unreliable() {
            return Err(Error::Unreliable);
        }
        let epoch = self.nic.with(|adapter| {
            let epoch = adapter.unconnected(qpn)?.epoch;
            adapter.connect_remote(qpn, peer).map(|()| epoch)
        })?;
        queue.connected();
        let link = Link::over(&self.nic, stream, qpn, epoch);
        let link = link.map_err(|error| Error::Thread(error.to_string()))?;
        // The connection from before a reset ends here, outside the lock.
        let earlier = self.links.lock().insert(qpn, link);
        drop(earlier);
        self.nic.rouse();
        Ok(())
    }

    pub(crate) fn way_of(&self, qpn: u32) -> Option<Way> {
        self.links.lock().get(&qpn).map(Link::way)
    }

    pub(crate) fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.queue(qpn)?.reset(self.awake())
    }

    pub(crate) fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.queue(qpn)?.reset_counters(&self.nic, counters)
    }

    pub(crate) fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        let status = self.nic.with(|adapter| adapter.status(qpn))?;
        Ok(Counts {
            succeeded: status.succeeded,
            flushed: status.flushed,
            retries: status.retries,
            failure: status.failure,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::QueueOptions;

    /// The first connection goes on, as its queue does, until the queue is reset.
    #[test]
    fn a_queue_that_is_connected_meets_nobody_until_it_is_reset() {
        let own = Own::start(Network::default()).unwrap();
        let options = QueueOptions {
            log_blocks: 6,
            signal_every: 1,
            ..QueueOptions::default()
        };
        let memory = Mapped::allocate(options.bytes()).unwrap();
        let qpn = own.create(memory, options).unwrap().qpn;
        let meeting = Meeting {
            address: "127.0.0.1:1",
            listens: false,
            is_anywhere: false,
            timeout: Duration::from_millis(1),
            way: None,
        };
        let meet = || own.meet(qpn, meeting, Window::default());
        let peer = Peer { qpn: 1, epoch: 2 };
        let mut others = Vec::new();
        for _ in 0..2 {
            let [mine, theirs, second] = {
                let (mine, theirs) = UnixStream::pair().unwrap();
                [mine, theirs, UnixStream::pair().unwrap().0]
            };
            assert!(matches!(meet(), Err(Error::Meet { .. })), "nobody is there");
            let epoch = own.end_of(qpn).unwrap().epoch;
            own.join(qpn, peer, mine).unwrap();
            assert_eq!(own.join(qpn, peer, second), Err(Error::Connected(qpn)));
            assert_eq!(meet(), Err(Error::Connected(qpn)));
            assert_eq!(own.end_of(qpn), Err(Error::Connected(qpn)));
            let has_room = own.nic.with(|adapter| adapter.has_room(qpn, epoch));
            assert_eq!(has_room, Ok(true));
            others.push(theirs);
            own.reset(qpn).unwrap();
        }
    }
}
