//! Grammar of function bodies: blocks, labels, declarations, instructions and their operands.

use super::ast::{Instruction, Linkage, Operand, Space, Statement, Variable};
use super::lexer::Token;
use super::parser::{Parser, Prefix};
use crate::error::Error;
use crate::limits::NESTING_DEPTH_MAX;

impl<'a> Parser<'a> {
    /// Parses `{ ... }`.
    pub(super) fn body(&mut self) -> Result<Vec<Statement<'a>>, Error> {
        self.punct(b'{')?;
        self.depth += 1;
        if self.depth > NESTING_DEPTH_MAX {
            return Err(self.expected("fewer nested blocks"));
        }
        let mut out = Vec::new();
        while !self.take_punct(b'}')? {
            self.statement(&mut out)?;
        }
        self.depth -= 1;
        Ok(out)
    }

    fn statement(&mut self, out: &mut Vec<Statement<'a>>) -> Result<(), Error> {
        match self.token {
            Token::Punct(b'{') => {
                let block = self.body()?;
                out.push(Statement::Block(block));
            }
            Token::Punct(b';') => self.advance()?,
            Token::Punct(b'@') => {
                self.advance()?;
                let negated = self.take_punct(b'!')?;
                let guard = self.word("a predicate")?;
                let instruction = self.instruction(Some((guard, negated)))?;
                out.push(Statement::Instruction(instruction));
            }
            Token::Word(".loc" | ".file" | ".pragma") => self.debug_line()?,
            Token::Word(".section") => self.section()?,
            Token::Word(word) if word.starts_with('.') => {
                if self.space().is_none() {
                    return Err(self.expected("a declaration or instruction"));
                }
                let mut variables = Vec::new();
                self.variables(Prefix::default(), &mut variables)?;
                // Shared variables of a device function exist in every kernel, like those outside
                // functions.
                let in_kernel = self.in_kernel;
                let lasts = |v: &&Variable<'a>| match v.space {
                    Space::Global | Space::Const => true,
                    Space::Shared => !in_kernel && v.bytes > 0,
                    _ => false,
                };
                self.inner.extend(variables.iter().filter(lasts).cloned());
                out.extend(variables.into_iter().map(Statement::Variable));
            }
            Token::Word(word) => {
                let at = self.at;
                self.advance()?;
                if self.take_punct(b':')? {
                    self.labelled(word, at, out)?;
                } else {
                    let instruction = self.instruction_after(None, word, at)?;
                    out.push(Statement::Instruction(instruction));
                }
            }
            _ => return Err(self.expected("a statement")),
        }
        Ok(())
    }

    fn labelled(
        &mut self,
        name: &'a str,
        at: crate::error::Position,
        out: &mut Vec<Statement<'a>>,
    ) -> Result<(), Error> {
        match self.token {
            Token::Word(".callprototype") => {
                self.advance()?;
                let returns = if self.token == Token::Punct(b'(') {
                    self.params()?
                } else {
                    Vec::new()
                };
                self.word("`_`")?;
                let params = if self.token == Token::Punct(b'(') {
                    self.params()?
                } else {
                    Vec::new()
                };
                while self.take_word(".noreturn")? {}
                self.punct(b';')?;
                out.push(Statement::Prototype {
                    name,
                    returns,
                    params,
                });
            }
            Token::Word(".branchtargets" | ".calltargets") => {
                self.advance()?;
                let mut labels = vec![self.word("a target")?];
                while self.take_punct(b',')? {
                    labels.push(self.word("a target")?);
                }
                self.punct(b';')?;
                out.push(Statement::Targets { name, labels, at });
            }
            _ => out.push(Statement::Label(name, at)),
        }
        Ok(())
    }

    /// Parses `( .param .b32 a, .reg .f32 %f1 )`.
    pub(super) fn params(&mut self) -> Result<Vec<Variable<'a>>, Error> {
        let mut out = Vec::new();
        self.punct(b'(')?;
        while !self.take_punct(b')')? {
            if !out.is_empty() {
                self.punct(b',')?;
            }
            let Some(space @ (Space::Param | Space::Reg)) = self.space() else {
                return Err(self.expected("`.param` or `.reg`"));
            };
            self.advance()?;
            let head = self.variable_type(space)?;
            // Pointer attributes of kernel parameters: `.ptr .global .align 4`.
            while let Token::Word(".ptr" | ".global" | ".shared" | ".const" | ".local" | ".align") =
                self.token
            {
                let aligned = self.token == Token::Word(".align");
                self.advance()?;
                if aligned {
                    self.integer("an alignment")?;
                }
            }
            out.push(self.declarator(space, Linkage::Local, &head)?);
        }
        Ok(out)
    }

    fn take_word(&mut self, word: &str) -> Result<bool, Error> {
        let found = matches!(self.token, Token::Word(w) if w == word);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn instruction(&mut self, guard: Option<(&'a str, bool)>) -> Result<Instruction<'a>, Error> {
        let at = self.at;
        let opcode = self.word("an instruction")?;
        self.instruction_after(guard, opcode, at)
    }

    fn instruction_after(
        &mut self,
        guard: Option<(&'a str, bool)>,
        opcode: &'a str,
        at: crate::error::Position,
    ) -> Result<Instruction<'a>, Error> {
        let mut operands = Vec::new();
        self.in_call = opcode == "call" || opcode.starts_with("call.");
        while !self.take_punct(b';')? {
            if !operands.is_empty() {
                self.punct(b',')?;
            }
            let operand = self.operand(0)?;
            operands.push(operand);
        }
        Ok(Instruction {
            guard,
            opcode,
            operands,
            at,
        })
    }

    fn operand(&mut self, depth: usize) -> Result<Operand<'a>, Error> {
        if depth > 2 {
            return Err(self.expected("a flatter operand"));
        }
        match self.token {
            Token::Number(_) | Token::Punct(b'~') => self.constant(),
            Token::Punct(b'-') if self.follows(|c| c.is_ascii_digit() || c == '(') => {
                self.negative()
            }
            Token::Punct(b'-') => {
                self.advance()?;
                Ok(Operand::Minus(self.word("a register or a number")?))
            }
            Token::Punct(b'!') if self.follows(|c| c.is_ascii_digit() || c == '(') => {
                self.constant()
            }
            Token::Punct(b'!') => {
                self.advance()?;
                Ok(Operand::Negated(self.word("a predicate")?))
            }
            Token::Punct(b'[') => self.address(depth),
            Token::Punct(b'{') => {
                let parts = self.operand_list(b'{', b'}', depth)?;
                match self.take_punct(b'|')? {
                    true => Ok(Operand::VectorAnd(parts, self.word("a predicate")?)),
                    false => Ok(Operand::Vector(parts)),
                }
            }
            Token::Punct(b'(') if depth > 0 || !self.in_call => self.constant(),
            Token::Punct(b'(') => Ok(Operand::List(self.operand_list(b'(', b')', depth)?)),
            Token::Word(name) => {
                self.advance()?;
                if self.take_punct(b'|')? {
                    return Ok(Operand::Pair(name, self.word("a second destination")?));
                }
                if let Token::Punct(b'+' | b'-') = self.token {
                    return Ok(Operand::Offset(name, self.signed_offset()?));
                }
                match self.token {
                    Token::Punct(b'[') => self.element(name),
                    _ => Ok(Operand::Name(name)),
                }
            }
            _ => Err(self.expected("an operand")),
        }
    }

    /// Whether one of these characters follows the current one, ignoring white space.
    fn follows(&self, wanted: impl Fn(char) -> bool) -> bool {
        let rest = self.text().get(self.at.offset as usize + 1..);
        rest.is_some_and(|rest| rest.trim_start().starts_with(wanted))
    }

    /// Parses a number after a minus, which is the sign of a float.
    fn negative(&mut self) -> Result<Operand<'a>, Error> {
        let rest = &self.text()[self.at.offset as usize + 1..];
        if super::lexer::begins_with_float(rest) {
            self.advance()?;
            let Token::Number(number) = self.token else {
                return Err(self.expected("a number"));
            };
            self.advance()?;
            return Ok(Operand::Number(number.negated()));
        }
        self.constant()
    }

    fn operand_list(
        &mut self,
        open: u8,
        close: u8,
        depth: usize,
    ) -> Result<Vec<Operand<'a>>, Error> {
        self.punct(open)?;
        let mut out = Vec::new();
        while !self.take_punct(close)? {
            if !out.is_empty() {
                self.punct(b',')?;
            }
            let operand = self.operand(depth + 1)?;
            out.push(operand);
        }
        Ok(out)
    }

    /// Parses the brackets after an array's name.
    fn element(&mut self, array: &'a str) -> Result<Operand<'a>, Error> {
        self.punct(b'[')?;
        let (index, offset) = match self.token {
            Token::Word(index) => {
                self.advance()?;
                (Some(index), self.signed_offset()?)
            }
            _ => (None, self.whole("an index")? as i64),
        };
        self.punct(b']')?;
        Ok(Operand::Element {
            array,
            index,
            offset,
        })
    }

    fn address(&mut self, depth: usize) -> Result<Operand<'a>, Error> {
        self.punct(b'[')?;
        let (base, offset) = match self.token {
            Token::Word(name) => {
                self.advance()?;
                (Some(name), self.signed_offset()?)
            }
            _ => (None, self.whole("an address")? as i64),
        };
        if self.take_punct(b',')? {
            let mut parts = Vec::new();
            while !self.take_punct(b']')? {
                parts.push(self.operand(depth + 1)?);
                self.take_punct(b',')?;
            }
            let (Some(base), 0) = (base, offset) else {
                return Err(self.expected("an object"));
            };
            return Ok(Operand::Coordinates { base, parts });
        }
        self.punct(b']')?;
        Ok(Operand::Address { base, offset })
    }
}
