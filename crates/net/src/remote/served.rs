//! The server's side: endpoints of one session.

use std::{collections::BTreeMap, os::unix::net::UnixStream, sync::Arc, time::Duration};

use outboard_wire::doc::{
    self, NET_ANSWER_BYTES_MAX, NET_ENDPOINTS_MAX, NetAnswer, NetCall, NetEnd, NetOptions,
    NetQueueOptions, NetStatus,
};

use crate::{
    adapter::Peer, block::Options, error::Error, faults::Network, keys::Access, memory::Mapped,
    own::Own,
};

/// Queues of an endpoint.
const QUEUES_MAX: usize = 1024;

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
    endpoints: BTreeMap<u32, Arc<Own>>,
    /// Secrets of those that are awaited, by endpoint and queue.
    awaited: BTreeMap<(u32, u32), [u8; 32]>,
}

/// How a call is answered.
pub enum Answering {
    Now(NetAnswer),
    /// By this, which waits: not in the session's thread.
    Later(Box<dyn FnOnce() -> NetAnswer + Send>),
}

/// Finds memory of the session's by its address: all of it, and kept mapped by what is returned.
type Lend<'a> = dyn FnMut(u64, u64) -> Result<Mapped, String> + 'a;

impl Served {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Lets all adapters look at nothing, or again.
    pub fn hold(&self, is_held: bool) {
        self.endpoints.values().for_each(|own| own.hold(is_held));
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
            NetCall::Reset { qpn } => self.later(endpoint, move |own| {
                own.reset(qpn).map(|()| NetAnswer::Done)
            }),
            NetCall::ResetCounters { qpn, counters } => self.later(endpoint, move |own| {
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
                self.later(endpoint, move |own| {
                    join(own, qpn, peer, carrier.dial(&address, secret, timeout))
                })
            }
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
        work: impl FnOnce(&Own) -> Result<NetAnswer, Error> + Send + 'static,
    ) -> Answering {
        match self.get(endpoint) {
            Ok(own) => {
                let own = Arc::clone(own);
                Answering::Later(Box::new(move || work(&own).unwrap_or_else(failed)))
            }
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
            NetCall::Open(options) => self.open(endpoint, &options)?,
            NetCall::Close => {
                self.get(endpoint)?;
                self.endpoints.remove(&endpoint);
                self.awaited.retain(|(of, _), _| *of != endpoint);
            }
            NetCall::Register {
                address,
                bytes,
                access,
            } => {
                let own = self.get(endpoint)?;
                let access = Access::new(access).map_err(said)?;
                let memory = lend(address, bytes)?;
                return own
                    .register(memory, access)
                    .map(NetAnswer::Key)
                    .map_err(said);
            }
            NetCall::Create {
                address,
                bytes,
                options,
            } => {
                let own = self.get(endpoint)?;
                return create(own, lend(address, bytes)?, &options);
            }
            NetCall::Connect { one, other } => {
                self.get(endpoint)?.connect(one, other).map_err(said)?;
            }
            NetCall::Status { qpn } => {
                let counts = self.get(endpoint)?.counts(qpn).map_err(said)?;
                return Ok(NetAnswer::Status(NetStatus {
                    succeeded: counts.succeeded,
                    flushed: counts.flushed,
                    retries: counts.retries,
                    failure: counts.failure,
                }));
            }
            NetCall::End { qpn } => {
                let Peer { qpn, epoch } = self.get(endpoint)?.end_of(qpn).map_err(said)?;
                return Ok(NetAnswer::End(NetEnd { qpn, epoch }));
            }
            NetCall::Look => self.hold(false),
            NetCall::Reset { .. }
            | NetCall::ResetCounters { .. }
            | NetCall::Await { .. }
            | NetCall::Meet { .. }
            | NetCall::Join { .. } => {
                return Err("not answered here".into());
            }
        }
        Ok(NetAnswer::Done)
    }

    fn open(&mut self, endpoint: u32, options: &NetOptions) -> Result<(), String> {
        if endpoint >= NET_ENDPOINTS_MAX || self.endpoints.contains_key(&endpoint) {
            return Err(format!(
                "endpoint {endpoint} is there already, or beyond the {NET_ENDPOINTS_MAX} of a session"
            ));
        }
        let own = Own::start(Network {
            seed: options.seed,
            loss_ppm: options.loss_ppm,
            delay_ns_min: options.delay_ns_min,
            delay_ns_max: options.delay_ns_max,
            bytes_per_s: options.bytes_per_s,
        });
        self.endpoints
            .insert(endpoint, Arc::new(own.map_err(said)?));
        Ok(())
    }

    fn await_peer(
        &mut self,
        endpoint: u32,
        qpn: u32,
        carrier: &dyn Carrier,
    ) -> Result<NetAnswer, String> {
        self.get(endpoint)?.end_of(qpn).map_err(said)?;
        let secret = carrier.offer()?;
        self.awaited.insert((endpoint, qpn), secret);
        Ok(NetAnswer::Secret(secret))
    }

    fn get(&self, endpoint: u32) -> Result<&Arc<Own>, String> {
        let known = self.endpoints.get(&endpoint);
        known.ok_or_else(|| format!("this session has no endpoint {endpoint}"))
    }
}

fn create(own: &Own, memory: Mapped, options: &NetQueueOptions) -> Result<NetAnswer, String> {
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
    own: &Own,
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
    own.join(qpn, peer, stream.map_err(Error::Session)?)?;
    Ok(NetAnswer::Done)
}

/// Puts a queue back by a copy of its counters. Returns the new ones.
fn reset_counters(own: &Own, qpn: u32, mut counters: Vec<u8>) -> Result<Vec<u8>, Error> {
    let bytes = own.queue(qpn)?.counters_bytes();
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
