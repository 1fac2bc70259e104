//! Contexts: each thread's stack of them, and the primary one of every device.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice},
    enums::CU_FUNC_CACHE_PREFER_NONE,
};
use outboard_wire::doc::DeviceCard;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::{
    HandleKind, are_several,
    handles::{CONTEXTS_MAX, first_context},
};
use crate::{
    context::{Context, LaunchLimits},
    thread,
};

pub(crate) struct Contexts {
    /// The number below which none of them has its number.
    first: u64,
    server: u8,
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
    /// `numbers` are the program's numbers of the devices.
    pub(crate) fn new(
        server: u8,
        devices: &[DeviceCard],
        numbers: impl Fn(usize) -> CUdevice,
    ) -> Contexts {
        let first = first_context(server);
        let primary: Vec<&'static Context> = devices
            .iter()
            .enumerate()
            .map(|(d, card)| {
                make(
                    server,
                    first + d as u64 + 1,
                    numbers(d),
                    0,
                    true,
                    3020,
                    LaunchLimits::of(card),
                )
            })
            .collect();
        let all = primary.iter().map(|c| (c.handle.0, *c)).collect();
        Contexts {
            first,
            server,
            next: AtomicU64::new(first + primary.len() as u64 + 1),
            primary,
            all: RwLock::new(all),
        }
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&'static Context, CUresult> {
        self.primary
            .iter()
            .find(|context| context.device == device)
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
        let made = self.first + 1..self.next.load(Ordering::Relaxed);
        HandleKind::Context
            .number(context.0 as u64)
            .is_some_and(|number| made.contains(&number))
    }

    /// Returns a context that the server has made, if there is one.
    pub(crate) fn any_made(&self) -> Option<&'static Context> {
        let made = |context: &&'static Context| context.created.load(Ordering::Acquire);
        let primary = self.primary.iter().copied().find(made);
        primary.or_else(|| self.all.read().values().copied().find(made))
    }

    /// Returns all contexts that are not destroyed.
    pub(crate) fn handles(&self) -> Vec<CUcontext> {
        self.all.read().values().map(|c| c.handle).collect()
    }

    /// Returns the primary contexts that the server has made.
    pub(crate) fn made_primaries(&self) -> Vec<CUcontext> {
        let made = |context: &&'static Context| context.created.load(Ordering::Acquire);
        let primary = self.primary.iter().copied().filter(made);
        primary.map(|context| context.handle).collect()
    }

    /// Returns true if the server has more than one device.
    pub(crate) fn are_of_several_devices(&self) -> bool {
        self.primary.len() > 1
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
        if are_several() && number - self.first >= CONTEXTS_MAX {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let context = make(
            self.server,
            number,
            device,
            flags,
            false,
            api_version,
            limits,
        );
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
    server: u8,
    number: u64,
    device: CUdevice,
    flags: u32,
    primary: bool,
    api_version: u32,
    limits: LaunchLimits,
) -> &'static Context {
    Box::leak(Box::new(Context {
        handle: CUcontext(HandleKind::Context.tag(number) as usize),
        server,
        device,
        primary,
        flags: AtomicU32::new(flags),
        cache_config: AtomicU32::new(CU_FUNC_CACHE_PREFER_NONE),
        api_version,
        number,
        retained: AtomicU32::new(0),
        holders: Mutex::default(),
        making: Mutex::default(),
        created: AtomicBool::new(false),
        destroyed: AtomicBool::new(false),
        peers: Mutex::default(),
        limits,
        asked_limits: Mutex::default(),
    }))
}
