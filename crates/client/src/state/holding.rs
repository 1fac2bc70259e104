//! Holding launches back, and sending them (`held.rs`).

use std::{sync::atomic::Ordering, time::Duration};

use outboard_api::CUresult;

use super::{
    Driver, StreamRef, are_several, drivers,
    held::{HeldLaunch, REST},
    mirrors::OpenMirrors,
};
use crate::{
    library_thread,
    observe::{conditions, stats},
    thread,
};

/// Looks in vain of the thread that sends what is held for too long, before it sleeps until it is
/// woken.
const VAIN_MAX: u32 = 50;

/// Sends the launches that are held back, before anything else of the program. What cannot be sent
/// is told by the next wait.
fn send_held() {
    for driver in drivers() {
        let mut open = driver.mirrors.open.lock();
        if !open.held.is_empty() {
            open.is_looked_at_by_this_thread();
            let looked = driver.look(&mut open, false);
            thread::here().has_looked.set(looked.is_ok());
        }
    }
}

impl Driver {
    /// Holds a launch back, whose arguments have `bytes` bytes, if mirrors were looked at just now
    /// and looks take long. Returns whether it did; if not, the caller looks and sends.
    ///
    /// The caller has opened the mirrors that the arguments name.
    pub(crate) fn hold(
        &self,
        stream: &StreamRef,
        bytes: usize,
        launch: impl FnOnce() -> HeldLaunch,
    ) -> Result<bool, CUresult> {
        // Tests of this crate share the process's conditions.
        if cfg!(test) {
            return Ok(false);
        }
        if are_several() || stream.is_capturing() || self.session.is_receiving() {
            return Ok(false);
        }
        let mut open = self.mirrors.open.lock();
        let is_plain = conditions::may_hold() && !self.mirrors.are_lent.load(Ordering::Acquire);
        if !is_plain || !open.has_any() || !open.held.takes(bytes) {
            return Ok(false);
        }
        if !*open.held.has_thread.get_or_insert_with(start_thread) {
            return Ok(false);
        }
        self.session.check_in(stream.context())?;
        stats::sent();
        open.is_looked_at_by_this_thread();
        self.mirrors.holds();
        if open.held.is_empty() {
            conditions::mark_held(true);
        }
        open.held.add(launch());
        if std::mem::take(&mut open.held.is_parked) {
            self.mirrors.wake.notify_one();
        }
        Ok(true)
    }

    /// Sends what is held back, after a look.
    pub(super) fn send_after_look(&self, open: &mut OpenMirrors) -> Result<(), CUresult> {
        if open.held.is_empty() {
            return Ok(());
        }
        // One that cannot be sent means that the session has ended: those of a lost context fail at
        // the server, and keep no other's back.
        let launches = open.held.take();
        let sent = launches.iter().try_for_each(|launch| self.send_one(launch));
        // Only now: until then the next call of the thread that launched has to wait for the lock.
        conditions::mark_held(false);
        sent
    }

    /// Gives up what is held, since it cannot be looked at what it may read. As the error of a
    /// launch that has returned, the next wait of its context tells of it.
    pub(super) fn refuse_held(&self, open: &mut OpenMirrors, error: CUresult) {
        let launches = open.held.take();
        for launch in &launches {
            self.session.set_fault_in(launch.context, error);
        }
        if !launches.is_empty() {
            conditions::mark_held(false);
        }
    }

    fn send_one(&self, launch: &HeldLaunch) -> Result<(), CUresult> {
        let (stream, session) = (&launch.stream, &self.session);
        let sent = session.submit(stream.work(), launch.context, &launch.message());
        sent.map(drop)
    }

    /// Sends what is held for too long, until the session has ended.
    fn send_late(&self) {
        let mut vain = 0;
        let mut open = self.mirrors.open.lock();
        open.is_looked_at_by_this_thread();
        while !self.session.is_gone() {
            match open.held.rest() {
                Some(Duration::ZERO) => {
                    vain = 0;
                    // The next wait tells of an error.
                    let _ = self.look(&mut open, false);
                }
                Some(rest) => _ = self.mirrors.wake.wait_for(&mut open, rest),
                None if vain < VAIN_MAX => {
                    vain += 1;
                    self.mirrors.wake.wait_for(&mut open, REST);
                }
                None => {
                    vain = 0;
                    open.held.is_parked = true;
                    self.mirrors.wake.wait(&mut open);
                }
            }
        }
        self.refuse_held(&mut open, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
}

/// Starts the thread that sends what is held for too long. Returns whether there is one.
fn start_thread() -> bool {
    conditions::send_held_by(send_held);
    library_thread::spawn("outboard-held", || {
        if let Some(driver) = drivers().first() {
            driver.send_late();
        }
    })
}
