//! Generates, for every declared function, its export, its entry in the table of the driver's
//! functions, and its cost when remoted.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl::{
        self, Answer, Call, Class, Cost, Direction, Ends, Invocation, Op, PerThread, Touches, Type,
    },
    ffi::{name, rust_type, stream_of, subject_of},
};

const HEADER_BYTES: usize = 16;
/// Bytes of a message of a call whose declaration names none: an estimate, two words either way.
const UNDECLARED_BYTES: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions outlive
    // that.
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
        // Not all of their types are declared, so the arguments stay in place.
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
    if target.attributes.finds_functions {
        return Ok(writeln!(
            out,
            "/// # Safety\n/// As the driver asks.\n#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn {symbol}({declared}) -> CUresult {{\n    // SAFETY: the driver's function of this name and type; what the caller promised is passed on as it is.\n    guard::pass(Passed {{ number: {number}, subject: || Subject::NONE, delay: || (), call: || unsafe {{\n        let real: unsafe extern \"C\" fn({types}) -> CUresult = std::mem::transmute(SLOTS[{slot}].load(Ordering::Relaxed));\n        let result = real({args});\n        procaddr::replace(result, symbol, pfn, cuda_version, flags);\n        result\n    }}, work: (None, || None), cost: || CALLS[{number}].1 }})\n}}"
        )?);
    }
    let args_list: Vec<String> = params.iter().map(|(name, _)| name.clone()).collect();
    // As in the client, the null stream of a `_ptsz` call is the thread's own.
    let streams: Vec<String> = (target.params.iter().zip(&args_list))
        .map(|(param, arg)| match (per_thread, param.ctype.as_str()) {
            (Some(PerThread::Ptsz), "CUstream") => format!("guard::per_thread({arg})"),
            _ => arg.clone(),
        })
        .collect();
    let stream = stream_of(target, &streams, per_thread);
    let subject = subject_of(target, &streams, per_thread);
    let cost = match &target.attributes.cost {
        Some(Cost::Computed(computed)) => format!("cost::{}", invoked(computed, target)),
        _ if target.attributes.is_asked_once => {
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
        _ => format!("CALLS[{number}].1"),
    };
    let delayed = delayed(target, &stream)?;
    let (stream_of_work, work) = match work(target) {
        Some(work) => (stream.as_str(), work),
        None => ("None", "None".to_string()),
    };
    writeln!(
        out,
        "/// # Safety\n/// As the driver asks.\n#[unsafe(no_mangle)]\npub(crate) unsafe extern \"C\" fn {symbol}({declared}) -> CUresult {{\n    // SAFETY: the driver's function of this name and type; what the caller promised is passed on as it is.\n    guard::pass(Passed {{ number: {number}, subject: || {subject}, delay: || {{ {delayed} }}, call: || unsafe {{\n        let real: unsafe extern \"C\" fn({types}) -> CUresult = std::mem::transmute(SLOTS[{slot}].load(Ordering::Relaxed));\n        real({args})\n    }}, \n    // SAFETY: as above.\n    work: ({stream_of_work}, || unsafe {{ {work} }}),\n    // SAFETY: as above.\n    cost: || unsafe {{ {cost} }} }})\n}}"
    )?;
    Ok(())
}

/// Returns the meaning of a call for the times of the GPU: a `guard::Role`.
fn role(call: &Call) -> &'static str {
    let attributes = &call.attributes;
    match attributes.ends {
        Some(Ends::Module) => return "EndsModule",
        Some(Ends::Context) => return "EndsContext",
        Some(Ends::Handle) | None => {}
    }
    match attributes.touches {
        Some(Touches::Memset(_)) => "StartsWork",
        _ if attributes.work.is_some() => "StartsWork",
        _ if attributes.is_init => "Init",
        _ if attributes.is_wait => "Waits",
        _ => "Other",
    }
}

/// Returns the work that the GPU does for a call, as an expression; `None` if nothing is known of
/// it.
fn work(call: &Call) -> Option<String> {
    if let Some(Touches::Memset(element_bytes)) = call.attributes.touches {
        let count = match call.params.iter().any(|p| p.name == "N") {
            true => name("N"),
            false => format!("{}.saturating_mul({})", name("Width"), name("Height")),
        };
        let bytes = format!("{count}.saturating_mul({element_bytes})");
        return Some(format!("events::memset({bytes})"));
    }
    let what = call.attributes.work.as_ref()?.what.as_ref()?;
    Some(format!("events::{}", invoked(what, call)))
}

/// Returns the delay of a call by a longer PCIe, as a statement.
fn delayed(call: &Call, stream: &str) -> Result<String, String> {
    if let Some(Touches::Memset(_)) = call.attributes.touches {
        return Ok(format!("pcie::work({stream});"));
    }
    let Some(work) = call.attributes.work.as_ref().filter(|w| w.is_delayed) else {
        return Ok(String::new());
    };
    let what = work.what.as_ref().ok_or("unknown work is delayed")?;
    let given = arguments(what, call);
    Ok(match what.function.as_str() {
        "kernel" | "graph" => format!("pcie::work({stream});"),
        "to_device" => format!("pcie::to_device({given}, {stream});"),
        "to_host" => format!("pcie::to_host({stream});"),
        "copy" => format!("pcie::copy({given}, {stream});"),
        other => return Err(format!("{}: no delay of {other}", call.symbol)),
    })
}

fn invoked(invocation: &Invocation, call: &Call) -> String {
    format!("{}({})", invocation.function, arguments(invocation, call))
}

/// Returns the arguments of a function of this library, made from the call's: kernels and host
/// addresses are passed as numbers.
fn arguments(invocation: &Invocation, call: &Call) -> String {
    let argument = |given: &String| {
        let param = call.params.iter().find(|p| p.name == *given);
        match param.map(|p| p.ctype.as_str()) {
            Some("CUfunction") => format!("{}.0", name(given)),
            Some("void *") => format!("{} as u64", name(given)),
            Some(_) => name(given),
            None => given.clone(),
        }
    };
    let all: Vec<String> = invocation.arguments.iter().map(argument).collect();
    all.join(", ")
}

/// Returns class, request and response of a call in the usual case, by the declarations of its
/// messages.
fn cost(call: &Call, ops: &[Op]) -> Result<(Class, usize, usize), Box<dyn Error>> {
    if call.class == Class::Unsupported {
        return Ok((Class::Unsupported, 0, 0));
    }
    if call.class == Class::Local || call.attributes.cost == Some(Cost::Known) {
        return Ok((Class::Local, 0, 0));
    }
    let op = match &call.attributes.cost {
        Some(Cost::Sends(message)) => Some(find(ops, message)?),
        _ if call.derived => Some(find(ops, &call.symbol)?),
        _ => None,
    };
    Ok(match op {
        // A call that frees memory waits for work that may still use it.
        Some(op) if op.answer == Answer::Waits => (Class::Synchronous, request(op), response(op)),
        Some(op) => (call.class, request(op), response(op)),
        None => {
            let response = match call.class {
                Class::Synchronous => HEADER_BYTES + UNDECLARED_BYTES,
                _ => 0,
            };
            (call.class, HEADER_BYTES + UNDECLARED_BYTES, response)
        }
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

/// Sums the sizes of fields, without the contents of byte fields.
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
