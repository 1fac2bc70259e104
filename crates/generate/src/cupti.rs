//! The functions of `libcupti.so` that are not served, and CUPTI's names and numbers of traced
//! calls.

use std::ffi::CString;

use outboard_api::cupti::{self, Traced};
use proc_macro2::{Literal, TokenStream};
use quote::quote;

use crate::{
    Failure,
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
