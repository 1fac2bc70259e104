//! Contexts and devices.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use outboard_api::{CUresult, enums::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED};
use outboard_device::{Cx, Failure, Pending};
use outboard_wire::{doc::PeerCard, messages};

use super::{
    Array, Gpu, Nvidia,
    board::{NOT_WANTED, Wanted},
    deferred_free::Retired,
    host_calls,
    owned::{ContextHold, Mark, ready},
    printed::Reach,
    streams::STREAM_LEGACY,
    table::{Driver, real},
    waits::{LegacyEnd, MarksWait},
};

pub(super) struct Context {
    pub(super) hold: Arc<ContextHold>,
    pub(super) device: usize,
    /// Number of works that were submitted to its default stream.
    pub(super) legacy_works: u64,
    /// How many of them are known to be done.
    pub(super) legacy_done: Arc<AtomicU64>,
    /// Number of the last synchronous copy that its default stream's work waits for (`settled.rs`).
    pub(super) seen: u64,
}

impl Context {
    pub(super) fn new(hold: Arc<ContextHold>) -> Context {
        Context {
            device: hold.device,
            hold,
            legacy_works: 0,
            legacy_done: Arc::default(),
            seen: 0,
        }
    }

    /// Whether its default stream may still be at work.
    fn is_legacy_busy(&self) -> bool {
        self.legacy_works > self.legacy_done.load(Ordering::Relaxed)
    }

    /// Returns what notes, at the end of a wait for the default stream, that its work is done.
    pub(super) fn legacy_end(&self) -> LegacyEnd {
        LegacyEnd {
            done: self.legacy_done.clone(),
            works: self.legacy_works,
        }
    }
}

/// Records which devices may use whose memory. An error counts as no.
pub(super) fn find_peers(driver: &Driver, devices: &mut [Gpu]) {
    for owner in 0..devices.len() {
        devices[owner].peers = (0..devices.len())
            .filter(|user| {
                *user != owner
                    && driver
                        .cuDeviceCanAccessPeer(devices[*user].ordinal, devices[owner].ordinal)
                        .is_ok_and(|can| can != 0)
            })
            .collect();
    }
}

/// Number of members of `CUatomicOperation`; devices are asked about them one by one.
const ATOMIC_OPERATIONS: u32 = 13;

impl Nvidia {
    /// Describes a device's access to the memory of each device of the session.
    pub(super) fn peer_cards(&self, device: usize) -> Vec<PeerCard> {
        let user = self.devices[device].ordinal;
        let others = self.devices.iter().enumerate();
        others
            .map(|(number, owner)| {
                if number == device {
                    return PeerCard::default();
                }
                let attribute = |a| {
                    self.driver
                        .cuDeviceGetP2PAttribute(a, user, owner.ordinal)
                        .ok()
                };
                PeerCard {
                    can_access: owner.peers.contains(&device),
                    attributes: (0..=CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED)
                        .map(attribute)
                        .collect(),
                    atomics: (0..ATOMIC_OPERATIONS)
                        .map_while(|op| self.driver.peer_atomics(op, user, owner.ordinal).ok())
                        .collect(),
                }
            })
            .collect()
    }

    pub(super) fn primary_context_retain(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::PrimaryContextRetain,
    ) -> Result<(), Failure> {
        let ordinal = self.real_device(m.device)?;
        let hold = ContextHold::primary(&self.driver, m.device as usize, ordinal)?;
        self.contexts.insert(m.context, Context::new(hold))
    }

    pub(super) fn context_create(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::ContextCreate,
    ) -> Result<(), Failure> {
        let ordinal = self.real_device(m.device)?;
        // cuCtxCreate also makes the new context current.
        self.current = None;
        let hold = ContextHold::create(&self.driver, m.device as usize, ordinal, m.flags)?;
        self.contexts.insert(m.context, Context::new(hold))
    }

    pub(super) fn context_cache_config(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextCacheConfig,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        Ok(self.driver.cuCtxSetCacheConfig(m.config)?)
    }

    pub(super) fn context_get_limit(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextGetLimit,
    ) -> Result<messages::ContextGetLimitReply, Failure> {
        self.enter(cx)?;
        let value = self.driver.cuCtxGetLimit(m.limit)?;
        Ok(messages::ContextGetLimitReply { value })
    }

