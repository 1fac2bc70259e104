//! The `outboard` command as it is built for development. The packages have that of `packaged`.

fn main() -> std::process::ExitCode {
    outboard_cli::main()
}
