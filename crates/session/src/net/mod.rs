//! Endpoints of `net.h` that are where the GPU is: adapters in threads of this process, in memory
//! of the session. `outboard_net::remote` executes the calls; here is what concerns the session:
//! which memory is its own, what takes time, and when adapters may look.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Instant,
};

use outboard_budget::Exhausted;
use outboard_device::{Device, Failure, Outcome, Pending, Wait, Way};
use outboard_link::DeviceMemory;
use outboard_net::{
    Distant, Gone, Registered,
    remote::{Answering, Borrower, Carrier, Served},
};
use outboard_wire::{
    DecodeError, Message as _, Op as _, Reader,
    doc::{self, NET_ANSWER_BYTES_MAX, NetAnswer},
    frame::RequestHeader,
    handshake::Purpose,
    messages,
};

mod settled;
mod streams;

use self::streams::Streams;
use super::{End, Session, execute::Executed, limits, sources::DataConnectionSource};

/// A message about endpoints, of which the session's thread keeps nothing borrowed.
pub(super) enum NetMessage {
    Call { endpoint: u32, call: Vec<u8> },
    Hold(bool),
}

impl NetMessage {
    /// Decodes one of these messages; None if it is another.
    pub(super) fn decode(op: u16, r: &mut Reader<'_>) -> Option<Result<NetMessage, DecodeError>> {
        Some(match op {
            messages::NetCall::NUMBER => messages::NetCall::decode(r).map(|m| NetMessage::Call {
                endpoint: m.endpoint,
                call: m.call.to_vec(),
            }),
            messages::NetHold::NUMBER => {
                messages::NetHold::decode(r).map(|m| NetMessage::Hold(m.held != 0))
            }
            _ => return None,
        })
    }
}

pub(super) fn is_net_message(op: u16) -> bool {
    matches!(op, messages::NetCall::NUMBER | messages::NetHold::NUMBER)
}

/// The endpoints of a session.
pub(super) struct Net {
    served: Served,
    carrier: Arc<Streams>,
    threads: Vec<JoinHandle<()>>,
    /// How RDMA devices find the GPU's memory.
    ways: Result<Vec<Way>, String>,
}

impl Net {
    /// Makes a session's state, with no endpoint yet. If endpoints may have an RDMA device, a
    /// function prepares the GPU's memory for it.
    pub(super) fn new(
        source: Option<Arc<dyn DataConnectionSource>>,
        expose: impl FnOnce() -> Result<Vec<Way>, String>,
    ) -> Net {
        let device = source.as_ref().and_then(|source| source.net_device());
        let ways = match device {
            Some(_) => expose(),
            None => Ok(Vec::new()),
        };
        Net {
            ways,
            served: Served::with_device(device),
            carrier: Arc::new(Streams::new(source)),
            threads: Vec::new(),
        }
    }

    /// Sends what has changed, as a function takes it, between two looks of the adapters, so that a
    /// flag never comes without what was written before it. Fails if there is no memory for that.
    pub(super) fn changes(
        &self,
        mut take: impl FnMut(&mut dyn FnMut(u64, &[u8])),
        send: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), Exhausted> {
        self.served.between_looks(|| {
            if self.served.has_devices() {
                return settled::take(take, send, outboard_budget::reserve);
            }
            take(send);
            Ok(())
        })
    }

    /// Ends the registrations of a GPU's memory that a message is about to unmap or to change.
    pub(super) fn forget(&self, op: u16, body: &Reader<'_>) {
        let mut r = body.clone();
        let range = match op {
            messages::MemUnmap::NUMBER => messages::MemUnmap::decode(&mut r).map(|m| (m.va, m.len)),
            messages::AllocationUnmap::NUMBER => {
                messages::AllocationUnmap::decode(&mut r).map(|m| (m.va, m.len))
            }
            messages::AllocationAccess::NUMBER => {
                messages::AllocationAccess::decode(&mut r).map(|m| (m.va, m.len))
            }
            _ => return,
        };
        // What cannot be decoded is not executed either.
        if let Ok((va, len)) = range {
            self.served.forget(va, len);
        }
    }

    /// Lets adapters look at nothing until they are let go.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.served.hold(is_held);
    }

    fn answer(&mut self, answering: Answering) -> Result<Pending, Failure> {
        let work = match answering {
            Answering::Now(answer) => return Ok(Box::new(Answer::of(&answer))),
            Answering::Later(work) => work,
        };
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() >= limits::NET_CALLS_MAX {
            let why = "too many calls of net.h that wait, of one session (NET_CALLS_MAX)";
            return Ok(Box::new(Answer::of(&NetAnswer::Failed(why.into()))));
        }
        let place = Arc::new(Mutex::new(None));
        let its = Arc::clone(&place);
        let thread = thread::Builder::new().name("outboard-net-call".into());
        let spawned = thread.spawn(move || {
            let answer = work();
            *its.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                let why = format!("no thread for a call of net.h: {error}");
                return Ok(Box::new(Answer::of(&NetAnswer::Failed(why))));
            }
        }
        Ok(Box::new(Answer {
            place: Some(place),
            bytes: Vec::new(),
        }))
    }
}

