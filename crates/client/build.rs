//! Generates the exported entry points and the stubs of derived calls from the declarations in
//! `outboard-api`.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl::{
        self, Call, Capture, Class, Direction, Ends, NodeCall, NodeVerb, Op, PerThread, Touches,
    },
    ffi::{name, rust_type, subject_of},
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let calls = decl::driver()?;
    let ops = decl::ops()?;
    let mut out = String::new();
    for call in &calls {
        let target = match &call.same_as {
            Some(other) => calls
                .iter()
                .find(|c| &c.symbol == other)
                .ok_or("alias of nothing")?,
            None => call,
        };
        entry(&mut out, call, target, None)?;
        if let Some(per_thread) = call.per_thread {
            entry(&mut out, call, target, Some(per_thread))?;
        }
    }
    for op in &ops {
        if let Some((call, directions)) = &op.derived_from {
            derived(&mut out, op, call, directions)?;
        }
    }
    writeln!(
        out,
        "/// Every exported symbol and its address, by name.\nstatic EXPORTS: &[(&str, Export)] = &["
    )?;
    let mut exports: Vec<String> = calls
        .iter()
        .flat_map(|c| c.exports().collect::<Vec<_>>())
        .collect();
    exports.sort();
    for export in exports {
        writeln!(
            out,
            "    (\"{export}\", Export({export} as *const c_void)),"
        )?;
    }
    writeln!(out, "];")?;
    let folder = env::var("OUT_DIR")?;
    fs::write(Path::new(&folder).join("entry.rs"), out)?;
    fs::write(
        Path::new(&folder).join("call_table.rs"),
        call_table(&calls)?,
    )?;
    Ok(())
}

/// Generates the table of the calls' names and classes.
fn call_table(calls: &[Call]) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    writeln!(
        out,
        "/// Name and declared class of every call, by number.\npub(crate) static CALLS: &[(&str, Class)] = &["
    )?;
    for call in calls {
        writeln!(out, "    (\"{}\", Class::{:?}),", call.symbol, call.class)?;
    }
    writeln!(out, "];")?;
    Ok(out)
}

/// Generates one exported function. `call` gives its name, `target` the call that serves it.
fn entry(
    out: &mut String,
    call: &Call,
    target: &Call,
    per_thread: Option<PerThread>,
) -> Result<(), Box<dyn Error>> {
    let number = decl::driver()?
        .iter()
        .position(|c| c.symbol == call.symbol)
        .ok_or("undeclared")?;
    let symbol = format!(
        "{}{}",
        call.symbol,
        per_thread.map_or("", PerThread::suffix)
    );
    if target.class == Class::Unsupported {
        // The arguments are not read, so they need not be declared.
        return Ok(writeln!(
            out,
            "/// # Safety\n/// None needed: the call is refused.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {symbol}() -> CUresult {{ guard::unsupported({number}) }}"
        )?);
    }
    let params: Vec<String> = target
        .params
        .iter()
        .map(|p| format!("{}: {}", name(&p.name), rust_type(&p.ctype)))
        .collect();
    let args: Vec<String> = target
        .params
        .iter()
        .map(|p| match per_thread {
            Some(PerThread::Ptsz) if p.ctype == "CUstream" => {
                format!("guard::per_thread({})", name(&p.name))
            }
            _ => name(&p.name),
        })
        .collect();
    let types: Vec<String> = target.params.iter().map(|p| rust_type(&p.ctype)).collect();
    let subject = subject_of(target, &args, per_thread);
    let module = if target.derived {
        "derived__"
    } else {
        "calls::"
    };
    let captures = match target.attributes.capture {
        Some(Capture::Unsafe) => "calls::check_captures_unsafe()?; ",
        Some(Capture::Context) => "calls::check_captures_of_context()?; ",
        None => "",
    };
    let body = match &target.attributes.node {
        Some(node) => node_call(target, node, &args),
        None => format!("{module}{}({})", target.symbol, args.join(", ")),
    };
    let config = target
        .params
        .iter()
        .find(|p| p.ctype == "const CUlaunchConfig *");
    let body = match (per_thread, config) {
        (Some(PerThread::Ptsz), Some(config)) => {
            let config = name(&config.name);
            format!("guard::with_per_thread_config({config}, |{config}| {body})")
        }
        (Some(PerThread::Ptds), _) => format!("guard::with_per_thread_default(|| {body})"),
        _ => body,
    };
    writeln!(
        out,
        "/// # Safety\n/// Pointers are valid as the driver API's manual asks of a caller.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {symbol}({}) -> CUresult {{\n    #[repr(C)]\n    #[derive(Clone, Copy)]\n    struct Params({});\n    // SAFETY: what the caller promised is passed on as it is.\n    guard::enter({number}, || {subject}, || Params({}), || unsafe {{ {captures}{body} }})\n}}",
        params.join(", "),
        types.join(", "),
        args.join(", ")
    )?;
    Ok(())
}

