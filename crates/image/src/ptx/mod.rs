//! Declarations of a PTX text: header directives, entries with their parameters, module variables.
//!
//! Scans, and does not parse: bodies are skipped by their braces, and instructions are not read.
//! Grammar: PTX ISA, "Kernel and Function Directives" and "State Spaces, Types, and Variables".

mod lexer;
#[cfg(test)]
mod tests;

use std::fmt;

use self::lexer::{Lexer, Token};
use crate::{Arch, Attributes, Error, Kernel, Module, Space, Variable, limits};

/// The declarations of a PTX text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declarations<'a> {
    pub header: Header,
    pub entries: Vec<EntryPoint<'a>>,
    /// Variables that this text defines in global or constant memory.
    pub variables: Vec<Variable>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// PTX ISA version, as major and minor.
    pub version: (u32, u32),
    pub target: Arch,
    /// 32 if the text does not say.
    pub address_bits: u32,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "PTX {major}.{minor} for {}", self.target)
    }
}

/// A kernel: `.entry`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPoint<'a> {
    pub name: &'a str,
    pub params: Vec<Param<'a>>,
    pub attributes: Attributes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param<'a> {
    pub name: &'a str,
    /// Offset in the parameter buffer: the end of the parameter before, aligned.
    pub offset: u32,
    pub size: u32,
    pub align: u32,
}

impl From<Declarations<'_>> for Module {
    fn from(declarations: Declarations<'_>) -> Self {
        let kernels = declarations.entries.into_iter().map(|entry| Kernel {
            name: entry.name.to_owned(),
            params: entry
                .params
                .iter()
                .map(|param| crate::Param {
                    offset: param.offset,
                    size: param.size,
                })
                .collect(),
            attributes: entry.attributes,
        });
        Self {
            arch: declarations.header.target,
            relocatable: false,
            kernels: kernels.collect(),
            variables: declarations.variables,
        }
    }
}

/// Returns true if an image starts like PTX: with white space, a directive or a comment.
pub(crate) fn looks_like_text(data: &[u8]) -> bool {
    let text = without_padding(data);
    text.iter()
        .find(|byte| !byte.is_ascii_whitespace())
        .map_or(!text.is_empty(), |byte| matches!(byte, b'.' | b'/'))
}

/// Returns the bytes before the first NUL.
pub(crate) fn without_padding(data: &[u8]) -> &[u8] {
    data.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Returns the text in an image's bytes, without the NULs that end or pad it.
pub fn decode(data: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(without_padding(data)).map_err(|error| Error::PtxEncoding {
        offset: error.valid_up_to(),
    })
}

/// Reads `.version`, `.target` and `.address_size`, which come first.
pub fn scan_header(text: &str) -> Result<Header, Error> {
    Scanner {
        lexer: Lexer::new(text),
    }
    .header()
}

/// Reads all declarations.
pub fn scan(text: &str) -> Result<Declarations<'_>, Error> {
    let mut scanner = Scanner {
        lexer: Lexer::new(text),
    };
    let header = scanner.header()?;
    let mut entries = Vec::new();
    let mut variables = Vec::new();
    let mut is_extern = false;
    while let Some(token) = scanner.lexer.next()? {
        match token {
            Token::Word(".extern") => is_extern = true,
            Token::Word(".entry") => entries.extend(scanner.entry()?),
            Token::Word(space @ (".global" | ".const")) => {
                scanner.variables(space, is_extern, &mut variables)?
            }
            Token::Punct(b'{') => scanner.lexer.skip_to_closing(b'{', b'}')?,
            Token::Punct(b'(') => scanner.lexer.skip_to_closing(b'(', b')')?,
            _ => {}
        }
        is_extern &= token == Token::Word(".extern");
    }
    Ok(Declarations {
        header,
        entries,
        variables,
    })
}

struct Scanner<'a> {
    lexer: Lexer<'a>,
}

