//! Leases of a pool: the GPUs of a client, and the ends of its sessions.

use std::{
    io,
    time::{Duration, Instant},
};

use outboard_pool::{Grant, record::GpuFacts};
use outboard_wire::{doc::SessionEnd, handshake::Purpose};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};
use tracing::info;

use super::{Phase, ServeError, ServeOptions, Supervisor, Worker, start_worker};
use crate::{
    admission::{Order, Report},
    devices::DeviceOptions,
    limits,
    pool::{Gate, PoolOptions},
};

/// The devices of a client, and the end of its lease.
pub(super) struct LeasedDevice {
    pub(super) device: DeviceOptions,
    pub(super) until_ms: Option<u64>,
}

impl Supervisor {
    /// Asks the gate of a pool's server. Returns the devices of the client, and the end of its
    /// lease. Older sessions of its GPUs have ended then.
    pub(super) fn lease(
        &mut self,
        session: u64,
        purpose: Purpose,
        grant: Option<&Grant>,
    ) -> Result<LeasedDevice, String> {
        let mut leased = LeasedDevice {
            device: self.options.device.clone(),
            until_ms: None,
        };
        let needs_one = match purpose {
            Purpose::Session | Purpose::Query | Purpose::Management => true,
            Purpose::Greeting => grant.is_some(),
            _ => false,
        };
        let Some(gate) = self.gate.as_mut().filter(|_| needs_one) else {
            return Ok(leased);
        };
        // Its worker has checked the signature.
        let grant = grant.ok_or("a client without a grant")?;
        if purpose != Purpose::Session {
            leased.device.chosen = gate.check(grant)?;
            return Ok(leased);
        }
        let admitted = gate.admit(session, grant)?;
        leased.device.chosen = admitted.chosen;
        leased.until_ms = Some(admitted.until_ms);
        if !admitted.end_first.is_empty() && !self.end_now(&admitted.end_first) {
            if let Some(gate) = &mut self.gate {
                gate.ended(session);
            }
            return Err("an older session of the GPU does not end; try again in a moment".into());
        }
        Ok(leased)
    }

    /// Does what the pool's manager and the ends of leases ask for.
    pub(super) fn watch_leases(&mut self, is_news: bool) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        let mut end = gate.over();
        if is_news {
            let news = gate.hear();
            end.extend(news.end);
            for (session, until_ms) in news.extended {
                for worker in self.workers.iter().filter(|w| w.session == session) {
                    if matches!(worker.phase, Phase::Serving(_) | Phase::Taking) {
                        worker.tell(&Order::Lease { until_ms }, &[]);
                    }
                }
            }
        }
        self.end_leased(&end);
    }

    /// Ends sessions whose leases are over.
    pub(super) fn end_leased(&mut self, sessions: &[u64]) {
        for worker in self
            .workers
            .iter_mut()
            .filter(|w| sessions.contains(&w.session))
        {
            if !matches!(worker.phase, Phase::Leaving) {
                info!(
                    session = worker.session,
                    "is ended: its lease of the GPUs is over"
                );
            }
            self.view.will_end(worker.session, SessionEnd::Lease);
            // The first of two workers must not serve the client after the second is gone.
            worker.phase = Phase::Leaving;
            worker.signal(Signal::KILL);
        }
        let is_left = |session: &u64| self.workers.iter().any(|w| w.session == *session);
        let gone: Vec<u64> = sessions.iter().copied().filter(|s| !is_left(s)).collect();
        if let Some(gate) = &mut self.gate {
            gone.into_iter().for_each(|session| gate.ended(session));
        }
    }

    /// Ends sessions, and waits for that. Returns whether all have ended in time.
    pub(super) fn end_now(&mut self, sessions: &[u64]) -> bool {
        self.end_leased(sessions);
        let deadline = Instant::now() + Duration::from_millis(limits::POOL_END_MS_MAX);
        let is_left = |worker: &mut Worker| {
            sessions.contains(&worker.session) && matches!(worker.child.try_wait(), Ok(None))
        };
        // They are reaped with the others.
        while self.workers.iter_mut().any(is_left) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

pub(super) fn open_gate(options: &PoolOptions) -> Result<Gate, ServeError> {
    Gate::open(options).map_err(|source| ServeError::Pool {
        path: options.state.clone(),
        source,
    })
}

/// Has a worker find out which GPUs this machine has.
pub(super) fn inventory(options: &ServeOptions) -> io::Result<Vec<GpuFacts>> {
    let order = Order::Inventory(options.device.clone());
    let (mut child, control) = start_worker(options, None, &order, None)?;
    let limit = Duration::from_millis(limits::SPARE_START_MS_MAX);
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(&control, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))?;
    let said = control.receive();
    let _ = child.kill().and_then(|()| child.wait());
    match said? {
        Some((Report::Inventory(gpus), _)) => Ok(gpus),
        _ => Err(io::Error::other(
            "the device cannot be opened; the log says why",
        )),
    }
}
