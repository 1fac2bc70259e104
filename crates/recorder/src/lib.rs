//! `libcuda.so.1` for `outboard run --local --record`: passes every call on to this machine's own driver and puts it down.
//!
//! ```text
//!  entry points (generated)   one for each declared function                       entry.rs
//!    │                        functions that Outboard does not serve are jumped to, unrecorded
//!  guard::pass                the clock, the stream, the result                    guard.rs
//!    │     └─ cost            what remoting the call would send and be answered    cost.rs
//!    │     └─ cupti           when the GPU did what the call started               cupti/
//!    │        events          the same, where there is no CUPTI                    events/
//!  the driver                 OUTBOARD_DRIVER                                      driver.rs
//! ```
//!
//! `cuGetProcAddress` answers with our functions, where there are any (procaddr.rs); tables of private functions pass.

#![allow(clippy::missing_safety_doc)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("functions that are not recorded are passed on by instructions of x86-64");

mod cost;
mod cupti;
mod driver;
mod entry;
mod events;
mod guard;
mod pcie;
mod procaddr;
