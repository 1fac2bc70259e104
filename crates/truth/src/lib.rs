//! Evidence that the software device (`outboard-ptx`) computes what a GPU computes. Used by tests
//! and by hand; no installed program depends on it.
//!
//! ```text
//!  forms/*.forms ── declare ──► forms ── values, kernel ──► jobs ──┬── gpu ──► recorded/h200.zst
//!        │                        │                         ▲      │               │
//!        │                        └── fuzz::generate ───────┘      └── soft ──► compare ──► tests
//!        └──► table ──► docs/ptx-instructions.md
//! ```
//!
//! [`declare`] reads PTX's instructions in the manual's notation: each line is many
//! [`form::Form`]s. A form becomes a kernel ([`kernel`]) that applies it to the edge values of its
//! types, crossed, and to random values ([`values`]). Random programs ([`fuzz`]) consist of the
//! same forms. Both are [`job::Job`]s. One command records a GPU's results once ([`record`]), and
//! the recording is committed; inputs are generated again from seeds. Tests run the jobs here and
//! compare ([`compare`]): bit by bit, or within the manual's bounds ([`bounds`]), as the
//! declaration says.
//!
//! ```text
//! # The file `truth` needs only libcuda.so.1.
//! cargo build --release -p outboard-truth
//! # On a machine with a GPU; `--onto` adds what a recording lacks, and keeps what it has.
//! truth record h200.zst
//! truth record --onto h200.zst more.zst
//! # On any machine.
//! truth compare h200.zst
//! # Textures and surfaces have their own recordings ([`textures`]).
//! truth record --textures h200-textures.zst
//! truth compare --textures h200-textures.zst
//! # On a machine with a GPU: prints programs that differ, reduced.
//! truth fuzz --seconds 60
//! ```
//!
//! A GPU later than sm_80 compiles the text for its own architecture. The declaration of a form
//! says if that changes its results.

pub mod bounds;
pub mod compare;
pub mod declare;
pub mod form;
pub mod fuzz;
pub mod gpu;
pub mod job;
pub mod kernel;
pub mod record;
pub mod recording;
pub mod setup;
pub mod soft;
pub mod table;
pub mod textures;
pub mod values;
pub mod work;
pub mod worker;
