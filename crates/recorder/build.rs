//! Generates, for every declared function, its export, its place in the table of the driver's functions, and what remoting
//! it would cost.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl::{self, Answer, Call, Class, Direction, Op, PerThread, Type},
    ffi::{name, rust_type, stream_of, subject_of},
};

const HEADER_BYTES: usize = 16;
/// A message of a call that is not listed below: an estimate, two words either way.
const UNLISTED_BYTES: usize = 16;

/// Calls written by hand in the client, and the message that each sends as a rule.
const MESSAGES: &[(&str, &str)] = &[
    ("cuCtxCreate", "context_create"),
    ("cuCtxDestroy", "context_destroy"),
    ("cuCtxSynchronize", "fence_context"),
    ("cuDevicePrimaryCtxRelease", "context_destroy"),
    ("cuDevicePrimaryCtxRetain", "context_create"),
    ("cuEventCreate", "event_create"),
    ("cuEventDestroy", "event_destroy"),
    ("cuEventElapsedTime", "event_elapsed"),
    ("cuEventRecord", "event_record"),
    ("cuEventRecordWithFlags", "event_record"),
    ("cuEventSynchronize", "fence_event"),
    ("cuFuncGetAttribute", "kernel_attributes"),
    ("cuGraphAddChildGraphNode", "graph_add"),
    ("cuGraphAddEmptyNode", "graph_add"),
    ("cuGraphAddHostNode", "graph_add"),
    ("cuGraphAddKernelNode", "graph_add"),
    ("cuGraphAddMemcpyNode", "graph_add"),
    ("cuGraphAddMemsetNode", "graph_add"),
    ("cuGraphExecUpdate", "graph_exec_update"),
    ("cuGraphInstantiate", "graph_instantiate"),
    ("cuGraphInstantiateWithFlags", "graph_instantiate"),
    ("cuGraphInstantiateWithParams", "graph_instantiate"),
    ("cuGraphLaunch", "graph_launch"),
    ("cuKernelGetAttribute", "kernel_attributes"),
    ("cuLaunchHostFunc", "host_func"),
    ("cuLibraryUnload", "library_unload"),
    ("cuMemAlloc", "mem_map"),
    ("cuMemAllocPitch", "mem_map"),
    ("cuMemCreate", "allocation_create"),
    ("cuMemFree", "mem_unmap"),
    ("cuMemMap", "allocation_map"),
    ("cuMemRelease", "allocation_release"),
    ("cuMemSetAccess", "allocation_access"),
    ("cuMemUnmap", "allocation_unmap"),
    ("cuMemcpyDtoD", "copy"),
    ("cuMemcpyDtoDAsync", "copy"),
    ("cuModuleUnload", "library_unload"),
    ("cuStreamAddCallback", "host_func"),
    ("cuStreamBeginCapture", "capture_begin"),
    ("cuStreamCreate", "stream_create"),
    ("cuStreamCreateWithPriority", "stream_create"),
    ("cuStreamDestroy", "stream_destroy"),
    ("cuStreamEndCapture", "capture_end"),
    ("cuStreamSynchronize", "fence_stream"),
    ("cuStreamWaitEvent", "stream_wait_event"),
];

/// Declared to send, and mostly answered by the client: it keeps pools of memory, and knows which streams capture.
const MOSTLY_LOCAL: &[&str] = &[
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemAllocHost",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemPoolCreate",
    "cuStreamGetCaptureInfo",
];

/// Asked, or set, once for the same values, by-value parameters being what counts.
const ASKED_ONCE: &[&str] = &[
    "cuFuncSetAttribute",
    "cuKernelSetAttribute",
    "cuDeviceGetTexture1DLinearMaxWidth",
    "cuDevicePrimaryCtxRetain",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
];

/// The client learns these with the module.
const KNOWN_WITH_MODULE: &[&str] = &["cuFuncGetAttribute", "cuKernelGetAttribute"];

