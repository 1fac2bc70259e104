//! Bodies of requests: JSON that says one thing only.
//!
//! `serde_json` takes the last of two fields with one name where it reads a map, and an array for
//! an object with its fields in order. Both are refused here at every depth: a proxy that reads
//! the first of two fields would allow what the manager does not do.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Map, Value};

/// Reads a body.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let Unique(value) = serde_json::from_slice(bytes)?;
    T::deserialize(Strict(value))
}

/// A value in which no object has a field twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Unique, D::Error> {
        from.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, of: bool) -> Result<Value, E> {
        Ok(of.into())
    }

    fn visit_u64<E>(self, of: u64) -> Result<Value, E> {
        Ok(of.into())
    }

    fn visit_i64<E>(self, of: i64) -> Result<Value, E> {
        Ok(of.into())
    }

    fn visit_f64<E>(self, of: f64) -> Result<Value, E> {
        Ok(of.into())
    }

    fn visit_str<E>(self, of: &str) -> Result<Value, E> {
        Ok(of.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut of: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = of.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut of: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = of.next_key::<String>()? {
            let Unique(value) = of.next_value()?;
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom("a field comes twice"));
            }
        }
        Ok(fields.into())
    }
}

/// A value from which only an object is read as a record.
pub(crate) struct Strict(pub(crate) Value);

impl<'de> IntoDeserializer<'de, Error> for Strict {
    type Deserializer = Strict;

    fn into_deserializer(self) -> Strict {
        self
    }
}

impl<'de> Deserializer<'de> for Strict {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(values) => {
                let mut values = SeqDeserializer::new(values.into_iter().map(Strict));
                let read = visitor.visit_seq(&mut values)?;
                values.end().map(|()| read)
            }
            Value::Object(fields) => {
                let mut fields = fields_of(fields);
                let read = visitor.visit_map(&mut fields)?;
                fields.end().map(|()| read)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"an object")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => {
                visitor.visit_enum(MapAccessDeserializer::new(fields_of(fields)))
            }
            plain => plain.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

type Fields = std::iter::Map<serde_json::map::IntoIter, fn((String, Value)) -> (String, Strict)>;

fn fields_of<'de>(fields: Map<String, Value>) -> MapDeserializer<'de, Fields, Error> {
    let strict: fn((String, Value)) -> (String, Strict) = |(name, value)| (name, Strict(value));
    MapDeserializer::new(fields.into_iter().map(strict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Inner {
        a: u64,
        b: Option<String>,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Plain,
        With { c: Inner },
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Outer {
        one: Inner,
        #[serde(default)]
        many: Vec<(Inner, i8)>,
        kind: Kind,
    }

    #[test]
    fn an_array_is_no_object_and_a_field_comes_once() {
        let read = |text: &str| read::<Outer>(text.as_bytes()).map_err(|error| error.to_string());
        let inner = |a, b: Option<&str>| Inner {
            a,
            b: b.map(Into::into),
        };
        let right = r#"{"one": {"a": 1, "b": null}, "many": [[{"a": 2, "b": "x"}, -3]],
            "kind": {"with": {"c": {"a": 4}}}, "other": [1.5, true]}"#;
        let said = Outer {
            one: inner(1, None),
            many: vec![(inner(2, Some("x")), -3)],
            kind: Kind::With { c: inner(4, None) },
        };
        assert_eq!(read(right), Ok(said));
        let plain = read(r#"{"one": {"a": 1}, "kind": "plain"}"#);
        assert_eq!(plain.map(|it| it.kind), Ok(Kind::Plain));
        for (wrong, why) in [
            (r#"[{"a": 1}, [], "plain"]"#, "sequence"),
            (r#"{"one": [1, null], "kind": "plain"}"#, "sequence"),
            (
                r#"{"one": {"a": 1}, "many": [[[1, null], 2]], "kind": "plain"}"#,
                "sequence",
            ),
            (
                r#"{"one": {"a": 1}, "kind": {"with": {"c": [1, null]}}}"#,
                "sequence",
            ),
            (r#"{"one": {"a": 1, "a": 1}, "kind": "plain"}"#, "twice"),
            (
                r#"{"one": {"a": 1}, "kind": "plain", "x": [{"y": 1, "\u0079": 2}]}"#,
                "twice",
            ),
            (r#"{"one": {"a": 1}, "kind": "plain"} {}"#, "trailing"),
            ("", "EOF"),
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
