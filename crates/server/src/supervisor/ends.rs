//! Ends: of workers, of handshakes that take too long, of the server.

use std::time::{Duration, Instant};

use outboard_wire::doc::SessionEnd;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};
use tracing::{error, info, warn};

use super::{Phase, Supervisor, Worker, worker::ends_with_session};
use crate::limits;

impl Supervisor {
    pub(super) fn reap(&mut self) {
        let mut has_ended = self.spares.reap();
        let mut ended = Vec::new();
        for worker in &mut self.workers {
            match worker.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => ended.push((worker.child.id(), Ok(status))),
                Err(error) => ended.push((worker.child.id(), Err(error))),
            }
        }
        has_ended |= !ended.is_empty();
        for (pid, how) in ended {
            // It may have reported something before its end.
            while self.hear(pid) {}
            let Some(at) = self.workers.iter().position(|w| w.child.id() == pid) else {
                continue;
            };
            self.closed(at);
            let worker = self.workers.swap_remove(at);
            self.free_row(&worker);
            let session = worker.session;
            let is_over = !self.workers.iter().any(|other| other.session == session);
            if let Some(gate) = self.gate.as_mut().filter(|_| is_over) {
                match worker.has_failed(&how) {
                    true => gate.failed(session),
                    false => gate.ended(session),
                }
            }
            if let Some(key) = worker.key {
                self.ended.truncate(limits::ENDED_KEYS_MAX - 1);
                self.ended.push_front(key);
                let end = match how {
                    Ok(status) if ends_with_session(status) => SessionEnd::Left,
                    _ => SessionEnd::Worker,
                };
                self.view.ended(worker.session, end);
            }
            match how {
                Ok(status) => worker.report(status),
                Err(error) => {
                    error!(session = worker.session, %error, "a worker was lost sight of");
                }
            }
            if let Some((tenant, _)) = &worker.tenant {
                self.weigh(tenant);
            }
        }
        if has_ended && let Some(groups) = &self.groups {
            groups.sweep();
        }
    }

    /// Divides a tenant's weight among the workers of its sessions.
    pub(super) fn weigh(&self, tenant: &str) {
        let Some(groups) = &self.groups else {
            return;
        };
        let is_its = |worker: &&Worker| {
            let whose = worker.tenant.as_ref();
            worker.key.is_some() && whose.is_some_and(|(its, _)| its == tenant)
        };
        let its = self.workers.iter().filter(is_its);
        let pids: Vec<u32> = its.map(|worker| worker.child.id()).collect();
        groups.weigh(&pids, self.options.shares.weight(tenant));
    }

    /// Gives back the row of a worker that has ended, unless another worker has its session.
    pub(super) fn free_row(&mut self, ended: &Worker) {
        let Some((tenant, Some(row))) = &ended.tenant else {
            return;
        };
        let has_it = |worker: &Worker| worker.session == ended.session && worker.tenant.is_some();
        if !self.workers.iter().any(has_it) {
            self.tenants.leave(tenant, *row);
        }
    }

    /// Ends workers stuck in the handshake, and spares that do not take their client over. A worker
    /// normally ends by itself when its client says nothing.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        if self
            .handing
            .as_mut()
            .is_some_and(|handing| handing.expire(now))
        {
            warn!("a server that was offered the sockets did not take them; this one goes on");
        }
        let late = |w: &&mut Worker| w.is_timed() && w.deadline <= now;
        for worker in self.workers.iter_mut().filter(late) {
            let session = worker.session;
            match worker.phase {
                Phase::Taking => warn!(session, "a spare worker does not take its client over"),
                _ => {
                    warn!(session, "a worker is stuck in the handshake");
                    worker.phase = Phase::Leaving;
                }
            }
            // The first worker serves the client of a spare once the spare is reaped: until then
            // the spare might still write to the client.
            worker.signal(Signal::KILL);
            worker.deadline = now + Duration::from_millis(limits::STOP_MS_MAX);
        }
    }

    pub(super) fn stop(mut self) {
        info!(sessions = self.workers.len(), "stopping");
        self.listeners.clear();
        self.spares.end();
        if let Some(exporter) = &mut self.exporter {
            exporter.end();
        }
        for worker in &mut self.workers {
            self.view.will_end(worker.session, SessionEnd::Stopped);
            worker.phase = Phase::Leaving;
            worker.signal(Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
        while !self.workers.is_empty() && Instant::now() < deadline && !self.signals.is_urgent() {
            let tick = Timespec::try_from(Duration::from_millis(limits::STOP_TICK_MS)).ok();
            let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
            // An interrupted wait does no harm.
            let _ = poll(&mut fds, tick.as_ref());
            self.signals.drain();
            self.reap();
        }
        for mut worker in self.workers.drain(..) {
            worker.signal(Signal::KILL);
            if worker.key.is_some() {
                self.view.ended(worker.session, SessionEnd::Stopped);
            }
            // SIGKILL works at once unless a driver is stuck in the kernel: the wait for that is
            // bounded.
            let deadline = Instant::now() + Duration::from_millis(limits::STOP_MS_MAX);
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let Some(groups) = &self.groups {
            groups.sweep();
        }
    }
}
