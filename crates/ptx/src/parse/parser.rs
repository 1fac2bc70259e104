//! Module-level grammar: directives, functions, variables, initialisers.

use super::ast::{Function, Init, Linkage, Module, Space, Type, Variable};
use super::lexer::{Lexer, Number, Token, clipped};
use crate::error::{Error, Position};
use crate::limits::{NESTING_DEPTH_MAX, PTX_BYTES_MAX, PTX_VERSION_MAX, VARIABLE_BYTES_MAX};

/// Parses the text of one module.
pub fn parse(text: &str) -> Result<Module<'_>, Error> {
    let at = Position::default();
    if text.len() > PTX_BYTES_MAX {
        return Err(Error::Limit {
            at,
            what: "PTX text in bytes",
            actual: text.len() as u64,
            limit: PTX_BYTES_MAX as u64,
        });
    }
    let mut parser = Parser::new(text)?;
    parser.module()
}

pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    pub(super) token: Token<'a>,
    pub(super) at: Position,
    pub(super) depth: usize,
    unit: u32,
    /// Whether the operands being read are those of a call, whose lists have parentheses.
    pub(super) in_call: bool,
    /// Whether a kernel's body is being read.
    pub(super) in_kernel: bool,
    /// Collects [`Module::inner`].
    pub(super) inner: Vec<Variable<'a>>,
}

/// The words before a declaration: `.visible .weak .extern .common`, `.attribute(.managed)`.
#[derive(Default)]
pub(super) struct Prefix {
    linkage: Linkage,
    managed: bool,
}

/// The part of a declaration that its variables share: `.align 8 .v2 .u32`.
pub(super) struct Head {
    ty: Type,
    align: Option<u32>,
    vector: u32,
    managed: bool,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, Error> {
        let mut lexer = Lexer::new(text);
        let (token, at) = lexer.read()?;
        Ok(Parser {
            lexer,
            token,
            at,
            depth: 0,
            unit: 0,
            in_call: false,
            in_kernel: false,
            inner: Vec::new(),
        })
    }