/// What depends on arguments, by the exact symbol.
const BY_ARGUMENTS: &[(&str, &str)] = &[
    ("cuLaunchKernel", "cost::launch(f.0, 0)"),
    (
        "cuLaunchCooperativeKernel",
        "cost::launch(f.0, cost::ATTRIBUTE_BYTES)",
    ),
    ("cuLaunchKernelEx", "cost::launch_of(config, f.0)"),
    ("cuMemcpyHtoD_v2", "cost::to_device(byte_count)"),
    (
        "cuMemcpyHtoDAsync_v2",
        "cost::to_device_async(byte_count, h_stream)",
    ),
    ("cuMemcpyDtoH_v2", "cost::to_host(byte_count)"),
    (
        "cuMemcpyDtoHAsync_v2",
        "cost::to_host_async(dst_host as u64, byte_count, h_stream)",
    ),
    ("cuMemcpy", "cost::copy(dst, src, byte_count, None)"),
    (
        "cuMemcpyAsync",
        "cost::copy(dst, src, byte_count, Some(h_stream))",
    ),
    ("cuMemcpy2D_v2", "cost::copy_2d(p_copy)"),
    ("cuMemcpy2DUnaligned_v2", "cost::copy_2d(p_copy)"),
    ("cuMemcpy2DAsync_v2", "cost::copy_2d(p_copy)"),
    ("cuMemcpy3D_v2", "cost::copy_3d(p_copy)"),
    ("cuMemcpy3DAsync_v2", "cost::copy_3d(p_copy)"),
    ("cuModuleLoadData", "cost::load(image)"),
    ("cuModuleLoadDataEx", "cost::load(image)"),
    ("cuModuleLoadFatBinary", "cost::load(fat_cubin)"),
    ("cuLibraryLoadData", "cost::load(code)"),
];

/// What a longer PCIe delays, by the exact symbol; `STREAM` stands for the call's stream. All `cuMemset*` are, too.
const DELAYED: &[(&str, &str)] = &[
    ("cuGraphLaunch", "pcie::work(STREAM)"),
    ("cuLaunch", "pcie::work(STREAM)"),
    ("cuLaunchCooperativeKernel", "pcie::work(STREAM)"),
    ("cuLaunchGrid", "pcie::work(STREAM)"),
    ("cuLaunchGridAsync", "pcie::work(STREAM)"),
    ("cuLaunchKernel", "pcie::work(STREAM)"),
    ("cuLaunchKernelEx", "pcie::work(STREAM)"),
    ("cuMemcpyHtoD_v2", "pcie::to_device(byte_count, STREAM)"),
    (
        "cuMemcpyHtoDAsync_v2",
        "pcie::to_device(byte_count, STREAM)",
    ),
    ("cuMemcpyDtoH_v2", "pcie::to_host(STREAM)"),
    ("cuMemcpyDtoHAsync_v2", "pcie::to_host(STREAM)"),
    ("cuMemcpy", "pcie::copy(dst, src, byte_count, STREAM)"),
    ("cuMemcpyAsync", "pcie::copy(dst, src, byte_count, STREAM)"),
];

