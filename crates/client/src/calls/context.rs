//! Contexts: primary ones, those that the program creates, and the calling thread's stack of them.

use std::{ffi::c_void, sync::atomic::Ordering};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUctxCreateParams, CUdevice},
    enums::CU_FUNC_CACHE_PREFER_EQUAL,
};
use outboard_wire::messages;
use parking_lot::MutexGuard;

use super::{Done, In, Out};
use crate::{
    context::Context,
    observe::optimise,
    state::{
        Awaited, Chunk, Driver, context_storage, current_context, driver, drivers, pop_context,
        push_context, set_context,
    },
};

/// Version that `cuCtxGetApiVersion` returns for contexts of the current API.
const API_VERSION: u32 = 3020;

impl Driver {
    /// Has the server retain the primary context of a device, at its first use.
    pub(super) fn retain_on_server(&self, primary: &Context) -> Done {
        if primary.created.load(Ordering::Acquire) {
            return Ok(());
        }
        let _making = primary.making.lock();
        if primary.created.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = messages::PrimaryContextRetain {
            context: primary.handle.0 as u64,
            device: self.devices.server(primary.device)?,
        };
        // If it cannot be sent, the next use tries again.
        self.submit_in(0, &message)?;
        primary.created.store(true, Ordering::Release);
        Ok(())
    }

    /// Has the server create a context. Waits for its reply: a GPU without memory for a context
    /// refuses it.
    fn create_on_server(&self, context: &Context) -> Done {
        let message = messages::ContextCreate {
            context: context.handle.0 as u64,
            device: self.devices.server(context.device)?,
            flags: context.flags.load(Ordering::Relaxed),
        };
        self.session.call(0, &message, |_| ())?;
        context.created.store(true, Ordering::Release);
        Ok(())
    }

    /// Destroys a context and everything in it, except for what runtimes keep with it.
    fn destroy_context(&self, context: &Context) -> Done {
        context.asked_limits.lock().forget();
        self.contexts.forget_peer(context);
        self.captures.remove_context(context.handle);
        self.streams
            .remove_context(context.handle, &self.session.progress);
        for library in self.libraries.of_context(context.handle) {
            self.libraries.remove(&library);
        }
        self.objects.remove_context(context.handle.0 as u64);
        let foreign = self.close_foreign(context.handle);
        let own = self.memory.lock().free_context(context.handle);
        let pooled = match context.primary {
            true => self.pools_reset(context.device),
            false => Vec::new(),
        };
        let ended = self.end_on_server(context, foreign.iter().chain(&own).chain(&pooled));
        // Only now may another context's allocation have the addresses.
        let mut memory = self.memory.lock();
        for chunk in foreign {
            memory.give_addresses(chunk);
        }
        for chunk in own {
            memory.give_freed(chunk, context.device);
        }
        for chunk in pooled {
            memory.give_chunk(chunk, context.device);
        }
        ended
    }