/// Returns the body of a call that adds, changes or reads one kind of node.
fn node_call(call: &Call, node: &NodeCall, args: &[String]) -> String {
    let kind = &node.kind.function;
    let mut given = vec!["driver".to_string()];
    given.extend(node.kind.arguments.iter().map(|a| name(a)));
    let given = given.join(", ");
    let is_exec = call.params.iter().any(|p| p.ctype == "CUgraphExec");
    let (function, arguments) = match node.verb {
        NodeVerb::Add => (
            "add_node",
            format!("&calls::Spot::plain({})", args[..4].join(", ")),
        ),
        NodeVerb::Get => {
            let (node, out) = (&args[0], &args[1]);
            return format!("calls::get_node({node}, {out}.cast(), calls::kept::{kind})");
        }
        NodeVerb::Set if is_exec => ("set_exec_node", args[..2].join(", ")),
        NodeVerb::Set => ("set_node", args[0].clone()),
    };
    format!("calls::{function}({arguments}, |driver| calls::given::{kind}({given}))")
}

/// Generates the client's side of a call that its declaration describes fully.
fn derived(
    out: &mut String,
    op: &Op,
    call: &Call,
    directions: &[Direction],
) -> Result<(), Box<dyn Error>> {
    let params: Vec<String> = call
        .params
        .iter()
        .map(|p| format!("{}: {}", name(&p.name), rust_type(&p.ctype)))
        .collect();
    writeln!(
        out,
        "pub(crate) mod derived_{} {{ use super::*;\n    pub(crate) unsafe fn {}({}) -> Result<(), CUresult> {{",
        call.symbol,
        call.symbol,
        params.join(", ")
    )?;
    writeln!(out, "        let driver = driver()?;")?;
    out.push_str(&checks(call));
    let mut fields = Vec::new();
    for (param, direction) in call.params.iter().zip(directions) {
        let (c, field) = (name(&param.name), decl::snake_case(&param.name));
        match direction {
            Direction::In => match decl::scalar(&param.ctype) {
                Some(decl::Type::Handle(handle)) => {
                    let verb = match call.attributes.ends {
                        Some(Ends::Handle) => "retire",
                        _ => "wire",
                    };
                    fields.push(format!("{field}: driver.{verb}_{}({c})?", handle.name()));
                }
                // The call's checks have looked the address up.
                Some(decl::Type::U64)
                    if matches!(call.attributes.touches, Some(Touches::Memset(_)))
                        && param.ctype == "CUdeviceptr" =>
                {
                    fields.push(format!("{field}: {c} as u64"))
                }
                Some(decl::Type::U64) if param.ctype == "CUdeviceptr" => {
                    fields.push(format!("{field}: driver.device_address({c})?"))
                }
                Some(_) if param.ctype == "CUdevice" => {
                    fields.push(format!("{field}: driver.devices.server({c})?"))
                }
                Some(ty) => fields.push(format!("{field}: {c} as {}", wire_type(ty))),
                None => return Err(format!("{}: {}", call.symbol, param.ctype).into()),
            },
            Direction::RecordIn(bytes) => {
                writeln!(
                    out,
                    "        if {c}.is_null() {{ return Err(CUresult::CUDA_ERROR_INVALID_VALUE); }}"
                )?;
                writeln!(
                    out,
                    "        // SAFETY: the caller passes a record of this type.\n        let record_{field} = unsafe {{ std::slice::from_raw_parts({c}.cast::<u8>(), {bytes}) }};"
                )?;
                fields.push(format!("{field}: record_{field}"));
            }
            Direction::Mint(handle) => {
                writeln!(
                    out,
                    "        if {c}.is_null() {{ return Err(CUresult::CUDA_ERROR_INVALID_VALUE); }}\n        let minted_{field} = driver.mint_{}();",
                    handle.name()
                )?;
                fields.push(format!("{field}: minted_{field}"));
            }
            Direction::Out | Direction::RecordOut(_) => {
                writeln!(
                    out,
                    "        if {c}.is_null() {{ return Err(CUresult::CUDA_ERROR_INVALID_VALUE); }}"
                )?;
            }
        }
    }
    let message = format!(
        "messages::{} {{ {} }}",
        decl::camel_case(&call.symbol),
        fields.join(", ")
    );
    if call.class == Class::Outstanding {
        writeln!(out, "        driver.submit(&{message})?;")?;
        if let Some(stream) = call.params.iter().find(|p| p.ctype == "CUstream") {
            writeln!(
                out,
                "        driver.stream({})?.progress().submit();",
                name(&stream.name)
            )?;
        } else if let Some(Touches::Memset(_)) = call.attributes.touches {
            writeln!(out, "        driver.end_memset(memory)?;")?;
        }
    } else if op.reply.is_empty() {
        writeln!(out, "        driver.call(&{message}, |_| ())?;")?;
    } else {
        writeln!(out, "        driver.call(&{message}, |reply| {{")?;
        for (param, direction) in call.params.iter().zip(directions) {
            let (c, field) = (name(&param.name), decl::snake_case(&param.name));
            match direction {
                Direction::Out => writeln!(
                    out,
                    "            // SAFETY: the caller's output, checked above.\n            unsafe {{ {c}.write(reply.{field} as _) }};"
                )?,
                Direction::RecordOut(bytes) => writeln!(
                    out,
                    "            let len = reply.{field}.len().min({bytes});\n            // SAFETY: the caller's record has this many bytes.\n            unsafe {{ std::ptr::copy_nonoverlapping(reply.{field}.as_ptr(), {c}.cast::<u8>(), len) }};"
                )?,
                _ => {}
            }
        }
        writeln!(out, "        }})?;")?;
    }
    for (param, direction) in call.params.iter().zip(directions) {
        if let Direction::Mint(handle) = direction {
            let field = decl::snake_case(&param.name);
            writeln!(
                out,
                "        // SAFETY: the caller's output, checked above.\n        unsafe {{ {}.write(driver.handle_{}(minted_{field})) }};",
                name(&param.name),
                handle.name()
            )?;
        }
    }
    writeln!(
        out,
        "        Ok(())\n    }}\n}}\npub(crate) use derived_{0}::{0} as derived__{0};",
        call.symbol
    )?;
    Ok(())
}

