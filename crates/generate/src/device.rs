//! `trait Device`, with a method for each message, and the dispatch of messages to it.

use std::fs;

use outboard_api::decl::{self, Answer, Op};
use proc_macro2::TokenStream;
use quote::quote;

use crate::{
    Failure,
    tokens::{camel, lifetime, method, reply},
};

/// Returns the messages that a device sees.
pub fn ops() -> Result<Vec<Op>, Failure> {
    let mut ops = decl::ops()?;
    ops.retain(|op| !op.traits.is_session);
    Ok(ops)
}

pub fn device() -> Result<TokenStream, Failure> {
    let ops = ops()?;
    let methods = ops.iter().map(default_method);
    let arms = ops.iter().map(|op| {
        let (camel, method) = (camel(&op.name), method(op));
        let done = match op.answer {
            Answer::Waits => quote!(map(Outcome::Wait)),
            _ if op.reply.is_empty() => quote!(map(|()| Outcome::Done)),
            _ => quote!(and_then(|r| encode(&r, reply)).map(|()| Outcome::Done)),
        };
        quote!(Request::#camel(m) => device.#method(cx, m).#done,)
    });
    Ok(quote! {
        /// Methods of a device, one for each message; those that a device does not override are not
        /// supported.
        pub trait Device: Host { #(#methods)* }

        /// Hands a message to the device. The reply, if there is one at once, is encoded into
        /// `reply`.
        pub fn dispatch(
            device: &mut dyn Device,
            cx: &mut Cx<'_>,
            request: &Request<'_>,
            reply: &mut Vec<u8>,
        ) -> Result<Outcome, Failure> {
            match request {
                #(#arms)*
                _ => Err(Failure::unsupported("a session message")),
            }
        }
    })
}

/// Returns the trait's method for a message.
pub fn default_method(op: &Op) -> TokenStream {
    let (name, doc, method) = (&op.name, format!(" `{}`", op.name), method(op));
    let (message, result) = (message_type(op), result(op));
    quote! {
        #[doc = #doc]
        #[allow(unused_variables)]
        fn #method(&mut self, cx: &mut Cx<'_>, m: &#message) -> Result<#result, Failure> {
            Err(Failure::unsupported(#name))
        }
    }
}

/// Returns the text of a device's source files, which tells the operations written by hand from the
/// others. The build script runs again when they change.
pub fn sources(folder: &str) -> Result<String, Failure> {
    println!("cargo:rerun-if-changed={folder}");
    let mut sources = String::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&fs::read_to_string(path)?);
        }
    }
    Ok(sources)
}

/// True if a device's source has an inherent method for a message.
pub(crate) fn is_written(sources: &str, op: &Op) -> bool {
    let head = format!("fn {}(", method(op));
    let mut found = sources.split(&head).skip(1);
    found.any(|rest| rest.trim_start().starts_with("&mut self"))
}

/// Returns the type of a message.
pub(crate) fn message_type(op: &Op) -> TokenStream {
    let (camel, life) = (camel(&op.name), lifetime(&op.fields, "'_"));
    quote!(messages::#camel #life)
}

/// Returns the result of a device's method for a message.
pub(crate) fn result(op: &Op) -> TokenStream {
    match op.answer {
        Answer::Waits => quote!(Pending),
        _ if op.reply.is_empty() => quote!(()),
        _ => {
            let (reply, life) = (reply(&op.name), lifetime(&op.reply, "'static"));
            quote!(messages::#reply #life)
        }
    }
}
