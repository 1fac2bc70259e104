//! Declared calls in Rust, for the libraries that export them.

use outboard_api::decl::{self, Call, Ends, PerThread};
use proc_macro2::{Ident, TokenStream};
use quote::quote;

use crate::{
    Failure,
    tokens::{ident, rust},
};

/// Returns the Rust name of a parameter.
pub(crate) fn name(c: &str) -> Ident {
    let name = decl::snake_case(c);
    match name.as_str() {
        "type" | "mod" | "ref" | "fn" | "in" => ident(&format!("{name}_")),
        _ => ident(&name),
    }
}

/// Returns the call that serves `call`: itself, or the one of which it is an older name.
pub(crate) fn target<'c>(calls: &'c [Call], call: &'c Call) -> Result<&'c Call, Failure> {
    let Some(other) = &call.same_as else {
        return Ok(call);
    };
    let found = calls.iter().find(|c| &c.symbol == other);
    Ok(found.ok_or_else(|| format!("{}: alias of nothing", call.symbol))?)
}

/// Returns the forms of a call that are exported: the plain one, and the one of each thread's
/// stream.
pub(crate) fn forms(call: &Call) -> impl Iterator<Item = Option<PerThread>> {
    [None].into_iter().chain(call.per_thread.map(Some))
}

/// Returns the exported name of one form of a call.
pub(crate) fn export(call: &Call, per_thread: Option<PerThread>) -> Ident {
    let suffix = per_thread.map_or("", PerThread::suffix);
    ident(&format!("{}{suffix}", call.symbol))
}

/// The parameters of a call in Rust.
pub(crate) struct Params {
    pub(crate) names: Vec<Ident>,
    pub(crate) types: Vec<TokenStream>,
}

impl Params {
    pub(crate) fn of(call: &Call) -> Result<Params, Failure> {
        let types = call.params.iter().map(|p| rust(&rust_type(&p.ctype)));
        Ok(Params {
            names: call.params.iter().map(|p| name(&p.name)).collect(),
            types: types.collect::<Result<_, _>>()?,
        })
    }
}

/// Returns the arguments of a call. The null stream of a `_ptsz` call is the thread's own.
pub(crate) fn arguments(call: &Call, per_thread: Option<PerThread>) -> Vec<TokenStream> {
    let argument = |param: &decl::Param| {
        let name = name(&param.name);
        match (per_thread, param.ctype.as_str()) {
            (Some(PerThread::Ptsz), "CUstream") => quote!(guard::per_thread(#name)),
            _ => quote!(#name),
        }
    };
    call.params.iter().map(argument).collect()
}

/// Returns the stream of a call, as an `Option` over its arguments; `None` if it has none.
pub(crate) fn stream_of(
    call: &Call,
    args: &[TokenStream],
    per_thread: Option<PerThread>,
) -> Option<TokenStream> {
    for (param, arg) in call.params.iter().zip(args) {
        match param.ctype.as_str() {
            "CUstream" => return Some(quote!(Some(#arg))),
            "const CUlaunchConfig *" if per_thread.is_some() => {
                return Some(quote!(guard::stream_of(#arg).map(guard::per_thread)));
            }
            "const CUlaunchConfig *" => return Some(quote!(guard::stream_of(#arg))),
            _ => {}
        }
    }
    match per_thread {
        Some(PerThread::Ptds) => Some(quote!(Some(CU_STREAM_PER_THREAD))),
        _ => None,
    }
}

/// Returns the stream and event of a call, for recordings; of several events the last.
pub(crate) fn subject_of(
    call: &Call,
    args: &[TokenStream],
    per_thread: Option<PerThread>,
) -> TokenStream {
    let stream = match stream_of(call, args, per_thread) {
        Some(stream) => quote!(#stream.map_or(0, |stream| stream.0 as u64)),
        None => quote!(0),
    };
    let mut events = call.params.iter().zip(args);
    let event = match events.rfind(|(param, _)| param.ctype == "CUevent") {
        Some((_, event)) => quote!(#event.0 as u64),
        None => quote!(0),
    };
    // A destroyed handle may be given again, for another object.
    let is_named = call
        .params
        .iter()
        .any(|p| matches!(p.ctype.as_str(), "CUstream" | "CUevent"));
    let is_destroyed = is_named && call.attributes.ends == Some(Ends::Handle);
    quote!(Subject { stream: #stream, event: #event, is_destroyed: #is_destroyed })
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
pub(crate) fn rust_type(ctype: &str) -> String {
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