/// Answered by us: what it finds must be ours.
const OURS: &[&str] = &["cuGetProcAddress", "cuGetProcAddress_v2"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions outlive that.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let (calls, ops) = (decl::driver()?, decl::ops()?);
    let mut out = String::new();
    let mut exports = Vec::new();
    let mut costs = String::new();
    for (number, call) in calls.iter().enumerate() {
        let target = match &call.same_as {
            Some(other) => calls
                .iter()
                .find(|c| &c.symbol == other)
                .ok_or("alias of nothing")?,
            None => call,
        };
        let (class, request, response) = cost(target, &ops)?;
        writeln!(
            costs,
            "    (\"{}\", Cost::new(Class::{class:?}, {request}, {response}), Role::{}),",
            call.symbol,
            role(target)
        )?;
        for per_thread in [None].into_iter().chain(call.per_thread.map(Some)) {
            entry(&mut out, call, target, per_thread, number, exports.len())?;
            exports.push(format!(
                "{}{}",
                call.symbol,
                per_thread.map_or("", PerThread::suffix)
            ));
        }
    }
    writeln!(
        out,
        "/// Name of every function, what remoting it costs as a rule, and what it means to the GPU's times, by number.\npub(crate) static CALLS: &[(&str, Cost, Role)] = &[\n{costs}];"
    )?;
    writeln!(
        out,
        "/// Every exported symbol, ours, and its place in [`SLOTS`].\npub(crate) static EXPORTS: &[(&CStr, Export)] = &["
    )?;
    for export in &exports {
        writeln!(
            out,
            "    (c\"{export}\", Export({export} as *const c_void)),"
        )?;
    }
    writeln!(
        out,
        "];\n/// The driver's functions, in the order of [`EXPORTS`].\npub(crate) static SLOTS: [AtomicPtr<c_void>; {}] = [",
        exports.len()
    )?;
    for slot in 0..exports.len() {
        writeln!(out, "    AtomicPtr::new(missing::<{slot}> as *mut c_void),")?;
    }
    writeln!(out, "];")?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("entry.rs"), out)?;
    Ok(())
}

