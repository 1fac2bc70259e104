//! The other process of `outboard bench net` between two: memory and queues that do nothing but be
//! there, until the worker ends it.

use std::{
    alloc::{Layout, alloc_zeroed},
    ffi::c_void,
    io::{BufRead, Write},
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use outboard_net::{Access, Endpoint, Meeting, Network, Provider, QueueOptions, Way, Window, open};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::net_case::{LOG_ENTRIES, NetCase};

const PAGE_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes and queues of a case at most.
const BYTES_MAX: u64 = 1 << 35;
const QUEUES_MAX: usize = 64;

/// Memory and queues that the other process makes, and where the queues meet.
#[derive(Serialize, Deserialize)]
struct Wanted {
    addresses: Vec<String>,
    bytes: u64,
    way: String,
}

/// The worker's side: the process, which ends with it.
pub(super) struct Peer {
    child: Child,
    wanted: Wanted,
    way: Way,
}

impl Peer {
    pub(super) fn start(case: &NetCase, way: Way) -> anyhow::Result<Peer> {
        let bytes = case.stride() * u64::from(case.posters());
        // Free ports: held until all are known, so that they differ.
        let listeners: Vec<TcpListener> = (0..case.queues)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .collect::<Result<_, _>>()?;
        let addresses = listeners
            .iter()
            .map(|listener| Ok(listener.local_addr()?.to_string()))
            .collect::<anyhow::Result<_>>()?;
        drop(listeners);
        let way_name = way.name().to_string_lossy().into();
        let wanted = Wanted {
            addresses,
            bytes,
            way: way_name,
        };
        let mut child = Command::new("/proc/self/exe")
            .arg("bench-net-peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting the other process")?;
        let mut line = serde_json::to_vec(&wanted)?;
        line.push(b'\n');
        let stdin = child.stdin.as_mut().context("a process without input")?;
        stdin.write_all(&line)?;
        Ok(Peer { child, wanted, way })
    }

    /// Connects a queue to the other process's of this number, and returns its memory.
    pub(super) fn meet(
        &mut self,
        endpoint: &dyn Endpoint,
        qpn: u32,
        number: usize,
    ) -> anyhow::Result<Window> {
        let address = self.wanted.addresses.get(number).context("no such queue")?;
        Ok(endpoint.meet(qpn, meeting(address, false, self.way), Window::default())?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process: makes what is wanted, and waits for the end of its input.
pub(crate) fn peer() -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut lines = std::io::stdin().lock().lines();
    let wanted: Wanted = serde_json::from_str(&lines.next().context("nothing is wanted")??)?;
    ensure!(wanted.bytes <= BYTES_MAX && wanted.addresses.len() <= QUEUES_MAX);
    let way = Way::named(&wanted.way)?.context("no way")?;
    let endpoint = open(Some(Provider::Nic), Network::default())?;
    let at = zeroed(wanted.bytes as usize)?;
    // SAFETY: never freed.
    let key = unsafe { endpoint.register(at, wanted.bytes, Access::ALL) }?;
    let window = Window {
        address: at as u64,
        bytes: wanted.bytes,
        key,
        reserved: 0,
    };
    for address in &wanted.addresses {
        let options = QueueOptions {
            log_blocks: LOG_ENTRIES,
            ..QueueOptions::default()
        };
        let bytes = options.bytes();
        // SAFETY: never freed.
        let queue = unsafe { endpoint.create(zeroed(bytes)?, bytes as u64, options) }?;
        endpoint.meet(queue.qpn, meeting(address, true, way), window)?;
    }
    lines.try_for_each(|line| line.map(drop))?;
    Ok(ExitCode::SUCCESS)
}

fn meeting(address: &str, listens: bool, way: Way) -> Meeting<'_> {
    Meeting {
        address,
        listens,
        is_anywhere: false,
        timeout: PATIENCE,
        way: Some(way),
    }
}

/// Allocates pages that stay for as long as the process.
fn zeroed(bytes: usize) -> anyhow::Result<*mut c_void> {
    let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
    // SAFETY: not of size 0.
    let at = unsafe { alloc_zeroed(Layout::from_size_align(bytes, PAGE_BYTES)?) };
    ensure!(!at.is_null(), "no memory of {bytes} bytes");
    Ok(at.cast())
}
