//! Textures and surfaces, compared with a GPU: resources and samplers declared here ([`corpus`]),
//! instructions on them ([`probe`]), and coordinates that reveal how a GPU rounds ([`points`]).
//! Each probe is a job with objects; the recording `recorded/h200-textures.zst` holds a GPU's
//! results.
//!
//! ```text
//! truth record --textures h200-textures.zst            # where a GPU is
//! truth compare --textures h200-textures.zst           # anywhere
//! ```

pub mod compare;
pub mod corpus;
mod corpus_forms;
mod corpus_mips;
mod corpus_surfaces;
pub mod exceptions;
mod parts;
pub mod points;
pub mod probe;

pub use crate::setup::*;