    /// Has the server unmap a context's memory and destroy the context, if it has made it.
    fn end_on_server<'c>(
        &self,
        context: &Context,
        chunks: impl Iterator<Item = &'c Chunk>,
    ) -> Done {
        let _making = context.making.lock();
        if !context.created.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let wire = context.handle.0 as u64;
        let mut sent = Ok(());
        self.session.end_context(wire, || {
            for chunk in chunks {
                // What is not freed now is freed with the context.
                let _ = self.unmap(wire, *chunk);
            }
            sent = self.submit_in(wire, &messages::ContextDestroy { context: wire });
        });
        sent
    }

    /// Frees memory once all work of the current context is done, as a local GPU's driver does. An
    /// error of that work is told, and does not keep the memory.
    pub(crate) fn free_after_work(&self, free: impl FnOnce() -> Done) -> Done {
        let is_at_work = |context| self.streams.is_at_work(context, &self.session.progress);
        let waited = match self.contexts.current() {
            // The work may wait for the host function that this thread runs.
            Ok(_) if optimise::is_exempt() => Ok(()),
            Ok(context) if is_at_work(context.handle) => self.synchronize_context(),
            _ => Ok(()),
        };
        let freed = free();
        match waited {
            // What is captured does not run: nothing of it is waited for.
            Err(error) if !error.is_of_capture() => Err(error),
            _ => freed,
        }
    }

    /// Waits until all work of the current context is done.
    pub(crate) fn synchronize_context(&self) -> Done {
        let context = self.contexts.current()?;
        // Before the mark: what used the memory that is free by then is waited for.
        let frees = self.pools_mark();
        let mark = self.session.progress.mark();
        let mut pushed = Ok(());
        if !self.session.progress.is_idle() {
            // The work is waited for in spite of an error: memory may be freed after that.
            pushed = self.push_before_wait();
            let awaited = Awaited::here(context.handle.0 as u64, None);
            let group = self.fence_for(awaited, mark)?;
            self.session.wait(&group)?;
            self.streams.complete_in(context.handle, mark);
            // The fence was about this context only; work of other contexts may still run.
            if self.contexts.is_only() {
                self.session.progress.complete(mark);
            }
            self.pools_waited_for_context(context.handle, frees);
        }
        pushed?;
        self.session.take_fault(|| context.handle.0 as u64)
    }
}

pub(crate) fn cuDevicePrimaryCtxRetain(context: Out<'_, CUcontext>, device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let primary = driver.contexts.primary(device)?;
    context.check()?;
    {
        let _holders = primary.holders.lock();
        driver.retain_on_server(primary)?;
        primary.revive();
        primary.retained.fetch_add(1, Ordering::AcqRel);
    }
    context.put(primary.handle)
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let primary = driver.contexts.primary(device)?;
    let mut holders = primary.holders.lock();
    let left = match primary.retained.load(Ordering::Acquire) {
        0 => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        count => count - 1,
    };
    primary.retained.store(left, Ordering::Release);
    if left > 0 {
        return Ok(());
    }
    let kept = context_storage::take_storage(primary.handle);
    if !kept.is_silent() {
        // A runtime's function may wait for a thread that retains the context, which is then kept
        // as it is.
        MutexGuard::unlocked(&mut holders, || kept.destroy());
        if primary.retained.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
    }
    driver.destroy_context(primary)?;
    primary.end();
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let primary = driver.contexts.primary(device)?;
    context_storage::destroy_storage(primary.handle);
    let _holders = primary.holders.lock();
    driver.destroy_context(primary)?;
    // Those who retained the context keep their handle: its next use finds a new context.
    if primary.retained.load(Ordering::Acquire) > 0 {
        driver.retain_on_server(primary)?;
    }
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: Out<'_, u32>,
    active: Out<'_, i32>,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let primary = driver.contexts.primary(device)?;
    if flags.is_null() && active.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    flags.put_optional(primary.flags.load(Ordering::Relaxed));
    active.put_optional(i32::from(primary.retained.load(Ordering::Acquire) > 0));
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    check_flags(flags)?;
    driver
        .contexts
        .primary(device)?
        .flags
        .store(flags, Ordering::Relaxed);
    Ok(())
}

/// Scheduling (3 bits), map host, local memory resize, coredump, user coredump, sync memops.
const FLAGS_MASK: u32 = 0xff;

