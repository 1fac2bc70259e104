//! Options of `outboard trace`.

use std::path::PathBuf;

use clap::Subcommand;

use super::JsonArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Show the calls, their cost, and how busy the GPU was
    Show(ShowArgs),
    /// Write the recording as Chrome's trace events, for Perfetto
    Export(ExportArgs),
    /// Keep only some iterations, or one server's calls, of a recording
    Cut(CutArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A recording is made by outboard run --record. Of one that was cut, as where the program was killed, the whole part counts.

Examples:
  outboard run --record a.trace -- python train.py
  outboard trace show a.trace
  outboard trace show a.trace --json | jq .by_class")]
pub(crate) struct ShowArgs {
    /// The recording
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
    /// Functions and kernels in the tables
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// The ranges that are iterations [default: as recorded]
    #[arg(long, value_name = "NAME")]
    pub(crate) iterations: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  outboard trace export --chrome a.trace -o a.json   to be opened in Perfetto or chrome://tracing")]
pub(crate) struct ExportArgs {
    /// The recording
    pub(crate) file: PathBuf,
    /// Chrome's trace events, the only format
    #[arg(long, required = true)]
    pub(crate) chrome: bool,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What a program starts up with, and iterations that say nothing new, make a recording large. outboard require answers the \
same from what is left, if iterations of every kind are left (run --record --untimed).

Examples:
  outboard trace cut a.trace -o small.trace                      all iterations, without what lies around them
  outboard trace cut a.trace -o small.trace --iterations 5-12    those, counted from 1
  outboard trace cut a.trace -o small.trace --program 'ResNet-18, batch 1'
  outboard trace cut a.trace -o second.trace --server 2          what the program asked of its second server")]
pub(crate) struct CutArgs {
    /// The recording
    pub(crate) file: PathBuf,
    /// The recording to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The first and the last one [default: all]
    #[arg(long, value_name = "FROM-TO", value_parser = parse_span)]
    pub(crate) iterations: Option<(usize, usize)>,
    /// Only the calls for this server of a program with several, counted from 1: those in the
    /// iterations, if --iterations names some
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) server: Option<u8>,
    /// Name of the recorded program, in place of the command line
    #[arg(long, value_name = "TEXT")]
    pub(crate) program: Option<String>,
}

fn parse_span(text: &str) -> Result<(usize, usize), String> {
    let parse = |text: &str| text.trim().parse().ok().filter(|number| *number > 0);
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (parse(from), parse(to)) {
        (Some(from), Some(to)) if from <= to => Ok((from, to)),
        _ => Err("from 1, as 5-12 or 7".into()),
    }
}
