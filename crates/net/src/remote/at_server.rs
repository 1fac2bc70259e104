//! Providers of endpoints at a server, in memory that the session lends.

use std::fmt::Debug;

use parking_lot::Mutex;

use crate::{
    adapter::Peer,
    block::{Export, Options},
    counts::Counts,
    device::Device,
    distant::Registered,
    endpoint::Endpoint,
    error::Error,
    keys::Access,
    looker::OfDevice,
    memory::Mapped,
    mlx5::Rung,
    nvlink::{Key, Nvlink, other::Peered as _},
    own::Own,
    provider::Provider,
    proxy::Proxy,
};

/// Finds memory of the session's by its address, for who will use it: all of it, and kept mapped by
/// what is returned.
pub(super) type Lend<'a> = dyn FnMut(u64, u64, Borrower) -> Result<Registered, String> + 'a;

/// User of a session's memory beside its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borrower {
    /// An adapter in software.
    Software,
    /// An RDMA device, of whose writes this machine's processors notice nothing.
    Device,
}

/// An endpoint of a session.
pub(super) trait AtServer: Debug + Send + Sync {
    fn provider(&self) -> Provider;
    fn register(
        &self,
        range: (u64, u64),
        access: Access,
        lend: &mut Lend<'_>,
    ) -> Result<u32, String>;
    fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error>;

    /// Returns who uses the memory of its queues.
    fn borrower(&self) -> Borrower {
        Borrower::Software
    }

    /// Returns the number of queues.
    fn queues(&self) -> usize;
    fn connect(&self, one: u32, other: u32) -> Result<(), Error>;
    fn reset(&self, qpn: u32) -> Result<(), Error>;
    fn counters_bytes(&self, qpn: u32) -> Result<usize, Error>;
    fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error>;
    fn counts(&self, qpn: u32) -> Result<Counts, Error>;

    /// Returns a queue that is not connected as a peer names it.
    fn end_of(&self, qpn: u32) -> Result<Peer, Error>;

    /// Lets a thread that looks at queues look at nothing until it is let go.
    fn hold(&self, _is_held: bool) {}

    /// Wakes a thread that looks at queues.
    fn rouse(&self) {}

    /// Ends the registrations of a GPU's memory that goes, if devices have some.
    fn forget(&self, _address: u64, _bytes: u64) {}

    /// Returns the adapter, whose queues meet others by streams.
    fn adapter(&self) -> Result<&Own, Error> {
        Err(Error::NotOfProvider(self.provider().name()))
    }

    /// Returns the endpoint of an RDMA device, whose queues meet others by where they are reached.
    fn of_device(&self) -> Result<&dyn OfDevice, Error> {
        Err(Error::NotOfProvider(self.provider().name()))
    }

    /// Returns the endpoint whose kernels load and store themselves.
    fn direct(&self) -> Result<&Nvlink, Error> {
        Err(Error::NotOfProvider(self.provider().name()))
    }
}

impl AtServer for Own {
    fn provider(&self) -> Provider {
        Provider::Nic
    }

    fn register(
        &self,
        (address, bytes): (u64, u64),
        access: Access,
        lend: &mut Lend<'_>,
    ) -> Result<u32, String> {
        let memory = lend(address, bytes, Borrower::Software)?;
        Own::register(self, memory, access).map_err(|error| error.to_string())
    }

    fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        Own::create(self, memory, options)
    }

    fn queues(&self) -> usize {
        Own::queues(self)
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        Own::connect(self, one, other)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        Own::reset(self, qpn)
    }

    fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Ok(self.queue(qpn)?.counters_bytes())
    }

    fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        Own::reset_counters(self, qpn, counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Own::counts(self, qpn)
    }

    fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        Own::end_of(self, qpn)
    }

    fn hold(&self, is_held: bool) {
        Own::hold(self, is_held);
    }

    fn rouse(&self) {
        Own::rouse(self);
    }

    fn adapter(&self) -> Result<&Own, Error> {
        Ok(self)
    }
}

impl AtServer for Proxy {
    fn provider(&self) -> Provider {
        Provider::Proxy
    }

    fn register(
        &self,
        (address, bytes): (u64, u64),
        access: Access,
        lend: &mut Lend<'_>,
    ) -> Result<u32, String> {
        register(self.looker().device(), (address, bytes), access, lend)
    }

    fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        self.create_in(memory, options)
    }

    fn queues(&self) -> usize {
        self.looker().counted().0
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        Endpoint::connect(self, one, other)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        Endpoint::reset(self, qpn)
    }

    fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Proxy::counters_bytes(self, qpn)
    }

    fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.reset_counters_of(qpn, counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Endpoint::counts(self, qpn)
    }

    fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        let qpn = self.looker().reached(qpn)?.number;
        Ok(Peer { qpn, epoch: 0 })
    }

    fn hold(&self, is_held: bool) {
        self.looker().hold(is_held);
    }

    fn rouse(&self) {
        self.looker().rouse();
    }

    fn forget(&self, address: u64, bytes: u64) {
        self.looker().device().forget(address, bytes);
    }

    fn of_device(&self) -> Result<&dyn OfDevice, Error> {
        Ok(self.looker())
    }
}