    pub(super) fn context_set_limit(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextSetLimit,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let current = self.context(cx.context)?.hold.handle;
        // The driver waits for all work of the context (580.159, H100).
        let set = |driver: &Driver| driver.cuCtxSetLimit(m.limit, m.value);
        let (driver, device) = self.aside();
        Ok(host_calls::aside(driver, current, device, cx.service, set)?)
    }

    pub(super) fn context_destroy(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::ContextDestroy,
    ) -> Result<(), Failure> {
        if m.context == 0 {
            return Err(Failure::wild("context", 0));
        }
        let marks = self.busy_marks();
        let context = self.contexts.remove(m.context)?;
        if self.current == Some(m.context) {
            self.current = None;
            self.driver.cuCtxSetCurrent(self.base.handle)?;
        }
        // The context's objects are removed with it; the context itself is released with the last
        // of them.
        let gone = &context.hold;
        self.streams
            .retain(|stream| !Arc::ptr_eq(stream.hold(), gone));
        self.events.retain(|event| !Arc::ptr_eq(event.hold(), gone));
        self.textures.retain(|o| !Arc::ptr_eq(&o.hold, gone));
        self.surfaces.retain(|o| !Arc::ptr_eq(&o.hold, gone));
        self.links.retain(|link| !Arc::ptr_eq(link.hold(), gone));
        // The driver waits for the device when it destroys an array (580.159, H100).
        let is_gone =
            |array: &Array| matches!(array, Array::Whole(o) if Arc::ptr_eq(&o.hold, gone));
        let arrays = self.arrays.extract(is_gone);
        let mipmaps = self.mipmaps.extract(|o| Arc::ptr_eq(&o.hold, gone));
        let memory = self.graphs.forget_context(gone);
        self.settled.forget_context(gone.handle);
        self.pools.forget_context(m.context);
        self.forget_functions(m.context);
        let objects = (arrays, mipmaps, memory, context.hold);
        self.deferred_frees
            .push(Retired::Other(Box::new(objects)), None, marks);
        self.forget_lost_captures();
        Ok(())
    }

    /// Forgets captures whose streams went with their context.
    fn forget_lost_captures(&mut self) {
        let streams = &self.streams;
        let is_lost = |id: u64| id > STREAM_LEGACY && streams.get(id).is_err();
        let lost = self.captures.extract_if(|id, _| is_lost(*id));
        let lost: Vec<_> = lost.map(|(_, begun)| begun).collect();
        for begun in lost {
            self.forget_capture(&begun);
        }
    }

    pub(super) fn fence_context(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::FenceContext,
    ) -> Result<Pending, Failure> {
        self.enter(cx)?;
        self.refuse_capturing(real::Stream::NULL, "a wait for a context")?;
        let context = self.context(cx.context)?;
        let (hold, legacy_used) = (context.hold.clone(), context.is_legacy_busy());
        let legacy_end = legacy_used.then(|| context.legacy_end());
        let mut busy = self.busy(cx.context, legacy_used)?;
        let wanted = Wanted {
            slot: m.slot,
            value: m.value,
        };
        if self.captures.is_empty() {
            self.orphans
                .retain(|(_, mark)| !mark.reached().unwrap_or(true));
        }
        let orphans = self.orphans.iter().filter(|(id, _)| *id == cx.context);
        let orphans: Vec<_> = orphans.map(|(_, mark)| mark.clone()).collect();
        let is_alone = orphans.is_empty() && self.captures.is_empty();
        let mut marks = Vec::new();
        if let [only] = busy[..]
            && is_alone
            && (!legacy_used || ready(self.driver.cuStreamQuery(real::Stream::NULL))?)
        {
            marks.push(self.watched_mark(&hold, only, wanted)?);
            busy.clear();
        } else {
            for stream in busy.drain(..) {
                marks.push(self.watched_mark(&hold, stream, NOT_WANTED)?);
            }
            // Without any other mark too, because the driver reports a fault of the GPU here. If
            // this is the only mark, the client may watch its word.
            if legacy_used || marks.is_empty() {
                let is_only = marks.is_empty() && orphans.is_empty();
                let wanted = if is_only { wanted } else { NOT_WANTED };
                marks.push(self.watched_mark(&hold, real::Stream::NULL, wanted)?);
            }
        }
        let printed = self.printing.due(Reach::Context(cx.context));
        let wait = MarksWait::new(marks, printed, legacy_end).with_orphans(orphans);
        Ok(Box::new(wait))
    }

