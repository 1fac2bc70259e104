//! CUDA, declared once.
pub mod decl;
