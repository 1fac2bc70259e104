//! The effects of the driver's calls on the work of the GPU, by the names that recordings have.

use outboard_api::decl::{self, Call, Touches};
use proc_macro2::{Ident, TokenStream};
use quote::quote;

use crate::{Failure, ffi::target, tokens::ident};

/// Returns the table of effects, sorted by name. Calls without an effect are left out.
pub fn effects() -> Result<TokenStream, Failure> {
    let calls = decl::driver()?;
    let mut rows: Vec<(String, TokenStream)> = Vec::new();
    for call in &calls {
        if let Some(effect) = effect(target(&calls, call)?)? {
            rows.extend(call.exports().map(|name| (name, effect.clone())));
        }
    }
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    let rows = rows.iter().map(|(name, effect)| quote!((#name, #effect)));
    Ok(quote! {
        /// Every exported function that has an effect, sorted by name.
        static EFFECTS: &[(&str, Effect)] = &[#(#rows),*];
    })
}

/// Returns the effect of a call, by its attributes and the types of its parameters.
fn effect(call: &Call) -> Result<Option<TokenStream>, Failure> {
    let attributes = &call.attributes;
    let has = |ctype: &str| call.params.iter().any(|param| param.ctype == ctype);
    if attributes.is_wait || attributes.is_query {
        let subject = match () {
            () if has("CUevent") => quote!(Subject::Event),
            () if has("CUstream") => quote!(Subject::Stream),
            () => quote!(Subject::Context),
        };
        return Ok(Some(match attributes.is_wait {
            true => quote!(Effect::Waits(#subject)),
            false => quote!(Effect::Queries(#subject)),
        }));
    }
    let in_stream = attributes.touches.is_some() || attributes.is_stream_ordered;
    let first = call.params.first().map(|param| param.ctype.as_str());
    let effect = match &attributes.work {
        Some(work) => work_of(work.what.as_ref().map(|what| what.function.as_str()))?,
        None if matches!(attributes.touches, Some(Touches::Memset(_))) => ident("Works"),
        None if attributes.records_event => ident("RecordsEvent"),
        None if in_stream && has("CUevent") => ident("AwaitsEvent"),
        None if in_stream => ident("TakesTurn"),
        None if matches!(first, Some("CUmodule *" | "CUlibrary *")) => ident("Loads"),
        None => return Ok(None),
    };
    Ok(Some(quote!(Effect::#effect)))
}

/// Returns the effect of work, by the recorder's function that describes it.
fn work_of(function: Option<&str>) -> Result<Ident, Failure> {
    Ok(ident(match function {
        Some("kernel") => "Launches",
        Some("to_device") => "CopiesToDevice",
        Some("to_host" | "on_device" | "copy" | "copy_2d" | "copy_3d") => "Copies",
        Some("graph") | None => "Works",
        Some(other) => return Err(format!("{other}: no effect of such work").into()),
    }))
}
