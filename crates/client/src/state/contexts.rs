//! Contexts: each thread's stack of them, and the primary one of every device.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice},
};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::Kind;

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
}

pub(crate) struct Contexts {
    primary: Vec<Arc<Context>>,
    all: RwLock<FxHashMap<usize, Arc<Context>>>,
    next: std::sync::atomic::AtomicU64,
}

thread_local! {
    static STACK: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's current context.
#[inline]
pub(crate) fn current_context() -> Result<CUcontext, CUresult> {
    // The thread may be on its way out, its locals gone already.
    let top = STACK
        .try_with(|s| s.borrow().last().copied())
        .ok()
        .flatten();
    top.filter(|c| !c.is_null())
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

pub(crate) fn push_context(context: CUcontext) {
    let _ = STACK.try_with(|s| s.borrow_mut().push(context));
}

pub(crate) fn pop_context() -> Result<CUcontext, CUresult> {
    let top = STACK.try_with(|s| s.borrow_mut().pop()).ok().flatten();
    top.filter(|c| !c.is_null())
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Replaces the top of the stack; NULL takes it away.
pub(crate) fn set_context(context: CUcontext) {
    let _ = STACK.try_with(|s| {
        let mut stack = s.borrow_mut();
        stack.pop();
        if !context.is_null() {
            stack.push(context);
        }
    });
}

impl Contexts {
    pub(crate) fn new(devices: usize) -> Contexts {
        let primary: Vec<Arc<Context>> = (0..devices)
            .map(|d| Arc::new(make(d as u64 + 1, d as CUdevice, 0, true, 3020)))
            .collect();
        let all = primary.iter().map(|c| (c.handle.0, c.clone())).collect();
        Contexts {
            primary,
            all: RwLock::new(all),
            next: std::sync::atomic::AtomicU64::new(devices as u64 + 1),
        }
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&Arc<Context>, CUresult> {
        self.primary
            .get(device as usize)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn get(&self, context: CUcontext) -> Result<Arc<Context>, CUresult> {
        self.all
            .read()
            .get(&context.0)
            .cloned()
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The calling thread's current context.
    pub(crate) fn current(&self) -> Result<Arc<Context>, CUresult> {
        self.get(current_context()?)
    }

    /// A context of the program's own.
    pub(crate) fn create(&self, device: CUdevice, flags: u32, api_version: u32) -> Arc<Context> {
        let context = Arc::new(make(
            self.next.fetch_add(1, Ordering::Relaxed),
            device,
            flags,
            false,
            api_version,
        ));
        self.all.write().insert(context.handle.0, context.clone());
        context
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

    pub(crate) fn remove(&self, context: CUcontext) {
        self.all.write().remove(&context.0);
    }
}

fn make(number: u64, device: CUdevice, flags: u32, primary: bool, api_version: u32) -> Context {
    Context {
        handle: CUcontext(Kind::Context.tag(number) as usize),
        device,
        primary,
        flags: AtomicU32::new(flags),
        api_version,
        number,
        retained: AtomicU32::new(0),
        created: AtomicBool::new(false),
    }
}