fn entry(
    out: &mut String,
    call: &Call,
    target: &Call,
    per_thread: Option<PerThread>,
    number: usize,
    slot: usize,
) -> Result<(), Box<dyn Error>> {
    let symbol = format!(
        "{}{}",
        call.symbol,
        per_thread.map_or("", PerThread::suffix)
    );
    if target.class == Class::Unsupported {
        // Not all of their types are declared: the arguments stay where they are.
        return Ok(writeln!(
            out,
            "/// # Safety\n/// The caller's business with the driver.\n#[unsafe(no_mangle)]\n#[unsafe(naked)]\npub(crate) unsafe extern \"C\" fn {symbol}() {{\n    std::arch::naked_asm!(\"mov rax, qword ptr [rip + {{slots}} + {}]\", \"jmp rax\", slots = sym SLOTS)\n}}",
            8 * slot
        )?);
    }
    let params: Vec<(String, String)> = target
        .params
        .iter()
        .map(|p| (name(&p.name), rust_type(&p.ctype)))
        .collect();
    let list = |of: &dyn Fn(&(String, String)) -> String| {
        params.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let (declared, types, args) = (
        list(&|(name, ty)| format!("{name}: {ty}")),
        list(&|(_, ty)| ty.clone()),
        list(&|(name, _)| name.clone()),
    );
    if OURS.contains(&call.symbol.as_str()) {
        return Ok(writeln!(
            out,
            "/// # Safety\n/// As the driver asks.\n#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn {symbol}({declared}) -> CUresult {{\n    // SAFETY: the driver's function of this name and type; what the caller promised is passed on as it is.\n    guard::pass(Passed {{ number: {number}, subject: || Subject::NONE, delay: || (), call: || unsafe {{\n        let real: unsafe extern \"C\" fn({types}) -> CUresult = std::mem::transmute(SLOTS[{slot}].load(Ordering::Relaxed));\n        let result = real({args});\n        procaddr::replace(result, symbol, pfn, cuda_version, flags);\n        result\n    }}, work: (None, || None), cost: || CALLS[{number}].1 }})\n}}"
        )?);
    }
    let args_list: Vec<String> = params.iter().map(|(name, _)| name.clone()).collect();
    // As the client has it: the null stream of a `_ptsz` call is the thread's own.
    let streams: Vec<String> = (target.params.iter().zip(&args_list))
        .map(|(param, arg)| match (per_thread, param.ctype.as_str()) {
            (Some(PerThread::Ptsz), "CUstream") => format!("guard::per_thread({arg})"),
            _ => arg.clone(),
        })
        .collect();
    let stream = stream_of(target, &streams, per_thread);
    let subject = subject_of(target, &streams, per_thread);
    let cost = match BY_ARGUMENTS
        .iter()
        .find(|(symbol, _)| *symbol == call.symbol)
    {
        Some((_, expression)) => (*expression).to_string(),
        None if ASKED_ONCE.contains(&target.unversioned()) => {
            let values: Vec<String> = target
                .params
                .iter()
                .zip(&args_list)
                .filter(|(p, _)| !p.ctype.ends_with('*'))
                .map(|(p, arg)| {
                    match rust_type(&p.ctype).starts_with("CU")
                        && p.ctype != "CUdevice"
                        && p.ctype != "CUdeviceptr"
                    {
                        true => format!("{arg}.0 as u64"),
                        false => format!("{arg} as u64"),
                    }
                })
                .collect();
            format!("cost::asked_once({number}, &[{}])", values.join(", "))
        }
        None => format!("CALLS[{number}].1"),
    };
    let delayed = match DELAYED.iter().find(|(symbol, _)| *symbol == call.symbol) {
        Some((_, delay)) => format!("{};", delay.replace("STREAM", &stream)),
        None if call.symbol.starts_with("cuMemset") => format!("pcie::work({stream});"),
        None => String::new(),
    };
    let (stream_of_work, work) = match work(target, &args_list) {
        Some(work) => (stream.as_str(), work),
        None => ("None", "None".to_string()),
    };
    writeln!(
        out,
        "/// # Safety\n/// As the driver asks.\n#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn {symbol}({declared}) -> CUresult {{\n    // SAFETY: the driver's function of this name and type; what the caller promised is passed on as it is.\n    guard::pass(Passed {{ number: {number}, subject: || {subject}, delay: || {{ {delayed} }}, call: || unsafe {{\n        let real: unsafe extern \"C\" fn({types}) -> CUresult = std::mem::transmute(SLOTS[{slot}].load(Ordering::Relaxed));\n        real({args})\n    }}, \n    // SAFETY: as above.\n    work: ({stream_of_work}, || unsafe {{ {work} }}),\n    // SAFETY: as above.\n    cost: || unsafe {{ {cost} }} }})\n}}"
    )?;
    Ok(())
}

/// What a call means to the times of the GPU: a `guard::Role`.
fn role(call: &Call) -> &'static str {
    const STARTS: [&str; 4] = ["cuLaunch", "cuMemcpy", "cuMemset", "cuGraphLaunch"];
    match call.unversioned() {
        "cuInit" => "Init",
        "cuCtxSynchronize" | "cuStreamSynchronize" | "cuEventSynchronize" => "Waits",
        "cuModuleUnload" | "cuLibraryUnload" => "EndsModule",
        "cuCtxDestroy" | "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxReset" => "EndsContext",
        name if STARTS.iter().any(|prefix| name.starts_with(prefix)) => "StartsWork",
        _ => "Other",
    }
}

