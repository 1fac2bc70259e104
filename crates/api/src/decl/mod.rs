//! Parses the two declaration files, from which every other part of Outboard is derived.

use std::fmt;

mod attributes;

pub use self::attributes::{
    Attributes, Capture, Cost, Ends, Invocation, NodeCall, NodeVerb, Nvidia, OpTrait, OpTraits,
    ServerBy, Touches, Work,
};

/// Cost of a driver call for the program that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Answered by the client; nothing is sent.
    Local,
    /// Sent, returns at once, never gets a reply.
    Outstanding,
    /// Sent, waits for the reply.
    Synchronous,
    /// Sent and not waited for; the client makes the result itself.
    Shadowed,
    /// Returns `CUDA_ERROR_NOT_SUPPORTED` and prints its name.
    Unsupported,
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::Local => "local",
            Class::Outstanding => "outstanding",
            Class::Synchronous => "synchronous",
            Class::Shadowed => "shadowed",
            Class::Unsupported => "unsupported",
        }
    }
}

/// A second export of a call, in which the null stream is the calling thread's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerThread {
    /// `_ptsz`: the call takes a stream.
    Ptsz,
    /// `_ptds`: the call uses the default stream.
    Ptds,
}

impl PerThread {
    pub fn suffix(self) -> &'static str {
        match self {
            PerThread::Ptsz => "_ptsz",
            PerThread::Ptds => "_ptds",
        }
    }
}

/// One C parameter of a driver call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The C type as the header spells it, without the name: `const CUDA_MEMCPY3D *`.
    pub ctype: String,
    pub name: String,
}

/// One exported driver function.
#[derive(Debug, Clone)]
pub struct Call {
    pub symbol: String,
    /// First CUDA version for which `cuGetProcAddress` returns this symbol.
    pub since: Option<u32>,
    pub params: Vec<Param>,
    pub per_thread: Option<PerThread>,
    pub class: Class,
    /// True if client stub, codec and dispatch are generated from this declaration alone.
    pub derived: bool,
    /// The symbol of the same ABI for which this is an older name.
    pub same_as: Option<String>,
    pub attributes: Attributes,
}

impl Call {
    /// The name without its version suffix, as programs pass it to `cuGetProcAddress`.
    pub fn unversioned(&self) -> &str {
        match self.symbol.rsplit_once("_v") {
            Some((base, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => base,
            _ => &self.symbol,
        }
    }

    /// All names under which the call is exported.
    pub fn exports(&self) -> impl Iterator<Item = String> + '_ {
        std::iter::once(self.symbol.clone()).chain(
            self.per_thread
                .map(|p| format!("{}{}", self.symbol, p.suffix())),
        )
    }
}

/// The type of a field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    U8,
    U16,
    U32,
    U64,
    I32,
    F32,
    Bytes,
    /// A handle made by the client, sent as a `u64`.
    Handle(Handle),
}

impl Type {
    /// Returns its bytes in every message: for a byte field those of its length.
    pub fn fixed_bytes(self) -> usize {
        match self {
            Type::U8 => 1,
            Type::U16 => 2,
            Type::U32 | Type::I32 | Type::F32 | Type::Bytes => 4,
            Type::U64 | Type::Handle(_) => 8,
        }
    }
}

macro_rules! handles {
    ($($variant:ident $name:literal $ctype:literal),* $(,)?) => {
        /// The kinds of object that a session names by handles.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Handle { $($variant),* }

        impl Handle {
            pub const ALL: &'static [Handle] = &[$(Handle::$variant),*];
            /// The name used in the declarations.
            pub fn name(self) -> &'static str { match self { $(Handle::$variant => $name),* } }
            /// CUDA's type.
            pub fn ctype(self) -> &'static str { match self { $(Handle::$variant => $ctype),* } }
        }
    };
}

