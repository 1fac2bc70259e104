//! The server's side: endpoints of one session.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::net::UnixStream,
    sync::{Arc, Weak},
    time::Duration,
};

use outboard_wire::{
    doc::{
        self, NET_ANSWER_BYTES_MAX, NET_ENDPOINTS_MAX, NET_PIECE_BYTES_MAX, NetAnswer, NetCall,
        NetEnd, NetKey, NetOptions, NetQueueOptions, NetStatus,
    },
    limits::NET_DEVICE_BYTES_MAX,
};
use parking_lot::Mutex;

use super::{
    at_server::{AtServer, Lend, Tables, connect_direct, lose_peer},
    reached::{heard, said as words},
    relayed::{Opened, Relayed, give, take},
};
use crate::{
    adapter::Peer,
    block::{Options, UNRELIABLE},
    counts::Counts,
    device,
    distant::Registered,
    error::Error,
    faults::Network,
    keys::Access,
    memory::Mapped,
    mlx5::Rung,
    nvlink::Key,
    own::Own,
    provider::Provider,
    proxy::Proxy,
};

/// Queues of an endpoint.
const QUEUES_MAX: usize = 1024;
/// Queues of RDMA devices, and registrations with them, that a session has: devices have few.
const DEVICE_QUEUES_MAX: usize = 128;
const DEVICE_REGISTRATIONS_MAX: usize = 4096;

/// Brings streams between this server's process and that of another server's session.
pub trait Carrier: Send + Sync {
    /// Makes a secret by which the other is known.
    fn offer(&self) -> Result<[u8; 32], String>;

    /// Waits for the one that knows this secret.
    fn accept(&self, secret: [u8; 32], timeout: Duration) -> Result<UnixStream, String>;

    /// Connects to the server at an address, which awaits this one.
    fn dial(
        &self,
        address: &str,
        secret: [u8; 32],
        timeout: Duration,
    ) -> Result<UnixStream, String>;
}

/// The endpoints of a session, by the numbers that its client has given them.
#[derive(Debug, Default)]
pub struct Served {
    endpoints: BTreeMap<u32, Arc<dyn AtServer>>,
    /// Those that are closed, and that calls which wait may still have.
    closed: Vec<Weak<dyn AtServer>>,
    resetting: Resets,
    /// Streams that the program relays. They end before the adapters.
    relayed: Relayed,
    /// Secrets of those that are awaited, by endpoint and queue.
    awaited: BTreeMap<(u32, u32), [u8; 32]>,
    /// Options for the RDMA device that the session may use, if there is one.
    device: Option<String>,
    /// The client is writing what adapters are to see at once.
    is_held: bool,
}

/// Queues that are being put back, by endpoint and number.
type Resets = Arc<Mutex<BTreeSet<(u32, u32)>>>;

/// A queue's reset, until this is dropped.
struct Resetting {
    of: Resets,
    queue: (u32, u32),
}

impl Drop for Resetting {
    fn drop(&mut self) {
        self.of.lock().remove(&self.queue);
    }
}

/// Checks options for the RDMA device of endpoints: `device=mlx5_0&port=1&gid=3`, and none if it is
/// the first one.
pub fn check_device(options: &str) -> Result<(), String> {
    device::parsed(options).map(|_| ())
}

/// How a call is answered.
pub enum Answering {
    Now(NetAnswer),
    /// By this, which waits: not in the session's thread.
    Later(Box<dyn FnOnce() -> NetAnswer + Send>),
}

impl Served {
    /// Makes a session's endpoints, which may use the RDMA device of these options.
    #[must_use]
    pub fn with_device(device: Option<String>) -> Served {
        Served {
            device,
            ..Served::default()
        }
    }

    /// Returns true if a device may be writing memory of the session, at any time.
    #[must_use]
    pub fn has_devices(&self) -> bool {
        self.all().any(|one| one.of_device().is_ok())
    }

    /// Ends what devices have registered of a GPU's memory in a range that is about to go, or to
    /// change: a peer's writes reach nothing that comes in its place.
    pub fn forget(&self, address: u64, bytes: u64) {
        self.all().for_each(|one| one.forget(address, bytes));
    }