    /// Makes the message's context current.
    #[inline]
    pub(super) fn enter(&mut self, cx: &Cx<'_>) -> Result<(), Failure> {
        if self.current == Some(cx.context) {
            return Ok(());
        }
        let handle = self.context(cx.context)?.hold.handle;
        self.driver.cuCtxSetCurrent(handle)?;
        self.current = Some(cx.context);
        self.follow_entered(cx.context)
    }

    /// Makes a stream's context current, after [`enter`](Self::enter): a kernel runs where its
    /// stream is, whichever context is current. The default stream is the current context's.
    #[inline]
    pub(super) fn enter_stream(&mut self, stream: u64) -> Result<(), Failure> {
        if stream <= STREAM_LEGACY {
            return Ok(());
        }
        let hold = self.streams.get(stream)?.hold();
        if Arc::ptr_eq(hold, self.current_hold()) {
            return Ok(());
        }
        let hold = hold.clone();
        let found = self
            .contexts
            .iter()
            .find(|(_, context)| Arc::ptr_eq(&context.hold, &hold))
            .map(|(id, _)| id);
        // The device's own context, if the session has not made it one of its own.
        let Some(found) = found else { return Ok(()) };
        self.driver.cuCtxSetCurrent(hold.handle)?;
        self.current = Some(found);
        self.follow_entered(found)
    }

    pub(super) fn context(&self, id: u64) -> Result<&Context, Failure> {
        self.contexts.get(id).map_err(|_| {
            Failure::new(
                CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
                format!("{id:#x} is no context of this session"),
            )
        })
    }

    /// Returns the context that is current.
    pub(super) fn current_hold(&self) -> &Arc<ContextHold> {
        self.current
            .and_then(|id| self.contexts.get(id).ok())
            .map_or(&self.base, |context| &context.hold)
    }

    /// Returns some context of a device, for memory that belongs to none.
    pub(super) fn hold_of(&self, device: usize) -> Result<Arc<ContextHold>, Failure> {
        if device == 0 {
            return Ok(self.base.clone());
        }
        let found = self
            .contexts
            .iter()
            .find(|(_, context)| context.device == device);
        match found {
            Some((_, context)) => Ok(context.hold.clone()),
            None => {
                let ordinal = self.real_device(device as i32)?;
                ContextHold::primary(&self.driver, device, ordinal)
            }
        }
    }

    /// Returns the driver's number of a device.
    pub(super) fn real_device(&self, device: i32) -> Result<i32, Failure> {
        usize::try_from(device)
            .ok()
            .and_then(|device| self.devices.get(device))
            .map(|gpu| gpu.ordinal)
            .ok_or_else(|| {
                Failure::new(
                    CUresult::CUDA_ERROR_INVALID_DEVICE,
                    format!("device {device} of {}", self.devices.len()),
                )
            })
    }

    /// Returns the driver's numbers of the devices that may use a device's memory, that device
    /// first.
    pub(super) fn reachable(&self, device: usize) -> Vec<i32> {
        self.devices.get(device).map_or(Vec::new(), |gpu| {
            std::iter::once(gpu.ordinal)
                .chain(gpu.peers.iter().map(|peer| self.devices[*peer].ordinal))
                .collect()
        })
    }

    /// Returns the streams of a context that a wait for it must mark, unless they are known to be
    /// done. If the default stream was used its mark covers the blocking ones; else it is not
    /// marked, because later work of all blocking streams would wait for their earlier work.
    fn busy(&mut self, id: u64, legacy_used: bool) -> Result<Vec<real::Stream>, Failure> {
        let context = self.context(id)?.hold.handle;
        let mut busy = Vec::new();
        let captures = !self.captures.is_empty();
        for stream in self.streams.values_mut() {
            let is_covered = stream.is_blocking && legacy_used;
            if !stream.used || is_covered || stream.hold().handle != context {
                continue;
            }
            let handle = stream.handle();
            // Work captured by a stream does not run.
            if captures && self.driver.cuStreamIsCapturing(handle)? != 0 {
                continue;
            }
            // During a capture the driver is not queried, because a query may invalidate the
            // capture.
            if !captures && ready(self.driver.cuStreamQuery(handle))? {
                stream.used = false;
            } else {
                busy.push(handle);
            }
        }
        Ok(busy)
    }

