//! Opening the sessions, once per process, in `cuInit`.

use std::{
    env::VarError,
    fmt::Display,
    os::fd::RawFd,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use outboard_api::{
    CUresult,
    optimise::{self, Level},
};
use outboard_link::{Endpoint, Link, dial, emulated};
use outboard_wire::{
    handshake::{ClientHello, Purpose, RELEASE, ServerWelcome},
    several,
};
use parking_lot::Mutex;

use super::{
    DeviceOrder, Driver, Server,
    arrivals::Arrivals,
    driver, drivers,
    visible::{ORDER_VARIABLE, VISIBLE_VARIABLE},
    wire_context,
};
use crate::{
    log,
    observe::{conditions, optimise as levels, record, times},
    session::heartbeat_period,
};

/// Time limit for a server to set up a session: it loads the driver and creates contexts.
const CONNECT_S_MAX: u64 = 60;

/// Opens the sessions, if they are not open. A failure is logged once and can be retried.
pub(crate) fn connect() -> Result<(), CUresult> {
    static CONNECTING: Mutex<()> = Mutex::new(());
    if !drivers().is_empty() {
        return Ok(());
    }
    let _one_at_a_time = CONNECTING.lock();
    if !drivers().is_empty() {
        return Ok(());
    }
    let (addresses, all): (Vec<String>, Vec<Driver>) = open()?.into_iter().unzip();
    drivers::set(all);
    levels::settle_by(settle_owed);
    if let Ok(driver) = self::driver() {
        let url = std::env::var("OUTBOARD_GPU").unwrap_or_default();
        let cards = drivers().iter().map(|driver| driver.cards().to_vec());
        let servers = addresses.iter().map(String::as_str).zip(cards);
        record::connected(&url, driver.welcome.driver_version, servers);
    }
    Ok(())
}

/// Logs why there is no session; once, since programs try again.
fn fail(why: impl Display) -> CUresult {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn(why);
    }
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
}

/// A server that has welcomed this process.
struct Opened {
    endpoint: Endpoint,
    link: Link,
    socket: RawFd,
}

/// Opens a session with each server, and returns it with its address. One that cannot be reached
/// fails all: the program's devices would have other numbers.
fn open() -> Result<Vec<(String, Driver)>, CUresult> {
    let level = match std::env::var(optimise::VARIABLE) {
        Ok(text) => text
            .parse()
            .map_err(|error| fail(format!("{}: {error}", optimise::VARIABLE)))?,
        Err(VarError::NotPresent) => Level::default(),
        Err(error) => return Err(fail(format!("{}: {error}", optimise::VARIABLE))),
    };
    let urls = std::env::var("OUTBOARD_GPU")
        .map_err(|_| fail("OUTBOARD_GPU names no server; start the program with `outboard run --gpu URL -- PROGRAM`"))?;
    let endpoints =
        Endpoint::list(&urls).map_err(|error| fail(format!("OUTBOARD_GPU={urls}: {error}")))?;
    heartbeat_period().map_err(fail)?;
    let opened = endpoints.into_iter().zip(0..).map(dial_one);
    let opened: Vec<(Opened, ServerWelcome)> = opened.collect::<Result<_, _>>()?;
    let (opened, mut welcomes): (Vec<Opened>, Vec<ServerWelcome>) = opened.into_iter().unzip();
    several::tell_apart(welcomes.iter_mut().map(|welcome| &mut welcome.devices[..]));
    let (visible, order) = (setting(VISIBLE_VARIABLE), setting(ORDER_VARIABLE));
    let orders = DeviceOrder::apply(&mut welcomes, visible.as_deref(), order.as_deref())?;
    levels::choose(level);
    times::choose();
    let all = opened.into_iter().zip(welcomes).zip(orders);
    // The session with a server whose devices are all hidden ends here.
    all.filter(|((_, welcome), _)| !welcome.devices.is_empty())
        .zip(0..)
        .map(|(((opened, welcome), order), number)| {
            let address = opened.endpoint.to_string();
            Ok((address, begin(number, opened, welcome, order)?))
        })
        .collect()
}

/// Asks a server for a session with the window of this number.
fn dial_one((endpoint, window): (Endpoint, u8)) -> Result<(Opened, ServerWelcome), CUresult> {
    let hello = ClientHello {
        release: RELEASE.into(),
        purpose: Purpose::Session,
        pid: std::process::id(),
        program: program_name(),
        emulation: emulated::asked().map_err(fail)?,
        is_rdma: false,
        token: None,
        grant: None,
        window,
    };
    let dialled = dial(&endpoint, &hello, Duration::from_secs(CONNECT_S_MAX));
    let (link, socket, welcome) = dialled.map_err(|error| {
        let (said, url) = (error.to_string(), endpoint.to_string());
        // If nothing listens, the link's error already names the address.
        fail(match said.contains(&url) {
            true => said,
            false => format!("{url}: {said}"),
        })
    })?;
    let opened = Opened {
        endpoint,
        link,
        socket,
    };
    Ok((opened, welcome))
}

/// Begins the session with the server that has this number in the process.
fn begin(
    number: u8,
    opened: Opened,
    welcome: ServerWelcome,
    order: DeviceOrder,
) -> Result<Driver, CUresult> {
    let (endpoint, key) = (opened.endpoint, welcome.key);
    let arrivals = Box::new(Arrivals(number));
    let fds = vec![opened.socket];
    let server = Server::new(number, opened.link, fds, welcome, order, arrivals);
    let mut server = server.map_err(|why| fail(format!("{endpoint}: {why}")))?;
    server.peer_address = endpoint.is_for_peers().then(|| endpoint.to_string());
    server.is_emulated = emulated::asked().is_ok_and(|asked| asked.is_some());
    server.session.watch_server(&endpoint, key);
    Ok(Driver::new(server))
}

/// Makes the round trips that the current call owes.
fn settle_owed(owes: bool) {
    if let Ok(driver) = driver() {
        driver.session.settle_owed(wire_context(), owes);
        for other in drivers() {
            // A copy between servers has sent to both.
            if other.number != driver.number {
                other.session.settle_owed(0, false);
            }
        }
    }
}

/// Returns a variable of the environment, if it is set.
fn setting(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Closes the parent's sockets in a forked child, without a message to the server.
pub(crate) fn abandon_after_fork() {
    for driver in drivers() {
        driver.session.abandon();
    }
}

/// Sends everything that was kept back before the process ends, and handles what has arrived, so
/// that errors of a program that has not waited for them are printed.
pub(crate) fn finish_at_exit() {
    // An error belongs to a call that nobody makes any more.
    conditions::send_held();
    for driver in drivers() {
        driver.session.end_batches();
        driver.session.send_all();
        driver.session.poll();
    }
}
