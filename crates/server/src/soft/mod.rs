//! PTX on the CPU.