impl<'a> Scanner<'a> {
    fn header(&mut self) -> Result<Header, Error> {
        self.expect_word(".version", "the directive .version")?;
        let major = self.number("a PTX ISA version")?;
        let minor = match self.lexer.next()? {
            Some(Token::Word(word)) => word.strip_prefix('.').and_then(|minor| minor.parse().ok()),
            _ => None,
        };
        let minor = minor.ok_or_else(|| self.lexer.error("a PTX ISA version"))?;
        self.expect_word(".target", "the directive .target")?;
        let target = match self.lexer.next()? {
            Some(Token::Word(word)) if word.starts_with("sm_") => Arch::parse(word),
            _ => None,
        };
        let target = target.ok_or_else(|| self.lexer.error("a target such as sm_80"))?;
        // Options of the target, as in `sm_80, debug`.
        while self.lexer.accept(b',')? {
            self.lexer.next()?;
        }
        let mut address_bits = 32;
        let before = self.lexer.at;
        if self.lexer.next()? == Some(Token::Word(".address_size")) {
            address_bits = self.number("32 or 64")?;
        } else {
            self.lexer.at = before;
        }
        if !matches!(address_bits, 32 | 64) {
            return Err(self.lexer.error("32 or 64"));
        }
        Ok(Header {
            version: (major, minor),
            target,
            address_bits,
        })
    }

