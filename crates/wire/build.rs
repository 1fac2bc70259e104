//! Generates the messages of a session from the declarations in `outboard-api`.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use outboard_api::{
    decl::{self, Answer, Field, Op, OpTrait, OpTraits, Type},
    documents,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = String::new();
    let ops = decl::ops()?;
    for (number, op) in ops.iter().enumerate() {
        message(
            &mut out,
            &camel(&op.name),
            &op.name,
            &op.fields,
            Bytes::Borrowed,
        )?;
        reply(&mut out, &camel(&op.name), &op.reply)?;
        let name = camel(&op.name);
        let life = if has_bytes(&op.fields) { "<'a>" } else { "" };
        let reply_life = if has_bytes(&op.reply) { "<'r>" } else { "" };
        let answer = match op.answer {
            Answer::Never => "Never",
            Answer::AtOnce => "AtOnce",
            Answer::Waits => "Waits",
        };
        writeln!(
            out,
            "impl<'a> Op<'a> for {name}{life} {{ const NUMBER: u16 = {number}; const ANSWER: Answer = Answer::{answer}; type Reply<'r> = {name}Reply{reply_life};\n{} }}",
            head(&op.fields)?
        )?;
    }
    writeln!(
        out,
        "/// Any message from client to server.\n#[derive(Debug, Clone, PartialEq)]\npub enum Request<'a> {{"
    )?;
    for op in &ops {
        writeln!(
            out,
            "    {0}({0}{1}),",
            camel(&op.name),
            if has_bytes(&op.fields) { "<'a>" } else { "" }
        )?;
    }
    writeln!(
        out,
        "}}\nimpl<'a> Request<'a> {{\n    /// The message of this number; `UnknownMessage` where there is none.\n    pub fn decode(number: u16, r: &mut Reader<'a>) -> Result<Self, DecodeError> {{ Ok(match number {{"
    )?;
    for (number, op) in ops.iter().enumerate() {
        writeln!(
            out,
            "        {number} => Request::{0}({0}::decode(r)?),",
            camel(&op.name)
        )?;
    }
    writeln!(
        out,
        "        _ => return Err(DecodeError::UnknownMessage {{ number }}),\n    }}) }}\n}}"
    )?;
    writeln!(
        out,
        "/// Name and answer of every message, by number.\npub const OPS: &[(&str, Answer)] = &["
    )?;
    for op in &ops {
        writeln!(out, "    (\"{}\", Answer::{:?}),", op.name, op.answer)?;
    }
    writeln!(out, "];")?;

    for of_message in OpTraits::ALL {
        traits(&mut out, of_message, &ops)?;
    }

    let notes = decl::notes()?;
    for (number, note) in notes.iter().enumerate() {
        let name = format!("{}Note", camel(&note.name));
        message(&mut out, &name, &note.name, &note.fields, Bytes::Borrowed)?;
        writeln!(
            out,
            "impl {name}{} {{ pub const NUMBER: u16 = {}; }}",
            if has_bytes(&note.fields) { "<'_>" } else { "" },
            number + 1
        )?;
    }
    writeln!(
        out,
        "/// Anything that the server says unasked.\n#[derive(Debug, Clone, PartialEq)]\npub enum Note<'a> {{"
    )?;
    for note in &notes {
        writeln!(
            out,
            "    {0}({0}Note{1}),",
            camel(&note.name),
            if has_bytes(&note.fields) { "<'a>" } else { "" }
        )?;
    }
    writeln!(
        out,
        "}}\nimpl<'a> Note<'a> {{\n    pub fn decode(number: u16, r: &mut Reader<'a>) -> Result<Self, DecodeError> {{ Ok(match number {{"
    )?;
    for (number, note) in notes.iter().enumerate() {
        writeln!(
            out,
            "        {} => Note::{1}({1}Note::decode(r)?),",
            number + 1,
            camel(&note.name)
        )?;
    }
    writeln!(
        out,
        "        _ => return Err(DecodeError::UnknownMessage {{ number }}),\n    }}) }}\n}}"
    )?;
    let documents = declared_documents()?;
    writeln!(
        out,
        "#[cfg(test)]\npub(crate) const DOCUMENTS: &str = {documents:?};"
    )?;
    writeln!(
        out,
        "/// Both ends of a connection must have been built from the same declarations.\npub const FINGERPRINT: u64 = {};",
        decl::fingerprint(&documents)
    )?;

    fs::write(Path::new(&env::var("OUT_DIR")?).join("messages.rs"), out)?;
    Ok(())
}

/// Writes a function that says whether the message of a number has the trait.
fn traits(out: &mut String, of_message: &OpTrait, ops: &[Op]) -> Result<(), Box<dyn Error>> {
    let numbers: Vec<String> = ops
        .iter()
        .enumerate()
        .filter(|(_, op)| (of_message.of)(&op.traits))
        .map(|(number, _)| number.to_string())
        .collect();
    writeln!(
        out,
        "///{}\npub const fn {}(number: u16) -> bool {{ matches!(number, {}) }}",
        of_message.doc,
        of_message.field,
        numbers.join(" | ")
    )?;
    Ok(())
}

/// Returns the declarations in this crate's sources of the documents of handshake and messages.
fn declared_documents() -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    let mut folders = vec![Path::new("src").to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        println!("cargo:rerun-if-changed={}", folder.display());
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    for file in files {
        let is_document = file.starts_with("src/doc") || file == Path::new("src/doc.rs");
        out.push_str(&documents::declarations(
            &fs::read_to_string(file)?,
            is_document,
        ));
    }
    Ok(out)
}