    pub(super) fn text(&self) -> &'a str {
        self.lexer.text()
    }

    fn module(&mut self) -> Result<Module<'a>, Error> {
        let mut module = Module::default();
        let mut prefix = Prefix::default();
        loop {
            let Token::Word(word) = self.token else {
                if self.token == Token::End {
                    break;
                }
                if self.take_punct(b';')? {
                    continue;
                }
                return Err(self.expected("a directive"));
            };
            let at = self.at;
            match word {
                ".version" => self.version_directive(&mut module)?,
                ".target" => self.target(&mut module)?,
                ".address_size" => self.address_size()?,
                ".visible" => self.prefix(&mut prefix, Linkage::Visible)?,
                ".weak" => self.prefix(&mut prefix, Linkage::Weak)?,
                ".extern" => self.prefix(&mut prefix, Linkage::Extern)?,
                ".common" => self.prefix(&mut prefix, Linkage::Common)?,
                ".attribute" => prefix.managed |= self.attribute()?,
                ".entry" | ".func" => {
                    let linkage = std::mem::take(&mut prefix).linkage;
                    module
                        .functions
                        .push(self.function(word == ".entry", linkage)?);
                }
                ".global" | ".const" | ".shared" => {
                    self.variables(std::mem::take(&mut prefix), &mut module.variables)?;
                }
                ".alias" => {
                    self.advance()?;
                    let new = self.word("a function name")?;
                    self.punct(b',')?;
                    let old = self.word("a function name")?;
                    self.punct(b';')?;
                    module.aliases.push((new, old, self.unit, at));
                }
                ".file" | ".loc" | ".pragma" => self.debug_line()?,
                ".section" => self.section()?,
                ".tex" => return Err(self.reference()),
                _ => return Err(self.expected("a module directive")),
            }
        }
        module.inner = std::mem::take(&mut self.inner);
        if module.version == (0, 0) {
            return Err(Error::Invalid {
                at: self.at,
                message: "no .version directive".into(),
            });
        }
        Ok(module)
    }

    fn prefix(&mut self, prefix: &mut Prefix, linkage: Linkage) -> Result<(), Error> {
        prefix.linkage = linkage;
        self.advance()
    }

    /// Parses `.version 8.0`, which begins a unit.
    fn version_directive(&mut self, module: &mut Module<'a>) -> Result<(), Error> {
        let at = self.at;
        self.advance()?;
        let found = self.version()?;
        if found > PTX_VERSION_MAX {
            let supported = PTX_VERSION_MAX;
            return Err(Error::Version {
                at,
                found,
                supported,
            });
        }
        if module.version != (0, 0) {
            self.unit += 1;
        }
        module.version = module.version.max(found);
        Ok(())
    }

    /// Parses `.target sm_80, debug`.
    fn target(&mut self, module: &mut Module<'a>) -> Result<(), Error> {
        self.advance()?;
        let target = self.word("a target architecture")?;
        let number = target
            .trim_start_matches("sm_")
            .trim_end_matches(|c: char| !c.is_ascii_digit());
        // A target without a number is no architecture, and nothing counts as newer than it.
        let number = number.parse().unwrap_or(u32::MAX);
        module.targets.resize(self.unit as usize, u32::MAX);
        module.targets.push(number);
        while self.take_punct(b',')? {
            self.word("a target option")?;
        }
        Ok(())
    }

    fn address_size(&mut self) -> Result<(), Error> {
        let at = self.at;
        self.advance()?;
        match self.integer("an address size")? {
            64 => Ok(()),
            bits => Err(Error::Invalid {
                at,
                message: format!("address size {bits}: only 64 is supported"),
            }),
        }
    }

    /// Returns the refusal of a texture, sampler or surface reference, which the host would bind.
    fn reference(&self) -> Error {
        let kind = match self.token {
            Token::Word(word) => clipped(word).to_owned(),
            _ => String::new(),
        };
        Error::Unsupported {
            at: self.at,
            instruction: kind,
            reason: "texture, sampler and surface references, which CUDA 12 has no longer; \
                     texture and surface objects are supported"
                .into(),
        }
    }

    /// Parses a version: `9.0` is read as a double, of which the digits count.
    fn version(&mut self) -> Result<(u32, u32), Error> {
        let Token::Number(Number::Double(bits)) = self.token else {
            return Err(self.expected("a version as 8.0"));
        };
        let tenths = (f64::from_bits(bits) * 10.0).round();
        if !(10.0..1000.0).contains(&tenths) {
            return Err(self.expected("a version as 8.0"));
        }
        self.advance()?;
        Ok((tenths as u32 / 10, tenths as u32 % 10))
    }

    fn function(&mut self, kernel: bool, linkage: Linkage) -> Result<Function<'a>, Error> {
        self.advance()?;
        let at = self.at;
        while let Token::Word(".attribute") = self.token {
            self.attribute()?;
        }
        let returns = if !kernel && self.token == Token::Punct(b'(') {
            self.params()?
        } else {
            Vec::new()
        };
        let name = self.word("a function name")?;
        let params = if self.token == Token::Punct(b'(') {
            self.params()?
        } else {
            Vec::new()
        };
        let mut function = Function {
            unit: self.unit,
            name,
            kernel,
            linkage,
            returns,
            params,
            body: None,
            maxntid: None,
            reqntid: None,
            minnctapersm: None,
            maxnreg: None,
            at,
        };
        loop {
            match self.token {
                Token::Word(".maxntid") => function.maxntid = Some(self.triple()?),
                Token::Word(".reqntid") => function.reqntid = Some(self.triple()?),
                Token::Word(".minnctapersm") => function.minnctapersm = Some(self.triple()?[0]),
                Token::Word(".maxnctapersm") => drop(self.triple()?),
                Token::Word(".maxnreg") => function.maxnreg = Some(self.triple()?[0]),
                Token::Word(".noreturn" | ".abi_preserve" | ".abi_preserve_control") => {
                    self.advance()?
                }
                Token::Word(".pragma") => self.debug_line()?,
                Token::Punct(b'{') => {
                    self.in_kernel = function.kernel;
                    function.body = Some(self.body()?);
                    return Ok(function);
                }
                Token::Punct(b';') => {
                    self.advance()?;
                    return Ok(function);
                }
                // Old compilers end a function's declaration without a semicolon.
                Token::Word(
                    ".visible" | ".extern" | ".weak" | ".func" | ".entry" | ".global" | ".const"
                    | ".shared" | ".file" | ".version",
                )
                | Token::End
                    if !function.kernel =>
                {
                    return Ok(function);
                }
                _ => return Err(self.expected("a function body, `;` or a performance directive")),
            }
        }
    }

    fn triple(&mut self) -> Result<[u32; 3], Error> {
        self.advance()?;
        let mut out = [1; 3];
        for (i, slot) in out.iter_mut().enumerate() {
            if i > 0 && !self.take_punct(b',')? {
                break;
            }
            *slot = u32::try_from(self.integer("an extent")?)
                .map_err(|_| self.expected("an extent of 32 bits"))?;
        }
        Ok(out)
    }

    pub(super) fn space(&self) -> Option<Space> {
        let Token::Word(word) = self.token else {
            return None;
        };
        Some(match word {
            ".reg" => Space::Reg,
            ".param" => Space::Param,
            ".shared" | ".shared::cta" => Space::Shared,
            ".local" => Space::Local,
            ".const" => Space::Const,
            ".global" => Space::Global,
            _ => return None,
        })
    }

    /// Parses `.global .align 8 .u64 a = 1, b[4];` from the space on.
    pub(super) fn variables(
        &mut self,
        prefix: Prefix,
        out: &mut Vec<Variable<'a>>,
    ) -> Result<(), Error> {
        let Some(space) = self.space() else {
            return Err(self.expected("a state space"));
        };
        self.advance()?;
        let mut head = self.variable_type(space)?;
        head.managed |= prefix.managed;
        loop {
            out.push(self.declarator(space, prefix.linkage, &head)?);
            if !self.take_punct(b',')? {
                return self.punct(b';');
            }
        }
    }

    pub(super) fn variable_type(&mut self, space: Space) -> Result<Head, Error> {
        let (mut align, mut vector, mut managed) = (None, 1, false);
        loop {
            let Token::Word(word) = self.token else {
                return Err(self.expected("a type"));
            };
            match word {
                ".align" => {
                    self.advance()?;
                    let value = self.integer("an alignment")?;
                    if !value.is_power_of_two() || value > 1 << 16 {
                        return Err(self.expected("an alignment that is a power of two"));
                    }
                    align = Some(value as u32);
                }
                ".attribute" => managed |= self.attribute()?,
                ".v2" | ".v4" | ".v8" => {
                    vector = u32::from(word.as_bytes()[2] - b'0');
                    self.advance()?;
                }
                ".texref" | ".samplerref" | ".surfref" => return Err(self.reference()),
                _ => {
                    let ty = word.strip_prefix('.').and_then(Type::from_name);
                    let Some(ty) = ty else {
                        return Err(self.expected("a type"));
                    };
                    if ty == Type::Pred && space != Space::Reg {
                        return Err(self.expected("a type that can be stored"));
                    }
                    self.advance()?;
                    return Ok(Head {
                        ty,
                        align,
                        vector,
                        managed,
                    });
                }
            }
        }
    }

    pub(super) fn declarator(
        &mut self,
        space: Space,
        linkage: Linkage,
        head: &Head,
    ) -> Result<Variable<'a>, Error> {
        let (ty, vector) = (head.ty, head.vector);
        let at = self.at;
        let name = self.word("a name")?;
        let element = u64::from(ty.bytes() * vector);
        let mut var = Variable {
            unit: self.unit,
            space,
            linkage,
            ty,
            name,
            align: head.align.unwrap_or(element as u32),
            bytes: element,
            count: vector,
            ranged: false,
            managed: head.managed,
            init: Vec::new(),
            at,
        };
        if space == Space::Reg && self.take_punct(b'<')? {
            let count = self.integer("a register count")?;
            var.count =
                u32::try_from(count).map_err(|_| self.expected("a register count of 32 bits"))?;
            var.ranged = true;
            self.punct(b'>')?;
            return Ok(var);
        }
        let rows = match space {
            Space::Reg => None,
            _ => self.extents(&mut var)?,
        };
        if self.take_punct(b'=')? {
            self.initialiser(&mut var.init, 0)?;
            let limit = match rows {
                Some(_) => u64::MAX,
                None => var.bytes / u64::from(ty.bytes()),
            };
            if var.init.len() as u64 > limit {
                return Err(Error::Invalid {
                    at,
                    message: format!("`{}` has more initial values than elements", clipped(name)),
                });
            }
        }
        if let Some(row_bytes) = rows {
            // `a[] = {..}` takes its size from the initialiser; without one it is dynamic shared
            // memory or external.
            let rows = (var.init.len() as u64 * u64::from(ty.bytes())).checked_div(row_bytes);
            var.bytes = rows.unwrap_or(0) * row_bytes;
        }
        Ok(var)
    }

    /// Parses `[4][2]` and multiplies the variable's size. Returns the bytes of a row if the first
    /// extent is left out.
    fn extents(&mut self, var: &mut Variable<'a>) -> Result<Option<u64>, Error> {
        let (mut dimensions, mut is_open) = (0, false);
        while self.take_punct(b'[')? {
            if self.take_punct(b']')? {
                is_open = dimensions == 0;
                continue;
            }
            let extent = self.whole("an array extent")?;
            self.punct(b']')?;
            let bytes = var.bytes.checked_mul(extent);
            let Some(bytes) = bytes.filter(|&bytes| bytes <= VARIABLE_BYTES_MAX) else {
                return Err(Error::Limit {
                    at: var.at,
                    what: "bytes of a variable",
                    actual: u64::MAX,
                    limit: VARIABLE_BYTES_MAX,
                });
            };
            var.bytes = bytes;
            dimensions += 1;
            if dimensions > NESTING_DEPTH_MAX {
                return Err(self.expected("fewer array dimensions"));
            }
        }
        Ok(is_open.then_some(var.bytes))
    }

    fn initialiser(&mut self, out: &mut Vec<Init<'a>>, depth: usize) -> Result<(), Error> {
        if !self.take_punct(b'{')? {
            out.push(self.init_value()?);
            return Ok(());
        }
        if depth > NESTING_DEPTH_MAX {
            return Err(self.expected("a flatter initialiser"));
        }
        while !self.take_punct(b'}')? {
            self.initialiser(out, depth + 1)?;
            if !self.take_punct(b',')? && self.token != Token::Punct(b'}') {
                return Err(self.expected("`,` or `}`"));
            }
        }
        Ok(())
    }

    fn init_value(&mut self) -> Result<Init<'a>, Error> {
        if let Token::Number(number) = self.token {
            self.advance()?;
            // `0xFF00(symbol)` stores one byte of an address.
            if let (Number::Integer(mask), Token::Punct(b'(')) = (number, self.token) {
                let Init::Symbol { name, offset, .. } = self.init_symbol()? else {
                    return Err(self.expected("a symbol"));
                };
                return Ok(Init::Symbol {
                    name,
                    offset,
                    mask: Some(mask),
                });
            }
            return Ok(Init::Number(number));
        }
        if self.take_punct(b'-')? {
            let Token::Number(number) = self.token else {
                return Err(self.expected("a number"));
            };
            self.advance()?;
            return Ok(Init::Number(number.negated()));
        }
        self.init_symbol()
    }

    /// Parses `symbol`, `symbol+4`, `generic(symbol)+4` or `(symbol+4)`.
    fn init_symbol(&mut self) -> Result<Init<'a>, Error> {
        if self.token == Token::Word("generic") {
            self.advance()?;
        }
        let (name, mut offset);
        if self.take_punct(b'(')? {
            if self.token == Token::Word("generic") {
                self.advance()?;
            }
            let nested = self.take_punct(b'(')?;
            name = self.word("a symbol")?;
            if nested {
                self.punct(b')')?;
            }
            offset = self.signed_offset()?;
            self.punct(b')')?;
        } else {
            name = self.word("a symbol or number")?;
            offset = 0;
        }
        offset = self.signed_offset()?.wrapping_add(offset);
        Ok(Init::Symbol {
            name,
            offset,
            mask: None,
        })
    }

    /// Parses `.attribute(.managed, .unified(1, 2))`; returns whether `.managed` is in the list.
    fn attribute(&mut self) -> Result<bool, Error> {
        self.advance()?;
        self.punct(b'(')?;
        let (mut open, mut managed) = (1, false);
        while open > 0 {
            match self.token {
                Token::Word(".managed") => managed = true,
                Token::Punct(b'(') => open += 1,
                Token::Punct(b')') => open -= 1,
                Token::End => return Err(self.expected("`)`")),
                _ => {}
            }
            self.advance()?;
        }
        Ok(managed)
    }

    /// Skips the rest of the line of `.loc 1 2 3, function_name $x, inlined_at 1 2 3`, `.file 1
    /// "a"` or `.pragma "x";`.
    pub(super) fn debug_line(&mut self) -> Result<(), Error> {
        let line = self.at.line;
        while self.at.line == line && self.token != Token::End {
            if self.take_punct(b';')? {
                return Ok(());
            }
            self.advance()?;
        }
        Ok(())
    }

    /// Skips `.section .debug_info { ... }`.
    pub(super) fn section(&mut self) -> Result<(), Error> {
        self.advance()?;
        self.word("a section name")?;
        self.punct(b'{')?;
        while !self.take_punct(b'}')? {
            if self.token == Token::End {
                return Err(self.expected("`}`"));
            }
            self.advance()?;
        }
        Ok(())
    }

    pub(super) fn advance(&mut self) -> Result<(), Error> {
        (self.token, self.at) = self.lexer.read()?;
        Ok(())
    }

    pub(super) fn take_punct(&mut self, punct: u8) -> Result<bool, Error> {
        let found = self.token == Token::Punct(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn punct(&mut self, punct: u8) -> Result<(), Error> {
        if self.take_punct(punct)? {
            Ok(())
        } else {
            Err(self.expected(&format!("`{}`", punct as char)))
        }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, Error> {
        let Token::Word(word) = self.token else {
            return Err(self.expected(what));
        };
        self.advance()?;
        Ok(word)
    }

    pub(super) fn integer(&mut self, what: &str) -> Result<u64, Error> {
        let Token::Number(Number::Integer(value)) = self.token else {
            return Err(self.expected(what));
        };
        self.advance()?;
        Ok(value)
    }

    pub(super) fn expected(&self, what: &str) -> Error {
        let found = match self.token {
            Token::Word(word) => format!("`{}`", clipped(word)),
            Token::Number(number) => format!("{number:?}"),
            Token::Text(text) => format!("\"{}\"", clipped(text)),
            Token::Punct(punct) => format!("`{}`", punct as char),
            Token::End => "end of text".into(),
        };
        Error::Syntax {
            at: self.at,
            expected: what.into(),
            found,
        }
    }
}