handles! {
    Context "context" "CUcontext", Stream "stream" "CUstream", Event "event" "CUevent", Library "library" "CUlibrary",
    Kernel "kernel" "CUfunction", Graph "graph" "CUgraph", GraphExec "graphexec" "CUgraphExec", Node "node" "CUgraphNode",
    Pool "pool" "CUmemoryPool", Array "array" "CUarray", Mipmap "mipmap" "CUmipmappedArray", Texture "texture" "CUtexObject",
    Surface "surface" "CUsurfObject", Link "link" "CUlinkState", Allocation "allocation" "CUmemGenericAllocationHandle",
}

/// Time of the reply to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Never,
    AtOnce,
    /// Once the GPU is done.
    Waits,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub ty: Type,
}

/// How a derived call's C parameter travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    /// `T *`: filled from the reply.
    Out,
    /// `const T *`: a record of this many bytes, sent.
    RecordIn(usize),
    /// `T *`: a record of this many bytes, filled from the reply.
    RecordOut(usize),
    /// `CUhandle *`: made by the client, sent.
    Mint(Handle),
}

/// One message from client to server.
#[derive(Debug, Clone)]
pub struct Op {
    /// Snake case for messages of `session.ops`, the driver's symbol for a derived call.
    pub name: String,
    pub fields: Vec<Field>,
    pub reply: Vec<Field>,
    pub answer: Answer,
    /// For a derived call: the call, and how each of its parameters travels.
    pub derived_from: Option<(Call, Vec<Direction>)>,
    pub traits: OpTraits,
}

/// One message from server to client that is not a reply.
#[derive(Debug, Clone)]
pub struct Note {
    pub name: String,
    pub fields: Vec<Field>,
}

/// A line of a declaration file that cannot be parsed.
#[derive(Debug)]
pub struct DeclError {
    pub file: &'static str,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for DeclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for DeclError {}

const DRIVER: &str = include_str!("../driver.calls");
const SESSION: &str = include_str!("../session.ops");

/// Returns every exported function, in the order of declaration.
pub fn driver() -> Result<Vec<Call>, DeclError> {
    lines(DRIVER)
        .map(|(line, text)| {
            parse_call(text).map_err(|what| DeclError {
                file: "driver.calls",
                line,
                what,
            })
        })
        .collect()
}

/// Returns every message from client to server; its index is its number on the wire.
pub fn ops() -> Result<Vec<Op>, DeclError> {
    let mut all = Vec::new();
    for (line, text) in lines(SESSION) {
        if let Some(rest) = text.strip_prefix("op ") {
            all.push(parse_op(rest).map_err(|what| DeclError {
                file: "session.ops",
                line,
                what,
            })?);
        }
    }
    for call in driver()?.into_iter().filter(|c| c.derived) {
        let symbol = call.symbol.clone();
        all.push(derive_op(call).map_err(|what| DeclError {
            file: "driver.calls",
            line: 0,
            what: format!("{symbol}: {what}"),
        })?);
    }
    Ok(all)
}

/// Returns every note from server to client; its index is its number on the wire.
pub fn notes() -> Result<Vec<Note>, DeclError> {
    lines(SESSION)
        .filter_map(|(line, text)| text.strip_prefix("note ").map(|rest| (line, rest)))
        .map(|(line, rest)| {
            let (name, fields, _) = parse_signature(rest).map_err(|what| DeclError {
                file: "session.ops",
                line,
                what,
            })?;
            Ok(Note { name, fields })
        })
        .collect()
}

/// Returns the heading under which a driver call is declared.
pub fn section(symbol: &str) -> Option<&'static str> {
    let mut heading = None;
    for line in DRIVER.lines() {
        match line.strip_prefix("# ") {
            Some(text) => heading = Some(text),
            None if line.split(' ').next() == Some(symbol) => return heading,
            None => {}
        }
    }
    None
}

