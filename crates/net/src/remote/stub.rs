//! The program's side: an endpoint whose calls are requests of the session.

use std::{
    collections::{HashMap, HashSet},
    ffi::c_void,
    sync::Arc,
};

use outboard_wire::doc::{NetAnswer, NetCall, NetOptions, NetQueueOptions};
use parking_lot::Mutex;

use super::{
    direct::Direct,
    meeting, reached,
    relay::Relay,
    session::{NOTHING, Number, done, end_of, wrong},
};
use crate::{
    block::{Export, Options, REMOTE},
    driver,
    endpoint::{Counts, Endpoint, mapped},
    error::Error,
    faults::Network,
    keys::Access,
    mapping::is_mapped,
    meet::{Meeting, Window},
    mlx5,
    nvlink::{Key, export_at},
    provider::Provider,
    way::Way,
};

/// An endpoint at the session's server.
#[derive(Debug)]
pub(crate) struct Remote {
    /// Streams to programs with adapters of their own, by the number of their queue. They and the
    /// connections of `direct` end before the endpoint.
    relays: Mutex<HashMap<u32, Relay>>,
    direct: Direct,
    number: Arc<Number>,
    provider: Provider,
    /// Properties of its queues, by their numbers.
    queues: Mutex<HashMap<u32, Options>>,
    /// Those that have met one of another process.
    met: Mutex<HashSet<u32>>,
}

impl Remote {
    /// Opens an endpoint of the provider that was asked for, or of one that the server chooses.
    pub(crate) fn open(asked: Option<Provider>, network: Network) -> Result<Remote, Error> {
        let number = Number::take()?;
        let options = NetOptions {
            seed: network.seed,
            delay_ns_min: network.delay_ns_min,
            delay_ns_max: network.delay_ns_max,
            bytes_per_s: network.bytes_per_s,
            loss_ppm: network.loss_ppm,
            provider: asked.map_or(0, |asked| asked as u32),
        };
        let provider = match number.call(&NetCall::Open(options), NOTHING)? {
            NetAnswer::Opened(provider) => Provider::numbered(provider)?,
            other => return Err(wrong(&other)),
        };
        Ok(Remote {
            relays: Mutex::default(),
            direct: Direct::default(),
            number: Arc::new(number),
            provider: provider.unwrap_or(Provider::Nic),
            queues: Mutex::default(),
            met: Mutex::default(),
        })
    }
}

/// Returns the memory that a call is about and the program has to lend: none if it is a GPU's.
fn lent(address: u64, bytes: u64) -> (u64, u64) {
    let is_here = is_mapped(address as usize, bytes as usize, false);
    let end = address.saturating_add(bytes);
    match !is_here && driver::range_of(address).is_some_and(|range| end <= range.end) {
        true => NOTHING,
        false => (address, bytes),
    }
}

impl Endpoint for Remote {
    fn provider(&self) -> Provider {
        self.provider
    }

    fn is_remote(&self) -> bool {
        true
    }

    unsafe fn register(&self, at: *mut c_void, bytes: u64, access: Access) -> Result<u32, Error> {
        let address = at as u64;
        let call = NetCall::Register {
            address,
            bytes,
            access: access.0,
        };
        let key = match self.number.call(&call, lent(address, bytes))? {
            NetAnswer::Key(key) => key,
            other => return Err(wrong(&other)),
        };
        if self.provider == Provider::Nvlink {
            let access = access.0;
            self.direct.add(Key {
                address,
                bytes,
                key,
                access,
            });
        }
        Ok(key)
    }

    unsafe fn create(
        &self,
        at: *mut c_void,
        bytes: u64,
        options: Options,
    ) -> Result<Export, Error> {
        let address = at as u64;
        options.check()?;
        let call = NetCall::Create {
            address,
            bytes,
            options: NetQueueOptions {
                log_blocks: options.log_blocks,
                log_receives: options.log_receives,
                signal_every: options.signal_every,
                flags: options.flags,
                counters: options.counters,
            },
        };
        match self.number.call(&call, (address, bytes))? {
            NetAnswer::Queue { qpn, scratch_key } => {
                self.queues.lock().insert(qpn, options);
                let export = match self.provider {
                    Provider::Nvlink => export_at(address, &options, qpn),
                    Provider::Mlx5 => mlx5::export_at(address, &options, qpn, scratch_key),
                    _ => Export::at(address, &options, qpn, scratch_key),
                };
                if self.provider != Provider::Nvlink {
                    let completion = (export.completion - address) as usize;
                    self.number.has_queue(address, options, completion);
                }
                Ok(Export {
                    flags: export.flags | REMOTE,
                    ..export
                })
            }
            other => Err(wrong(&other)),
        }
    }

    fn connect(&self, one: u32, other: u32) -> Result<(), Error> {
        done(
            self.number
                .call(&NetCall::Connect { one, other }, NOTHING)?,
        )
    }

    fn meet(&self, qpn: u32, meeting: Meeting<'_>, mine: Window) -> Result<Window, Error> {
        if self.provider == Provider::Nvlink {
            return self.direct.meet(&self.number, qpn, meeting, mine);
        }
        if matches!(self.provider, Provider::Proxy | Provider::Mlx5) {
            return reached::meet(&self.number, qpn, meeting, mine);
        }
        let end = end_of(&self.number, qpn)?;
        // The connection from before a reset ends here, outside the lock.
        let earlier = self.relays.lock().remove(&qpn);
        drop(earlier);
        let (theirs, relay) = meeting::meet(&self.number, end, meeting, mine)?;
        if let Some(relay) = relay {
            let earlier = self.relays.lock().insert(qpn, relay);
            drop(earlier);
        }
        self.met.lock().insert(qpn);
        Ok(theirs)
    }

    fn way_of(&self, qpn: u32) -> Option<Way> {
        self.met.lock().contains(&qpn).then_some(Way::Tcp)
    }

    fn reset(&self, qpn: u32) -> Result<(), Error> {
        self.direct.disconnect(qpn);
        done(self.number.call(&NetCall::Reset { qpn }, NOTHING)?)
    }

    unsafe fn reset_counters(&self, qpn: u32, counters: *mut c_void) -> Result<(), Error> {
        let options = self.queues.lock().get(&qpn).copied();
        let bytes = options.ok_or(Error::NoPair(qpn))?.counters_bytes();
        // SAFETY: the caller lends the counters for this call.
        let memory = unsafe { mapped(counters, bytes as u64, true) }?;
        let mut copy = vec![0; bytes];
        memory.read(0, &mut copy);
        let counters = copy;
        match self
            .number
            .call(&NetCall::ResetCounters { qpn, counters }, NOTHING)?
        {
            NetAnswer::Counters(counters) if counters.len() == bytes => {
                self.direct.disconnect(qpn);
                memory.write(0, &counters);
                Ok(())
            }
            other => Err(wrong(&other)),
        }
    }

    fn counts(&self, qpn: u32) -> Result<Counts, Error> {
        match self.number.call(&NetCall::Status { qpn }, NOTHING)? {
            NetAnswer::Status(status) => Ok(Counts {
                succeeded: status.succeeded,
                flushed: status.flushed,
                retries: status.retries,
                failure: status.failure,
            }),
            other => Err(wrong(&other)),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Their threads make calls.
        self.relays.get_mut().clear();
        self.direct = Direct::default();
        // A session that is over has closed it.
        let _ = self.number.call(&NetCall::Close, NOTHING);
    }
}