    /// Lets all adapters look at nothing until they are let go, those of later endpoints too.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        self.hold_all(is_held);
    }

    fn hold_all(&self, is_held: bool) {
        self.all().for_each(|one| one.hold(is_held));
    }

    /// Returns all endpoints that are there, closed ones too that a call still has.
    fn all(&self) -> impl Iterator<Item = Arc<dyn AtServer>> {
        let closed = self.closed.iter().filter_map(Weak::upgrade);
        self.endpoints.values().cloned().chain(closed)
    }

    /// Calls a function between two looks of all adapters.
    pub fn between_looks<R>(&self, call: impl FnOnce() -> R) -> R {
        self.hold_all(true);
        let result = call();
        self.hold_all(self.is_held);
        result
    }

    /// Executes a call of the client's, which may be any bytes.
    pub fn call(
        &mut self,
        endpoint: u32,
        call: &[u8],
        lend: &mut Lend<'_>,
        carrier: &Arc<dyn Carrier>,
    ) -> Answering {
        let Ok(call) = doc::from_bytes::<NetCall>(call) else {
            return Answering::Now(failed("no call of net.h"));
        };
        match call {
            NetCall::Reset { qpn } => self.reset(endpoint, qpn, move |own| {
                own.reset(qpn).map(|()| NetAnswer::Done)
            }),
            NetCall::ResetCounters { qpn, counters } => self.reset(endpoint, qpn, move |own| {
                reset_counters(own, qpn, counters).map(NetAnswer::Counters)
            }),
            NetCall::Meet {
                qpn,
                peer,
                timeout_ms,
            } => {
                let Some(secret) = self.awaited.remove(&(endpoint, qpn)) else {
                    return Answering::Now(failed(format!("queue {qpn:#x} awaits nobody")));
                };
                let (carrier, timeout) = (Arc::clone(carrier), within(timeout_ms));
                self.later(endpoint, move |own| {
                    join(own, qpn, peer, carrier.accept(secret, timeout))
                })
            }
            NetCall::Join {
                qpn,
                peer,
                address,
                secret,
                timeout_ms,
            } => {
                let (carrier, timeout) = (Arc::clone(carrier), within(timeout_ms));
                self.streamed(endpoint, move |own| {
                    join(own, qpn, peer, carrier.dial(&address, secret, timeout))
                })
            }
            NetCall::Relay { qpn, peer } => match self.relay(endpoint, qpn) {
                Ok((opened, stream)) => self.later(endpoint, move |own| {
                    join(own, qpn, peer, Ok(stream))?;
                    Ok(NetAnswer::Relayed(opened.joined()))
                }),
                Err(why) => Answering::Now(failed(why)),
            },
            NetCall::Reach { qpn, peer } => self.later(endpoint, move |own| {
                own.of_device()?.reach(qpn, &heard(&peer))?;
                Ok(NetAnswer::Done)
            }),
            NetCall::Give { stream, bytes } => self.piece(endpoint, stream, move |end| {
                match bytes.len() <= NET_PIECE_BYTES_MAX {
                    true => give(end, &bytes),
                    false => failed("a piece that is too long"),
                }
            }),
            NetCall::Take { stream } => self.piece(endpoint, stream, take),
            NetCall::Await { qpn } => {
                let answer = self.await_peer(endpoint, qpn, &**carrier);
                Answering::Now(answer.unwrap_or_else(failed))
            }
            call => {
                let answer = self.now(endpoint, call, lend);
                Answering::Now(answer.unwrap_or_else(failed))
            }
        }
    }

    /// Answers with what takes time.
    fn later(
        &self,
        endpoint: u32,
        work: impl FnOnce(&dyn AtServer) -> Result<NetAnswer, Error> + Send + 'static,
    ) -> Answering {
        match self.get(endpoint) {
            Ok(own) => {
                let own = Arc::clone(own);
                Answering::Later(Box::new(move || work(&*own).unwrap_or_else(failed)))
            }
            Err(why) => Answering::Now(failed(why)),
        }
    }

    /// Answers with what takes time, of an endpoint whose queues meet others by streams.
    fn streamed(
        &self,
        endpoint: u32,
        work: impl FnOnce(&dyn AtServer) -> Result<NetAnswer, Error> + Send + 'static,
    ) -> Answering {
        match self.get(endpoint).map(|own| own.adapter().map(drop)) {
            Ok(Err(error)) => Answering::Now(failed(error)),
            _ => self.later(endpoint, work),
        }
    }

    /// Answers with a reset, which is the only one of its queue.
    fn reset(
        &self,
        endpoint: u32,
        qpn: u32,
        work: impl FnOnce(&dyn AtServer) -> Result<NetAnswer, Error> + Send + 'static,
    ) -> Answering {
        let (of, queue) = (Arc::clone(&self.resetting), (endpoint, qpn));
        if !of.lock().insert(queue) {
            let why = format!("queue {qpn:#x} is being put back already");
            return Answering::Now(failed(why));
        }
        let one = Resetting { of, queue };
        self.later(endpoint, move |own| {
            let _one = one;
            work(own)
        })
    }

    /// Makes a stream for a queue of an adapter's that is not connected. Returns the adapter's end.
    fn relay(&self, endpoint: u32, qpn: u32) -> Result<(Opened, UnixStream), String> {
        let own = self.get(endpoint)?.adapter().map_err(said)?;
        own.end_of(qpn).map_err(said)?;
        self.relayed.open(endpoint)
    }

    /// Answers with what takes time at a relayed stream.
    fn piece(
        &self,
        endpoint: u32,
        stream: u64,
        work: impl FnOnce(&UnixStream) -> NetAnswer + Send + 'static,
    ) -> Answering {
        match self.relayed.get(endpoint, stream) {
            Ok(end) => Answering::Later(Box::new(move || work(&end))),
            Err(why) => Answering::Now(failed(why)),
        }
    }

    fn now(
        &mut self,
        endpoint: u32,
        call: NetCall,
        lend: &mut Lend<'_>,
    ) -> Result<NetAnswer, String> {
        match call {
            NetCall::Open(options) => return self.open(endpoint, &options),
            NetCall::Close => {
                self.get(endpoint)?;
                self.relayed.close_all_of(endpoint);
                self.closed.retain(|one| one.strong_count() > 0);
                let closed = self.endpoints.remove(&endpoint);
                self.closed.extend(closed.as_ref().map(Arc::downgrade));
                self.awaited.retain(|(of, _), _| *of != endpoint);
            }
            NetCall::Register {
                address,
                bytes,
                access,
            } => return self.register(endpoint, (address, bytes), access, lend),
            NetCall::Create {
                address,
                bytes,
                options,
            } => return self.create(endpoint, (address, bytes), &options, lend),
            NetCall::Connect { one, other } => {
                self.get(endpoint)?.connect(one, other).map_err(said)?;
            }
            NetCall::Status { qpn } => {
                let counts = self.get(endpoint)?.counts(qpn).map_err(said)?;
                return Ok(NetAnswer::Status(status(counts)));
            }
            NetCall::End { qpn } => {
                let Peer { qpn, epoch } = self.get(endpoint)?.end_of(qpn).map_err(said)?;
                return Ok(NetAnswer::End(NetEnd { qpn, epoch }));
            }
            NetCall::Reached { qpn } => {
                let reached = self.get(endpoint)?.of_device();
                let reached = reached.and_then(|device| device.reached(qpn));
                return Ok(NetAnswer::Reached(words(&reached.map_err(said)?)));
            }
            NetCall::HangUp { stream } => self.relayed.close(endpoint, stream),
            NetCall::ConnectDirect { qpn, offered } => {
                let tables = self.get(endpoint)?.direct().map_err(said)?;
                connect_direct(tables, qpn, offered.map(key)).map_err(said)?;
            }
            NetCall::LosePeer { qpn } => {
                let tables = self.get(endpoint)?.direct().map_err(said)?;
                lose_peer(tables, qpn).map_err(said)?;
            }
            // Another thread of the program may be in the middle of what it writes.
            NetCall::Look => self.endpoints.values().for_each(|own| own.rouse()),
            NetCall::Reset { .. }
            | NetCall::ResetCounters { .. }
            | NetCall::Await { .. }
            | NetCall::Meet { .. }
            | NetCall::Join { .. }
            | NetCall::Relay { .. }
            | NetCall::Reach { .. }
            | NetCall::Give { .. }
            | NetCall::Take { .. } => {
                return Err("not answered here".into());
            }
        }
        Ok(NetAnswer::Done)
    }

    fn open(&mut self, endpoint: u32, options: &NetOptions) -> Result<NetAnswer, String> {
        if endpoint >= NET_ENDPOINTS_MAX || self.endpoints.contains_key(&endpoint) {
            return Err(format!(
                "endpoint {endpoint} is there already, or beyond the {NET_ENDPOINTS_MAX} of a session"
            ));
        }
        if self.all().count() >= NET_ENDPOINTS_MAX as usize {
            return Err("calls still wait for endpoints that are closed".into());
        }
        let asked = Provider::numbered(options.provider).map_err(said)?;
        let network = Network {
            seed: options.seed,
            loss_ppm: options.loss_ppm,
            delay_ns_min: options.delay_ns_min,
            delay_ns_max: options.delay_ns_max,
            bytes_per_s: options.bytes_per_s,
        };
        let own = opened(asked, network, self.device.as_deref()).map_err(said)?;
        own.hold(self.is_held);
        let provider = own.provider() as u32;
        self.endpoints.insert(endpoint, own);
        Ok(NetAnswer::Opened(provider))
    }

    fn register(
        &self,
        endpoint: u32,
        range: (u64, u64),
        access: u32,
        lend: &mut Lend<'_>,
    ) -> Result<NetAnswer, String> {
        let own = self.get(endpoint)?;
        let access = Access::new(access).map_err(said)?;
        self.check_room(&**own, range.1)?;
        own.register(range, access, lend).map(NetAnswer::Key)
    }

    fn create(
        &self,
        endpoint: u32,
        (address, bytes): (u64, u64),
        options: &NetQueueOptions,
        lend: &mut Lend<'_>,
    ) -> Result<NetAnswer, String> {
        let own = self.get(endpoint)?;
        self.check_room(&**own, bytes)?;
        create(&**own, lend(address, bytes, own.borrower())?, options)
    }

    fn await_peer(
        &mut self,
        endpoint: u32,
        qpn: u32,
        carrier: &dyn Carrier,
    ) -> Result<NetAnswer, String> {
        let own = self.get(endpoint)?.adapter().map_err(said)?;
        own.end_of(qpn).map_err(said)?;
        let secret = carrier.offer()?;
        self.awaited.insert((endpoint, qpn), secret);
        Ok(NetAnswer::Secret(secret))
    }

    /// Fails if the session has all that it may have of RDMA devices, and the endpoint, which gets
    /// these bytes, is of one.
    fn check_room(&self, of: &dyn AtServer, bytes: u64) -> Result<(), String> {
        if of.of_device().is_err() {
            return Ok(());
        }
        let mut sum = (0, 0, bytes);
        for one in self.all() {
            let Ok(device) = one.of_device() else {
                continue;
            };
            let (queues, registrations, bytes) = device.counted();
            sum = (
                sum.0 + queues,
                sum.1 + registrations,
                sum.2.saturating_add(bytes),
            );
        }
        check_counted(sum)
    }

    fn get(&self, endpoint: u32) -> Result<&Arc<dyn AtServer>, String> {
        let known = self.endpoints.get(&endpoint);
        known.ok_or_else(|| format!("this session has no endpoint {endpoint}"))
    }
}

