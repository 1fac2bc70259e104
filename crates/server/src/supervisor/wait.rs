//! The wait for clients, workers and signals.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Draining, ServeError, Supervisor};
use crate::{
    exporter::Exporter,
    hand_over::{Handing, Predecessor},
    limits,
    pool::Gate,
};

#[derive(Default)]
pub(super) struct News {
    pub(super) gate: bool,
    pub(super) handing: bool,
    pub(super) successor: bool,
    pub(super) predecessor: bool,
    pub(super) exporter: bool,
    /// Workers by process, because positions change when workers are reaped.
    pub(super) controls: Vec<u32>,
    pub(super) spares: Vec<u64>,
    pub(super) listeners: Vec<usize>,
    /// True once standard input is at its end, if that matters.
    pub(super) starter_gone: bool,
}

enum Source {
    Signal,
    Control(u32),
    Spare(u64),
    Exporter,
    Gate,
    Handing,
    Successor,
    Predecessor,
    Listener(usize),
    Starter,
}

impl FromIterator<Source> for News {
    fn from_iter<I: IntoIterator<Item = Source>>(ready: I) -> News {
        let mut news = News::default();
        for source in ready {
            match source {
                Source::Signal => {}
                Source::Exporter => news.exporter = true,
                Source::Gate => news.gate = true,
                Source::Handing => news.handing = true,
                Source::Successor => news.successor = true,
                Source::Predecessor => news.predecessor = true,
                Source::Control(pid) => news.controls.push(pid),
                Source::Spare(id) => news.spares.push(id),
                Source::Listener(at) => news.listeners.push(at),
                Source::Starter => news.starter_gone = is_at_end(std::io::stdin().as_fd()),
            }
        }
        news
    }
}

impl Supervisor {
    /// Sleeps until a signal, a client, or a worker's question arrives.
    pub(super) fn wait(&mut self) -> Result<News, ServeError> {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        let stdin = std::io::stdin();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let mut sources = vec![Source::Signal];
        if self.options.until_eof {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
            sources.push(Source::Starter);
        }
        for worker in &self.workers {
            if let Some(control) = &worker.control {
                fds.push(PollFd::new(control, PollFlags::IN));
                sources.push(Source::Control(worker.child.id()));
            }
        }
        for (id, control) in self.spares.controls() {
            fds.push(PollFd::new(control, PollFlags::IN));
            sources.push(Source::Spare(id));
        }
        if let Some(control) = self.exporter.as_ref().and_then(Exporter::control) {
            fds.push(PollFd::new(control, PollFlags::IN));
            sources.push(Source::Exporter);
        }
        if let Some(gate) = &self.gate {
            fds.push(PollFd::from_borrowed_fd(gate.bell(), PollFlags::IN));
            sources.push(Source::Gate);
        }
        for (fd, source) in self.other_servers() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            sources.push(source);
        }
        if self.paused_until.is_none() {
            let listeners = self.listeners.iter().enumerate();
            for (at, listener) in listeners.filter(|(at, _)| self.may_greet(*at)) {
                fds.push(PollFd::new(listener, PollFlags::IN));
                sources.push(Source::Listener(at));
            }
        }
        let timeout = self
            .next_deadline()
            .map(|at| at.saturating_duration_since(now) + Duration::from_millis(1))
            .and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // The kernel has no memory for the list of descriptors just now; workers go on.
            Err(error @ (rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN)) => {
                self.pause("waiting for clients", &error);
                std::thread::sleep(Duration::from_millis(limits::PAUSE_MS));
                return Ok(News::default());
            }
            Err(error) => return Err(ServeError::io("waiting for clients")(error)),
        }
        let ready = fds.iter().zip(sources);
        let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
        Ok(News::from_iter(ready.map(|(_, source)| source)))
    }

    /// Returns what the servers before and after this one may say.
    fn other_servers(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Source)> {
        let handing = self.handing.as_ref().map(Handing::awaited);
        let successor = self.draining.as_ref().and_then(Draining::successor);
        let predecessor = self.predecessor.as_ref().map(Predecessor::ends);
        [
            handing.map(|fd| (fd, Source::Handing)),
            successor.map(|fd| (fd, Source::Successor)),
            predecessor.map(|fd| (fd, Source::Predecessor)),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let timed = self
            .workers
            .iter()
            .filter(|w| w.is_timed())
            .map(|w| w.deadline);
        timed
            .chain(self.paused_until)
            .chain(self.spares.deadline())
            .chain(self.exporter.as_ref().and_then(Exporter::deadline))
            .chain(self.gate.as_ref().and_then(Gate::deadline))
            .chain(self.handing.as_ref().and_then(Handing::deadline))
            .chain(self.draining.as_ref().map(Draining::until))
            .min()
    }
}

/// Reads what has come, which means nothing, and returns whether no more will.
fn is_at_end(input: BorrowedFd<'_>) -> bool {
    match rustix::io::read(input, &mut [0; 4096]) {
        Ok(count) => count == 0,
        Err(error) => error != rustix::io::Errno::INTR && error != rustix::io::Errno::AGAIN,
    }
}
