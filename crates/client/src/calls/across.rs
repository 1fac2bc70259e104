//! Copies and waits between two servers. No server reaches another's memory, so the bytes go
//! straight from one server to the other where there is a way ([`straight`]), otherwise through
//! the client, in pieces; and the call waits until they are there.
//!
//! A copy first waits for all that its stream waits for, then works in streams of its own at the
//! servers of its ends. So it comes after all that was sent to its stream, and all that is sent
//! later comes after it.

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_LEGACY, CUarray, CUevent, CUstream},
    enums::*,
};
use outboard_wire::messages;

use super::{
    Done,
    straight::{self, Bytes, End},
};
use crate::{
    observe::servers::Selected,
    state::{
        Driver, Event, HandleKind, StreamRef, are_several, current_context, driver,
        driver_of_handle, drivers, on, on_address, on_stream, wire_context,
    },
};

/// Longest piece of a copy between servers, in bytes: the memory that the client needs for it.
pub(super) const PIECE_BYTES_MAX: usize = 16 << 20;

/// The server and place of one end of a copy.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Memory of a device.
    Device(&'static Driver, u64),
    Array(&'static Driver),
    /// The program's own memory.
    Host,
}

impl Place {
    fn of_address(address: u64) -> Place {
        let here = driver().ok();
        let mut all = here.into_iter().chain(drivers());
        match all.find(|driver| driver.owns(address)) {
            Some(driver) => Place::Device(driver, address),
            None => Place::Host,
        }
    }

    pub(super) fn of_record(memory_type: u32, address: u64, array: CUarray) -> Place {
        match memory_type {
            CU_MEMORYTYPE_ARRAY => match driver_of_handle(array.0 as u64) {
                Some(driver) => Place::Array(driver),
                None => Place::Host,
            },
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => Place::of_address(address),
            _ => Place::Host,
        }
    }

    pub(super) fn driver(self) -> Option<&'static Driver> {
        match self {
            Place::Device(driver, _) | Place::Array(driver) => Some(driver),
            Place::Host => None,
        }
    }

    /// Makes the thread's calls go to this end's server until the result is dropped.
    pub(super) fn select(self) -> Option<Selected> {
        match self {
            Place::Device(driver, address) => Some(on_address(driver, address)),
            Place::Array(driver) => Some(on(driver, driver.contexts.any_made())),
            Place::Host => None,
        }
    }
}

/// Runs a copy of one dimension through the client, in a process with several servers. If one of
/// them has all of it, that is selected instead. `check` refuses what is no device memory of a
/// driver, `copy` makes one part of the copy.
pub(super) fn line(
    stream: CUstream,
    wait: bool,
    (dst, src, bytes): (u64, u64, usize),
    check: impl Fn(&Driver, u64, usize) -> Done,
    copy: impl Fn(&Driver, (u64, u64, usize), &StreamRef) -> Done,
) -> Result<Option<Selected>, CUresult> {
    let ends = [dst, src].map(Place::of_address);
    let Some(crossing) = Crossing::of(stream, wait, ends)? else {
        return Ok(Some(on_stream(stream)));
    };
    if bytes == 0 {
        return Ok(None);
    }
    if dst == 0 || src == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    for (end, address) in ends.into_iter().zip([dst, src]) {
        let _selected = end.select();
        if let Some(driver) = end.driver() {
            check(driver, address, bytes)?;
        }
    }
    crossing.begin()?;
    let copy = |driver: &Driver, dst, src, bytes| {
        copy(driver, (dst, src, bytes), &driver.crossing_stream()?)
    };
    if !crossing.is_between_servers() {
        crossing.at(0, 1, |driver| copy(driver, dst, src, bytes))?;
        return Ok(None);
    }
    let whole = Bytes::Line {
        dst,
        src,
        bytes: bytes as u64,
    };
    if crossing.is_straight(whole)? {
        return Ok(None);
    }
    let mut buffer = vec![0_u8; bytes.min(PIECE_BYTES_MAX)];
    let through = buffer.as_mut_ptr() as u64;
    for offset in (0..bytes).step_by(PIECE_BYTES_MAX) {
        let len = (bytes - offset).min(PIECE_BYTES_MAX);
        let (to, from) = (dst + offset as u64, src + offset as u64);
        crossing.at(1, 1, |driver| copy(driver, through, from, len))?;
        crossing.at(0, 0, |driver| copy(driver, to, through, len))?;
    }
    Ok(None)
}

/// Waits for the streams that the default streams of both ends' devices do not wait for.
pub(super) fn settle_unordered(ends: [u64; 2]) -> Done {
    for end in ends.map(Place::of_address) {
        if let (Some(_selected), Some(driver)) = (end.select(), end.driver()) {
            driver.settle_unordered()?;
        }
    }
    Ok(())
}

