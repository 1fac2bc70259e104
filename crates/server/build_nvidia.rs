//! Generates the table of driver functions that the nvidia device calls, and the device's derived operations.

use std::{collections::BTreeMap, error::Error, fmt::Write, fs};

use outboard_api::decl::{self, Answer, Call, Direction, Handle, Op, Type};

/// Calls whose outputs become return values. Every derived call that [`BY_HAND`] does not name is one too.
const BY_VALUE: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetTexture1DLinearMaxWidth",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuCtxGetStreamPriorityRange",
    "cuMemGetInfo_v2",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemGetAllocationGranularity",
    "cuFlushGPUDirectRDMAWrites",
    "cuStreamCreateWithPriority",
    "cuStreamQuery",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecordWithFlags",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuGraphDestroyNode",
    "cuGraphClone",
    "cuGraphNodeFindInClone",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphNodeGetType",
    "cuGraphLaunch",
    "cuGraphExecChildGraphNodeSetParams",
    "cuKernelGetFunction",
    "cuLibraryGetModule",
    "cuLibraryGetKernelCount",
    "cuLibraryUnload",
    "cuLinkDestroy",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuKernelGetParamInfo",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuArrayDestroy",
    "cuMipmappedArrayDestroy",
    "cuMipmappedArrayGetLevel",
    "cuTexObjectDestroy",
    "cuSurfObjectDestroy",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostUnregister",
    "cuMemFreeHost",
];

/// Calls with arrays, strings or untyped pointers: `calls.rs` gives them a safe form.
const WITH_POINTERS: &[&str] = &[
    "cuGetExportTable",
    "cuDeviceGetLuid",
    "cuDeviceGetName",
    "cuDeviceGetP2PAtomicCapabilities",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemSetAccess",
    "cuMemGetHandleForAddressRange",
    "cuMemcpyAsync",
    "cuMemcpyPeerAsync",
    "cuMemcpy3DAsync_v2",
    "cuStreamSetAttribute",
    "cuStreamGetAttribute",
    "cuStreamBatchMemOp_v2",
    "cuStreamBeginCaptureToGraph",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphGetEdges_v2",
    "cuGraphGetEdges",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetDependentNodes",
    "cuGraphAddDependencies_v2",
    "cuGraphAddDependencies",
    "cuGraphAddEmptyNode",
    "cuGraphAddChildGraphNode",
    "cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode",
    "cuGraphAddHostNode",
    "cuGraphAddMemsetNode",
    "cuGraphAddMemcpyNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecUpdate_v2",
    "cuGraphDebugDotPrint",
    "cuGraphAddNode_v2",
    "cuGraphAddBatchMemOpNode",
    "cuGraphBatchMemOpNodeGetParams",
    "cuGraphBatchMemOpNodeSetParams",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphMemsetNodeSetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphMemcpyNodeSetParams",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphHostNodeSetParams",
    "cuGraphHostNodeGetParams",
    "cuGraphEventRecordNodeSetEvent",
    "cuGraphEventWaitNodeSetEvent",
    "cuGraphRemoveDependencies",
    "cuGraphRemoveDependencies_v2",
    "cuGraphConditionalHandleCreate",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuLibraryEnumerateKernels",
    "cuLibraryGetGlobal",
    "cuLibraryGetManaged",
    "cuKernelGetName",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkComplete",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialClusterSize",
    "cuTexObjectCreate",
    "cuSurfObjectCreate",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeIm2colWide",
    "cuTensorMapReplaceAddress",
];

/// Derived calls that need more than their handles mapped: what is destroyed may still be in use by the GPU, what is
/// cloned shares memory.
const BY_HAND: &[&str] = &[
    "cuArrayDestroy",
    "cuMipmappedArrayDestroy",
    "cuMipmappedArrayGetLevel",
    "cuGraphDestroy",
    "cuGraphDestroyNode",
    "cuGraphExecDestroy",
    "cuGraphUpload",
    "cuLinkDestroy",
    "cuTexObjectDestroy",
    "cuSurfObjectDestroy",
];

