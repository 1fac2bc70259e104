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

use super::Kind;
use crate::thread;

/// Lives until the process ends: it may be current in threads that do not know that it was destroyed.
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    pub(crate) device: CUdevice,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) api_version: u32,
    /// What `cuCtxGetId` answers.
    pub(crate) number: u64,
    /// Holders of a primary context; it is active while there are any.
    pub(crate) retained: AtomicU32,
    /// Whether the server has been told of it.
    pub(crate) created: AtomicBool,
    destroyed: AtomicBool,
    /// Numbers of the contexts whose memory kernels of this one may use (`cuCtxEnablePeerAccess`).
    peers: Mutex<FxHashSet<u64>>,
    /// Its device's.
    pub(crate) limits: LaunchLimits,
}

impl Context {
    /// A primary context's last holder has released it: where it is current, calls answer that it is destroyed.
    pub(crate) fn end(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Grants access to the memory of a context; false if it is granted already.
    pub(crate) fn enable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().insert(peer.number)
    }

    /// Takes access back; false if it was not granted.
    pub(crate) fn disable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().remove(&peer.number)
    }

    /// Forgets all grants, as the end of the context does.
    pub(crate) fn forget_peers(&self) {
        self.peers.lock().clear();
    }

    /// A primary context is held again.
    pub(crate) fn revive(&self) {
        self.destroyed.store(false, Ordering::Release);
    }
}

/// What a device's attributes say of any launch.
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

/// The calling thread's current context.
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

/// Replaces the top of the stack; `None` takes it away.
pub(crate) fn set_context(context: Option<&'static Context>) {
    change_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

/// `None`: the thread is on its way out, its stack gone already.
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

    /// Whether a handle is, or was, a context's.
    pub(crate) fn was_made(&self, context: CUcontext) -> bool {
        let made = 1..self.next.load(Ordering::Relaxed);
        made.into_iter()
            .any(|number| Kind::Context.tag(number) as usize == context.0)
    }

    /// The calling thread's current context.
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

    /// A context of the program's own.
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

    /// Whether at most one context has been used.
    pub(crate) fn is_only(&self) -> bool {
        self.all
            .read()
            .values()
            .filter(|c| c.created.load(Ordering::Acquire))
            .count()
            <= 1
    }

    /// The end of a context ends the access that it has, and the access to it.
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
        handle: CUcontext(Kind::Context.tag(number) as usize),
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
