//! The functions of `libcupti.so` that are not served, and CUPTI's names and numbers of traced
//! calls.

use std::ffi::CString;

use outboard_api::{
    cupti::{self, Traced},
    decl::{self, Call, Ends},
};
use proc_macro2::{Literal, TokenStream};
use quote::quote;

use crate::{
    Failure,
    ffi::target,
    tokens::{ident, number},
};

pub fn entry() -> Result<TokenStream, Failure> {
    let calls = cupti::calls()?;
    let functions = calls.iter().enumerate().map(|(at, call)| {
        let (name, at) = (ident(&call.name), number(at));
        match call.is_served {
            // A function that is declared as served but not written is a compile error here.
            true => quote!(const _: *const () = crate::calls::#name as *const ();),
            // The arguments are not read, so they need no types. NVTX takes 0 for a refusal.
            false if call.name.starts_with("InitializeInjection") => quote! {
                #[unsafe(no_mangle)]
                pub extern "C" fn #name() -> i32 {
                    let _ = crate::log::unsupported(#at);
                    0
                }
            },
            false => quote! {
                #[unsafe(no_mangle)]
                pub extern "C" fn #name() -> Status { crate::log::unsupported(#at) }
            },
        }
    });
    let (count, names) = (number(calls.len()), calls.iter().map(|call| &call.name));
    let driver = table("DRIVER", &cupti::traced("driver")?)?;
    let runtime = table("RUNTIME", &cupti::traced("runtime")?)?;
    Ok(quote! {
        #(#functions)*
        /// Every exported function.
        pub static CALLS: [&str; #count] = [#(#names),*];
        #driver
        #runtime
    })
}

/// Returns the driver's calls whose parameters are read, each with its `What`.
pub fn known() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    let mut rows = TokenStream::new();
    for call in &calls {
        if let Some(what) = what(target(&calls, call)?) {
            let symbol = &call.symbol;
            rows.extend(quote!((#symbol, #what),));
        }
    }
    Ok(quote! {
        /// Driver calls whose parameters are read.
        static READ: &[(&str, What)] = &[#rows];
    })
}

/// Returns the `What` of a call, by its attributes and the types of its first parameters.
fn what(call: &Call) -> Option<TokenStream> {
    let attributes = &call.attributes;
    let types: Vec<&str> = call.params.iter().map(|p| p.ctype.as_str()).collect();
    let is_kernel = attributes.work.as_ref().is_some_and(|work| {
        let what = work.what.as_ref();
        what.is_some_and(|what| what.function == "kernel")
    });
    if is_kernel {
        let function = number(types.iter().position(|ctype| *ctype == "CUfunction")?);
        return Some(quote!(What::Launch { function: #function }));
    }
    let what = match (&types[..], attributes.ends) {
        (["CUevent"], Some(Ends::Handle)) => "EventDestroy",
        (["CUstream"], Some(Ends::Handle)) => "StreamDestroy",
        (["CUgraph"], Some(Ends::Handle)) => "GraphDestroy",
        (["CUgraphExec"], Some(Ends::Handle)) => "GraphExecDestroy",
        (["CUgraphNode"], Some(Ends::Handle)) => "GraphNodeDestroy",
        (["CUevent", "CUstream", ..], _) if attributes.records_event => "EventRecord",
        (["CUstream", "CUevent", ..], _) => "StreamWaitEvent",
        (["CUevent"], _) if attributes.is_wait => "EventSynchronize",
        (["CUstream"], _) if attributes.is_wait => "StreamSynchronize",
        (["CUcontext"], _) if attributes.is_wait => "GivenContextSynchronize",
        ([], _) if attributes.is_wait => "ContextSynchronize",
        (["CUgraph *", "CUgraph"], _) => "GraphClone",
        (["CUgraph *", ..], _) => "GraphCreate",
        (["CUgraphExec *", ..], _) => "GraphInstantiate",
        (["CUgraphNode *", "CUgraph", ..], _) => "GraphAdd",
        _ => return None,
    };
    let what = ident(what);
    Some(quote!(What::#what))
}

fn table(name: &str, traced: &[Traced]) -> Result<TokenStream, Failure> {
    let name = ident(name);
    let mut rows = TokenStream::new();
    for call in traced {
        let at = Literal::u32_unsuffixed(call.number);
        let text = Literal::c_string(&CString::new(&*call.name)?);
        rows.extend(quote!((#at, #text),));
    }
    Ok(quote! {
        /// CUPTI's numbers and names, by number.
        pub static #name: &[(u32, &CStr)] = &[#rows];
    })
}
