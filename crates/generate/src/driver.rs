//! The types of the driver's functions.

use outboard_api::decl::{self, Class};
use proc_macro2::TokenStream;
use quote::quote;

use crate::{
    Failure,
    ffi::{Params, target},
    tokens::ident,
};

/// Returns a type for every exported function.
pub fn types() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    let mut all = TokenStream::new();
    for call in &calls {
        let target = target(&calls, call)?;
        // Not all types of unsupported calls are known.
        if target.class == Class::Unsupported {
            continue;
        }
        let types = Params::of(target)?.types;
        for export in call.exports() {
            let (doc, name) = (format!(" `{export}`"), ident(&export));
            all.extend(quote! {
                #[doc = #doc]
                pub type #name = unsafe extern "C" fn(#(#types),*) -> CUresult;
            });
        }
    }
    Ok(all)
}
