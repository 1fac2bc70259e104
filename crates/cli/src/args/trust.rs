//! Options that say who may use a server, and by what a program shows that it may.

use std::path::PathBuf;

use outboard_trust::parse_lifetime;

/// Users and networks that this server is open to.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// A user of this machine who may use the server, besides you and root; any number of times, by
    /// number (`id -u NAME`)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(..i64::from(u32::MAX)))]
    pub(crate) allow_uid: Vec<u32>,
    /// Group of the socket's file, by number: the users of --allow-uid must be in it to open the
    /// file [default: your own]
    #[arg(long, value_name = "GID", requires = "allow_uid",
          value_parser = clap::value_parser!(u32).range(..i64::from(u32::MAX)))]
    pub(crate) socket_group: Option<u32>,
    /// Serve only programs that have one of the tokens in this file (outboard token create); for
    /// tcp and rdma addresses. The file is read anew for each connection [default of FILE:
    /// $XDG_CONFIG_HOME/outboard/server-tokens, or ~/.config/outboard/server-tokens]
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(crate) tokens: Option<Option<PathBuf>>,
    /// Listen beyond this machine although everybody who can connect may then use the GPU and run
    /// code on it, and everybody on the way may read and change what is sent
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The secret of a program.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TokenFileArgs {
    /// File with the token for the server [default: OUTBOARD_TOKEN_FILE, else
    /// $XDG_CONFIG_HOME/outboard/tokens/HOST:PORT or ~/.config/outboard/tokens/HOST:PORT if it
    /// exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// Give programs tokens for a server that was started with --tokens, and take them back
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A token is a key of 256 bits. Program and server prove to each other that they have it, before the server gives the program \
a place, and it is never sent. Without an encrypted connection a token does not protect what follows.

Examples:
  outboard token create alice > alice.token          for the user alice: to be ~/.config/outboard/tokens/HOST:PORT there
  outboard token create ci --expires 30d > ci.token
  outboard serve --tokens --listen tcp://localhost:4833
  outboard run --token-file alice.token --gpu tcp://localhost:4833 -- python train.py
  outboard token revoke alice")]
pub(crate) enum TokenCommand {
    /// Make a token, keep it in the server's file, and print it for its owner
    Create {
        /// Name of the token's owner: letters, digits and . _ - @
        name: String,
        /// Time for which it is valid, as 12h, 30d, 8w [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
        expires: Option<u64>,
        #[command(flatten)]
        tokens: TokensArgs,
    },
    /// List the tokens in the server's file, without their keys
    List {
        #[command(flatten)]
        tokens: TokensArgs,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a token from the server's file: a running server accepts no new connection with it
    Revoke {
        name: String,
        #[command(flatten)]
        tokens: TokensArgs,
    },
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TokensArgs {
    /// The server's file of tokens [default: $XDG_CONFIG_HOME/outboard/server-tokens, or
    /// ~/.config/outboard/server-tokens]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
}
