//! Generates the table of driver functions that the nvidia device calls, and the device's derived
//! operations.

use std::{error::Error, fmt::Write, fs};

use outboard_api::decl::{self, Answer, Call, Direction, Handle, Nvidia, Op, Touches, Type};

/// Whether the outputs of a driver function become return values. `None` if the device does not
/// call the function.
fn is_by_value(call: &Call) -> Option<bool> {
    match call.attributes.nvidia {
        None if call.derived => Some(true),
        None => None,
        Some(Nvidia::Returns | Nvidia::ByHand) => Some(true),
        Some(Nvidia::Pointers) => Some(false),
    }
}

/// The function table: `struct Table`, `Table::load`, and one method of `Driver` a call.
pub(crate) fn table() -> Result<String, Box<dyn Error>> {
    let calls = decl::driver()?;
    let mut used: Vec<(&Call, bool)> = calls
        .iter()
        .filter_map(|call| Some((call, is_by_value(call)?)))
        .collect();
    used.sort_by_key(|(call, _)| call.symbol.as_str());

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

/// Writes `impl Device for Nvidia`. An operation written by hand is an inherent method of that
/// name; one that is neither written nor derived keeps the trait's answer, "not supported".
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
            .filter(|(call, _)| call.attributes.nvidia != Some(Nvidia::ByHand));
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
                    let touches = call.attributes.touches.ok_or("an address of nothing")?;
                    let extent = extent(call, touches);
                    let stream = call.params.iter().find(|p| p.ctype == "CUstream");
                    match stream.filter(|_| matches!(touches, Touches::Memset(_))) {
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
                        // A kernel's first use loads its code, for which the message's context is
                        // needed.
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

/// Bytes that a derived call touches from its address on, as an expression over its message.
fn extent(call: &Call, touches: Touches) -> String {
    let elements = |name: &str, bytes: usize| match bytes {
        1 => format!("m.{name}"),
        bytes => format!("m.{name}.saturating_mul({bytes})"),
    };
    match touches {
        Touches::WaitWord(bytes) | Touches::WriteWord(bytes) => bytes.to_string(),
        Touches::Memset(bytes) if call.params.iter().any(|p| p.name == "N") => elements("n", bytes),
        Touches::Memset(bytes) => {
            format!("rows(m.dst_pitch, {}, m.height)", elements("width", bytes))
        }
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
            // The caller guarantees that the memory at each address it passes is valid.
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