enum Bytes {
    Borrowed,
    Cow,
}

fn has_bytes(fields: &[Field]) -> bool {
    fields.iter().any(|f| f.ty == Type::Bytes)
}

fn reply(out: &mut String, name: &str, fields: &[Field]) -> Result<(), Box<dyn Error>> {
    message(out, &format!("{name}Reply"), name, fields, Bytes::Cow)
}

/// Writes a struct with its length, encoder and decoder. Scalars come first, packed little-endian;
/// byte fields follow with their lengths.
fn message(
    out: &mut String,
    name: &str,
    declared: &str,
    fields: &[Field],
    bytes: Bytes,
) -> Result<(), Box<dyn Error>> {
    let life = if has_bytes(fields) { "<'a>" } else { "" };
    writeln!(
        out,
        "/// `{declared}`, as declared.\n#[allow(non_camel_case_types)]\n#[derive(Debug, Clone, PartialEq)]\npub struct {name}{life} {{"
    )?;
    for f in fields {
        let ty = match (f.ty, &bytes) {
            (Type::Bytes, Bytes::Borrowed) => "&'a [u8]",
            (Type::Bytes, Bytes::Cow) => "Cow<'a, [u8]>",
            (ty, _) => rust_type(ty),
        };
        writeln!(out, "    pub {}: {ty},", f.name)?;
    }
    writeln!(out, "}}")?;
    let (scalars, variable): (Vec<&Field>, Vec<&Field>) =
        fields.iter().partition(|f| f.ty != Type::Bytes);
    let fixed: usize = scalars.iter().map(|f| size(f.ty)).sum::<usize>() + 4 * variable.len();
    writeln!(
        out,
        "impl<'a> Message<'a> for {name}{life} {{\n    const NAME: &'static str = \"{declared}\";"
    )?;
    write!(
        out,
        "    #[inline]\n    fn encoded_len(&self) -> usize {{ {fixed}"
    )?;
    for f in &variable {
        write!(out, " + self.{}.len()", f.name)?;
    }
    writeln!(
        out,
        " }}\n    #[inline(always)]\n    #[allow(unused_variables)]\n    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {{"
    )?;
    let scalar_bytes: usize = scalars.iter().map(|f| size(f.ty)).sum();
    if scalar_bytes > 0 {
        writeln!(out, "        let room = w.array::<{scalar_bytes}>()?;")?;
    }
    let mut at = 0;
    for f in &scalars {
        let end = at + size(f.ty);
        writeln!(
            out,
            "        room[{at}..{end}].copy_from_slice(&self.{}.to_le_bytes());",
            f.name
        )?;
        at = end;
    }
    let (borrow, into) = match bytes {
        Bytes::Borrowed => ("", ""),
        Bytes::Cow => ("&", ".into()"),
    };
    for f in &variable {
        writeln!(out, "        w.bytes({borrow}self.{})?;", f.name)?;
    }
    writeln!(
        out,
        "        Ok(())\n    }}\n    #[allow(unused_variables)]\n    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {{"
    )?;
    for f in &scalars {
        writeln!(
            out,
            "        let {} = {}::from_le_bytes(r.take(\"{declared}\")?);",
            f.name,
            rust_type(f.ty)
        )?;
    }
    for f in &variable {
        writeln!(
            out,
            "        let {} = r.bytes(\"{declared}\")?{into};",
            f.name
        )?;
    }
    let names: Vec<&str> = fields.iter().map(|f| f.name.as_str()).collect();
    writeln!(
        out,
        "        Ok({name} {{ {} }})\n    }}\n}}",
        names.join(", ")
    )?;
    Ok(())
}

/// Writes the encoder of everything before the data, for a message that ends in data.
fn head(fields: &[Field]) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    let (mut variable, scalars): (Vec<&Field>, Vec<&Field>) =
        fields.iter().partition(|f| f.ty == Type::Bytes);
    if variable.pop_if(|last| last.name == "data").is_none() {
        return Ok(out);
    }
    writeln!(
        out,
        "    const HAS_DATA: bool = true;\n    fn encode_head(&self, w: &mut Writer<'_>) -> Result<Option<&'a [u8]>, EncodeError> {{"
    )?;
    for f in &scalars {
        writeln!(out, "        w.put(&self.{}.to_le_bytes())?;", f.name)?;
    }
    for f in &variable {
        writeln!(out, "        w.bytes(self.{})?;", f.name)?;
    }
    writeln!(
        out,
        "        w.put(&(self.data.len() as u32).to_le_bytes())?;\n        Ok(Some(self.data))\n    }}"
    )?;
    Ok(out)
}

fn rust_type(ty: Type) -> &'static str {
    match ty {
        Type::U8 => "u8",
        Type::U16 => "u16",
        Type::U32 => "u32",
        Type::U64 | Type::Handle(_) => "u64",
        Type::I32 => "i32",
        Type::F32 => "f32",
        Type::Bytes => "&[u8]",
    }
}

fn size(ty: Type) -> usize {
    match ty {
        Type::U8 => 1,
        Type::U16 => 2,
        Type::U32 | Type::I32 | Type::F32 => 4,
        Type::U64 | Type::Handle(_) => 8,
        Type::Bytes => 0,
    }
}

fn camel(name: &str) -> String {
    decl::camel_case(name)
}
