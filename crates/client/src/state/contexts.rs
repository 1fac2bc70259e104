//! Contexts: each thread's stack of them, and the primary one of every device.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice},
    enums::*,
};
use outboard_wire::doc::DeviceCard;
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};

use super::HandleKind;
use crate::thread;

/// A context. It is never freed: it may be current in threads that do not know of its destruction.
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    pub(crate) device: CUdevice,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) api_version: u32,
    /// Result of `cuCtxGetId`.
    pub(crate) number: u64,
    /// Number of holders of a primary context, which is active while there are any.
    pub(crate) retained: AtomicU32,
    /// Whether the server has created it.
    pub(crate) created: AtomicBool,
    destroyed: AtomicBool,
    /// Numbers of the contexts whose memory this context's kernels may use
    /// (`cuCtxEnablePeerAccess`).
    peers: Mutex<FxHashSet<u64>>,
    /// Limits of its device.
    pub(crate) limits: LaunchLimits,
}

impl Context {
    /// Marks a primary context as destroyed after its last holder released it. Where it is current,
    /// calls report that.
    pub(crate) fn end(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Grants access to the memory of a context. Returns false if it was already granted.
    pub(crate) fn enable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().insert(peer.number)
    }

    /// Revokes access. Returns false if it was not granted.
    pub(crate) fn disable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().remove(&peer.number)
    }

    /// Revokes all access, at the end of the context.
    pub(crate) fn forget_peers(&self) {
        self.peers.lock().clear();
    }

    /// Marks a primary context as held again.
    pub(crate) fn revive(&self) {
        self.destroyed.store(false, Ordering::Release);
    }
}

/// Limits of all launches, from a device's attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchLimits {
    pub(crate) grid_max: [u32; 3],
    pub(crate) block_max: [u32; 3],
    pub(crate) threads_max: u32,
}

impl LaunchLimits {
    fn of(card: &DeviceCard) -> LaunchLimits {
        let a = |attribute: u32| {
            let value = card.attributes.get(attribute as usize).copied().flatten();
            value.map_or(0, |v| v as u32)
        };
        LaunchLimits {
            grid_max: [
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
            ]
            .map(a),
            block_max: [
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
            ]
            .map(a),
            threads_max: a(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        }
    }
}

pub(crate) struct Contexts {
    primary: Vec<&'static Context>,
    all: RwLock<FxHashMap<usize, &'static Context>>,
    next: AtomicU64,
}

thread_local! {
    static STACK: RefCell<Vec<&'static Context>> = const { RefCell::new(Vec::new()) };
}

/// Returns the calling thread's current context.
#[inline]
pub(crate) fn current_context() -> Result<CUcontext, CUresult> {
    match thread::here().context.get() {
        Some(context) => Ok(context.handle),
        None => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
    }
}

pub(crate) fn push_context(context: &'static Context) {
    change_stack(|stack| stack.push(context));
}

pub(crate) fn pop_context() -> Result<CUcontext, CUresult> {
    let top = change_stack(Vec::pop).flatten();
    top.map(|c| c.handle)
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the top of the stack; `None` removes it.
pub(crate) fn set_context(context: Option<&'static Context>) {
    change_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

/// Changes the calling thread's stack. Returns `None` if the thread is ending and its stack is
/// gone.
fn change_stack<R>(change: impl FnOnce(&mut Vec<&'static Context>) -> R) -> Option<R> {
    STACK
        .try_with(|stack| {
            let mut stack = stack.borrow_mut();
            let result = change(&mut stack);
            thread::here().context.set(stack.last().copied());
            result
        })
        .ok()
}

impl Contexts {
    pub(crate) fn new(devices: &[DeviceCard]) -> Contexts {
        let primary: Vec<&'static Context> = devices
            .iter()
            .enumerate()
            .map(|(d, card)| {
                make(
                    d as u64 + 1,
                    d as CUdevice,
                    0,
                    true,
                    3020,
                    LaunchLimits::of(card),
                )
            })
            .collect();
        let all = primary.iter().map(|c| (c.handle.0, *c)).collect();
        Contexts {
            next: AtomicU64::new(primary.len() as u64 + 1),
            primary,
            all: RwLock::new(all),
        }
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&'static Context, CUresult> {
        self.primary
            .get(device as usize)
            .copied()
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn get(&self, context: CUcontext) -> Result<&'static Context, CUresult> {
        self.all
            .read()
            .get(&context.0)
            .copied()
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Returns whether a handle is or was a context's.
    pub(crate) fn was_made(&self, context: CUcontext) -> bool {
        let made = 1..self.next.load(Ordering::Relaxed);
        made.into_iter()
            .any(|number| HandleKind::Context.tag(number) as usize == context.0)
    }

    /// Returns the calling thread's current context.
    #[inline]
    pub(crate) fn current(&self) -> Result<&'static Context, CUresult> {
        Contexts::current_of(&thread::here())
    }

    #[inline(always)]
    pub(crate) fn current_of(thread: &thread::Local) -> Result<&'static Context, CUresult> {
        match thread.context.get() {
            Some(context) if !context.destroyed.load(Ordering::Acquire) => Ok(context),
            Some(_) => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            None => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// Creates a context for the program.
    pub(crate) fn create(
        &self,
        device: CUdevice,
        flags: u32,
        api_version: u32,
    ) -> Result<&'static Context, CUresult> {
        let limits = self.primary(device)?.limits;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let context = make(number, device, flags, false, api_version, limits);
        self.all.write().insert(context.handle.0, context);
        Ok(context)
    }

    /// Returns whether at most one context has been used.
    pub(crate) fn is_only(&self) -> bool {
        self.all
            .read()
            .values()
            .filter(|c| c.created.load(Ordering::Acquire))
            .count()
            <= 1
    }

    /// Revokes the access that an ending context has, and others' access to it.
    pub(crate) fn forget_peer(&self, context: &Context) {
        context.forget_peers();
        for other in self.all.read().values() {
            other.disable_peer(context);
        }
    }

    pub(crate) fn remove(&self, context: CUcontext) {
        if let Some(context) = self.all.write().remove(&context.0) {
            context.destroyed.store(true, Ordering::Release);
        }
    }
}

fn make(
    number: u64,
    device: CUdevice,
    flags: u32,
    primary: bool,
    api_version: u32,
    limits: LaunchLimits,
) -> &'static Context {
    Box::leak(Box::new(Context {
        handle: CUcontext(HandleKind::Context.tag(number) as usize),
        device,
        primary,
        flags: AtomicU32::new(flags),
        api_version,
        number,
        retained: AtomicU32::new(0),
        created: AtomicBool::new(false),
        destroyed: AtomicBool::new(false),
        peers: Mutex::default(),
        limits,
    }))
}
