//! The bytes of each document and header, as committed in `golden.txt`: an unnoticed change of a
//! field's order, width or kind fails here. A meant one is written with
//! `OUTBOARD_GOLDEN=write cargo test -p outboard-wire golden`.

use std::{collections::BTreeSet, fmt::Write};

use serde::{
    Deserialize, Serialize,
    de::{self, DeserializeSeed, IntoDeserializer, Visitor},
};

use crate::{
    Writer,
    doc::{
        Activities, CopyBox, DeviceCard, JitOptions, LibraryCard, NetAnswer, NetCall, NodeWork,
        NvmlSnapshot, Refusal, SessionEnd, StatusAnswer, StatusQuestion, TensorMapArguments,
        from_bytes, to_bytes,
    },
    frame::{HEADER_BYTES, ReplyHeader, RequestHeader},
    handshake::{
        ClientHello, MAGIC, PREAMBLE_BYTES, PROTOCOL_VERSION, ServerChallenge, ServerWelcome,
        encode_refusal,
    },
    messages::DOCUMENTS,
};

const GOLDEN: &str = include_str!("golden.txt");
/// Elements of each list, so that a list's length shows.
const LIST_LEN: usize = 2;
/// Makes a value of any document, each number, text and choice in it another than the one before.
/// A number's upper bits show its width.
struct Filler<'n> {
    /// Variant of each enum, modulo the number of its variants.
    variant: usize,
    next: u8,
    /// Structs and enums that were met.
    names: &'n mut BTreeSet<String>,
    /// Most variants of an enum that was met.
    variants: usize,
}

impl Filler<'_> {
    fn number(&mut self) -> u8 {
        self.next = self.next % 100 + 1;
        self.next
    }
}