fn check_flags(flags: u32) -> Done {
    let scheduling = flags & 7;
    let known = flags & !FLAGS_MASK == 0 && matches!(scheduling, 0 | 1 | 2 | 4);
    if known {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

pub(crate) fn cuCtxCreate_v2(context: Out<'_, CUcontext>, flags: u32, device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    check_flags(flags)?;
    context.check()?;
    let created = driver.contexts.create(device, flags, API_VERSION)?;
    driver
        .create_on_server(created)
        .inspect_err(|_| driver.contexts.remove(created.handle))?;
    push_context(created);
    context.put(created.handle)
}

pub(crate) unsafe fn cuCtxCreate_v3(
    context: Out<'_, CUcontext>,
    _affinity: *mut c_void,
    affinities: i32,
    flags: u32,
    device: CUdevice,
) -> Done {
    if affinities != 0 {
        return Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuCtxCreate_v4(
    context: Out<'_, CUcontext>,
    params: In<'_, CUctxCreateParams>,
    flags: u32,
    device: CUdevice,
) -> Done {
    if let Some(params) = params.get_optional()
        && (params.num_exec_affinity_params != 0 || !params.cig_params.is_null())
    {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuCtxDestroy_v2(context: CUcontext) -> Done {
    let driver = driver()?;
    if context.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let context = driver.contexts.get(context)?;
    if context.primary {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    context_storage::destroy_storage(context.handle);
    driver.destroy_context(context)?;
    driver.contexts.remove(context.handle);
    if current_context() == Ok(context.handle) {
        pop_context()?;
    }
    Ok(())
}

pub(crate) fn cuCtxAttach(context: Out<'_, CUcontext>, flags: u32) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    context.put(current_context()?)
}

pub(crate) fn cuCtxDetach(context: CUcontext) -> Done {
    driver()?.contexts.get(context).map(|_| ())
}

pub(crate) fn cuCtxPushCurrent_v2(context: CUcontext) -> Done {
    let driver = driver()?;
    if context.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    push_context(driver.contexts.get(context)?);
    Ok(())
}

pub(crate) fn cuCtxPopCurrent_v2(context: Out<'_, CUcontext>) -> Done {
    driver()?;
    let popped = pop_context()?;
    context.put_optional(popped);
    Ok(())
}

pub(crate) fn cuCtxSetCurrent(context: CUcontext) -> Done {
    let driver = driver()?;
    set_context(match context.is_null() {
        true => None,
        false => Some(driver.contexts.get(context)?),
    });
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(context: Out<'_, CUcontext>) -> Done {
    driver()?;
    context.put(current_context().unwrap_or(CUcontext::NULL))
}

pub(crate) fn cuCtxGetDevice(device: Out<'_, CUdevice>) -> Done {
    // The driver checks the output first, even before `cuInit`.
    device.check()?;
    driver()?;
    // A context that has ended still has its device.
    let context = crate::thread::here().context.get();
    let context = context.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    device.put(context.device)
}

/// Returns the context of an argument, of which NULL is the current one.
fn given_or_current(driver: &Driver, context: CUcontext) -> Result<&'static Context, CUresult> {
    if context.is_null() {
        driver.contexts.current()
    } else {
        driver.contexts.get(context)
    }
}

pub(crate) fn cuCtxGetDevice_v2(device: Out<'_, CUdevice>, context: CUcontext) -> Done {
    device.put(given_or_current(driver()?, context)?.device)
}

pub(crate) fn cuCtxGetFlags(flags: Out<'_, u32>) -> Done {
    flags.put(driver()?.contexts.current()?.flags.load(Ordering::Relaxed))
}

pub(crate) fn cuCtxSetFlags(flags: u32) -> Done {
    check_flags(flags)?;
    driver()?
        .contexts
        .current()?
        .flags
        .store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetId(context: CUcontext, id: Out<'_, u64>) -> Done {
    id.put(given_or_current(driver()?, context)?.number)
}

pub(crate) fn cuCtxGetApiVersion(context: CUcontext, version: Out<'_, u32>) -> Done {
    version.put(given_or_current(driver()?, context)?.api_version)
}

pub(crate) fn cuCtxGetStreamPriorityRange(least: Out<'_, i32>, greatest: Out<'_, i32>) -> Done {
    let driver = driver()?;
    let (low, high) = driver
        .card(driver.contexts.current()?.device)?
        .stream_priorities;
    least.put_optional(low);
    greatest.put_optional(high);
    Ok(())
}

pub(crate) fn cuCtxGetCacheConfig(config: Out<'_, u32>) -> Done {
    let context = driver()?.contexts.current()?;
    config.put(context.cache_config.load(Ordering::Relaxed))
}

pub(crate) fn cuCtxSetCacheConfig(config: u32) -> Done {
    let driver = driver()?;
    let context = driver.contexts.current()?;
    if config > CU_FUNC_CACHE_PREFER_EQUAL {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.submit(&messages::ContextCacheConfig { config })?;
    context.cache_config.store(config, Ordering::Relaxed);
    Ok(())
}

/// Answers from an earlier answer, if nothing since can have changed the limit.
pub(crate) fn cuCtxGetLimit(value: Out<'_, usize>, limit: u32) -> Done {
    let driver = driver()?;
    value.check()?;
    let context = driver.contexts.current()?;
    let sent = driver.session.progress.mark();
    let (known, changes) = {
        let limits = context.asked_limits.lock();
        (limits.known(limit, sent), limits.changes())
    };
    let answer = match known {
        Some(answer) => answer,
        None => {
            let answer = driver.call(&messages::ContextGetLimit { limit }, |reply| reply.value)?;
            let mut limits = context.asked_limits.lock();
            limits.keep(limit, answer, changes, sent);
            answer
        }
    };
    value.put(answer as usize)
}

pub(crate) fn cuCtxSetLimit(limit: u32, value: usize) -> Done {
    let driver = driver()?;
    let context = driver.contexts.current()?;
    let value = value as u64;
    context.asked_limits.lock().forget();
    let done = driver.call(&messages::ContextSetLimit { limit, value }, |_| ());
    context.asked_limits.lock().forget();
    done
}

/// Returns four bytes: bank sizes cannot be chosen since compute capability 5.
pub(crate) fn cuCtxGetSharedMemConfig(config: Out<'_, u32>) -> Done {
    const FOUR_BYTE_BANK_SIZE: u32 = 1;
    driver()?.contexts.current()?;
    config.put(FOUR_BYTE_BANK_SIZE)
}

pub(crate) fn cuCtxSetSharedMemConfig(_config: u32) -> Done {
    driver()?.contexts.current().map(|_| ())
}

pub(crate) fn cuCtxSynchronize() -> Done {
    driver()?.synchronize_context()
}

pub(crate) fn cuCtxSynchronize_v2(context: CUcontext) -> Done {
    let driver = driver()?;
    if context.is_null() || Ok(context) == current_context() {
        return driver.synchronize_context();
    }
    push_context(driver.contexts.get(context)?);
    let done = driver.synchronize_context();
    let _ = pop_context();
    done
}

/// Returns the two contexts of a call about peer access, or `elsewhere` if the peer is a context of
/// another server.
fn peers(
    driver: &Driver,
    peer: CUcontext,
    elsewhere: CUresult,
) -> Result<(&'static Context, &'static Context), CUresult> {
    let current = driver.contexts.current()?;
    match driver.contexts.get(peer) {
        Ok(peer) => Ok((current, peer)),
        // No device reaches one of another server.
        Err(_)
            if drivers()
                .iter()
                .any(|other| other.contexts.get(peer).is_ok()) =>
        {
            Err(elsewhere)
        }
        Err(_) if driver.contexts.was_made(peer) => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
        Err(error) => Err(error),
    }
}

/// Counts the grant. The server gives every device that can reach memory of `cuMemAlloc` access
/// from the start.
pub(crate) fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> Done {
    let driver = driver()?;
    let (current, peer) = peers(driver, peer, CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)?;
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if !driver.can_access(current.device, peer.device)? {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    match current.enable_peer(peer) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    }
}

pub(crate) fn cuCtxDisablePeerAccess(peer: CUcontext) -> Done {
    let driver = driver()?;
    let (current, peer) = peers(driver, peer, CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)?;
    match current.disable_peer(peer) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
    }
}