/// Fails if a session has as many queues or registrations of RDMA devices as it may have, or would
/// have more bytes.
fn check_counted((queues, registrations, bytes): (usize, usize, u64)) -> Result<(), String> {
    for (what, count, count_max) in [
        ("queues", queues, DEVICE_QUEUES_MAX),
        ("registrations", registrations, DEVICE_REGISTRATIONS_MAX),
    ] {
        if count >= count_max {
            let why = format!("a session has {count_max} {what} of RDMA devices at most");
            return Err(why);
        }
    }
    if bytes > NET_DEVICE_BYTES_MAX {
        let gib = NET_DEVICE_BYTES_MAX >> 30;
        return Err(format!(
            "a session has {gib} GiB registered with RDMA devices at most (NET_DEVICE_BYTES_MAX), and would have {bytes} bytes"
        ));
    }
    Ok(())
}

/// Opens an endpoint of the provider that was asked for. Left open, it is the adapter in software,
/// which needs no device of this machine.
fn opened(
    asked: Option<Provider>,
    network: Network,
    device: Option<&str>,
) -> Result<Arc<dyn AtServer>, Error> {
    let provider = asked.unwrap_or(Provider::Nic);
    let impossible = |why: &str| Error::Impossible {
        provider: provider.name().to_string_lossy().into(),
        why: why.into(),
    };
    if provider != Provider::Nic && !network.is_perfect() {
        return Err(impossible(
            "only nic has a network that loses, delays or limits",
        ));
    }
    match provider {
        Provider::Nic => Ok(Arc::new(Own::start(network)?)),
        Provider::Nvlink => Ok(Arc::new(Tables::default())),
        Provider::Proxy | Provider::Mlx5 => {
            let options = device.ok_or_else(|| impossible(NO_DEVICE))?;
            let options = device::parsed(options).map_err(Error::Device)?;
            match provider {
                Provider::Mlx5 => Ok(Arc::new(Rung::open_of(&options)?)),
                _ => Ok(Arc::new(Proxy::open_of(&options)?)),
            }
        }
    }
}

