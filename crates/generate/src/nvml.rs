//! The exported functions of `libnvidia-ml.so`.

use outboard_api::{
    decl,
    nvml::{self, Call, Service},
};
use proc_macro2::{Ident, TokenStream};
use quote::quote;

use crate::{
    Failure,
    tokens::{ident, number, rust},
};

/// Number of entries in the private table, which states its size; each must be a callable function.
const PRIVATE_SLOTS: usize = 270;

/// Returns every exported function.
pub fn entry() -> Result<TokenStream, Failure> {
    let calls = nvml::calls()?;
    let mut all = TokenStream::new();
    for (at, call) in calls.iter().enumerate() {
        all.extend(function(&calls, at, call)?);
    }
    Ok(all)
}

/// Returns the table of the calls' names.
pub fn call_table() -> Result<TokenStream, Failure> {
    let calls = nvml::calls()?;
    let (count, names) = (number(calls.len()), calls.iter().map(|call| &call.symbol));
    Ok(quote! {
        /// The name of every call, by number.
        pub(crate) static CALLS: [&str; #count] = [#(#names),*];
    })
}

/// Returns one exported function.
pub fn function(calls: &[Call], at: usize, call: &Call) -> Result<TokenStream, Failure> {
    let (symbol, at) = (ident(&call.symbol), number(at));
    let target = match &call.service {
        Service::Served => call,
        Service::SameAs(other) => {
            let found = calls.iter().find(|c| &c.symbol == other);
            found.ok_or_else(|| format!("{symbol} stands for {other}, which is not declared"))?
        }
        // The arguments are not read, so they need no types.
        Service::Unsupported => {
            return Ok(quote! {
                #[unsafe(no_mangle)]
                pub extern "C" fn #symbol() -> nvmlReturn_t { guard::unsupported(#at) }
            });
        }
    };
    let names: Vec<Ident> = target.params.iter().map(|p| name(&p.name)).collect();
    let types = target.params.iter().map(|p| rust(&rust_type(&p.ctype)?));
    let types = types.collect::<Result<Vec<_>, Failure>>()?;
    let served_by = ident(&target.symbol);
    let call = quote!(unsafe { calls::#served_by(#(Argument::from_c(#names)),*) });
    let (result, body) = match &target.result {
        None => (quote!(nvmlReturn_t), quote!(guard::enter(#at, || #call))),
        Some(ctype) => (rust(&rust_type(ctype)?)?, call),
    };
    Ok(quote! {
        /// # Safety
        /// Pointers are null, or valid as NVML's reference asks of a caller.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn #symbol(#(#names: #types),*) -> #result {
            /// SAFETY: the arguments are as NVML's reference asks; the function asks no more.
            #body
        }
    })
}

/// Returns a function for every entry of the private table, so that the log can name the entry that
/// was called.
pub fn private_slots() -> TokenStream {
    let (count, bytes) = (number(PRIVATE_SLOTS), number(8));
    let slots = (1..PRIVATE_SLOTS).map(|slot| {
        let at = number(slot);
        let function = match slot {
            26 => quote!(printed_line),
            81 => quote!(handle_by_index),
            213..=215 => quote!(processes::<#at>),
            _ => quote!(unknown::<#at>),
        };
        quote!(Slot::function(#function as *const ()),)
    });
    quote!(static SLOTS: [Slot; #count] = [Slot::bytes(#bytes * #count), #(#slots)*];)
}

fn name(c: &str) -> Ident {
    match decl::snake_case(c).as_str() {
        "type" => ident("type_"),
        name => ident(name),
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
    Err(format!("{ctype}: not known to the generator"))
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
    "nvmlEventData_v1_t",
    "nvmlEventSet_t",
    "nvmlFieldValue_t",
    "nvmlGpuFabricInfoV_t",
    "nvmlGpuFabricInfo_t",
    "nvmlMemory_t",
    "nvmlMemory_v2_t",
    "nvmlPciInfoExt_t",
    "nvmlPciInfo_t",
    "nvmlProcessInfo_v1_t",
    "nvmlProcessInfo_v2_t",
    "nvmlReturn_t",
    "nvmlSystemDriverBranchInfo_t",
    "nvmlSystemEventSetCreateRequest_t",
    "nvmlSystemEventSetFreeRequest_t",
    "nvmlSystemEventSetWaitRequest_t",
    "nvmlSystemRegisterEventRequest_t",
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