/// A copy that no single server can make.
pub(super) struct Crossing {
    stream: CUstream,
    wait: bool,
    /// Destination and source.
    pub(super) ends: [Place; 2],
}

impl Crossing {
    /// Returns `None` if the server of the stream has both ends.
    pub(super) fn of(
        stream: CUstream,
        wait: bool,
        ends: [Place; 2],
    ) -> Result<Option<Crossing>, CUresult> {
        let number = {
            let _selected = on_stream(stream);
            driver()?.number
        };
        let mut others = ends.iter().filter_map(|end| end.driver());
        let is_crossing = others.any(|driver| driver.number != number);
        Ok(is_crossing.then_some(Crossing { stream, wait, ends }))
    }

    /// Returns whether both ends are devices'.
    pub(super) fn is_between_servers(&self) -> bool {
        self.ends.iter().all(|end| end.driver().is_some())
    }

    /// Waits for the work that precedes the copy.
    pub(super) fn begin(&self) -> Done {
        let is_legacy = {
            let _selected = on_stream(self.stream);
            let driver = driver()?;
            let stream = driver.work_stream(self.stream)?;
            driver.refuse_captured(&stream)?;
            driver.settle_stream(&stream)?;
            stream.is_legacy()
        };
        if !self.wait && !is_legacy {
            return Ok(());
        }
        // A copy in the default stream, or without one, also follows the work of its ends' devices.
        for end in self.ends {
            if let (Some(_selected), Some(driver)) = (end.select(), end.driver()) {
                let stream = driver.work_stream(CU_STREAM_LEGACY)?;
                driver.refuse_captured(&stream)?;
                driver.synchronize_stream(&stream)?;
            }
        }
        Ok(())
    }

    /// Makes a copy straight between the two servers, if that can be.
    pub(super) fn is_straight(&self, bytes: Bytes<'_>) -> Result<bool, CUresult> {
        let [Place::Device(..), Place::Device(..)] = self.ends else {
            return Ok(false);
        };
        let [dst, src] = self.ends.map(|place| -> Result<Option<End>, CUresult> {
            let Place::Device(driver, _) = place else {
                return Ok(None);
            };
            let _selected = place.select();
            Ok(Some(End {
                driver,
                context: wire_context(),
                stream: driver.crossing_stream()?,
            }))
        });
        let (Some(dst), Some(src)) = (dst?, src?) else {
            return Ok(false);
        };
        if !straight::copy(&dst, &src, bytes) {
            return Ok(false);
        }
        // The last pieces may not be written yet.
        self.at(0, 0, |_| Ok(())).map(|()| true)
    }

    /// Works at the server of the first of two ends that has one.
    pub(super) fn at(
        &self,
        first: usize,
        second: usize,
        work: impl FnOnce(&Driver) -> Done,
    ) -> Done {
        let ends = [self.ends[first], self.ends[second]];
        let found = ends.into_iter().find(|end| end.driver().is_some());
        let Some((end, driver)) = found.and_then(|end| Some((end, end.driver()?))) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let _selected = end.select();
        work(driver)?;
        let stream = driver.crossing_stream()?;
        driver.synchronize_stream(&stream)
    }
}

impl Driver {
    /// Returns whether an address is memory of this server's devices.
    fn owns(&self, address: u64) -> bool {
        self.has_address(address) || self.memory.lock().find(address).is_some()
    }

    /// Returns the current context's stream for copies between servers.
    pub(super) fn crossing_stream(&self) -> Result<StreamRef, CUresult> {
        let context = current_context()?;
        let mut known = self.crossing_streams.lock();
        let own = known.get(&context.0).cloned();
        if let Some(stream) = own.filter(|stream| self.streams.get(stream.handle).is_some()) {
            return Ok(StreamRef::Own(stream));
        }
        let handle = self.handles.mint(HandleKind::Stream);
        let flags = CU_STREAM_NON_BLOCKING;
        self.submit(&messages::StreamCreate {
            stream: handle,
            flags,
            priority: 0,
        })?;
        let stream = self.streams.insert(handle, context, flags, 0);
        known.insert(context.0, stream.clone());
        Ok(StreamRef::Own(stream))
    }

    /// Lets a stream of this server wait for an event of another: the call itself waits.
    pub(super) fn wait_for_foreign(&self, stream: &StreamRef, event: CUevent) -> Done {
        let (Some(owner), true) = (driver_of_handle(event.0 as u64), are_several()) else {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        let known = owner.streams.event(event)?;
        if owner.number == self.number {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        // A graph has the work of one server, and captured work never completes.
        if stream.is_capturing() || is_captured(&known) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        let context = owner.contexts.get(known.context).ok();
        let _selected = on(owner, context);
        owner.wait_for_event(&known)
    }
}

fn is_captured(event: &Event) -> bool {
    event.capture.load(std::sync::atomic::Ordering::Acquire) != 0
}
