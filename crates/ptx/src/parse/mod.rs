//! Parsing of PTX text to a syntax tree: [`lexer`], [`ast`], [`parser`] for modules and functions,
//! [`statement`] for bodies.

pub mod ast;
mod expression;
pub mod lexer;
mod parser;
mod statement;

pub use parser::parse;

/// Entry point for a fuzzer: parses and lowers any bytes. It must always return.
pub fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = crate::lower::check(text);
    }
}
