//! Parsing of PTX text to a syntax tree: [`lexer`], [`ast`], [`parser`] for modules and functions,
//! [`statement`] for bodies.

pub mod ast;
mod expression;
pub mod lexer;
mod parser;
mod statement;

pub use parser::parse;