    /// Reads what follows `.entry`. A declaration without a body is not an entry of this module.
    fn entry(&mut self) -> Result<Option<EntryPoint<'a>>, Error> {
        let name = self.identifier("the name of an entry")?;
        let params = if self.lexer.accept(b'(')? {
            self.params()?
        } else {
            Vec::new()
        };
        let mut attributes = Attributes::default();
        loop {
            match self.lexer.next()? {
                Some(Token::Punct(b'{')) => break,
                Some(Token::Punct(b';')) => return Ok(None),
                Some(Token::Word(".maxntid")) => attributes.threads_max = Some(self.shape()?),
                Some(Token::Word(".reqntid")) => attributes.threads_required = Some(self.shape()?),
                Some(Token::Word(".maxnreg")) => {
                    attributes.registers_max = Some(self.number("a register count")?)
                }
                Some(Token::Word(".explicitcluster")) => attributes.cluster_explicit = true,
                Some(Token::Word(".reqnctapercluster")) => {
                    attributes.cluster_required = Some(self.shape()?)
                }
                Some(Token::Word(".maxclusterrank")) => {
                    attributes.cluster_blocks_max = Some(self.number("a block count")?)
                }
                Some(Token::Word(".pragma")) => {
                    while !matches!(self.lexer.next()?, None | Some(Token::Punct(b';'))) {}
                }
                Some(_) => {}
                None => return Err(self.lexer.error("the body of an entry")),
            }
        }
        self.lexer.skip_to_closing(b'{', b'}')?;
        Ok(Some(EntryPoint {
            name,
            params,
            attributes,
        }))
    }

    /// Reads what follows the opening parenthesis.
    fn params(&mut self) -> Result<Vec<Param<'a>>, Error> {
        let mut params = Vec::new();
        let mut free = 0;
        if self.lexer.accept(b')')? {
            return Ok(params);
        }
        loop {
            self.expect_word(".param", "the directive .param")?;
            let declared = self.declaration()?;
            let dimensions = self.dimensions()?;
            let size = self.sized(declared.size, &dimensions)?;
            let size =
                u32::try_from(size).map_err(|_| self.lexer.error("a parameter below 4 GiB"))?;
            let offset = u32::checked_next_multiple_of(free, declared.align);
            let end = offset.and_then(|offset| offset.checked_add(size));
            let (Some(offset), Some(end)) = (offset, end) else {
                return Err(self.lexer.error("parameters below 4 GiB"));
            };
            if params.len() == limits::PARAMS_MAX {
                return Err(self.lexer.error("no more parameters than fit"));
            }
            params.push(Param {
                name: declared.name,
                offset,
                size,
                align: declared.align,
            });
            free = end;
            match self.lexer.next()? {
                Some(Token::Punct(b',')) => {}
                Some(Token::Punct(b')')) => return Ok(params),
                _ => return Err(self.lexer.error("a comma or the end of the parameters")),
            }
        }
    }

    /// Reads what follows `.global` or `.const`, up to the semicolon. Leaves out texture references
    /// and the like.
    fn variables(
        &mut self,
        space: &str,
        is_extern: bool,
        out: &mut Vec<Variable>,
    ) -> Result<(), Error> {
        let mut declared = self.declaration()?;
        loop {
            let mut dimensions = self.dimensions()?;
            if self.lexer.accept(b'=')? {
                let elements = self.initializer()?;
                if let Some(first @ None) = dimensions.first_mut() {
                    *first = Some(elements);
                }
            }
            if !is_extern && !declared.is_opaque {
                let space = match space {
                    ".const" => Space::Constant,
                    _ if declared.is_managed => Space::Managed,
                    _ => Space::Global,
                };
                let bytes = self.sized(declared.size, &dimensions)?;
                out.push(Variable {
                    name: declared.name.to_owned(),
                    space,
                    bytes,
                });
            }
            match self.lexer.next()? {
                Some(Token::Punct(b',')) => {
                    declared.name = self.identifier("the name of a variable")?
                }
                Some(Token::Punct(b';')) => return Ok(()),
                _ => return Err(self.lexer.error("a comma or semicolon after a variable")),
            }
        }
    }

    /// Counts the elements at the top level of an initializer, without consuming what follows it.
    fn initializer(&mut self) -> Result<u64, Error> {
        let mut depth = 0u32;
        let mut elements = 0;
        let mut in_element = false;
        loop {
            let before = self.lexer.at;
            match self.lexer.next()? {
                None => return Err(self.lexer.error("the end of an initializer")),
                Some(Token::Punct(b',' | b';')) if depth == 0 => {
                    self.lexer.at = before;
                    return Ok(elements);
                }
                Some(Token::Punct(b'{' | b'(')) => {
                    elements += u64::from(depth == 1 && !in_element);
                    in_element = depth >= 1;
                    depth += 1;
                }
                Some(Token::Punct(b'}' | b')')) => {
                    depth = depth.checked_sub(1).ok_or_else(|| {
                        self.lexer.error("an opening brace before the closing one")
                    })?;
                }
                Some(Token::Punct(b',')) => in_element &= depth > 1,
                Some(_) => {
                    elements += u64::from(depth == 1 && !in_element);
                    in_element = true;
                }
            }
        }
    }

    /// Reads `.align 8 .b8 name`, `.u64 .ptr .global .align 16 name`, `.attribute(.managed) .u32
    /// name`.
    fn declaration(&mut self) -> Result<Declared<'a>, Error> {
        let mut size = None;
        let mut align = None;
        let mut vector = 1;
        let (mut is_pointer, mut is_managed, mut is_opaque) = (false, false, false);
        let name = loop {
            let Some(Token::Word(word)) = self.lexer.next()? else {
                return Err(self.lexer.error("a type or name"));
            };
            match word {
                // After `.ptr` this is the alignment of the memory pointed to.
                ".align" if is_pointer => drop(self.number("an alignment")?),
                ".align" => align = Some(self.number("an alignment")?),
                ".ptr" => is_pointer = true,
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".v8" => vector = 8,
                ".const" | ".global" | ".local" | ".shared" if is_pointer => {}
                ".attribute" => is_managed = self.attribute()?,
                ".texref" | ".samplerref" | ".surfref" => (is_opaque, size) = (true, Some(8)),
                _ if !word.starts_with('.') => break word,
                _ => size = Some(type_bytes(word).ok_or_else(|| self.lexer.error("a type"))?),
            }
        };
        if !is_identifier(name) {
            return Err(self.lexer.error("a name"));
        }
        let size = size.ok_or_else(|| self.lexer.error("a type before the name"))? * vector;
        let align = align.unwrap_or(size);
        if !align.is_power_of_two() {
            return Err(self.lexer.error("an alignment that is a power of two"));
        }
        Ok(Declared {
            name,
            size,
            align,
            is_managed,
            is_opaque,
        })
    }

    /// Reads what follows `.attribute`; returns true if `.managed` is in the list.
    fn attribute(&mut self) -> Result<bool, Error> {
        let mut is_managed = false;
        if !self.lexer.accept(b'(')? {
            return Err(self.lexer.error("a list of attributes"));
        }
        loop {
            match self.lexer.next()? {
                Some(Token::Word(".managed")) => is_managed = true,
                Some(Token::Punct(b'(')) => self.lexer.skip_to_closing(b'(', b')')?,
                Some(Token::Punct(b')')) => return Ok(is_managed),
                Some(_) => {}
                None => return Err(self.lexer.error("the end of the attributes")),
            }
        }
    }

    /// Reads `[4][2]`; an empty pair of brackets is `None`.
    fn dimensions(&mut self) -> Result<Vec<Option<u64>>, Error> {
        let mut dimensions = Vec::new();
        while self.lexer.accept(b'[')? {
            if self.lexer.accept(b']')? {
                dimensions.push(None);
                continue;
            }
            dimensions.push(Some(u64::from(self.number("an array size")?)));
            if !self.lexer.accept(b']')? {
                return Err(self.lexer.error("a closing bracket"));
            }
        }
        Ok(dimensions)
    }

    fn sized(&self, element: u32, dimensions: &[Option<u64>]) -> Result<u64, Error> {
        let mut bytes = u64::from(element);
        for dimension in dimensions {
            let dimension = dimension.ok_or_else(|| self.lexer.error("an array with a size"))?;
            bytes = bytes
                .checked_mul(dimension)
                .ok_or_else(|| self.lexer.error("an array that fits in memory"))?;
        }
        Ok(bytes)
    }

    /// Reads one to three numbers; missing ones are 1.
    fn shape(&mut self) -> Result<[u32; 3], Error> {
        let mut shape = [self.number("a size")?, 1, 1];
        for dimension in shape.iter_mut().skip(1) {
            if !self.lexer.accept(b',')? {
                break;
            }
            *dimension = self.number("a size")?;
        }
        Ok(shape)
    }

    fn number(&mut self, expected: &'static str) -> Result<u32, Error> {
        let value = match self.lexer.next()? {
            Some(Token::Word(word)) => parse_number(word),
            _ => None,
        };
        value.ok_or_else(|| self.lexer.error(expected))
    }

    fn identifier(&mut self, expected: &'static str) -> Result<&'a str, Error> {
        match self.lexer.next()? {
            Some(Token::Word(word)) if is_identifier(word) => Ok(word),
            _ => Err(self.lexer.error(expected)),
        }
    }

    fn expect_word(&mut self, word: &str, expected: &'static str) -> Result<(), Error> {
        if self.lexer.next()? == Some(Token::Word(word)) {
            Ok(())
        } else {
            Err(self.lexer.error(expected))
        }
    }
}

struct Declared<'a> {
    name: &'a str,
    /// Size of one element, in bytes.
    size: u32,
    align: u32,
    is_managed: bool,
    is_opaque: bool,
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic() || matches!(first, '_' | '$' | '%'))
}

/// Parses a number by PTX ISA, "Integer Constants".
fn parse_number(word: &str) -> Option<u32> {
    let digits = word.trim_end_matches('U');
    match digits.get(..2) {
        Some("0x" | "0X") => u32::from_str_radix(&digits[2..], 16).ok(),
        Some("0b" | "0B") => u32::from_str_radix(&digits[2..], 2).ok(),
        Some(_) if digits.starts_with('0') => u32::from_str_radix(&digits[1..], 8).ok(),
        _ => digits.parse().ok(),
    }
}

/// Size of a type of PTX ISA, "Fundamental Types", or of a packed one.
fn type_bytes(name: &str) -> Option<u32> {
    Some(match name {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}
