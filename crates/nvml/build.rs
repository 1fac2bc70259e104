//! Generates the exported functions from the declarations in `outboard-api`.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl,
    nvml::{self, Call, Service},
};

/// Number of entries in the private table, which states its size; each must be a callable function.
const PRIVATE_SLOTS: usize = 270;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Programs close the library and open it again; its threads, handlers and sessions stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    let calls = nvml::calls()?;
    let mut out = String::new();
    for (number, call) in calls.iter().enumerate() {
        entry(&mut out, &calls, number, call)?;
    }
    writeln!(out, "/// The name of every call, by number.")?;
    writeln!(out, "pub static CALLS: [&str; {}] = [", calls.len())?;
    for call in &calls {
        writeln!(out, "    \"{}\",", call.symbol)?;
    }
    writeln!(out, "];")?;
    let folder = env::var("OUT_DIR")?;
    fs::write(Path::new(&folder).join("entry.rs"), out)?;
    fs::write(Path::new(&folder).join("slots.rs"), private_slots()?)?;
    Ok(())
}

fn entry(
    out: &mut String,
    calls: &[Call],
    number: usize,
    call: &Call,
) -> Result<(), Box<dyn Error>> {
    let symbol = &call.symbol;
    let target = match &call.service {
        Service::Served => call,
        Service::SameAs(other) => calls
            .iter()
            .find(|c| &c.symbol == other)
            .ok_or_else(|| format!("{symbol} stands for {other}, which is not declared"))?,
        // The arguments are not read, so they need no types.
        Service::Unsupported => {
            writeln!(
                out,
                "#[unsafe(no_mangle)]\npub extern \"C\" fn {symbol}() -> nvmlReturn_t {{ guard::unsupported({number}) }}"
            )?;
            return Ok(());
        }
    };
    let mut params = Vec::new();
    let mut args = Vec::new();
    for param in &target.params {
        let name = name(&param.name);
        params.push(format!("{name}: {}", rust_type(&param.ctype)?));
        args.push(name);
    }
    let (params, args) = (params.join(", "), args.join(", "));
    let call = format!("calls::{}({args})", target.symbol);
    let (result, body) = match &target.result {
        None => (
            "nvmlReturn_t".to_string(),
            format!("guard::enter({number}, || unsafe {{ {call} }})"),
        ),
        Some(ctype) => (rust_type(ctype)?, format!("unsafe {{ {call} }}")),
    };
    writeln!(
        out,
        "/// # Safety\n/// Pointers are null, or valid as NVML's reference asks of a caller.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {symbol}({params}) -> {result} {{\n    // SAFETY: what the caller promised is passed on as it is.\n    {body}\n}}"
    )?;
    Ok(())
}

/// Generates a function for every entry of the private table, so that the log can name the entry
/// that was called.
fn private_slots() -> Result<String, std::fmt::Error> {
    let mut out = format!(
        "static SLOTS: [Slot; {PRIVATE_SLOTS}] = [\n    Slot::bytes(8 * {PRIVATE_SLOTS}),\n"
    );
    for slot in 1..PRIVATE_SLOTS {
        match slot {
            26 => writeln!(out, "    Slot::function(printed_line as *const ()),")?,
            81 => writeln!(out, "    Slot::function(handle_by_index as *const ()),")?,
            213..=215 => writeln!(out, "    Slot::function(processes::<{slot}> as *const ()),")?,
            _ => writeln!(out, "    Slot::function(unknown::<{slot}> as *const ()),")?,
        }
    }
    out.push_str("];\n");
    Ok(out)
}

fn name(c: &str) -> String {
    match decl::snake_case(c).as_str() {
        "type" => "type_".to_string(),
        name => name.to_string(),
    }
}

fn rust_type(ctype: &str) -> Result<String, String> {
    let ctype = ctype.trim();
    if let Some(pointee) = ctype.strip_suffix('*') {
        let pointee = pointee.trim();
        return match pointee.strip_prefix("const ") {
            Some(constant) if !constant.ends_with('*') => {
                Ok(format!("*const {}", rust_type(constant)?))
            }
            _ => Ok(format!("*mut {}", rust_type(pointee)?)),
        };
    }
    if let Some((_, rust)) = PRIMITIVES.iter().find(|(c, _)| *c == ctype) {
        return Ok(rust.to_string());
    }
    if STRUCTS.contains(&ctype) {
        return Ok(ctype.to_string());
    }
    if ENUMS.contains(&ctype) {
        return Ok("u32".to_string());
    }
    Err(format!("{ctype}: not known to build.rs"))
}

const PRIMITIVES: &[(&str, &str)] = &[
    ("unsigned long", "u64"),
    ("char", "c_char"),
    ("int", "i32"),
    ("unsigned int", "u32"),
    ("unsigned long long", "u64"),
    ("void", "c_void"),
];

/// Types of `types.rs`.
const STRUCTS: &[&str] = &[
    "nvmlBAR1Memory_t",
    "nvmlDevice_t",
    "nvmlEventData_t",
    "nvmlEventSet_t",
    "nvmlFieldValue_t",
    "nvmlGpuFabricInfoV_t",
    "nvmlGpuFabricInfo_t",
    "nvmlMemory_t",
    "nvmlMemory_v2_t",
    "nvmlPciInfo_t",
    "nvmlProcessInfo_v1_t",
    "nvmlProcessInfo_v2_t",
    "nvmlReturn_t",
    "nvmlSystemDriverBranchInfo_t",
    "nvmlTemperature_t",
    "nvmlUUID_t",
    "nvmlUtilization_t",
    "nvmlUuid",
];

const ENUMS: &[&str] = &[
    "nvmlAffinityScope_t",
    "nvmlGpuTopologyLevel_t",
    "nvmlIntNvLinkDeviceType_t",
    "nvmlNvLinkCapability_t",
    "nvmlBrandType_t",
    "nvmlClockId_t",
    "nvmlClockType_t",
    "nvmlComputeMode_t",
    "nvmlDeviceArchitecture_t",
    "nvmlEccCounterType_t",
    "nvmlEnableState_t",
    "nvmlGpuP2PCapsIndex_t",
    "nvmlGpuP2PStatus_t",
    "nvmlGpuVirtualizationMode_t",
    "nvmlMemoryErrorType_t",
    "nvmlPcieUtilCounter_t",
    "nvmlPstates_t",
    "nvmlTemperatureSensors_t",
    "nvmlTemperatureThresholds_t",
];