/// The function table: `struct Table`, `Table::load`, and one method of `Driver` a call.
pub(crate) fn table() -> Result<String, Box<dyn Error>> {
    let calls: BTreeMap<String, Call> = decl::driver()?
        .into_iter()
        .map(|call| (call.symbol.clone(), call))
        .collect();
    let mut used: BTreeMap<&str, bool> = WITH_POINTERS.iter().map(|name| (*name, false)).collect();
    used.extend(BY_VALUE.iter().map(|name| (*name, true)));
    used.extend(
        calls
            .values()
            .filter(|call| call.derived)
            .map(|call| (call.symbol.as_str(), true)),
    );
    let used = used
        .into_iter()
        .map(|(name, by_value)| {
            let call = calls
                .get(name)
                .ok_or_else(|| format!("{name} is not declared"))?;
            Ok((call, by_value))
        })
        .collect::<Result<Vec<_>, String>>()?;

    let mut out = String::new();
    writeln!(
        out,
        "/// The driver's functions; `None` where this driver is too old, or too new, to have one.\n#[allow(non_snake_case, clippy::type_complexity)]\npub(super) struct Table {{"
    )?;
    for (call, _) in &used {
        writeln!(out, "    {}: {},", call.symbol, function_type(call)?)?;
    }
    writeln!(out, "}}\n\nimpl Table {{")?;
    writeln!(
        out,
        "    /// # Safety\n    /// `resolve` answers null or the address of the driver's function of that name.\n    #[allow(clippy::type_complexity)]\n    unsafe fn load(resolve: impl Fn(&str) -> *mut c_void) -> Table {{\n        Table {{"
    )?;
    for (call, _) in &used {
        writeln!(
            out,
            "            // SAFETY: a nullable pointer to the function of this name, whose type is declared.\n            {0}: unsafe {{ std::mem::transmute::<*mut c_void, {1}>(resolve(\"{0}\")) }},",
            call.symbol,
            function_type(call)?
        )?;
    }
    writeln!(
        out,
        "        }}\n    }}\n}}\n\n#[allow(non_snake_case)]\nimpl Driver {{"
    )?;
    for (call, by_value) in &used {
        if *by_value {
            value_method(&mut out, call)?;
        } else {
            pointer_method(&mut out, call)?;
        }
    }
    writeln!(out, "}}")?;
    Ok(out)
}

/// `impl Device for Nvidia`: what is written by hand is an inherent method of the same name. An operation without one
/// keeps the trait's own answer, that it is not supported.
pub(crate) fn device(ops: &[Op]) -> Result<String, Box<dyn Error>> {
    let by_hand = sources()?;
    let mut out = String::from("impl Device for Nvidia {\n");
    for op in ops {
        let name = decl::snake_case(&op.name);
        let camel = decl::camel_case(&op.name);
        let life = if crate::bytes(&op.fields) { "<'_>" } else { "" };
        let result = match op.answer {
            Answer::Waits => "Pending".to_string(),
            _ if op.reply.is_empty() => "()".to_string(),
            _ => format!(
                "messages::{camel}Reply{}",
                if crate::bytes(&op.reply) {
                    "<'static>"
                } else {
                    ""
                }
            ),
        };
        let derived = op
            .derived_from
            .as_ref()
            .filter(|_| !BY_HAND.contains(&op.name.as_str()));
        if derived.is_none() && !by_hand.contains(&format!("fn {name}(")) {
            continue;
        }
        let m = if op.fields.is_empty() && derived.is_some() {
            "_m"
        } else {
            "m"
        };
        writeln!(
            out,
            "    fn {name}(&mut self, cx: &mut Cx<'_>, {m}: &messages::{camel}{life}) -> Result<{result}, Failure> {{"
        )?;
        match derived {
            None => writeln!(out, "        Nvidia::{name}(self, cx, m)")?,
            Some((call, directions)) => derived_body(&mut out, op, call, directions)?,
        }
        writeln!(out, "    }}")?;
    }
    writeln!(out, "}}")?;
    Ok(out)
}