/// Ends all threads before the device is dropped, whose memory they use.
impl Drop for Net {
    fn drop(&mut self) {
        // Streams end with their connections.
        self.served = Served::default();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

/// An answer that is there, or comes from a thread.
struct Answer {
    place: Option<Arc<Mutex<Option<NetAnswer>>>>,
    bytes: Vec<u8>,
}

impl Answer {
    fn of(answer: &NetAnswer) -> Answer {
        Answer {
            place: None,
            bytes: doc::to_bytes(answer).unwrap_or_default(),
        }
    }
}

impl Wait for Answer {
    fn ready(&mut self) -> Result<bool, Failure> {
        let Some(place) = &self.place else {
            return Ok(true);
        };
        // Counted before the look: the thread keeps its reference until it has answered.
        let is_thread_over = Arc::strong_count(place) == 1;
        let answer = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let answer = match answer {
            Some(answer) => answer,
            None if is_thread_over => NetAnswer::Failed("the call ended without an answer".into()),
            None => return Ok(false),
        };
        *self = Answer::of(&answer);
        Ok(true)
    }

    fn data(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }
}

/// Memory of a GPU, until an RDMA device has it.
#[derive(Debug)]
struct OfGpu(Mutex<Vec<DeviceMemory>>);

impl Distant for OfGpu {
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), Gone> {
        Err(Gone)
    }

    fn write(&self, _: usize, _: &[u8]) -> Result<(), Gone> {
        Err(Gone)
    }

    fn reach(&self) -> Result<Vec<DeviceMemory>, String> {
        let mut by = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(mem::take(&mut *by))
    }
}

/// Returns memory of one mapping of a GPU's as RDMA devices find it.
fn of_gpu(
    device: &mut dyn Device,
    ways: &Result<Vec<Way>, String>,
    address: u64,
    bytes: u64,
) -> Result<Registered, String> {
    let failed = |why: &str| format!("an RDMA device does not reach the GPU's memory: {why}");
    let ways = ways.as_ref().map_err(|why| failed(why))?;
    device.sees_writes().map_err(|why| failed(&why))?;
    let (mut by, mut reasons) = (Vec::new(), Vec::new());
    for way in ways {
        match device.reach(address, bytes, *way) {
            Ok(memory) => by.push(memory),
            Err(failure) => reasons.push(format!("by {}: {}", way.name(), failure.message)),
        }
    }
    if by.is_empty() {
        return Err(failed(&reasons.join("; ")));
    }
    Ok(Registered::Distant {
        address,
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        at: Arc::new(OfGpu(Mutex::new(by))),
    })
}

impl Session<'_> {
    /// Executes a message about endpoints.
    pub(super) fn execute_net(
        &mut self,
        header: RequestHeader,
        message: &NetMessage,
        start: Instant,
    ) -> Result<(), End> {
        self.executor.reply.clear();
        let mut executed = Executed::of(Ok(Outcome::Done));
        executed.outcome = match (self.executor.purpose, message) {
            (Purpose::Session, NetMessage::Hold(is_held)) => {
                self.net.hold(*is_held);
                Ok(Outcome::Done)
            }
            (Purpose::Session, NetMessage::Call { endpoint, call }) => {
                executed.reply_bytes = Some(NET_ANSWER_BYTES_MAX as u64);
                self.call_net(*endpoint, call).map(Outcome::Wait)
            }
            _ => Err(Failure::unsupported("endpoints of net.h, for a question")),
        };
        self.settle_to(header, executed, start, None)
    }

    fn call_net(&mut self, endpoint: u32, call: &[u8]) -> Result<Pending, Failure> {
        outboard_budget::check()?;
        let (device, ways) = (&mut *self.executor.device, &self.net.ways);
        let mut lend = |address, bytes, to| {
            if to == Borrower::Device && device.mapping(address, bytes).is_some() {
                return of_gpu(device, ways, address, bytes);
            }
            let lent = device.lend(address, bytes, to);
            lent.map_err(|failure| failure.message)
        };
        let carrier: Arc<dyn Carrier> = self.net.carrier.clone();
        let answering = self.net.served.call(endpoint, call, &mut lend, &carrier);
        self.net.answer(answering)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_call_whose_thread_ends_without_an_answer_fails() {
        let mut net = Net::new(None, || Ok(Vec::new()));
        let work = Box::new(|| panic!("the call's own panic, of this test"));
        let mut pending = net.answer(Answering::Later(work)).unwrap();
        let start = Instant::now();
        while !pending.ready().unwrap() {
            assert!(start.elapsed().as_secs() < 20);
            thread::yield_now();
        }
        let answer: NetAnswer = doc::from_bytes(pending.data().unwrap()).unwrap();
        assert!(matches!(answer, NetAnswer::Failed(_)), "{answer:?}");
    }
}