/// Why a session has no endpoint of an RDMA device.
const NO_DEVICE: &str =
    "the server lends programs no RDMA device: outboard serve --net-device says which";

fn status(counts: Counts) -> NetStatus {
    NetStatus {
        succeeded: counts.succeeded,
        flushed: counts.flushed,
        retries: counts.retries,
        failure: counts.failure,
    }
}

fn key(of: NetKey) -> Key {
    Key {
        address: of.address,
        bytes: of.bytes,
        key: of.key,
        access: of.access,
    }
}

fn create(
    own: &dyn AtServer,
    memory: Registered,
    options: &NetQueueOptions,
) -> Result<NetAnswer, String> {
    let Registered::Mapped(memory) = memory else {
        return Err("a queue lies in pinned memory, not in a GPU's".into());
    };
    if options.flags & UNRELIABLE != 0 && own.provider() != Provider::Nic {
        return Err(said(Error::Unreliable));
    }
    if own.queues() >= QUEUES_MAX {
        return Err(format!("an endpoint has {QUEUES_MAX} queues at most"));
    }
    let options = Options {
        log_blocks: options.log_blocks,
        log_receives: options.log_receives,
        signal_every: options.signal_every,
        flags: options.flags,
        counters: options.counters,
    };
    let export = own.create(memory, options).map_err(said)?;
    let (qpn, scratch_key) = (export.qpn, export.scratch_key);
    Ok(NetAnswer::Queue { qpn, scratch_key })
}

