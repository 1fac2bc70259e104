//! The software device: its operations, and the memsets among them.

use outboard_api::decl::{self, Call, Op, Touches};
use proc_macro2::TokenStream;
use quote::quote;

use crate::{
    Failure, device,
    tokens::{ident, method, number},
};

/// Returns `impl Device for Soft`. An operation written by hand in `sources` is an inherent method
/// of that name; memsets are made here; all others keep the trait's answer, "not supported".
pub fn device(sources: &str) -> Result<TokenStream, Failure> {
    let mut methods = Vec::new();
    for op in &device::ops()? {
        methods.extend(device_method(op, device::is_written(sources, op)));
    }
    Ok(quote!(impl Device for Soft { #(#methods)* }))
}

/// Returns the device's method for a message, if it has one.
fn device_method(op: &Op, is_written: bool) -> Option<TokenStream> {
    let name = method(op);
    let memset = op.derived_from.as_ref().and_then(|(call, _)| memset(call));
    let body = match memset {
        Some(body) => body,
        None if is_written => quote!(Soft::#name(self, cx, m)),
        None => return None,
    };
    let (message, result) = (device::message_type(op), device::result(op));
    Some(quote! {
        fn #name(&mut self, cx: &mut Cx<'_>, m: &#message) -> Result<#result, Failure> { #body }
    })
}

/// Returns the body of a memset. One without a stream runs in the null stream, as in the driver;
/// the client waits where a program could notice.
fn memset(call: &Call) -> Option<TokenStream> {
    let Some(Touches::Memset(bytes)) = call.attributes.touches else {
        return None;
    };
    let field = |name: &str| {
        let param = call.params.iter().find(|p| p.name == name)?;
        let field = ident(&decl::snake_case(&param.name));
        Some(quote!(m.#field))
    };
    let known = ["dstDevice", "dstPitch", "N", "Width", "Height", "hStream"];
    let value = call
        .params
        .iter()
        .find(|p| !known.contains(&p.name.as_str()))?;
    let (value, address) = (field(&value.name)?, field("dstDevice"));
    let value = match bytes {
        4 => value,
        _ => quote!(u32::from(#value)),
    };
    let bytes = number(bytes);
    let stream = field("hStream").unwrap_or(quote!(0));
    let pitch = field("dstPitch").unwrap_or(quote!(0));
    let width = field("Width").or_else(|| field("N"));
    let height = field("Height").unwrap_or(quote!(1));
    Some(quote! {
        let set = Set {
            dst: #address,
            pitch_bytes: #pitch,
            value: #value,
            element_bytes: #bytes,
            width: #width,
            height: #height,
        };
        self.set(cx, #stream, set)
    })
}