/// The device's source text.
fn sources() -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for file in fs::read_dir("src/nvidia")? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path)?);
        }
    }
    Ok(text)
}

fn derived_body(
    out: &mut String,
    op: &Op,
    call: &Call,
    directions: &[Direction],
) -> Result<(), Box<dyn Error>> {
    writeln!(out, "        self.enter(cx)?;")?;
    let (mut arguments, mut outputs, mut after) = (Vec::new(), Vec::new(), String::new());
    let mut reply = Vec::new();
    let mut touches_memory = false;
    for (param, direction) in call.params.iter().zip(directions) {
        let name = decl::snake_case(&param.name);
        match direction {
            Direction::In => {
                if param.ctype == "CUdeviceptr" {
                    touches_memory = true;
                    let extent = extent(&call.symbol);
                    let stream = call.params.iter().find(|p| p.ctype == "CUstream");
                    match stream.filter(|_| call.symbol.starts_with("cuMemset")) {
                        Some(stream) => {
                            let stream = decl::snake_case(&stream.name);
                            writeln!(
                                out,
                                "        self.settable(m.{name}, {extent}, m.{stream})?;"
                            )?;
                        }
                        None => writeln!(out, "        self.known(m.{name}, {extent})?;")?,
                    }
                }
                arguments.push(match decl::scalar(&param.ctype) {
                    Some(Type::Handle(handle)) => {
                        // A kernel's first use loads its code, which takes what comes with the message.
                        let cx = if handle == Handle::Kernel { "cx, " } else { "" };
                        writeln!(
                            out,
                            "        let {name} = self.real_{}({cx}m.{name})?;",
                            handle.name()
                        )?;
                        name
                    }
                    _ if param.ctype == "CUdevice" => {
                        writeln!(out, "        let {name} = self.real_device(m.{name})?;")?;
                        name
                    }
                    _ => format!("m.{name}"),
                });
            }
            Direction::RecordIn(bytes) => {
                writeln!(
                    out,
                    "        let {name} = Record::<{bytes}>::new(\"{0}\", m.{name})?;",
                    call.symbol
                )?;
                arguments.push(format!("&{name}"));
            }
            Direction::Out => {
                outputs.push(name.clone());
                reply.push(name);
            }
            Direction::RecordOut(_) => {
                outputs.push(name.clone());
                reply.push(format!("{name}: {name}.0.to_vec().into()"));
            }
            Direction::Mint(handle) => {
                outputs.push(name.clone());
                writeln!(
                    after,
                    "        self.bind_{}(m.{name}, {name})?;",
                    handle.name()
                )?;
            }
        }
    }
    let bound = match outputs.len() {
        0 => String::new(),
        1 => format!("let {} = ", outputs[0]),
        _ => format!("let ({}) = ", outputs.join(", ")),
    };
    let invoked = format!("self.driver.{}({})", call.symbol, arguments.join(", "));
    if touches_memory {
        writeln!(
            out,
            "        // SAFETY: the addresses are the session's, or those of captured work that never runs.\n        {bound}unsafe {{ {invoked} }}?;"
        )?;
    } else {
        writeln!(out, "        {bound}{invoked}?;")?;
    }
    out.push_str(&after);
    if op.reply.is_empty() {
        writeln!(out, "        Ok(())")?;
    } else {
        writeln!(
            out,
            "        Ok(messages::{}Reply {{ {} }})",
            decl::camel_case(&op.name),
            reply.join(", ")
        )?;
    }
    Ok(())
}