fn within(timeout_ms: u32) -> Duration {
    Duration::from_millis(timeout_ms.into())
}

/// Connects a queue to its peer, if there is a stream to its server.
fn join(
    own: &dyn AtServer,
    qpn: u32,
    NetEnd {
        qpn: peer_qpn,
        epoch,
    }: NetEnd,
    stream: Result<UnixStream, String>,
) -> Result<NetAnswer, Error> {
    let peer = Peer {
        qpn: peer_qpn,
        epoch,
    };
    own.adapter()?
        .join(qpn, peer, stream.map_err(Error::Session)?)?;
    Ok(NetAnswer::Done)
}

/// Puts a queue back by a copy of its counters. Returns the new ones.
fn reset_counters(own: &dyn AtServer, qpn: u32, mut counters: Vec<u8>) -> Result<Vec<u8>, Error> {
    let bytes = own.counters_bytes(qpn)?;
    if counters.len() != bytes || bytes > NET_ANSWER_BYTES_MAX {
        return Err(Error::Memory {
            what: "a queue's counters",
            bytes,
            alignment: 8,
            given: counters.len(),
        });
    }
    let copy = Mapped::allocate(bytes).ok_or(Error::OutOfMemory(bytes))?;
    copy.write(0, &counters);
    own.reset_counters(qpn, &copy)?;
    copy.read(0, &mut counters);
    Ok(counters)
}

