//! `libcuda.so.1` for `outboard run --local --record`: passes every call on to this machine's own
//! driver and records it.
//!
//! ```text
//!  entry points (generated)   one for each declared function                       entry.rs
//!    │                        unserved functions are jumped to, not recorded
//!  guard::pass                the clock, the stream, the result                    guard.rs
//!    │     └─ cost            messages that remoting the call would take            cost.rs
//!    │     └─ cupti           times of the work that the call started               cupti/
//!    │        events          those times without CUPTI                             events/
//!  the driver                 OUTBOARD_DRIVER                                      driver.rs
//! ```
//!
//! `cuGetProcAddress` returns our functions if there are any (procaddr.rs); tables of private
//! functions are passed on unchanged.

#![allow(clippy::missing_safety_doc)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("functions that are not recorded are passed on by instructions of x86-64");

mod call_table;
mod cost;
mod cupti;
mod driver;
mod entry;
mod events;
mod guard;
mod pcie;
mod procaddr;

extern "C" fn at_load() {
    outboard_trace::live::choose_variable(outboard_trace::live::LOCAL_VARIABLE);
    driver::load(driver::Exports {
        ours: entry::EXPORTS,
        slots: &entry::SLOTS,
    });
}

// SAFETY: the loader calls it once, after the libraries that we need.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