/// How many bytes a derived call touches behind its address.
fn extent(symbol: &str) -> &'static str {
    match symbol {
        "cuMemsetD8Async" | "cuMemsetD8_v2" => "m.n",
        "cuMemsetD16Async" | "cuMemsetD16_v2" => "m.n.saturating_mul(2)",
        "cuMemsetD32Async" | "cuMemsetD32_v2" => "m.n.saturating_mul(4)",
        "cuMemsetD2D8Async" | "cuMemsetD2D8_v2" => "rows(m.dst_pitch, m.width, m.height)",
        "cuMemsetD2D16Async" | "cuMemsetD2D16_v2" => {
            "rows(m.dst_pitch, m.width.saturating_mul(2), m.height)"
        }
        "cuMemsetD2D32Async" | "cuMemsetD2D32_v2" => {
            "rows(m.dst_pitch, m.width.saturating_mul(4), m.height)"
        }
        "cuStreamWaitValue64_v2" | "cuStreamWriteValue64_v2" => "8",
        _ => "4",
    }
}

fn value_method(out: &mut String, call: &Call) -> Result<(), Box<dyn Error>> {
    let symbol = &call.symbol;
    let (mut params, mut arguments, mut outputs, mut results) =
        (Vec::new(), Vec::new(), String::new(), Vec::new());
    let mut checked = true;
    for (i, param) in call.params.iter().enumerate() {
        let raw = raw_type(&param.ctype)?;
        if let Some(pointee) = raw.strip_prefix("*const ") {
            params.push(format!("p{i}: &{pointee}"));
            arguments.push(format!("p{i}"));
        } else if raw == "*mut c_void" && call.derived {
            // The one untyped output, of cuDeviceGetGraphMemAttribute: always a cuuint64_t.
            writeln!(
                outputs,
                "        let mut o{i} = MaybeUninit::<Record<8>>::zeroed();"
            )?;
            arguments.push(format!("o{i}.as_mut_ptr().cast()"));
            results.push((i, "Record<8>".to_string()));
        } else if let Some(pointee) = raw.strip_prefix("*mut ").filter(|p| *p != "c_void") {
            writeln!(
                outputs,
                "        let mut o{i} = MaybeUninit::<{pointee}>::zeroed();"
            )?;
            arguments.push(format!("o{i}.as_mut_ptr()"));
            results.push((i, pointee.to_string()));
        } else {
            // Whoever passes an address vouches for the memory behind it.
            checked &= param.ctype != "CUdeviceptr" && raw != "*mut c_void";
            params.push(format!("p{i}: {raw}"));
            arguments.push(format!("p{i}"));
        }
    }
    let types: Vec<&str> = results.iter().map(|(_, t)| t.as_str()).collect();
    let returned = match types.len() {
        1 => types[0].to_string(),
        _ => format!("({})", types.join(", ")),
    };
    let safety = if checked { "" } else { "unsafe " };
    if !checked {
        writeln!(
            out,
            "    /// # Safety\n    /// The memory named is the session's, and of the length that the call says."
        )?;
    }
    writeln!(
        out,
        "    #[inline]\n    pub(super) {safety}fn {symbol}(&self{}{}) -> Result<{returned}, Refused> {{\n        let function = self.table.{symbol}.ok_or(Refused::missing(\"{symbol}\"))?;\n{outputs}        // SAFETY: the declared signature; outputs have room, handles came from this driver.\n        Refused::check(\"{symbol}\", unsafe {{ function({}) }})?;",
        if params.is_empty() { "" } else { ", " },
        params.join(", "),
        arguments.join(", ")
    )?;
    let values: Vec<String> = results
        .iter()
        .map(|(i, _)| format!("o{i}.assume_init()"))
        .collect();
    match values.len() {
        0 => writeln!(out, "        Ok(())")?,
        1 => writeln!(
            out,
            "        // SAFETY: plain data, zeroed before the driver filled it.\n        Ok(unsafe {{ {} }})",
            values[0]
        )?,
        _ => writeln!(
            out,
            "        // SAFETY: plain data, zeroed before the driver filled it.\n        Ok(unsafe {{ ({}) }})",
            values.join(", ")
        )?,
    }
    writeln!(out, "    }}")?;
    Ok(())
}