fn said(error: Error) -> String {
    error.to_string()
}

fn failed(why: impl ToString) -> NetAnswer {
    NetAnswer::Failed(why.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        sync::atomic::Ordering,
        thread::sleep,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        block::Export,
        wqe::{Entry, Flags, Operation},
    };

    pub(in crate::remote) struct Nobody;

    impl Carrier for Nobody {
        fn offer(&self) -> Result<[u8; 32], String> {
            Err("nobody".into())
        }

        fn accept(&self, _: [u8; 32], _: Duration) -> Result<UnixStream, String> {
            Err("nobody".into())
        }

        fn dial(&self, _: &str, _: [u8; 32], _: Duration) -> Result<UnixStream, String> {
            Err("nobody".into())
        }
    }

    impl Served {
        fn answering(&mut self, endpoint: u32, call: &NetCall, memory: &Mapped) -> Answering {
            let mut lend = |_, _, _| Ok(memory.clone().into());
            let carrier: Arc<dyn Carrier> = Arc::new(Nobody);
            let bytes = doc::to_bytes(call).unwrap();
            Served::call(self, endpoint, &bytes, &mut lend, &carrier)
        }

        fn now_of(&mut self, endpoint: u32, call: &NetCall, memory: &Mapped) -> NetAnswer {
            match self.answering(endpoint, call, memory) {
                Answering::Now(answer) => answer,
                Answering::Later(work) => work(),
            }
        }

        fn succeeded(&mut self, endpoint: u32, qpn: u32, memory: &Mapped) -> u64 {
            match self.now_of(endpoint, &NetCall::Status { qpn }, memory) {
                NetAnswer::Status(status) => status.succeeded,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Posts an entry that does nothing.
    fn post(memory: &Mapped, of: &Export) {
        let entry = Entry {
            index: 0,
            qpn: of.qpn,
            flags: Flags::SIGNALLED,
            operation: Operation::Nop,
        };
        let at = |address: u64| (address - memory.address()) as usize;
        memory.write(at(of.ring), &entry.encode());
        let record = memory.u32(at(of.record) + 4);
        record.store(1_u32.to_be(), Ordering::Release);
        let word = 1 << 40 | u64::from(of.qpn << 8);
        let doorbell = memory.u64(at(of.doorbell));
        doorbell.store(u64::to_be(word), Ordering::Release);
    }

    #[test]
    fn a_session_has_so_much_of_rdma_devices() {
        assert_eq!(check_counted((127, 4095, NET_DEVICE_BYTES_MAX)), Ok(()));
        for (counted, why) in [
            ((128, 0, 1), "128 queues of RDMA devices at most"),
            ((0, 4096, 1), "4096 registrations of RDMA devices at most"),
            ((0, 0, NET_DEVICE_BYTES_MAX + 1), "NET_DEVICE_BYTES_MAX"),
            ((0, 0, u64::MAX), "64 GiB registered"),
        ] {
            assert!(check_counted(counted).is_err_and(|said| said.contains(why)));
        }
    }

    fn options(provider: u32) -> NetOptions {
        NetOptions {
            seed: 0,
            delay_ns_min: 0,
            delay_ns_max: 0,
            bytes_per_s: 0,
            loss_ppm: 0,
            provider,
        }
    }

    #[test]
    fn an_endpoint_that_is_closed_counts_while_a_call_has_it_and_a_queue_has_one_reset() {
        let (mut served, memory) = (Served::default(), Mapped::allocate(8192).unwrap());
        served.now_of(0, &NetCall::Open(options(0)), &memory);
        let reset = NetCall::Reset { qpn: 7 };
        let Answering::Later(work) = served.answering(0, &reset, &memory) else {
            panic!("a reset takes its time");
        };
        match served.answering(0, &reset, &memory) {
            Answering::Now(NetAnswer::Failed(why)) => assert!(why.contains("already"), "{why}"),
            _ => panic!("a second reset"),
        }
        let closed = served.now_of(0, &NetCall::Close, &memory);
        assert_eq!((closed, served.all().count()), (NetAnswer::Done, 1));
        for endpoint in 1..NET_ENDPOINTS_MAX {
            let opened = served.now_of(endpoint, &NetCall::Open(options(0)), &memory);
            assert_eq!(opened, NetAnswer::Opened(Provider::Nic as u32));
        }
        match served.now_of(0, &NetCall::Open(options(0)), &memory) {
            NetAnswer::Failed(why) => assert!(why.contains("still wait"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(work(), NetAnswer::Failed(_)));
        assert!(served.resetting.lock().is_empty());
        let opened = served.now_of(0, &NetCall::Open(options(0)), &memory);
        assert_eq!(opened, NetAnswer::Opened(Provider::Nic as u32));
    }

    #[test]
    fn an_endpoint_without_streams_connects_to_no_server() {
        let (mut served, memory) = (Served::default(), Mapped::allocate(8192).unwrap());
        let direct = options(Provider::Nvlink as u32);
        served.now_of(0, &NetCall::Open(direct), &memory);
        let join = NetCall::Join {
            qpn: 1,
            peer: NetEnd { qpn: 1, epoch: 0 },
            address: "tcp://nobody:1".into(),
            secret: [0; 32],
            timeout_ms: 1000,
        };
        let answering = served.answering(0, &join, &memory);
        assert!(matches!(answering, Answering::Now(NetAnswer::Failed(_))));
    }

    #[test]
    fn neither_a_look_nor_an_opening_lets_adapters_look_in_the_middle_of_an_update() {
        let shape = Options {
            log_blocks: 5,
            signal_every: 1,
            ..Options::default()
        };
        let (mut served, mut queues) = (Served::default(), Vec::new());
        for endpoint in [0, 1] {
            let memory = Mapped::allocate(shape.bytes()).unwrap();
            let done = served.now_of(endpoint, &NetCall::Open(options(0)), &memory);
            assert_eq!(done, NetAnswer::Opened(Provider::Nic as u32));
            let create = NetCall::Create {
                address: memory.address(),
                bytes: memory.len() as u64,
                options: NetQueueOptions {
                    log_blocks: shape.log_blocks,
                    log_receives: 0,
                    signal_every: 1,
                    flags: 0,
                    counters: 0,
                },
            };
            let NetAnswer::Queue { qpn, scratch_key } = served.now_of(endpoint, &create, &memory)
            else {
                panic!("no queue");
            };
            let connect = NetCall::Connect {
                one: qpn,
                other: qpn,
            };
            let done = served.now_of(endpoint, &connect, &memory);
            assert_eq!(done, NetAnswer::Done);
            // The second one is opened while adapters are held.
            served.hold(true);
            let export = Export::at(memory.address(), &shape, qpn, scratch_key);
            post(&memory, &export);
            queues.push((endpoint, qpn, memory));
        }
        served.between_looks(|| ());
        let done = served.now_of(0, &NetCall::Look, &queues[0].2);
        assert_eq!(done, NetAnswer::Done);
        sleep(Duration::from_millis(30));
        for (endpoint, qpn, memory) in &queues {
            assert_eq!(served.succeeded(*endpoint, *qpn, memory), 0);
        }
        served.hold(false);
        let start = Instant::now();
        for (endpoint, qpn, memory) in &queues {
            while served.succeeded(*endpoint, *qpn, memory) == 0 {
                assert!(start.elapsed() < Duration::from_secs(20));
                sleep(Duration::from_millis(1));
            }
        }
    }
}
