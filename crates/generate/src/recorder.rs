//! The recorder: for every declared function its export, its place in the table of the driver's
//! functions, and its cost when remoted.

use std::ffi::CString;

use outboard_api::decl::{
    self, Answer, Call, Class, Cost, Direction, Ends, Field, Invocation, Op, PerThread, Touches,
};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::{
    Failure,
    ffi::{self, Params, export, forms, name, stream_of, subject_of, target},
    tokens::{ident, number, rust},
};

const HEADER_BYTES: usize = 16;
/// Bytes of a message of a call whose declaration names none: an estimate, two words either way.
const UNDECLARED_BYTES: usize = 16;

/// Returns the table of calls.
pub fn call_table() -> Result<TokenStream, Failure> {
    let (calls, ops) = (decl::driver()?, decl::ops()?);
    let mut rows = TokenStream::new();
    for call in &calls {
        let target = target(&calls, call)?;
        let (class, request, response) = cost(target, &ops)?;
        let (symbol, role) = (&call.symbol, ident(role(target)));
        let class = ident(&format!("{class:?}"));
        let (request, response) = (number(request), number(response));
        rows.extend(quote!((#symbol, Cost::new(Class::#class, #request, #response), Role::#role),));
    }
    Ok(quote! {
        /// Name of every function, what remoting it costs as a rule, and what it means to the GPU's
        /// times, by number.
        pub(crate) static CALLS: &[(&str, Cost, Role)] = &[#rows];
    })
}

/// Returns every exported function, and the tables of exports and slots.
pub fn entry() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    let mut all = TokenStream::new();
    let (mut exports, mut slots) = (TokenStream::new(), TokenStream::new());
    let mut slot = 0;
    for (at, call) in calls.iter().enumerate() {
        let target = target(&calls, call)?;
        for form in forms(call) {
            all.extend(function(call, target, form, at, slot)?);
            let (function, place) = (export(call, form), number(slot));
            let text = Literal::c_string(&CString::new(function.to_string())?);
            exports.extend(quote!((#text, Export(#function as *const c_void)),));
            slots.extend(quote!(AtomicPtr::new(missing::<#place> as *mut c_void),));
            slot += 1;
        }
    }
    let count = number(slot);
    Ok(quote! {
        #all
        /// Every exported symbol, ours, and its place in [`SLOTS`].
        pub(crate) static EXPORTS: &[(&CStr, Export)] = &[#exports];
        /// The driver's functions, in the order of [`EXPORTS`].
        pub(crate) static SLOTS: [AtomicPtr<c_void>; #count] = [#slots];
    })
}

/// Returns one exported function. `call` gives its name, `target` the call that serves it; `slot`
/// is its place in the table.
pub fn function(
    call: &Call,
    target: &Call,
    per_thread: Option<PerThread>,
    at: usize,
    slot: usize,
) -> Result<TokenStream, Failure> {
    let (symbol, at) = (export(call, per_thread), number(at));
    if target.class == Class::Unsupported {
        return Ok(jump(&symbol, slot));
    }
    let Params { names, types } = Params::of(target)?;
    let slot = number(slot);
    let real = quote! {
        let real: unsafe extern "C" fn(#(#types),*) -> CUresult =
            std::mem::transmute(SLOTS[#slot].load(Ordering::Relaxed));
    };
    let passed = match target.attributes.finds_functions {
        true => quote!(Passed {
            number: #at,
            subject: || Subject::NONE,
            delay: || (),
            /// SAFETY: the slot has this function; the program's arguments are passed on.
            call: || unsafe {
                #real
                let result = real(#(#names),*);
                procaddr::replace(result, symbol, pfn, cuda_version, flags);
                result
            },
            work: (None, || None),
            cost: || CALLS[#at].1
        }),
        false => {
            let arguments = ffi::arguments(target, per_thread);
            let subject = subject_of(target, &arguments, per_thread);
            let stream = stream_of(target, &arguments, per_thread).unwrap_or_else(|| quote!(None));
            let (cost, delayed) = (cost_of(target, &at)?, delayed(target, &stream)?);
            let (stream, work) = match work(target)? {
                Some(work) => (stream, work),
                None => (quote!(None), quote!(None)),
            };
            quote!(Passed {
                number: #at,
                subject: || #subject,
                delay: || { #delayed },
                /// SAFETY: the slot has this function; the program's arguments are passed on.
                call: || unsafe { #real real(#(#names),*) },
                /// SAFETY: the program's arguments, as the driver's function takes them.
                work: (#stream, || unsafe { #work }),
                /// SAFETY: the program's arguments, as the driver's function takes them.
                cost: || unsafe { #cost }
            })
        }
    };
    Ok(quote! {
        /// # Safety
        /// As the driver asks.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn #symbol(#(#names: #types),*) -> CUresult {
            /// SAFETY: the driver's function of this name; the caller's promise is passed on.
            guard::pass(#passed)
        }
    })
}

/// Returns an exported function that jumps to the driver's. Not all types of such functions are
/// declared, so the arguments stay in place.
fn jump(symbol: &Ident, slot: usize) -> TokenStream {
    let load = format!("mov rax, qword ptr [rip + {{slots}} + {}]", 8 * slot);
    quote! {
        /// # Safety
        /// The caller's business with the driver.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn #symbol() {
            std::arch::naked_asm!(#load, "jmp rax", slots = sym SLOTS)
        }
    }
}

/// Returns the cost of a call, as an expression over its arguments.
fn cost_of(call: &Call, at: &Literal) -> Result<TokenStream, Failure> {
    if let Some(Cost::Computed(computed)) = &call.attributes.cost {
        let invoked = invoked(computed, call)?;
        return Ok(quote!(cost::#invoked));
    }
    if !call.attributes.is_asked_once {
        return Ok(quote!(CALLS[#at].1));
    }
    let values = call
        .params
        .iter()
        .filter(|p| !p.ctype.ends_with('*'))
        .map(|p| {
            let name = name(&p.name);
            let is_number = matches!(p.ctype.as_str(), "CUdevice" | "CUdeviceptr");
            match ffi::rust_type(&p.ctype).starts_with("CU") && !is_number {
                true => quote!(#name.0 as u64),
                false => quote!(#name as u64),
            }
        });
    Ok(quote!(cost::asked_once(#at, &[#(#values),*])))
}

/// Returns the meaning of a call for the times of the GPU: a `Role` of the call table.
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
fn work(call: &Call) -> Result<Option<TokenStream>, Failure> {
    if let Some(Touches::Memset(element_bytes)) = call.attributes.touches {
        let (count, width, height) = (name("N"), name("Width"), name("Height"));
        let count = match call.params.iter().any(|p| p.name == "N") {
            true => quote!(#count),
            false => quote!(#width.saturating_mul(#height)),
        };
        let bytes = number(element_bytes);
        return Ok(Some(quote!(events::memset(#count.saturating_mul(#bytes)))));
    }
    let what = call
        .attributes
        .work
        .as_ref()
        .and_then(|work| work.what.as_ref());
    let invoked = what.map(|what| invoked(what, call)).transpose()?;
    Ok(invoked.map(|invoked| quote!(events::#invoked)))
}

/// Returns the delay of a call by a longer PCIe, as a statement.
fn delayed(call: &Call, stream: &TokenStream) -> Result<TokenStream, Failure> {
    if let Some(Touches::Memset(_)) = call.attributes.touches {
        return Ok(quote!(pcie::work(#stream);));
    }
    let Some(work) = call.attributes.work.as_ref().filter(|w| w.is_delayed) else {
        return Ok(TokenStream::new());
    };
    let what = work.what.as_ref().ok_or("unknown work is delayed")?;
    let given = arguments(what, call)?;
    Ok(match what.function.as_str() {
        "kernel" | "graph" => quote!(pcie::work(#stream);),
        "to_device" => quote!(pcie::to_device(#(#given,)* #stream);),
        "to_host" => quote!(pcie::to_host(#stream);),
        "copy" => quote!(pcie::copy(#(#given,)* #stream);),
        other => return Err(format!("{}: no delay of {other}", call.symbol).into()),
    })
}

fn invoked(invocation: &Invocation, call: &Call) -> Result<TokenStream, Failure> {
    let function: Ident = ident(&invocation.function);
    let arguments = arguments(invocation, call)?;
    Ok(quote!(#function(#(#arguments),*)))
}

/// Returns the arguments of a function of the recorder, made from the call's: kernels and host
/// addresses are passed as numbers.
fn arguments(invocation: &Invocation, call: &Call) -> Result<Vec<TokenStream>, Failure> {
    let argument = |given: &String| {
        let Some(param) = call.params.iter().find(|p| p.name == *given) else {
            // A number.
            return rust(given);
        };
        let c = name(given);
        Ok(match param.ctype.as_str() {
            "CUfunction" => quote!(#c.0),
            "void *" => quote!(#c as u64),
            _ => quote!(#c),
        })
    };
    invocation.arguments.iter().map(argument).collect()
}

/// Returns class, request and response of a call in the usual case, by the declarations of its
/// messages.
fn cost(call: &Call, ops: &[Op]) -> Result<(Class, usize, usize), Failure> {
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
fn fields(fields: &[Field]) -> usize {
    fields.iter().map(|field| field.ty.fixed_bytes()).sum()
}
