//! The `outboard` command as it is packaged: the same code, optimised as a whole (`make dist`).
//!
//! It is a package of its own because the level of those steps is that of the executable's package,
//! and the command's own crate is made small.

fn main() -> std::process::ExitCode {
    outboard_cli::main()
}
