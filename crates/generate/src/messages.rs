//! The messages of a session: a struct for each, with its length, encoder and decoder, and facts
//! about messages by their numbers.

use outboard_api::decl::{self, Field, Op, OpTrait, OpTraits, Type};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use crate::{
    Failure,
    tokens::{camel, ident, lifetime, number, reply, wire_type},
};

/// Returns every message. `documents` declares the documents in them.
pub fn all(documents: &str) -> Result<TokenStream, Failure> {
    let (ops, notes) = (decl::ops()?, decl::notes()?);
    let op_types = ops.iter().enumerate().map(|(at, op)| message_of(at, op));
    let names = ops.iter().map(|op| camel(&op.name));
    let requests = entirety(
        " Any message from client to server.",
        &ident("Request"),
        0,
        names
            .zip(&ops)
            .map(|(name, op)| (name.clone(), name, &op.fields[..])),
    );
    let facts = ops.iter().map(|op| {
        let (name, answer) = (&op.name, ident(&format!("{:?}", op.answer)));
        quote!((#name, Answer::#answer),)
    });
    let traits = OpTraits::ALL.iter().map(|fact| predicate(fact, &ops));
    let skip = skip_to_data(&ops);
    let note_types = notes.iter().enumerate().map(|(at, note)| {
        let name = format_ident!("{}Note", decl::camel_case(&note.name));
        let (life, at) = (lifetime(&note.fields, "'_"), number(at + 1));
        let message = message(
            &name,
            &note.name,
            &note.fields,
            Bytes::Borrowed,
            Last::Plain,
        );
        quote! {
            #message
            impl #name #life { pub const NUMBER: u16 = #at; }
        }
    });
    let all_notes = entirety(
        " Anything that the server says unasked.",
        &ident("Note"),
        1,
        notes.iter().map(|note| {
            let name = camel(&note.name);
            (name.clone(), format_ident!("{name}Note"), &note.fields[..])
        }),
    );
    let fingerprint = proc_macro2::Literal::u64_unsuffixed(decl::fingerprint(documents));
    Ok(quote! {
        #(#op_types)*
        #requests
        /// Name and answer of every message, by number.
        pub const OPS: &[(&str, Answer)] = &[#(#facts)*];
        #(#traits)*
        #skip
        #(#note_types)*
        #all_notes
        #[cfg(test)]
        pub(crate) const DOCUMENTS: &str = #documents;
        /// Both ends of a connection must have been built from the same declarations.
        pub const FINGERPRINT: u64 = #fingerprint;
    })
}

/// Returns a message from client to server, and its reply.
pub fn message_of(at: usize, op: &Op) -> TokenStream {
    let (name, reply_name) = (camel(&op.name), reply(&op.name));
    let gathered = op.traits.is_gathered;
    let last = match op.traits.takes_data {
        true => Last::Data,
        false if gathered => Last::Gathered,
        false => Last::Plain,
    };
    let request = message(&name, &op.name, &op.fields, Bytes::Borrowed, last);
    let camel = decl::camel_case(&op.name);
    let reply = message(&reply_name, &camel, &op.reply, Bytes::Cow, Last::Plain);
    let (life, reply_life) = (lifetime(&op.fields, "'a"), lifetime(&op.reply, "'r"));
    let (at, answer) = (number(at), ident(&format!("{:?}", op.answer)));
    let head = head(op);
    let (given, life) = match gathered {
        true => (quote!(<'a, C: Content>), Some(quote!(<'a, C>))),
        false => (quote!(<'a>), life),
    };
    quote! {
        #request
        #reply
        impl #given Op<'a> for #name #life {
            const NUMBER: u16 = #at;
            const ANSWER: Answer = Answer::#answer;
            type Reply<'r> = #reply_name #reply_life;
            #head
        }
    }
}

/// Returns an enum of messages, and its decoder by number, from `first` on.
fn entirety<'f>(
    doc: &str,
    whole: &Ident,
    first: usize,
    parts: impl Iterator<Item = (Ident, Ident, &'f [Field])>,
) -> TokenStream {
    let (mut variants, mut arms) = (Vec::new(), Vec::new());
    for (at, (variant, ty, fields)) in parts.enumerate() {
        let (life, at) = (lifetime(fields, "'a"), number(at + first));
        variants.push(quote!(#variant(#ty #life),));
        arms.push(quote!(#at => #whole::#variant(#ty::decode(r)?),));
    }
    quote! {
        #[doc = #doc]
        #[derive(Debug, Clone, PartialEq)]
        pub enum #whole<'a> { #(#variants)* }
        impl<'a> #whole<'a> {
            /// Decodes the message of this number; `UnknownMessage` if there is none.
            pub fn decode(number: u16, r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(match number {
                    #(#arms)*
                    _ => return Err(DecodeError::UnknownMessage { number }),
                })
            }
        }
    }
}

/// Returns a function that says whether the message of a number has the trait.
fn predicate(fact: &OpTrait, ops: &[Op]) -> TokenStream {
    let having = ops
        .iter()
        .enumerate()
        .filter(|(_, op)| (fact.of)(&op.traits));
    let numbers = having.map(|(at, _)| number(at));
    let (doc, name) = (fact.doc, ident(fact.field));
    quote! {
        #[doc = #doc]
        #[allow(clippy::manual_range_patterns)]
        pub const fn #name(number: u16) -> bool { matches!(number, #(#numbers)|*) }
    }
}

/// Returns a function that skips the fields before the data of a message whose data may come on a
/// data connection.
fn skip_to_data(ops: &[Op]) -> TokenStream {
    let having = ops.iter().enumerate();
    let having = having.filter(|(_, op)| op.traits.takes_data);
    let arms = having.map(|(at, op)| {
        let (at, name) = (number(at), &op.name);
        let (scalars, mut variable) = parts(&op.fields);
        variable.retain(|field| field.name != "data");
        let bytes = number(scalars.iter().map(|f| f.ty.fixed_bytes()).sum());
        let variable = variable.iter().map(|_| quote!(r.bytes(#name).ok()?;));
        quote!(#at => { r.take::<#bytes>(#name).ok()?; #(#variable)* })
    });
    quote! {
        /// Skips the fields before the data of a message whose data may come on a data connection;
        /// `None` for all other messages.
        pub(crate) fn skip_to_data(number: u16, r: &mut Reader<'_>) -> Option<()> {
            match number {
                #(#arms)*
                _ => return None,
            }
            Some(())
        }
    }
}

/// How a message holds its byte fields.
#[derive(Clone, Copy)]
enum Bytes {
    Borrowed,
    Cow,
}

/// The type of a message's last field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// As declared.
    Plain,
    /// A parameter: content that is laid out from several places of the program's memory.
    Gathered,
    /// `Data`, which is used where it was received.
    Data,
}

/// Returns a struct with its length, encoder and decoder. Scalars come first, packed little-endian;
/// byte fields follow with their lengths.
fn message(
    name: &Ident,
    declared: &str,
    fields: &[Field],
    bytes: Bytes,
    last: Last,
) -> TokenStream {
    let gathered = last == Last::Gathered;
    let doc = format!(" `{declared}`, as declared.");
    let life = lifetime(fields, "'a");
    let params = match gathered {
        true => Some(quote!(<'a, C = &'a [u8]>)),
        false => life.clone(),
    };
    let names: Vec<Ident> = fields.iter().map(|f| ident(&f.name)).collect();
    let mut types: Vec<TokenStream> = fields
        .iter()
        .map(|f| match (f.ty, bytes) {
            (Type::Bytes, Bytes::Borrowed) => quote!(&'a [u8]),
            (Type::Bytes, Bytes::Cow) => quote!(Cow<'a, [u8]>),
            (ty, _) => {
                let ty = wire_type(ty);
                quote!(#ty)
            }
        })
        .collect();
    match (types.last_mut(), last) {
        (Some(ty), Last::Gathered) => *ty = quote!(C),
        (Some(ty), Last::Data) => *ty = quote!(Data<'a>),
        _ => {}
    }
    let (scalars, variable) = parts(fields);
    let takes = scalars.iter().map(|field| {
        let (name, ty) = (ident(&field.name), wire_type(field.ty));
        quote!(let #name = #ty::from_le_bytes(r.take(#declared)?);)
    });
    let variable = variable.iter().map(|field| {
        let (name, is_data) = (ident(&field.name), field.name == "data");
        match bytes {
            Bytes::Cow => quote!(let #name = r.bytes(#declared)?.into();),
            Bytes::Borrowed if is_data && last == Last::Data => {
                quote!(let #name = r.data(#declared)?;)
            }
            Bytes::Borrowed => quote!(let #name = r.bytes(#declared)?;),
        }
    });
    let encoder = encoder(name, declared, fields, gathered);
    quote! {
        #[doc = #doc]
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, PartialEq)]
        pub struct #name #params { #(pub #names: #types,)* }
        #encoder
        impl<'a> Message<'a> for #name #life {
            #[allow(unused_variables)]
            fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
                #(#takes)*
                #(#variable)*
                Ok(#name { #(#names),* })
            }
        }
    }
}

/// Returns a message's length and encoder.
fn encoder(name: &Ident, declared: &str, fields: &[Field], gathered: bool) -> TokenStream {
    let life = lifetime(fields, "'a");
    let (params, given) = match gathered {
        true => (Some(quote!(<'a, C: Content>)), Some(quote!(<'a, C>))),
        false => (life.clone(), life),
    };
    let (scalars, variable) = parts(fields);
    let variable: Vec<Ident> = variable.iter().map(|f| ident(&f.name)).collect();
    let fixed = number(fields.iter().map(|f| f.ty.fixed_bytes()).sum());
    let (mut end, mut puts) = (0, Vec::new());
    for field in scalars {
        let (name, from) = (ident(&field.name), number(end));
        end += field.ty.fixed_bytes();
        let to = number(end);
        puts.push(quote!(scalars[#from..#to].copy_from_slice(&self.#name.to_le_bytes());));
    }
    let puts = (end > 0).then(|| {
        let bytes = number(end);
        // One check of the room for all scalars.
        quote! {
            let mut scalars = [0; #bytes];
            #(#puts)*
            room.put(&scalars)?;
        }
    });
    quote! {
        impl #params Encode for #name #given {
            const NAME: &'static str = #declared;
            #[inline]
            fn encoded_len(&self) -> usize { #fixed #(+ self.#variable.len())* }
            #[inline(always)]
            #[allow(unused_variables)]
            fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
                #puts
                #(room.put_field(&self.#variable)?;)*
                Ok(())
            }
        }
    }
}

/// Returns the encoder of everything before the data, for a message that ends in data.
fn head(op: &Op) -> Option<TokenStream> {
    let (scalars, mut variable) = parts(&op.fields);
    variable.pop_if(|last| last.name == "data")?;
    let scalars = scalars.iter().map(|f| ident(&f.name));
    let variable = variable.iter().map(|f| ident(&f.name));
    let data = match op.traits.takes_data {
        true => quote!(self.data.here().ok_or(EncodeError::NoContent).map(Some)),
        false => quote!(Ok(Some(self.data))),
    };
    Some(quote! {
        const HAS_DATA: bool = true;
        fn encode_head(&self, room: &mut impl Room) -> Result<Option<&'a [u8]>, EncodeError> {
            #(room.put(&self.#scalars.to_le_bytes())?;)*
            #(room.put_field(&self.#variable)?;)*
            room.put(&(self.data.len() as u32).to_le_bytes())?;
            #data
        }
    })
}

/// Returns the scalars, and the byte fields.
fn parts(fields: &[Field]) -> (Vec<&Field>, Vec<&Field>) {
    fields.iter().partition(|f| f.ty != Type::Bytes)
}