fn pointer_method(out: &mut String, call: &Call) -> Result<(), Box<dyn Error>> {
    let symbol = &call.symbol;
    let (mut params, mut arguments) = (Vec::new(), Vec::new());
    for (i, param) in call.params.iter().enumerate() {
        params.push(format!("p{i}: {}", raw_type(&param.ctype)?));
        arguments.push(format!("p{i}"));
    }
    writeln!(
        out,
        "    /// # Safety\n    /// Every pointer is as `cuda.h` asks of `{symbol}`.\n    #[inline]\n    #[allow(clippy::too_many_arguments)]\n    pub(super) unsafe fn {symbol}(&self, {}) -> Result<(), Refused> {{\n        let function = self.table.{symbol}.ok_or(Refused::missing(\"{symbol}\"))?;\n        // SAFETY: the declared signature; the caller vouches for the pointers.\n        Refused::check(\"{symbol}\", unsafe {{ function({}) }})\n    }}",
        params.join(", "),
        arguments.join(", ")
    )?;
    Ok(())
}

fn function_type(call: &Call) -> Result<String, String> {
    let types = call
        .params
        .iter()
        .map(|p| raw_type(&p.ctype))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(format!(
        "Option<unsafe extern \"C\" fn({}) -> CUresult>",
        types.join(", ")
    ))
}

/// A C type of the declarations in Rust; handles are the driver's own, not the client's numbers.
fn raw_type(ctype: &str) -> Result<String, String> {
    let ctype = ctype.trim();
    if let Some(pointee) = ctype.strip_suffix('*').map(str::trim) {
        return Ok(match pointee.strip_prefix("const ") {
            Some(p) if !p.ends_with('*') => format!("*const {}", pointee_type(p)?),
            _ => format!("*mut {}", pointee_type(pointee)?),
        });
    }
    if let Some(handle) = Handle::ALL.iter().find(|h| h.ctype() == ctype) {
        return Ok(format!("real::{handle:?}"));
    }
    Ok(match ctype {
        "CUkernel" => "real::DeviceKernel".into(),
        "CUmodule" => "real::Module".into(),
        "CUhostFn" => "CUhostFn".into(),
        "CUuuid" => "CUuuid".into(),
        "CUipcEventHandle" => "CUipcEventHandle".into(),
        _ => match decl::scalar(ctype) {
            Some(Type::U8) => "u8".into(),
            Some(Type::U16) => "u16".into(),
            Some(Type::U64) => "u64".into(),
            Some(Type::I32) => "i32".into(),
            Some(Type::F32) => "f32".into(),
            Some(Type::U32) => "u32".into(),
            // Every other type that the used calls take by value is one of CUDA's enums.
            _ if ctype.starts_with("CU") => "u32".into(),
            _ => return Err(format!("type {ctype}")),
        },
    })
}

fn pointee_type(ctype: &str) -> Result<String, String> {
    Ok(match ctype {
        "void" => "c_void".into(),
        "char" => "c_char".into(),
        "CUDA_ARRAY_DESCRIPTOR" => "Record<24>".into(),
        "CUDA_ARRAY3D_DESCRIPTOR" => "Record<40>".into(),
        "CUDA_TEXTURE_DESC" => "Record<104>".into(),
        "CUDA_RESOURCE_DESC" => "Record<144>".into(),
        "CUDA_RESOURCE_VIEW_DESC" => "Record<112>".into(),
        "CUstreamAttrValue" | "CUkernelNodeAttrValue" => "Record<64>".into(),
        "CUgraphNodeParams" => "Record<256>".into(),
        "CUgraphConditionalHandle" => "u64".into(),
        record
            if record.starts_with("CUDA_")
                || [
                    "CUlaunchConfig",
                    "CUmemAllocationProp",
                    "CUmemAccessDesc",
                    "CUtensorMap",
                    "CUgraphEdgeData",
                    "CUgraphExecUpdateResultInfo",
                    "CUstreamBatchMemOpParams",
                ]
                .contains(&record) =>
        {
            record.into()
        }
        other => raw_type(other)?,
    })
}