    /// Returns whether a fence of a context, or of its default stream, makes no later work wait: a
    /// mark in the default stream waits for all blocking streams, whose later work waits for it.
    /// Not called during a capture.
    pub(super) fn orders_nothing(&mut self, id: u64, of_default: bool) -> bool {
        let Ok(context) = self.contexts.get(id) else {
            return false;
        };
        let hold = context.hold.handle;
        // Destroyed streams were blocking ones, perhaps.
        let is_pending = |mark: &Mark| !mark.reached().unwrap_or(false);
        let mut orphans = self.orphans.iter().filter(|(of, _)| *of == id);
        if orphans.any(|(_, mark)| is_pending(mark)) {
            return false;
        }
        if !of_default && !context.is_legacy_busy() {
            return true;
        }
        let mut blocking = self
            .streams
            .values_mut()
            .filter(|stream| stream.used && stream.is_blocking && stream.hold().handle == hold);
        blocking.all(|stream| {
            let is_done = ready(self.driver.cuStreamQuery(stream.handle())).unwrap_or(false);
            stream.used = !is_done;
            is_done
        })
    }

    /// Whether the GPU has done all work of the session, as far as can be asked.
    pub(super) fn is_idle(&self) -> bool {
        let is_ready = |asked| ready(asked).unwrap_or(true);
        let is_done = |stream: real::Stream| is_ready(self.driver.cuStreamQuery(stream));
        let mut streams = self.streams.iter();
        let mut contexts = self.contexts.iter();
        // A query may invalidate a capture.
        let mut orphans = self.orphans.iter();
        self.captures.is_empty()
            && orphans.all(|(_, mark)| mark.reached().unwrap_or(true))
            && streams.all(|(_, stream)| !stream.used || is_done(stream.handle()))
            && contexts.all(|(_, context)| {
                let asks = |driver: &Driver| driver.cuStreamQuery(real::Stream::NULL);
                !context.is_legacy_busy() || is_ready(context.hold.within(asks))
            })
    }

    /// Marks every stream of a context that was ever used.
    fn context_marks(&self, id: u64) -> Result<Vec<Mark>, Failure> {
        let context = self.context(id)?;
        let mut marks = Vec::new();
        for (_, stream) in self.streams.iter() {
            // Work captured by a stream does not run.
            if stream.used
                && stream.hold().handle == context.hold.handle
                && !self.capturing(stream.handle())?
            {
                marks.push(context.hold.mark(stream.handle())?);
            }
        }
        self.refuse_capturing(real::Stream::NULL, "a wait for a context")?;
        // Only where it was used: later work of all blocking streams waits for what is before the
        // mark.
        if context.is_legacy_busy() {
            marks.push(context.hold.mark(real::Stream::NULL)?);
        }
        Ok(marks)
    }

    /// Marks all busy streams of all contexts, for memory freed now. Returns `None` while a capture
    /// prevents marks.
    pub(super) fn busy_marks(&mut self) -> Option<super::Marks> {
        if !self.captures.is_empty() {
            return None;
        }
        if let Some(marks) = &self.recent_marks {
            return Some(marks.clone());
        }
        let mut all = Vec::new();
        let ids: Vec<u64> = self.contexts.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Ok(context) = self.contexts.get(id) else {
                continue;
            };
            let used = context.is_legacy_busy()
                || self
                    .streams
                    .iter()
                    .any(|(_, s)| s.used && s.hold().handle == context.hold.handle);
            if !used {
                continue;
            }
            if self.driver.cuCtxSetCurrent(context.hold.handle).is_err() {
                continue;
            }
            // After a fault of the GPU nothing can be marked, and nothing runs.
            let marks = self.context_marks(id).unwrap_or_default();
            all.extend(marks.into_iter().map(Arc::new));
        }
        let restored = self.current.and_then(|id| self.contexts.get(id).ok());
        let handle = restored.map_or(self.base.handle, |context| context.hold.handle);
        if self.driver.cuCtxSetCurrent(handle).is_err() {
            self.current = None;
        }
        // Streams that were destroyed may still be at work.
        all.extend(self.orphans.iter().map(|(_, mark)| mark.clone()));
        let marks = Arc::new(all);
        self.recent_marks = Some(marks.clone());
        Some(marks)
    }
}