/// Generates the checks of memory that the driver makes during a memset or stream memory operation.
fn checks(call: &Call) -> String {
    match call.attributes.touches {
        Some(Touches::Memset(element)) => memset_check(call, element),
        Some(Touches::WaitWord(bytes)) => word_check(bytes, "WAIT"),
        Some(Touches::WriteWord(bytes)) => word_check(bytes, "WRITE"),
        None => String::new(),
    }
}

fn memset_check(call: &Call, element: usize) -> String {
    let param = |name: &str| call.params.iter().any(|p| p.name == name);
    let [pitch, width, height] = match param("N") {
        true => ["0".to_string(), name("N"), "1".to_string()],
        false => ["dstPitch", "Width", "Height"].map(name),
    };
    let address = name("dstDevice");
    // A stream knows its context; a call without one works in the current context.
    // Only a call without a stream may have to wait.
    let (context, stream, memory) = match param("hStream") {
        true => ("", format!("Some({})", name("hStream")), "_"),
        false => (
            "        driver.contexts.current()?;\n",
            "None".into(),
            "memory",
        ),
    };
    format!(
        "{context}        let Some({memory}) = driver.check_memset({address}, {element}, {pitch} as u64, [{width} as u64, {height} as u64], {stream})? else {{ return Ok(()); }};\n"
    )
}

fn word_check(bytes: usize, flags: &str) -> String {
    let (address, given) = (name("addr"), name("flags"));
    format!(
        "        calls::check_word({address}, {bytes}, {given}, calls::{flags}_VALUE_FLAGS)?;\n"
    )
}

fn wire_type(ty: decl::Type) -> &'static str {
    match ty {
        decl::Type::U8 => "u8",
        decl::Type::U16 => "u16",
        decl::Type::U32 => "u32",
        decl::Type::I32 => "i32",
        decl::Type::F32 => "f32",
        _ => "u64",
    }
}