macro_rules! numbers {
    ($($deserialize:ident $visit:ident $ty:ty, $high:expr;)*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.$visit($high + <$ty>::try_from(self.number()).unwrap())
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Filler<'_> {
    type Error = de::value::Error;

    numbers! {
        deserialize_u8 visit_u8 u8, 100;
        deserialize_u16 visit_u16 u16, 0x7f00;
        deserialize_u32 visit_u32 u32, 0x7fff_ff00;
        deserialize_u64 visit_u64 u64, 0x7fff_ffff_ffff_ff00;
        deserialize_i16 visit_i16 i16, -0x7f00;
        deserialize_i32 visit_i32 i32, -0x7fff_ff00;
        deserialize_i64 visit_i64 i64, -0x7fff_ffff_ffff_ff00;
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_i8(-1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        // A network is sent as its text, so every text is one.
        visitor.visit_string(format!("rtt={}us", self.number()))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.names.insert(name.into());
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_tuple(LIST_LEN, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_seq(Elements(self, len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.names.insert(name.into());
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.names.insert(name.into());
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.names.insert(name.into());
        self.variants = self.variants.max(variants.len());
        let index = (self.variant % variants.len()) as u32;
        visitor.visit_enum(Choice(self, index))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom(
            "a kind of field that no document had so far",
        ))
    }

    serde::forward_to_deserialize_any! {
        f32 f64 char bytes byte_buf unit_struct map identifier ignored_any
    }
}

struct Elements<'f, 'n>(&'f mut Filler<'n>, usize);

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = de::value::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Self::Error> {
        match self.1.checked_sub(1) {
            Some(left) => {
                self.1 = left;
                seed.deserialize(&mut *self.0).map(Some)
            }
            None => Ok(None),
        }
    }
}

/// An enum's variant, by its index.
struct Choice<'f, 'n>(&'f mut Filler<'n>, u32);

impl<'de, 'f, 'n> de::EnumAccess<'de> for Choice<'f, 'n> {
    type Error = de::value::Error;
    type Variant = &'f mut Filler<'n>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Self::Error> {
        let index = IntoDeserializer::<Self::Error>::into_deserializer(self.1);
        Ok((seed.deserialize(index)?, self.0))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Filler<'_> {
    type Error = de::value::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, Self::Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}

/// Adds a line for a document, or one for each variant of the enums in it.
fn document<T>(out: &mut String, names: &mut BTreeSet<String>)
where
    T: Serialize + for<'de> Deserialize<'de>,
{
    let name = std::any::type_name::<T>().rsplit("::").next().unwrap();
    let mut variant = 0;
    loop {
        let mut filler = Filler {
            variant,
            next: 0,
            names,
            variants: 1,
        };
        let value = T::deserialize(&mut filler).unwrap_or_else(|why| panic!("{name}: {why}"));
        let variants = filler.variants;
        let bytes = to_bytes(&value).unwrap();
        assert_eq!(to_bytes(&from_bytes::<T>(&bytes).unwrap()).unwrap(), bytes);
        line(out, &format!("{name}/{variant}"), &bytes);
        variant += 1;
        if variant >= variants {
            return;
        }
    }
}

fn line(out: &mut String, name: &str, bytes: &[u8]) {
    write!(out, "{name} ").unwrap();
    for byte in bytes {
        write!(out, "{byte:02x}").unwrap();
    }
    out.push('\n');
}

fn headers(out: &mut String) {
    let mut room = [0; HEADER_BYTES];
    let request = RequestHeader {
        op: 0x0102,
        data_connection: 0x0304,
        token: 0x0506_0708,
        context: 0x090a_0b0c_0d0e_0f10,
    };
    request.encode(&mut Writer::new(&mut room)).unwrap();
    line(out, "RequestHeader", &room);
    let reply = ReplyHeader {
        note: 0x0102,
        placed: 0x0304,
        token: 0x0506_0708,
        status: 0x090a_0b0c,
        replies_before: 0x0d0e_0f10,
    };
    reply.encode(&mut Writer::new(&mut room)).unwrap();
    line(out, "ReplyHeader", &room);
}

/// The preamble without its version and its fingerprint, which change with every declaration.
fn preamble(out: &mut String) {
    let refusal = encode_refusal("no room");
    assert_eq!(refusal[..8], MAGIC);
    assert_eq!(refusal[8..10], PROTOCOL_VERSION.to_le_bytes());
    line(out, "Preamble/refused", &refusal[10..16]);
    line(out, "Refusal", &refusal[PREAMBLE_BYTES..]);
}

/// The structs and enums of documents, but for those that are sent as text.
fn declared() -> impl Iterator<Item = &'static str> {
    DOCUMENTS.lines().filter_map(|line| {
        let item = line.strip_prefix("pub ")?;
        let (kind, rest) = item.split_once(' ')?;
        let name = rest.split([' ', '(', '<', ';']).next()?;
        matches!(kind, "struct" | "enum").then_some(name)
    })
}

#[test]
fn the_bytes_of_documents_and_headers_are_the_committed_ones() {
    let (mut now, mut names) = (String::new(), BTreeSet::new());
    headers(&mut now);
    preamble(&mut now);
    document::<ClientHello>(&mut now, &mut names);
    document::<ServerWelcome>(&mut now, &mut names);
    document::<ServerChallenge>(&mut now, &mut names);
    document::<DeviceCard>(&mut now, &mut names);
    document::<LibraryCard>(&mut now, &mut names);
    document::<JitOptions>(&mut now, &mut names);
    document::<CopyBox>(&mut now, &mut names);
    document::<Activities>(&mut now, &mut names);
    document::<NodeWork>(&mut now, &mut names);
    document::<NvmlSnapshot>(&mut now, &mut names);
    document::<NetCall>(&mut now, &mut names);
    document::<NetAnswer>(&mut now, &mut names);
    document::<TensorMapArguments>(&mut now, &mut names);
    document::<StatusQuestion>(&mut now, &mut names);
    document::<StatusAnswer>(&mut now, &mut names);
    document::<SessionEnd>(&mut now, &mut names);
    document::<Refusal>(&mut now, &mut names);
    for name in declared() {
        assert!(names.contains(name), "{name} has no golden bytes");
    }
    if std::env::var_os("OUTBOARD_GOLDEN").is_some_and(|wish| wish == "write") {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden.txt");
        std::fs::write(file, &now).unwrap();
        return;
    }
    for (now, golden) in now.lines().zip(GOLDEN.lines()) {
        assert_eq!(now, golden, "OUTBOARD_GOLDEN=write, if it is meant");
    }
    assert_eq!(now.lines().count(), GOLDEN.lines().count());
}
