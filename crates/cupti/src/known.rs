//! CUPTI's numbers and names, and the driver calls whose parameters a profiler reads.

use std::{
    ffi::{CStr, CString},
    sync::OnceLock,
};

use crate::{driver, entry::DRIVER, log};

/// `CUPTI_ACTIVITY_KIND_*` by number, of CUDA 13.5.
pub(crate) const KINDS: [&str; 60] = [
    "INVALID",
    "MEMCPY",
    "MEMSET",
    "KERNEL",
    "DRIVER",
    "RUNTIME",
    "EVENT",
    "METRIC",
    "DEVICE",
    "CONTEXT",
    "CONCURRENT_KERNEL",
    "NAME",
    "MARKER",
    "MARKER_DATA",
    "SOURCE_LOCATOR",
    "GLOBAL_ACCESS",
    "BRANCH",
    "OVERHEAD",
    "CDP_KERNEL",
    "PREEMPTION",
    "ENVIRONMENT",
    "EVENT_INSTANCE",
    "MEMCPY2",
    "METRIC_INSTANCE",
    "INSTRUCTION_EXECUTION",
    "UNIFIED_MEMORY_COUNTER",
    "FUNCTION",
    "MODULE",
    "DEVICE_ATTRIBUTE",
    "SHARED_ACCESS",
    "PC_SAMPLING",
    "PC_SAMPLING_RECORD_INFO",
    "INSTRUCTION_CORRELATION",
    "OPENACC_DATA",
    "OPENACC_LAUNCH",
    "OPENACC_OTHER",
    "CUDA_EVENT",
    "STREAM",
    "SYNCHRONIZATION",
    "EXTERNAL_CORRELATION",
    "NVLINK",
    "INSTANTANEOUS_EVENT",
    "INSTANTANEOUS_EVENT_INSTANCE",
    "INSTANTANEOUS_METRIC",
    "INSTANTANEOUS_METRIC_INSTANCE",
    "MEMORY",
    "PCIE",
    "OPENMP",
    "INTERNAL_LAUNCH_API",
    "MEMORY2",
    "MEMORY_POOL",
    "GRAPH_TRACE",
    "JIT",
    "DEVICE_GRAPH_TRACE",
    "MEM_DECOMPRESS",
    "CONFIDENTIAL_COMPUTE_ROTATION",
    "GRAPH_HOST_NODE",
    "COMPUTE_ENGINE_CTX_SWITCH",
    "HOST_LAUNCH",
    "GREEN_CONTEXT",
];

/// `CUPTI_CB_DOMAIN_*` by number.
pub(crate) const DOMAINS: [&str; 7] = [
    "INVALID",
    "DRIVER_API",
    "RUNTIME_API",
    "RESOURCE",
    "SYNCHRONIZE",
    "NVTX",
    "STATE",
];

/// A driver call that CUPTI numbers.
pub(crate) struct Known {
    /// CUPTI's number.
    pub(crate) cbid: u32,
    pub(crate) name: &'static CStr,
    pub(crate) what: What,
}

/// Driver calls whose parameters are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Other,
    /// `function` is the place of the function among the parameters.
    Launch {
        function: usize,
    },
    EventRecord,
    EventDestroy,
    EventSynchronize,
    StreamWaitEvent,
    StreamSynchronize,
    StreamDestroy,
    ContextSynchronize,
    /// Takes the context as a parameter.
    GivenContextSynchronize,
    GraphCreate,
    GraphClone,
    GraphDestroy,
    GraphInstantiate,
    GraphExecDestroy,
    GraphAdd,
    GraphNodeDestroy,
}

include!(concat!(env!("OUT_DIR"), "/known.rs"));

impl What {
    fn of(name: &str) -> What {
        let found = READ.iter().find(|(known, _)| *known == name);
        found.map_or(What::Other, |(_, what)| *what)
    }
}

/// Returns libcuda's call of this number, if CUPTI numbers it.
pub(crate) fn known(number: u32) -> Option<&'static Known> {
    static KNOWN: OnceLock<Vec<Option<Known>>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let names = (0..).map_while(driver::call_name);
        let known: Vec<Option<Known>> = names.map(find).collect();
        log::debug(format_args!("{} driver calls are told of", known.len()));
        known
    });
    known.get(number as usize)?.as_ref()
}

fn find(call: &str) -> Option<Known> {
    let named = CString::new(call).ok()?;
    let (cbid, name) = DRIVER.iter().find(|(_, name)| *name == named.as_c_str())?;
    Some(Known {
        cbid: *cbid,
        name,
        what: What::of(call),
    })
}

/// Returns the name of a function by CUPTI's number.
pub(crate) fn name(domain: &[(u32, &'static CStr)], cbid: u32) -> Option<&'static CStr> {
    let at = domain.binary_search_by_key(&cbid, |(number, _)| *number);
    at.ok().map(|at| domain[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_whose_parameters_are_looked_at_exist() {
        // One that CUPTI does not number would never be told of.
        for (_, name) in DRIVER {
            let name = name.to_str().unwrap();
            let is_add = matches!(What::of(name), What::GraphAdd);
            assert_eq!(
                is_add,
                name.starts_with("cuGraphAdd") && !name.contains("Dependencies"),
                "{name}"
            );
        }
        for name in [
            "cuLaunchKernelEx",
            "cuEventRecord",
            "cuStreamWaitEvent",
            "cuCtxSynchronize",
        ] {
            assert!(
                find(name).is_some_and(|known| known.what != What::Other),
                "{name}"
            );
        }
    }
}
