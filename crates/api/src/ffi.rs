//! Declared calls in Rust's spelling, for the build scripts of the libraries that export them.

use crate::decl::{self, Call, Ends, PerThread};

/// Returns the Rust name of a parameter.
pub fn name(c: &str) -> String {
    let name = decl::snake_case(c);
    match name.as_str() {
        "type" | "mod" | "ref" | "fn" | "in" => format!("{name}_"),
        _ => name,
    }
}

/// Returns the stream of a call, as an expression over its arguments.
pub fn stream_of(call: &Call, args: &[String], per_thread: Option<PerThread>) -> String {
    for (param, arg) in call.params.iter().zip(args) {
        match param.ctype.as_str() {
            "CUstream" => return format!("Some({arg})"),
            "const CUlaunchConfig *" if per_thread.is_some() => {
                return format!("guard::stream_of({arg}).map(guard::per_thread)");
            }
            "const CUlaunchConfig *" => return format!("guard::stream_of({arg})"),
            _ => {}
        }
    }
    match per_thread {
        Some(PerThread::Ptds) => "Some(CU_STREAM_PER_THREAD)".into(),
        _ => "None".into(),
    }
}

/// Returns the event of a call, as an expression over its arguments; the last of several.
pub fn event_of<'a>(call: &Call, args: &'a [String]) -> Option<&'a str> {
    let mut events = call.params.iter().zip(args);
    let (_, arg) = events.rfind(|(param, _)| param.ctype == "CUevent")?;
    Some(arg)
}

/// Returns the stream and event of a call, for recordings.
pub fn subject_of(call: &Call, args: &[String], per_thread: Option<PerThread>) -> String {
    let stream = match stream_of(call, args, per_thread).as_str() {
        "None" => "0".to_string(),
        stream => format!("{stream}.map_or(0, |stream| stream.0 as u64)"),
    };
    let event = match event_of(call, args) {
        Some(event) => format!("{event}.0 as u64"),
        None => "0".to_string(),
    };
    // A destroyed handle may be given again, for another object.
    let is_named = call
        .params
        .iter()
        .any(|p| matches!(p.ctype.as_str(), "CUstream" | "CUevent"));
    let is_destroyed = is_named && call.attributes.ends == Some(Ends::Handle);
    format!("Subject {{ stream: {stream}, event: {event}, is_destroyed: {is_destroyed} }}")
}

/// Types that `outboard_api::cuda` has under their CUDA name.
const KNOWN: &[&str] = &[
    "CUcontext",
    "CUmodule",
    "CUlibrary",
    "CUfunction",
    "CUkernel",
    "CUstream",
    "CUevent",
    "CUgraph",
    "CUgraphExec",
    "CUgraphNode",
    "CUarray",
    "CUmipmappedArray",
    "CUlinkState",
    "CUtexref",
    "CUsurfref",
    "CUgreenCtx",
    "CUuserObject",
    "CUdevice",
    "CUdeviceptr",
    "CUtexObject",
    "CUsurfObject",
    "CUmemGenericAllocationHandle",
    "CUhostFn",
    "CUstreamCallback",
    "CUoccupancyB2DSize",
    "CUuuid",
    "CUipcEventHandle",
    "CUipcMemHandle",
    "CUdevprop",
    "CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D",
    "CUDA_ARRAY_DESCRIPTOR",
    "CUDA_ARRAY3D_DESCRIPTOR",
    "CUlaunchConfig",
    "CUmemLocation",
    "CUmemAllocationProp",
    "CUmemAccessDesc",
    "CUmemPoolProps",
    "CUDA_KERNEL_NODE_PARAMS",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS",
    "CUDA_MEMSET_NODE_PARAMS",
    "CUDA_HOST_NODE_PARAMS",
    "CUDA_GRAPH_INSTANTIATE_PARAMS",
    "CUgraphExecUpdateResultInfo",
    "CUgraphEdgeData",
    "CUctxCreateParams",
    "CUstreamBatchMemOpParams",
    "CUtensorMap",
    "CUmemoryPool",
    "CUresult",
];

/// Returns the Rust type of a C parameter. A type without a known name is an enum by value, or
/// opaque behind a pointer.
pub fn rust_type(ctype: &str) -> String {
    let ctype = ctype.trim();
    if let Some(pointee) = ctype.strip_suffix('*') {
        let pointee = pointee.trim();
        let (mutability, pointee) = match pointee.strip_prefix("const ") {
            // "const T *" may itself be pointed to: "const T **" is a mutable pointer to a constant
            // one.
            Some(p) if !p.ends_with('*') => ("*const", p),
            _ => ("*mut", pointee),
        };
        let inner = match pointee {
            "void" => "c_void".to_string(),
            "char" => "c_char".to_string(),
            p if p.ends_with('*') => rust_type(p),
            p if decl::scalar(p).is_some()
                || KNOWN.contains(&p)
                || PRIMITIVES.iter().any(|(c, _)| *c == p)
                || ENUMS.contains(&p) =>
            {
                rust_type(p)
            }
            _ => "c_void".to_string(),
        };
        return format!("{mutability} {inner}");
    }
    if let Some((_, rust)) = PRIMITIVES.iter().find(|(c, _)| *c == ctype) {
        return rust.to_string();
    }
    if KNOWN.contains(&ctype) {
        return ctype.to_string();
    }
    "u32".to_string()
}

const PRIMITIVES: &[(&str, &str)] = &[
    ("unsigned char", "u8"),
    ("unsigned short", "u16"),
    ("unsigned int", "u32"),
    ("unsigned", "u32"),
    ("cuuint32_t", "u32"),
    ("int", "i32"),
    ("size_t", "usize"),
    ("unsigned long long", "u64"),
    ("cuuint64_t", "u64"),
    ("float", "f32"),
    ("char", "c_char"),
];

/// Enums that are passed by pointer.
const ENUMS: &[&str] = &[
    "CUstreamCaptureStatus",
    "CUatomicOperation",
    "CUstreamCaptureMode",
    "CUfunc_cache",
    "CUsharedconfig",
    "CUmoduleLoadingMode",
    "CUgraphNodeType",
    "CUdriverProcAddressQueryResult",
    "CUpointer_attribute",
    "CUfunctionLoadingState",
    "CUmemAccess_flags",
    "CUjit_option",
    "CUlibraryOption",
    "CUgraphExecUpdateResult",
    "CUmem_range_attribute",
];
