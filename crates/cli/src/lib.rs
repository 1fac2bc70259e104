//! The `outboard` command. [`args`] declares it; help, manual page and completions come from that
//! declaration.

mod args;
mod balance;
mod bench;
mod config;
mod doctor;
mod exit;
mod json;
mod keygen;
mod libraries;
mod nccl;
mod nic;
mod peer;
mod pool;
mod preload;
mod probe;
mod ptxas;
mod require;
mod run;
mod said;
mod serve;
mod signals;
mod stack;
mod sweep;
mod token;
mod top;
mod trace;

use std::process::ExitCode;

use clap::CommandFactory;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use args::{Args, Command, LogFormat};
use said::{print, whole};

/// Counts what a worker uses of this machine's memory for its client.
#[global_allocator]
static ALLOCATOR: outboard_budget::CountingAllocator = outboard_budget::CountingAllocator;

/// Runs the command of this process's arguments. It is the main function of both executables.
pub fn main() -> ExitCode {
    if let Err(why) = stack::raise() {
        eprintln!("outboard: {why}");
        return exit::Exit::FAILED.into();
    }
    command()
}

/// Runs the command. Not a part of `main`, whose frame must fit into a small stack.
#[inline(never)]
fn command() -> ExitCode {
    if ptxas::is_meant() {
        return ptxas::main();
    }
    match config::parse(std::env::args_os().collect()) {
        Ok(args) => ended(carry_out(args)),
        // Help and the version, which go to standard output.
        Err(text) if !text.use_stderr() => ended(said::printed(text.print())),
        // A wrong command line ends the process here, with exit code 2.
        Err(wrong) => wrong.exit(),
    }
}

fn carry_out(args: Args) -> anyhow::Result<ExitCode> {
    signals::outlive_file_limit();
    log_to_stderr(args.log_format);
    match args.command {
        Command::Serve(serve) => serve::serve(*serve, args.log_format),
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Top(args) => top::top(args),
        Command::Bench(args) => bench::bench(args),
        Command::Balance(command) => balance::balance(command),
        Command::Probe(args) => probe::probe(args),
        Command::Sweep(args) => sweep::sweep(args),
        Command::Calibrate(args) => bench::calibrate(args),
        Command::Require(args) => require::require(args),
        Command::Trace(command) => trace::trace(command),
        Command::Keygen(args) => keygen::keygen(args),
        Command::Token(command) => token::token(command),
        Command::Completions { shell } => completions(shell),
        Command::Man => manual(),
        Command::Pool(command) => pool::pool(command),
        Command::Nic(command) => nic::nic(command),
        Command::PoolHold(args) => pool::hold(&args),
        Command::Worker(args) => serve::worker(args),
        Command::BenchWorker => bench::worker(),
        Command::BenchNetPeer => bench::net_peer(),
        Command::TryLibrary { path } => libraries::try_library(&path),
    }
}

/// Returns the exit code of a command, and says why it failed.
fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("outboard: {}", whole(&error));
        exit::Exit::of(&error).into()
    })
}

/// Logs to stderr. `OUTBOARD_LOG` takes levels, of everything or of parts of the program:
/// `debug`, `outboard_session=trace,warn`.
fn log_to_stderr(format: LogFormat) {
    let asked = std::env::var("OUTBOARD_LOG").unwrap_or_default();
    if let Some(word) = unknown_level(&asked) {
        eprintln!(
            "outboard: OUTBOARD_LOG: {word} is no level; off, error, warn, info, debug and trace are"
        );
    }
    let log = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(outboard_device::log::stderr);
    match format {
        LogFormat::Json => {
            let log = log.json().flatten_event(true).finish();
            log.with(levels(&asked)).init();
        }
        LogFormat::Text => {
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
            let log = log.with_ansi(is_terminal).finish();
            log.with(levels(&asked)).init();
        }
    }
}

/// Returns what is logged: where no directive can be read, what is important.
fn levels(directives: &str) -> Targets {
    let words = directives.split(',').map(str::trim);
    let words: Vec<&str> = words
        .filter(|word| !word.is_empty() && word.parse::<Targets>().is_ok())
        .collect();
    let levels = words.join(",").parse().ok();
    levels
        .filter(|_: &Targets| !words.is_empty())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

/// Returns the first of the directives that is neither a level nor about a part of the program.
fn unknown_level(directives: &str) -> Option<&str> {
    let is_known = |word: &str| {
        word.is_empty()
            || word.parse::<LevelFilter>().is_ok()
            || word.parse::<Targets>().is_ok()
                && (word.contains('=') || word.starts_with("outboard"))
    };
    let mut words = directives.split(',').map(str::trim);
    words.find(|word| !is_known(word))
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "outboard", &mut script);
    print(&script)
}

/// Prints one manual page for the command and all its subcommands.
fn manual() -> anyhow::Result<ExitCode> {
    let mut command = Args::command();
    command.build();
    let mut page = Vec::new();
    describe(&command, &mut page)?;
    print(&page)
}

fn describe(command: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(page)?;
    let visible = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    command
        .get_subcommands()
        .filter(visible)
        .try_for_each(|sub| describe(sub, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_found() {
        for known in ["", "debug", "WARN", "off", "outboard_session=trace,info"] {
            assert_eq!(unknown_level(known), None, "{known}");
        }
        for (directives, word) in [
            ("info,loud", "loud"),
            ("outboard_session=loud", "outboard_session=loud"),
        ] {
            assert_eq!(unknown_level(directives), Some(word));
        }
    }

    #[test]
    fn levels_are_of_everything_or_of_parts() {
        use tracing::Level;
        for (directives, of_session, of_others) in [
            ("", Level::INFO, Some(Level::INFO)),
            ("session=loud", Level::INFO, Some(Level::INFO)),
            ("WARN", Level::WARN, Some(Level::WARN)),
            ("outboard_session=trace", Level::TRACE, None),
            (
                "debug, outboard_session=error",
                Level::ERROR,
                Some(Level::DEBUG),
            ),
        ] {
            let levels = levels(directives);
            let most = |target: &str| {
                let all = [
                    Level::TRACE,
                    Level::DEBUG,
                    Level::INFO,
                    Level::WARN,
                    Level::ERROR,
                ];
                all.into_iter()
                    .find(|level| levels.would_enable(target, level))
            };
            assert_eq!(most("outboard_session"), Some(of_session), "{directives}");
            assert_eq!(most("outboard_server"), of_others, "{directives}");
        }
    }
}