/// Returns a number that changes with the messages and with the declarations of the documents in
/// them: both ends of a connection must have the same one.
pub fn fingerprint(documents: &str) -> u64 {
    // FNV-1a over the declarations' text: it need only differ between versions.
    SESSION
        .lines()
        .filter(|l| !l.starts_with('#'))
        .chain(derived_lines(DRIVER))
        .chain(documents.lines())
        .flat_map(str::bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

/// The lines of derived calls, without their attributes, which are no part of their messages.
fn derived_lines(calls: &str) -> impl Iterator<Item = &str> {
    calls
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split(';').next())
        .filter(|l| l.ends_with("derived"))
}

pub(crate) fn lines(text: &'static str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines()
        .enumerate()
        .map(|(i, l)| (i + 1, l.trim()))
        .filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
}

fn parse_call(text: &str) -> Result<Call, String> {
    let (head, rest) = text.rsplit_once(" : ").ok_or("no class")?;
    let mut parts = rest.split(';').map(str::trim);
    let (class, attributes) = (parts.next().unwrap_or_default(), Attributes::parse(parts)?);
    let (symbol, rest) = head.split_once(' ').ok_or("no version")?;
    let (since, rest) = rest.split_once(' ').ok_or("no parameters")?;
    let since = match since.strip_prefix('@').ok_or("version without @")? {
        "-" => None,
        digits => Some(digits.parse().map_err(|_| format!("version {digits}"))?),
    };
    let (open, close) = (rest.find('(').ok_or("no ("), rest.rfind(')').ok_or("no )"));
    let (open, close) = (open?, close?);
    let per_thread = match rest[close + 1..].trim() {
        "" => None,
        "+ptsz" => Some(PerThread::Ptsz),
        "+ptds" => Some(PerThread::Ptds),
        other => return Err(format!("{other} after the parameters")),
    };
    let (class, derived, same_as) = match class.split(' ').collect::<Vec<_>>()[..] {
        ["same", "as", other] => (Class::Local, false, Some(other.to_string())),
        [class] => (parse_class(class)?, false, None),
        [class, "derived"] => (parse_class(class)?, true, None),
        _ => return Err(format!("class {class}")),
    };
    let call = Call {
        symbol: symbol.to_string(),
        since,
        params: parse_params(&rest[open + 1..close])?,
        per_thread,
        class,
        derived,
        same_as,
        attributes,
    };
    call.attributes.check(&call)?;
    Ok(call)
}

fn parse_class(text: &str) -> Result<Class, String> {
    [
        Class::Local,
        Class::Outstanding,
        Class::Synchronous,
        Class::Shadowed,
        Class::Unsupported,
    ]
    .into_iter()
    .find(|c| c.name() == text)
    .ok_or_else(|| format!("class {text}"))
}

pub(crate) fn parse_params(text: &str) -> Result<Vec<Param>, String> {
    if text == "void" {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|p| {
            let p = p.trim();
            let (p, array) = match p.strip_suffix("[]") {
                Some(p) => (p, true),
                None => (p, false),
            };
            let at = p
                .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
                .ok_or_else(|| format!("parameter {p}"))?
                + 1;
            let ctype = if array {
                format!("{} *", p[..at].trim())
            } else {
                p[..at].trim().to_string()
            };
            Ok(Param {
                ctype,
                name: p[at..].to_string(),
            })
        })
        .collect()
}

fn parse_op(text: &str) -> Result<Op, String> {
    let (name, fields, rest) = parse_signature(text)?;
    let (reply, rest) = match rest.strip_prefix("-> ") {
        Some(rest) => {
            let (_, reply, rest) = parse_signature(rest)?;
            (reply, rest)
        }
        None => (Vec::new(), rest),
    };
    let mut parts = rest.split(';').map(str::trim);
    let class = parts.next().unwrap_or_default();
    let answer = match class.strip_prefix(": ").unwrap_or_default() {
        "outstanding" => Answer::Never,
        "synchronous" => Answer::AtOnce,
        "waits" => Answer::Waits,
        other => return Err(format!("class '{other}'")),
    };
    let traits = OpTraits::parse(parts)?;
    traits.check(&fields, answer == Answer::Waits)?;
    Ok(Op {
        name,
        fields,
        reply,
        answer,
        derived_from: None,
        traits,
    })
}

fn parse_signature(text: &str) -> Result<(String, Vec<Field>, &str), String> {
    let (open, close) = (text.find('(').ok_or("no (")?, text.find(')').ok_or("no )")?);
    let fields = text[open + 1..close]
        .split(',')
        .map(str::trim)
        .filter(|f| !f.is_empty())
        .map(|f| {
            let (name, ty) = f.split_once(' ').ok_or_else(|| format!("field {f}"))?;
            Ok(Field {
                name: name.to_string(),
                ty: parse_type(ty)?,
            })
        })
        .collect::<Result<_, String>>()?;
    Ok((
        text[..open].trim().to_string(),
        fields,
        text[close + 1..].trim(),
    ))
}

fn parse_type(text: &str) -> Result<Type, String> {
    Ok(match text {
        "u8" => Type::U8,
        "u16" => Type::U16,
        "u32" => Type::U32,
        "u64" => Type::U64,
        "i32" => Type::I32,
        "f32" => Type::F32,
        "bytes" => Type::Bytes,
        other => Type::Handle(
            *Handle::ALL
                .iter()
                .find(|h| h.name() == other)
                .ok_or_else(|| format!("type {other}"))?,
        ),
    })
}

/// Makes the message of a derived call from its C parameters.
fn derive_op(call: Call) -> Result<Op, String> {
    let (mut fields, mut reply, mut directions) = (Vec::new(), Vec::new(), Vec::new());
    for param in &call.params {
        let name = snake_case(&param.name);
        let direction = match param.ctype.strip_suffix('*').map(str::trim) {
            None => {
                fields.push(Field {
                    name,
                    ty: scalar(&param.ctype).ok_or_else(|| format!("type {}", param.ctype))?,
                });
                Direction::In
            }
            Some(pointee) => {
                let (constant, pointee) = match pointee.strip_prefix("const ") {
                    Some(p) => (true, p),
                    None => (false, pointee),
                };
                match (scalar(pointee), record_bytes(pointee)) {
                    (Some(ty @ Type::Handle(handle)), _) if !constant => {
                        fields.push(Field { name, ty });
                        Direction::Mint(handle)
                    }
                    (Some(ty), _) if !constant => {
                        reply.push(Field { name, ty });
                        Direction::Out
                    }
                    (None, Some(bytes)) if constant => {
                        fields.push(Field {
                            name,
                            ty: Type::Bytes,
                        });
                        Direction::RecordIn(bytes)
                    }
                    (None, Some(bytes)) => {
                        reply.push(Field {
                            name,
                            ty: Type::Bytes,
                        });
                        Direction::RecordOut(bytes)
                    }
                    _ => return Err(format!("type {} cannot be derived", param.ctype)),
                }
            }
        };
        directions.push(direction);
    }
    let answer = if call.class == Class::Outstanding {
        Answer::Never
    } else {
        Answer::AtOnce
    };
    if answer == Answer::Never && !reply.is_empty() {
        return Err("an outstanding call has outputs".into());
    }
    Ok(Op {
        name: call.symbol.clone(),
        fields,
        reply,
        answer,
        traits: OpTraits {
            gives_back: call.attributes.ends.is_some(),
            is_light: answer == Answer::Never && call.attributes.ends.is_none(),
            ..OpTraits::default()
        },
        derived_from: Some((call, directions)),
    })
}

/// Returns the wire type of a C type passed by value.
pub fn scalar(ctype: &str) -> Option<Type> {
    if let Some(handle) = Handle::ALL.iter().find(|h| h.ctype() == ctype) {
        return Some(Type::Handle(*handle));
    }
    Some(match ctype {
        "unsigned char" => Type::U8,
        "unsigned short" => Type::U16,
        "unsigned int" | "unsigned" | "cuuint32_t" => Type::U32,
        "size_t" | "CUdeviceptr" | "unsigned long long" | "cuuint64_t" => Type::U64,
        "int" | "CUdevice" => Type::I32,
        "float" => Type::F32,
        // CUDA's enums, all of them 32 bits wide.
        "CUlimit"
        | "CUfunc_cache"
        | "CUsharedconfig"
        | "CUgraphNodeType"
        | "CUgraphMem_attribute"
        | "CUarray_format" => Type::U32,
        _ => return None,
    })
}

/// Returns the size of a record that derived calls pass through unchanged: plain data, no pointers,
/// no handles.
fn record_bytes(ctype: &str) -> Option<usize> {
    Some(match ctype {
        "CUDA_ARRAY_DESCRIPTOR" => 24,
        "CUDA_ARRAY3D_DESCRIPTOR" => 40,
        "CUDA_TEXTURE_DESC" => 104,
        // cuDeviceGetGraphMemAttribute: every attribute is a cuuint64_t.
        "void" => 8,
        _ => return None,
    })
}

/// Converts names like `hStream` and `dstDevice` to Rust's spelling.
pub fn snake_case(name: &str) -> String {
    let mut out = String::new();
    let mut previous_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && previous_lower {
            out.push('_');
        }
        previous_lower = c.is_lowercase() || c.is_ascii_digit();
        out.extend(c.to_lowercase());
    }
    out
}