/// Registers memory of the session's with a device.
fn register(
    with: &Device,
    (address, bytes): (u64, u64),
    access: Access,
    lend: &mut Lend<'_>,
) -> Result<u32, String> {
    let key = match lend(address, bytes, Borrower::Device)? {
        Registered::Mapped(memory) => with.register_mapped(&memory, access),
        Registered::Distant { at, .. } => {
            let by = at.reach();
            let by = by.map_err(|why| format!("memory of a GPU: {why}"))?;
            with.register_reached(by, bytes, access)
        }
    };
    key.map_err(|error| error.to_string())
}

impl AtServer for Rung {
    fn provider(&self) -> Provider {
        Provider::Mlx5
    }

    fn register(
        &self,
        (address, bytes): (u64, u64),
        access: Access,
        lend: &mut Lend<'_>,
    ) -> Result<u32, String> {
        let device = self.looker().device();
        let key = register(device, (address, bytes), access, lend)?;
        device.same_key(key).map_err(|error| error.to_string())
    }

    fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        self.create_in(memory, options)
    }

    /// The adapter writes completions, of which no processor notices anything.
    fn borrower(&self) -> Borrower {
        Borrower::Device
    }

    fn queues(&self) -> usize {
        self.looker().counted().0
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        self.looker().connect(one, other)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.queue(qpn)?.reset()
    }

    fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        Ok(self.queue(qpn)?.counters_bytes())
    }

    fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.queue(qpn)?.reset_counters(counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        Ok(self.queue(qpn)?.counts())
    }

    fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        let qpn = self.looker().reached(qpn)?.number;
        Ok(Peer { qpn, epoch: 0 })
    }

    fn hold(&self, is_held: bool) {
        self.looker().hold(is_held);
    }

    fn rouse(&self) {
        self.looker().rouse();
    }

    fn forget(&self, address: u64, bytes: u64) {
        self.looker().device().forget(address, bytes);
    }

    fn of_device(&self) -> Result<&dyn OfDevice, Error> {
        Ok(self.looker())
    }
}

/// Tables for kernels that load and store themselves. Memory of the session stays mapped with them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    direct: Nvlink,
    kept: Mutex<Vec<Registered>>,
}

impl AtServer for Tables {
    fn provider(&self) -> Provider {
        Provider::Nvlink
    }

    /// Only kernels use it, which reach no more than without it: it may be any of their GPU's.
    fn register(
        &self,
        (address, bytes): (u64, u64),
        access: Access,
        lend: &mut Lend<'_>,
    ) -> Result<u32, String> {
        let added = self.direct.add_key(address, bytes, access);
        let key = added.map_err(|error| error.to_string())?;
        let lent = lend(address, bytes, Borrower::Software);
        self.kept.lock().extend(lent);
        Ok(key)
    }

    fn create(&self, memory: Mapped, options: Options) -> Result<Export, Error> {
        self.direct.create_in(memory, options)
    }

    fn queues(&self) -> usize {
        self.direct.queues()
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        self.direct.connect(one, other)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.direct.reset(qpn)
    }

    fn counters_bytes(&self, qpn: u32) -> Result<usize, Error> {
        self.direct.counters_bytes(qpn)
    }

    fn reset_counters(&self, qpn: u32, counters: &Mapped) -> Result<(), Error> {
        self.direct.reset_counters_of(qpn, counters)
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        self.direct.counts(qpn)
    }

    fn end_of(&self, qpn: u32) -> Result<Peer, Error> {
        let queue = self.direct.unconnected(qpn)?;
        let qpn = queue.qpn();
        Ok(Peer { qpn, epoch: 0 })
    }

    fn direct(&self) -> Result<&Nvlink, Error> {
        Ok(&self.direct)
    }
}

/// Connects a queue to a peer of another process, which offers memory that the session has mapped.
pub(super) fn connect_direct(of: &Nvlink, qpn: u32, offered: Option<Key>) -> Result<(), Error> {
    if let Some(Key { address, bytes, .. }) = offered {
        let end = address.checked_add(bytes);
        end.ok_or(Error::Wraps { address, bytes })?;
    }
    of.unconnected(qpn)?.connect_other(offered.as_ref())
}

/// Ends a queue's connection, whose peer is gone.
pub(super) fn lose_peer(of: &Nvlink, qpn: u32) -> Result<(), Error> {
    of.queue(qpn)?.lose_peer();
    Ok(())
}
