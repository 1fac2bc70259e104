//! Opening the session, once per process, in `cuInit`.

use std::{
    env::VarError,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use outboard_api::{
    CUresult,
    optimise::{self, Level},
};
use outboard_link::{Endpoint, dial, emulated};
use outboard_wire::handshake::{ClientHello, Purpose, RELEASE};
use parking_lot::Mutex;

use super::{
    DRIVER, DeviceOrder, Driver, Server,
    arrivals::Arrivals,
    driver,
    visible::{ORDER_VARIABLE, VISIBLE_VARIABLE},
    wire_context,
};
use crate::{
    log,
    observe::{optimise as levels, record, times},
};

/// Time limit for a server to set up a session: it loads the driver and creates contexts.
const CONNECT_S_MAX: u64 = 60;

/// Opens the session, if it is not open. A failure is logged once and can be retried.
pub(crate) fn connect() -> Result<(), CUresult> {
    static CONNECTING: Mutex<()> = Mutex::new(());
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let _one_at_a_time = CONNECTING.lock();
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let driver = open().inspect_err(|_| ())?;
    let _ = DRIVER.set(driver);
    levels::settle_by(settle_owed);
    if let Ok(driver) = self::driver() {
        let url = std::env::var("OUTBOARD_GPU").unwrap_or_default();
        record::connected(&url, driver.welcome.driver_version, driver.cards());
    }
    Ok(())
}

fn open() -> Result<Driver, CUresult> {
    let fail = |why: String| {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            log::warn(why);
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
    };
    let level = match std::env::var(optimise::VARIABLE) {
        Ok(text) => text
            .parse()
            .map_err(|error| fail(format!("{}: {error}", optimise::VARIABLE)))?,
        Err(VarError::NotPresent) => Level::default(),
        Err(error) => return Err(fail(format!("{}: {error}", optimise::VARIABLE))),
    };
    let url = std::env::var("OUTBOARD_GPU")
        .map_err(|_| fail("OUTBOARD_GPU names no server; start the program with `outboard run --gpu URL -- PROGRAM`".into()))?;
    let endpoint: Endpoint = url
        .parse()
        .map_err(|error| fail(format!("OUTBOARD_GPU={url}: {error}")))?;
    let hello = ClientHello {
        release: RELEASE.into(),
        purpose: Purpose::Session,
        pid: std::process::id(),
        program: program_name(),
        emulation: emulated::asked().map_err(|error| fail(error.to_string()))?,
        is_rdma: false,
        token: None,
    };
    let (link, socket, mut welcome) = dial(&endpoint, &hello, Duration::from_secs(CONNECT_S_MAX))
        .map_err(|error| {
        let said = error.to_string();
        // If nothing listens, the link's error already names the address.
        fail(if said.contains(&url) {
            said
        } else {
            format!("{url}: {said}")
        })
    })?;
    let key = welcome.key;
    let (visible, order) = (setting(VISIBLE_VARIABLE), setting(ORDER_VARIABLE));
    let devices = DeviceOrder::apply(&mut welcome, visible.as_deref(), order.as_deref())?;
    levels::choose(level);
    times::choose();
    let server = Server::new(link, vec![socket], welcome, devices, Box::new(Arrivals));
    let server = server.map_err(|why| fail(format!("{url}: {why}")))?;
    server.session.watch_server(&endpoint, key);
    Ok(Driver::new(server))
}

/// Makes the round trips that the current call owes.
fn settle_owed(owes: bool) {
    if let Ok(driver) = driver() {
        driver.session.settle_owed(wire_context(), owes);
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
    if let Some(driver) = DRIVER.get() {
        driver.session.abandon();
    }
}

/// Sends everything that was kept back before the process ends, and handles what has arrived, so
/// that errors of a program that has not waited for them are printed.
pub(crate) fn finish_at_exit() {
    if let Some(driver) = DRIVER.get() {
        driver.session.end_batches();
        driver.session.send_all();
        driver.session.poll();
    }
}
