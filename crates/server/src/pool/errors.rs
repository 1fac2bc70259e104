//! Errors of GPUs that the management library tells: a thread waits for its events, and looks for
//! GPUs that have fallen off the bus.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use outboard_pool::{
    Uuid,
    xid::{self, Verdict},
};
use tracing::{info, warn};

use super::Shared;
use crate::{
    devices::{self, DeviceOptions, GpuError, GpuErrorKind},
    limits,
};

const LOST: &str = "fallen off the bus, says the management library";

/// Broken GPUs, and why.
#[derive(Default)]
pub(super) struct Errors {
    /// Events that the manager has not heard of: it remembers them, until an operator says that the
    /// GPU is healthy.
    events: Mutex<BTreeMap<Uuid, String>>,
    /// GPUs that are not reached now.
    lost: Mutex<BTreeMap<Uuid, String>>,
}

impl Errors {
    /// Returns all that is to be reported.
    pub(super) fn all(&self) -> BTreeMap<Uuid, String> {
        let mut all = lock(&self.lost).clone();
        all.extend(lock(&self.events).clone());
        all
    }

    /// Notes that the manager has answered a report with these.
    pub(super) fn are_told(&self, told: &BTreeMap<Uuid, String>) {
        lock(&self.events).retain(|uuid, reason| told.get(uuid) != Some(reason));
    }

    /// Takes an event. Returns whether its GPU is broken.
    fn take(&self, uuid: Uuid, kind: GpuErrorKind) -> bool {
        let reason = match kind {
            GpuErrorKind::Xid(number) => match xid::verdict(number) {
                Verdict::Broken => xid::reason(number),
                verdict => {
                    let reason = xid::reason(number);
                    info!(%uuid, reason, ?verdict, "an error of the driver, which the GPU survives");
                    return false;
                }
            },
            GpuErrorKind::Event(text) => text.into(),
        };
        warn!(%uuid, reason, "a GPU is broken, says the management library");
        // The first reason stays until it is told.
        lock(&self.events).entry(uuid).or_insert(reason);
        true
    }

    /// Takes the GPUs that are not reached now. Returns whether they are others than before.
    fn are_lost(&self, lost: BTreeMap<Uuid, String>) -> bool {
        let before = std::mem::replace(&mut *lock(&self.lost), lost.clone());
        for uuid in lost.keys().filter(|uuid| !before.contains_key(uuid)) {
            warn!(%uuid, "a GPU has {LOST}");
        }
        before != lost
    }
}

fn lock(map: &Mutex<BTreeMap<Uuid, String>>) -> MutexGuard<'_, BTreeMap<Uuid, String>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread, if there is a management library. Each error wakes the agent.
pub(super) fn hear(
    device: DeviceOptions,
    uuids: Vec<Uuid>,
    shared: Arc<Shared>,
    wake: UnixStream,
) -> io::Result<()> {
    let builder = thread::Builder::new().name("outboard-errors".into());
    let heard = move || hear_always(&device, &uuids, &shared.errors, wake);
    builder.spawn(heard).map(drop)
}

fn hear_always(device: &DeviceOptions, uuids: &[Uuid], errors: &Errors, mut wake: UnixStream) {
    let mut is_told = false;
    loop {
        let texts = uuids.iter().map(Uuid::to_string).collect();
        let failure = match devices::watcher(device, texts) {
            None => return,
            Some(Err(failure)) => failure,
            Some(Ok(mut watcher)) => loop {
                let said = watcher.wait(Duration::from_millis(limits::POOL_CHECK_MS));
                let lost = watcher.lost().iter().filter_map(|uuid| uuid.parse().ok());
                let mut is_news = errors.are_lost(lost.map(|uuid| (uuid, LOST.into())).collect());
                match said {
                    Ok(None) => {}
                    Ok(Some(GpuError { uuid, kind })) => {
                        is_news |= uuid.parse().is_ok_and(|uuid| errors.take(uuid, kind));
                    }
                    Err(failure) => break failure,
                }
                if is_news {
                    let _ = wake.write(&[1]);
                }
            },
        };
        if !std::mem::replace(&mut is_told, true) {
            warn!(%failure, "errors of GPUs are not heard: the management library tells no events");
        }
        thread::sleep(Duration::from_millis(limits::POOL_EVENTS_RETRY_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_reported_until_the_manager_has_answered() {
        let errors = Errors::default();
        let (one, two) = (Uuid([1; 16]), Uuid([2; 16]));
        assert!(
            !errors.take(one, GpuErrorKind::Xid(31)),
            "the program's own"
        );
        assert!(!errors.take(one, GpuErrorKind::Xid(63)));
        assert!(errors.take(one, GpuErrorKind::Xid(79)));
        assert!(errors.take(one, GpuErrorKind::Xid(48)));
        let told = errors.all();
        assert_eq!(told[&one], "Xid 79: GPU has fallen off the bus");
        assert!(errors.take(two, GpuErrorKind::Event("double-bit ECC error")));
        errors.are_told(&told);
        let left = errors.all();
        assert_eq!(left.keys().collect::<Vec<_>>(), [&two]);

        let lost = || BTreeMap::from([(one, LOST.into())]);
        assert!(errors.are_lost(lost()));
        assert!(!errors.are_lost(lost()));
        errors.are_told(&errors.all());
        assert_eq!(errors.all(), lost(), "as long as it is not reached");
        assert!(errors.are_lost(BTreeMap::new()));
    }
}