/// The work that the GPU does for a call, as an expression; none where it does none of its own.
fn work(call: &Call, args: &[String]) -> Option<String> {
    let arg = |is: &dyn Fn(&decl::Param) -> bool| {
        let found = call.params.iter().position(is)?;
        Some(args[found].as_str())
    };
    let named = |name: &str| arg(&|param| param.name == name);
    let symbol = call.unversioned();
    if symbol == "cuGraphLaunch" {
        return Some("events::graph()".into());
    }
    if symbol.starts_with("cuLaunch") {
        let kernel = arg(&|param| param.ctype == "CUfunction")?;
        return Some(format!("events::kernel({kernel}.0)"));
    }
    if symbol.starts_with("cuMemset") {
        let count = match named("N") {
            Some(count) => count.to_string(),
            None => format!("{}.saturating_mul({})", named("Width")?, named("Height")?),
        };
        let bytes = match symbol {
            _ if symbol.contains("D32") => 4,
            _ if symbol.contains("D16") => 2,
            _ => 1,
        };
        return Some(format!("events::memset({count}.saturating_mul({bytes}))"));
    }
    let way = symbol.strip_prefix("cuMemcpy")?;
    if let Some(copy) = arg(&|param| param.ctype == "const CUDA_MEMCPY2D *") {
        return Some(format!("events::copy_2d({copy})"));
    }
    if let Some(copy) = arg(&|param| param.ctype == "const CUDA_MEMCPY3D *") {
        return Some(format!("events::copy_3d({copy})"));
    }
    let Some(bytes) = named("ByteCount") else {
        // Between two devices.
        return Some("events::on_device(0)".into());
    };
    Some(match &way[..way.len().min(4)] {
        "HtoD" | "HtoA" => format!("events::to_device({bytes})"),
        "DtoH" | "AtoH" => format!("events::to_host({bytes})"),
        "" | "Asyn" => format!(
            "events::copy({}, {}, {bytes})",
            named("dst")?,
            named("src")?
        ),
        _ => format!("events::on_device({bytes})"),
    })
}

/// Class, request and response of a call as a rule, from the declarations that the messages are made from.
fn cost(call: &Call, ops: &[Op]) -> Result<(Class, usize, usize), Box<dyn Error>> {
    let base = call.unversioned();
    if call.class == Class::Unsupported {
        return Ok((Class::Unsupported, 0, 0));
    }
    if call.class == Class::Local
        || MOSTLY_LOCAL.contains(&base)
        || KNOWN_WITH_MODULE.contains(&base)
    {
        return Ok((Class::Local, 0, 0));
    }
    if base == "cuMemFreeHost" || base == "cuMemHostUnregister" {
        // What may still use the memory is waited for.
        let op = find(ops, "fence_context")?;
        return Ok((Class::Synchronous, request(op), response(op)));
    }
    let op = match MESSAGES.iter().find(|(name, _)| *name == base) {
        Some((_, message)) => Some(find(ops, message)?),
        None if call.derived => Some(find(ops, &call.symbol)?),
        None => None,
    };
    let waits = call.class == Class::Synchronous;
    Ok(match op {
        Some(op) => (call.class, request(op), response(op)),
        None => (
            call.class,
            HEADER_BYTES + UNLISTED_BYTES,
            if waits {
                HEADER_BYTES + UNLISTED_BYTES
            } else {
                0
            },
        ),
    })
}

fn find<'o>(ops: &'o [Op], name: &str) -> Result<&'o Op, String> {
    ops.iter()
        .find(|op| op.name == name)
        .ok_or_else(|| format!("no message {name}"))
}

fn request(op: &Op) -> usize {
    let records: usize = match &op.derived_from {
        Some((_, directions)) => directions
            .iter()
            .map(|d| match d {
                Direction::RecordIn(bytes) => *bytes,
                _ => 0,
            })
            .sum(),
        None => 0,
    };
    HEADER_BYTES + fields(&op.fields) + records
}

fn response(op: &Op) -> usize {
    let records: usize = match &op.derived_from {
        Some((_, directions)) => directions
            .iter()
            .map(|d| match d {
                Direction::RecordOut(bytes) => *bytes,
                _ => 0,
            })
            .sum(),
        None => 0,
    };
    match op.answer {
        Answer::Never => 0,
        _ => HEADER_BYTES + fields(&op.reply) + records,
    }
}

/// Without what byte fields hold.
fn fields(fields: &[decl::Field]) -> usize {
    fields
        .iter()
        .map(|field| match field.ty {
            Type::U8 => 1,
            Type::U16 => 2,
            Type::U32 | Type::I32 | Type::F32 | Type::Bytes => 4,
            Type::U64 | Type::Handle(_) => 8,
        })
        .sum()
}
