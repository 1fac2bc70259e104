//! Contexts, their limits, and waits for them.

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure, Pending};
use outboard_ptx::{
    device::{ContextId, Limits, StreamId},
    limits::LOCAL_BYTES_MAX,
};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{
    Soft,
    wait::{failure, invalid, pending},
};

pub(super) struct Context {
    pub(super) id: ContextId,
    pub(super) device: usize,
    /// The null stream's number, kept here because waits for it must work after a fault too.
    pub(super) legacy: StreamId,
    limits: FxHashMap<u32, u64>,
}

/// Default answers of `cuCtxGetLimit`. Limits missing here are unknown to sm_80.
const LIMITS: &[(u32, u64)] = &[
    (CU_LIMIT_STACK_SIZE, 1 << 10),
    (CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20),
    (CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20),
    (CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2),
    (CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048),
    (CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64),
    (CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0),
];

impl Soft {
    pub(super) fn context(&self, id: u64) -> Result<&Context, Failure> {
        if id == 0 {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_CONTEXT,
                "no context is current",
            ));
        }
        self.contexts.get(id)
    }

    /// Returns the stream of the client's number; 0 and 1 are the null stream of the current
    /// context.
    pub(super) fn stream(&self, cx: &Cx<'_>, id: u64) -> Result<StreamId, Failure> {
        match id {
            0 | 1 => Ok(self.context(cx.context)?.legacy),
            _ => self.streams.get(id).map(|stream| stream.id),
        }
    }

    pub(super) fn primary_context_retain(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::PrimaryContextRetain,
    ) -> Result<(), Failure> {
        self.add_context(m.context, m.device)
    }

    pub(super) fn context_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::ContextCreate,
    ) -> Result<(), Failure> {
        self.add_context(m.context, m.device)
    }

    fn add_context(&mut self, handle: u64, device: i32) -> Result<(), Failure> {
        let device = self.device(device)?;
        let id = self.gpu.create_context();
        let legacy = self.gpu.legacy_stream(id).map_err(failure)?;
        let context = Context {
            id,
            device,
            legacy,
            limits: FxHashMap::default(),
        };
        self.contexts.insert(handle, context).inspect_err(|_| {
            let _ = self.gpu.destroy_context(id);
        })
    }

    pub(super) fn context_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::ContextDestroy,
    ) -> Result<(), Failure> {
        let context = self.contexts.remove(m.context)?;
        self.gpu.destroy_context(context.id).map_err(failure)?;
        if self.contexts.is_empty() {
            self.machine.drop_heap();
            self.heap_used = false;
        }
        self.apply_limits();
        Ok(())
    }

    pub(super) fn fence_context(
        &mut self,
        cx: &mut Cx<'_>,
        _: &messages::FenceContext,
    ) -> Result<Pending, Failure> {
        // Without a context the fence waits for the work of all contexts.
        if cx.context == 0 {
            return Ok(pending(self.gpu.fence_all()));
        }
        let context = self.context(cx.context)?;
        self.gpu
            .context_fence(context.id)
            .map(pending)
            .map_err(failure)
    }

    pub(super) fn context_get_limit(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextGetLimit,
    ) -> Result<messages::ContextGetLimitReply, Failure> {
        let default = default_limit(m.limit)?;
        let set = self.context(cx.context)?.limits.get(&m.limit);
        let value = set.copied().unwrap_or(default);
        Ok(messages::ContextGetLimitReply { value })
    }

    /// Sets a limit. Stack, heap and printed text grow to the most that any context of the program
    /// asks for; cache limits have no effect.
    pub(super) fn context_set_limit(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextSetLimit,
    ) -> Result<(), Failure> {
        default_limit(m.limit)?;
        self.context(cx.context)?;
        let too_large = || invalid(format!("limit {} of {} bytes", m.limit, m.value));
        match m.limit {
            CU_LIMIT_STACK_SIZE => {
                let bytes = u32::try_from(m.value)
                    .ok()
                    .filter(|bytes| *bytes <= LOCAL_BYTES_MAX);
                bytes.ok_or_else(too_large)?;
            }
            CU_LIMIT_MALLOC_HEAP_SIZE if self.heap_used => {
                return Err(invalid(
                    "the heap's size, after a kernel that may use malloc was launched",
                ));
            }
            CU_LIMIT_MALLOC_HEAP_SIZE | CU_LIMIT_PRINTF_FIFO_SIZE
                if m.value > self.memory_bytes =>
            {
                return Err(too_large());
            }
            _ => {}
        }
        let context = self.contexts.get_mut(cx.context)?;
        context.limits.insert(m.limit, m.value);
        self.apply_limits();
        Ok(())
    }

    fn apply_limits(&self) {
        let most = |limit: u32| {
            let set = self.contexts.iter().map(|(_, context)| &context.limits);
            set.filter_map(|limits| limits.get(&limit).copied()).max()
        };
        let default = Limits::default();
        let stack = most(CU_LIMIT_STACK_SIZE).and_then(|bytes| u32::try_from(bytes).ok());
        let printed = most(CU_LIMIT_PRINTF_FIFO_SIZE).and_then(|bytes| bytes.try_into().ok());
        self.machine.set_limits(Limits {
            stack_bytes: stack.unwrap_or(default.stack_bytes),
            heap_bytes: most(CU_LIMIT_MALLOC_HEAP_SIZE).unwrap_or(default.heap_bytes),
            printed_bytes: printed.unwrap_or(default.printed_bytes),
        });
    }

    pub(super) fn cu_ctx_reset_persisting_l2_cache(
        &mut self,
        cx: &mut Cx<'_>,
        _: &messages::CuCtxResetPersistingL2Cache,
    ) -> Result<(), Failure> {
        self.context(cx.context).map(|_| ())
    }

    /// Accepts the preference and ignores it, because there is only one kind of cache here.
    pub(super) fn context_cache_config(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ContextCacheConfig,
    ) -> Result<(), Failure> {
        self.context(cx.context)?;
        check_cache_config(m.config)
    }

    /// Returns a device's number as an index, if there is such a device.
    pub(super) fn device(&self, ordinal: i32) -> Result<usize, Failure> {
        let index = usize::try_from(ordinal)
            .ok()
            .filter(|i| *i < self.used_bytes.len());
        index.ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_DEVICE,
                format!("device {ordinal} of {}", self.used_bytes.len()),
            )
        })
    }
}

fn default_limit(limit: u32) -> Result<u64, Failure> {
    let found = LIMITS.iter().find(|(number, _)| *number == limit);
    found.map(|(_, value)| *value).ok_or_else(|| match limit {
        limit if limit < CU_LIMIT_MAX => Failure::new(
            CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT,
            format!("the software GPU has no limit {limit}"),
        ),
        _ => invalid(format!("limit {limit}")),
    })
}

pub(super) fn check_cache_config(config: u32) -> Result<(), Failure> {
    match config {
        CU_FUNC_CACHE_PREFER_NONE..=CU_FUNC_CACHE_PREFER_EQUAL => Ok(()),
        _ => Err(invalid(format!("cache configuration {config}"))),
    }
}
