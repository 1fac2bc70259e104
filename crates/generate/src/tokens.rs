//! Names, numbers and types as tokens.

use outboard_api::decl::{self, Field, Op, Type};
use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

use crate::Failure;

pub(crate) fn ident(name: &str) -> Ident {
    format_ident!("{name}")
}

/// Returns the name of a message's type.
pub(crate) fn camel(name: &str) -> Ident {
    ident(&decl::camel_case(name))
}

/// Returns the name of a message's reply.
pub(crate) fn reply(name: &str) -> Ident {
    format_ident!("{}Reply", decl::camel_case(name))
}

/// Returns a number without its type.
pub(crate) fn number(value: usize) -> Literal {
    Literal::usize_unsuffixed(value)
}

/// Parses Rust.
pub(crate) fn rust(text: &str) -> Result<TokenStream, Failure> {
    text.parse().map_err(|e| format!("{text}: {e}").into())
}

/// Returns a lifetime in brackets, if the fields need one.
pub(crate) fn lifetime(fields: &[Field], name: &str) -> Option<TokenStream> {
    let life = syn::Lifetime::new(name, proc_macro2::Span::call_site());
    has_bytes(fields).then(|| quote!(<#life>))
}

pub(crate) fn has_bytes(fields: &[Field]) -> bool {
    fields.iter().any(|f| f.ty == Type::Bytes)
}

/// Returns the name of a device's method for a message.
pub(crate) fn method(op: &Op) -> Ident {
    ident(&decl::snake_case(&op.name))
}

/// Returns the wire type of a scalar.
pub(crate) fn wire_type(ty: Type) -> Ident {
    ident(match ty {
        Type::U8 => "u8",
        Type::U16 => "u16",
        Type::U32 => "u32",
        Type::I32 => "i32",
        Type::F32 => "f32",
        Type::U64 | Type::Handle(_) | Type::Bytes => "u64",
    })
}
