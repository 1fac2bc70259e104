//! The proxy of "DxPU: Large Scale Disaggregated GPU Pools in the Datacenter" (section 3.3), to the
//! packet: PCIe's transactions become network packets and transactions again.
//!
//! This crate does no I/O. Bytes, packets and the time are arguments, so a seed gives one result.
//!
//! ```text
//!  root complex ── TLP ──► HostProxy ── header and data packets ──► box proxy ── TLP ──► GPU
//!   enumerate              Table 2: bus, window ► box, slot, path     Table 3: slot ► host, path
//! ```
//!
//! - [`tlp`] reads and writes PCIe's own encoding of a transaction.
//! - [`packet`] has the network's packets, [`reliable`] their loss and repetition, [`connection`]
//!   both for two nodes, and [`ethernet`] their frames.
//! - [`tables`] are the paper's Tables 2 and 3, [`proxy`] routes by them, [`switch`] is the virtual
//!   switch that the host sees, and [`enumerate`] a root complex that finds what is behind it.
//! - [`memory`] reads and writes by tags and split completions, and answers.
//! - [`sim`] gives all of it times: a discrete-event simulation of reads and writes.

pub mod connection;
pub mod enumerate;
pub mod ethernet;
pub mod fuzz;
pub mod memory;
pub mod packet;
pub mod proxy;
pub mod random;
pub mod reliable;
pub mod sim;
pub mod switch;
pub mod tables;
pub mod tlp;
