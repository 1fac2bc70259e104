//! The command as its users run it: the built `outboard`, with real servers, sockets and files.

#![allow(clippy::unwrap_used, clippy::panic)]

mod certificates;
mod common;
mod doctor;
mod emulate;
mod files;
mod peers;
mod probe;
mod require;
mod run;
mod seeing;
mod serve;
mod spare;
mod tls;
mod tokens;
mod trust;
