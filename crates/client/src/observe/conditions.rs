//! Unusual conditions of the process, so that a usual call tests one byte for all of them.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, Ordering},
};

/// The unusual conditions of this process as bits; 0, the usual value, is all that a call tests
/// for.
pub(super) static UNUSUAL: AtomicU8 = AtomicU8::new(0);
/// A child that was forked after CUDA was used. It has no session, as on a local GPU.
pub(super) const FORKED: u8 = 1;
/// The level of optimisation is not the highest.
pub(super) const LOWERED: u8 = 2;
/// Calls are timed.
pub(super) const TIMED: u8 = 4;
/// Calls are recorded.
pub(super) const RECORDED: u8 = 8;
/// Calls are reported to libcupti.
pub(super) const PROFILED: u8 = 16;

/// The process has several servers, so each call is for one of them.
pub(super) const SEVERAL: u8 = 32;
/// Launches are held back, and have to be sent before other calls.
pub(super) const HELD: u8 = 64;

/// Notes whether launches are held back.
pub(crate) fn mark_held(are_held: bool) {
    match are_held {
        true => UNUSUAL.fetch_or(HELD, Ordering::Release),
        // Whoever sees it sees what was sent.
        false => UNUSUAL.fetch_and(!HELD, Ordering::Release),
    };
}

/// A function that sends what is held back.
type SendHeld = fn();

static SEND_HELD: OnceLock<SendHeld> = OnceLock::new();

/// Sets the function that sends what is held back, before anything is.
pub(crate) fn send_held_by(send: SendHeld) {
    let _ = SEND_HELD.set(send);
}

/// Sends the launches that are held back, before anything else of the program.
#[cold]
pub(crate) fn send_held() {
    if let Some(send) = SEND_HELD.get() {
        send();
    }
}

/// Returns whether launches are held back.
#[inline]
pub(crate) fn are_held() -> bool {
    UNUSUAL.load(Ordering::Acquire) & HELD != 0
}

/// Returns whether launches may be held back: nothing else is unusual.
pub(crate) fn may_hold() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & !HELD == 0
}

pub(crate) fn mark_several() {
    UNUSUAL.fetch_or(SEVERAL, Ordering::Relaxed);
}

pub(crate) fn mark_forked() {
    UNUSUAL.fetch_or(FORKED, Ordering::Relaxed);
}

pub(crate) fn mark_lowered() {
    UNUSUAL.fetch_or(LOWERED, Ordering::Relaxed);
}

pub(crate) fn mark_timed() {
    UNUSUAL.fetch_or(TIMED, Ordering::Relaxed);
}

pub(crate) fn mark_recorded() {
    UNUSUAL.fetch_or(RECORDED, Ordering::Relaxed);
}

/// Turns the reporting of calls on or off.
pub(crate) fn mark_profiled(on: bool) {
    match on {
        true => UNUSUAL.fetch_or(PROFILED, Ordering::Relaxed),
        false => UNUSUAL.fetch_and(!PROFILED, Ordering::Relaxed),
    };
}

#[inline]
pub(crate) fn is_profiled() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & PROFILED != 0
}

#[inline]
pub(crate) fn is_recorded() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & RECORDED != 0
}

/// Returns whether calls take the slow path.
#[inline(always)]
pub(crate) fn is_unusual() -> bool {
    UNUSUAL.load(Ordering::Relaxed) != 0
}

#[inline]
pub(crate) fn is_lowered() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & LOWERED != 0
}

#[inline]
pub(crate) fn are_several() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & SEVERAL != 0
}

#[inline]
pub(crate) fn is_timed() -> bool {
    UNUSUAL.load(Ordering::Relaxed) & TIMED != 0
}