/// Converts names like `mem_map` and `cuMemsetD8_v2` to Rust's type names: `MemMap`,
/// `CuMemsetD8V2`.
pub fn camel_case(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let mut chars = word.chars();
            chars
                .next()
                .map(|c| c.to_uppercase().chain(chars).collect::<String>())
                .unwrap_or_default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_parses() {
        let calls = driver().expect("driver.calls");
        let exports: std::collections::BTreeSet<String> = calls
            .iter()
            .flat_map(|c| c.exports().collect::<Vec<_>>())
            .collect();
        assert_eq!(exports.len(), 682, "a 580 driver exports 682 functions");
        ops().expect("session.ops");
        notes().expect("session.ops");
    }

    #[test]
    fn aliases_name_a_declared_call() {
        let calls = driver().expect("driver.calls");
        for alias in calls.iter().filter_map(|c| c.same_as.as_ref()) {
            assert!(
                calls
                    .iter()
                    .any(|c| &c.symbol == alias && c.same_as.is_none()),
                "{alias}"
            );
        }
    }

    #[test]
    fn what_a_call_is_said_to_send_is_a_message() {
        let ops = ops().expect("session.ops");
        for call in driver().expect("driver.calls") {
            if let Some(Cost::Sends(message)) = &call.attributes.cost {
                assert!(ops.iter().any(|op| op.name == *message), "{}", call.symbol);
            }
        }
    }

    #[test]
    fn attributes_are_no_part_of_the_protocol_and_classes_are() {
        let line = "cuX @2000 (int a) : outstanding derived";
        let bare: Vec<_> = derived_lines(line).collect();
        assert_eq!(bare, [line]);
        let marked = format!("{line}; capture unsafe\ncuY @2000 (void) : local; known\n# derived");
        assert_eq!(derived_lines(&marked).collect::<Vec<_>>(), bare);
        assert_eq!(
            derived_lines(DRIVER).count(),
            driver()
                .expect("driver.calls")
                .iter()
                .filter(|c| c.derived)
                .count()
        );
    }

    #[test]
    fn names_in_rust() {
        assert_eq!(snake_case("hStream"), "h_stream");
        assert_eq!(snake_case("dstDevice"), "dst_device");
        assert_eq!(snake_case("N"), "n");
    }
}
