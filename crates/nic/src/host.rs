//! The adapter of this process, made at the first use.

use std::{ffi::c_int, process, sync::OnceLock};

use outboard_net::{Adapter, Error, Network, Nic};

use crate::{fabric::Fabric, gid::Gid, refused::say};

/// An adapter and its place among others, which a forked child has not.
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) fabric: Fabric,
    process: u32,
}

/// Why a call is refused: a number of `errno`, and what of it.
pub(crate) type Refusal = (c_int, String);

pub(crate) fn host() -> Result<&'static Host, c_int> {
    static HOST: OnceLock<Result<&'static Host, String>> = OnceLock::new();
    match HOST.get_or_init(start) {
        Ok(host) if host.process == process::id() => Ok(host),
        Ok(_) => Err(libc::ENODEV),
        Err(why) => {
            say(&format!("outboard nic: there is no adapter: {why}"));
            Err(libc::EAGAIN)
        }
    }
}

/// Address of this adapter and of all that it reaches.
pub(crate) fn gid() -> Result<Gid, c_int> {
    host().map(|host| host.fabric.gid())
}

fn start() -> Result<&'static Host, String> {
    let (fabric, listener) = Fabric::join().map_err(|error| error.to_string())?;
    let nic = Nic::start(Network::default()).map_err(|error| error.to_string())?;
    nic.with(|adapter| {
        adapter.number_from(fabric.qpn_first());
        // As the port says.
        adapter.limit_messages();
    });
    let process = process::id();
    // It lasts as long as the process, as its threads do.
    let host: &Host = Box::leak(Box::new(Host {
        nic,
        fabric,
        process,
    }));
    let listening = host.fabric.listen(&host.nic, listener);
    listening.map_err(|error| error.to_string())?;
    // SAFETY: the function takes and returns nothing, and stays.
    unsafe { libc::atexit(finish) };
    Ok(host)
}

/// Sends answers that wait: the peers of a program that ends have no error of what it has executed.
extern "C" fn finish() {
    if let Ok(host) = host() {
        host.fabric.finish();
    }
}

/// Calls a function with the adapter.
pub(crate) fn with<T>(call: impl FnOnce(&mut Adapter) -> Result<T, Error>) -> Result<T, Refusal> {
    let host = host().map_err(|number| (number, "there is no adapter".to_owned()))?;
    host.nic.with(call).map_err(why)
}

pub(crate) fn why(error: Error) -> Refusal {
    let number = match error {
        Error::TooMany { .. } | Error::OutOfMemory(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    (number, error.to_string())
}

/// Fails in a process that is forked from the adapter's, where nobody serves what is posted.
pub(crate) fn check_process() -> Result<(), c_int> {
    host().map(drop)
}

/// Serves what was posted, in this thread.
pub(crate) fn ring() {
    if let Ok(host) = host() {
        host.nic.poll();
    }
}

/// Connects a queue pair to one of this or another process, by the numbers of both.
pub(crate) fn connect(qpn: u32, peer: u32) -> Result<(), Refusal> {
    let host = host().map_err(|number| (number, "there is no adapter".to_owned()))?;
    host.fabric.connect(&host.nic, qpn, peer).map_err(why)
}

/// Ends the connection of a queue pair to another process.
pub(crate) fn leave(qpn: u32) {
    if let Ok(host) = host() {
        host.fabric.leave(qpn);
    }
}
