//! Driver objects that release themselves, and marks in streams.

use std::sync::{Arc, Mutex, PoisonError};

use outboard_api::{CUresult, enums::CU_EVENT_DISABLE_TIMING};
use outboard_device::{Charge, Failure};

use super::table::{Driver, Refused, real};

/// A context, released when no object of it is left: destroying it would destroy streams and events
/// that waits may still use.
pub(super) struct ContextHold {
    pub(super) driver: Arc<Driver>,
    pub(super) handle: real::Context,
    /// The session's number of its device.
    pub(super) device: usize,
    /// The driver's number of the device, if this is a primary context.
    primary_of: Option<i32>,
    /// A pool of events for marks, so that waits create none.
    events: Mutex<Vec<real::Event>>,
}

impl ContextHold {
    pub(super) fn primary(
        driver: &Arc<Driver>,
        device: usize,
        ordinal: i32,
    ) -> Result<Arc<ContextHold>, Failure> {
        let handle = driver.cuDevicePrimaryCtxRetain(ordinal)?;
        Ok(ContextHold::new(driver, handle, device, Some(ordinal)))
    }

    pub(super) fn create(
        driver: &Arc<Driver>,
        device: usize,
        ordinal: i32,
        flags: u32,
    ) -> Result<Arc<ContextHold>, Failure> {
        let handle = driver.cuCtxCreate_v2(flags, ordinal)?;
        Ok(ContextHold::new(driver, handle, device, None))
    }

    fn new(
        driver: &Arc<Driver>,
        handle: real::Context,
        device: usize,
        primary_of: Option<i32>,
    ) -> Arc<ContextHold> {
        Arc::new(ContextHold {
            driver: driver.clone(),
            handle,
            device,
            primary_of,
            events: Mutex::new(Vec::new()),
        })
    }

    /// Makes a call that uses the current context, which may be another one or none, in this one.
    pub(super) fn within<T>(
        &self,
        call: impl FnOnce(&Driver) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        self.driver.cuCtxPushCurrent_v2(self.handle)?;
        let result = call(&self.driver);
        self.driver.cuCtxPopCurrent_v2()?;
        result
    }

    /// Marks a point in a stream of this context, reached when everything submitted so far is done.
    pub(super) fn mark(self: &Arc<Self>, stream: real::Stream) -> Result<Mark, Refused> {
        let pooled = self
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let event = match pooled {
            Some(event) => event,
            None => self.within(|driver| driver.cuEventCreate(CU_EVENT_DISABLE_TIMING))?,
        };
        let mark = Mark {
            hold: self.clone(),
            event,
        };
        self.driver.cuEventRecordWithFlags(event, stream, 0)?;
        Ok(mark)
    }
}

impl Drop for ContextHold {
    fn drop(&mut self) {
        let events = std::mem::take(
            self.events
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for event in events {
            given_back(self.driver.cuEventDestroy_v2(event));
        }
        given_back(match self.primary_of {
            Some(ordinal) => self.driver.cuDevicePrimaryCtxRelease_v2(ordinal),
            None => self.driver.cuCtxDestroy_v2(self.handle),
        });
    }
}

/// A point in a stream. Its event returns to the pool when the mark is dropped.
pub(super) struct Mark {
    hold: Arc<ContextHold>,
    event: real::Event,
}

impl Mark {
    /// Whether the point is reached. An error comes from the GPU.
    pub(super) fn reached(&self) -> Result<bool, Refused> {
        ready(self.hold.driver.cuEventQuery(self.event))
    }

    /// Makes work submitted to a stream from now on wait for the point.
    pub(super) fn hold_up(&self, stream: real::Stream) -> Result<(), Refused> {
        self.hold.driver.cuStreamWaitEvent(stream, self.event, 0)
    }

    /// Makes the driver do what it does in calls that synchronise: write out what kernels printed,
    /// and count memory as free that streams have freed. For a mark that is reached, so that the
    /// call does not wait.
    pub(super) fn synchronize(&self) -> Result<(), Refused> {
        self.hold.driver.cuEventSynchronize(self.event)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.hold
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.event);
    }
}

pub(super) fn ready(queried: Result<(), Refused>) -> Result<bool, Refused> {
    match queried {
        Ok(()) => Ok(true),
        Err(refused) if refused.status == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(refused) => Err(refused),
    }
}

/// A handle, and the function that releases it.
pub(super) struct Owned<H: Copy> {
    handle: H,
    pub(super) hold: Arc<ContextHold>,
    free: fn(&Driver, H) -> Result<(), Refused>,
    /// Memory that counts as in use as long as the object is there.
    _charge: Option<Charge>,
}

impl<H: Copy> Owned<H> {
    pub(super) fn new(
        hold: &Arc<ContextHold>,
        handle: H,
        free: fn(&Driver, H) -> Result<(), Refused>,
    ) -> Owned<H> {
        Owned {
            handle,
            hold: hold.clone(),
            free,
            _charge: None,
        }
    }

    pub(super) fn charged(self, charge: Charge) -> Owned<H> {
        let mut owned = self;
        owned._charge = Some(charge);
        owned
    }

    pub(super) fn handle(&self) -> H {
        self.handle
    }
}

impl<H: Copy> Drop for Owned<H> {
    fn drop(&mut self) {
        given_back((self.free)(&self.hold.driver, self.handle));
    }
}

/// Logs a failed release. Nothing can be done about it: after a GPU fault every call returns the
/// fault.
pub(super) fn given_back(freed: Result<(), Refused>) {
    if let Err(refused) = freed {
        tracing::debug!(
            symbol = refused.symbol,
            status = %refused.status,
            "the driver did not take an object back"
        );
    }
}
