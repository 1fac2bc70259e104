//! Options that say who may use a server, and by what a program shows that it may.

use std::path::PathBuf;

use outboard_net::remote::check_device;
use outboard_server::PeerNetwork;
use outboard_trust::parse_lifetime;

use super::{JsonArgs, number};

/// Users and networks that this server is open to.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TrustArgs {
    /// A user of this machine who may use the server, besides you and root; any number of times, by
    /// number (`id -u NAME`)
    #[arg(long, value_name = "UID", value_parser = number::<u32>(0..=i64::from(u32::MAX) - 1))]
    pub(crate) allow_uid: Vec<u32>,
    /// Group of the socket's file, by number: the users of --allow-uid must be in it to open the
    /// file [default: your own]
    #[arg(long, value_name = "GID", requires = "allow_uid",
          value_parser = number::<u32>(0..=i64::from(u32::MAX) - 1))]
    pub(crate) socket_group: Option<u32>,
    /// Serve only programs that have one of the tokens in this file (outboard token create); for
    /// tcp and rdma addresses. The file is read anew for each connection [default of FILE:
    /// $XDG_CONFIG_HOME/outboard/server-tokens, or ~/.config/outboard/server-tokens]
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub(crate) tokens: Option<Option<PathBuf>>,
    /// Encrypt the connections of tcp addresses (TLS 1.3): they become tcps addresses, which the
    /// server prints with the fingerprint of its key. Rdma addresses become rdmas ones: only the
    /// connection that sets RDMA up is encrypted
    #[arg(long)]
    pub(crate) tls: bool,
    /// File of the server's key for tcps addresses (outboard keygen) [default:
    /// $XDG_CONFIG_HOME/outboard/key, or ~/.config/outboard/key]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of the server's certificate for tcps addresses, in PEM form, and of those that signed
    /// it, up to an authority that programs trust: tcp addresses become tcps ones, whose programs
    /// check the certificate instead of a fingerprint. It is read anew when it has changed, and
    /// after SIGHUP
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// File of the certificate's private key, in PEM form
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// File of authorities, in PEM form: serve over tcps addresses only programs that show a
    /// certificate from one of them (outboard run --certificate). Revocation lists in it are
    /// heeded; it is read anew for each connection
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// File with the fingerprints of the keys that are served over tcps addresses, one a line, and
    /// with cert:NAME for certificates; it is read anew for each connection [default: any key, or
    /// any certificate of --client-ca, is served]
    #[arg(long, value_name = "FILE")]
    pub(crate) authorized: Option<PathBuf>,
    /// Leave the encryption of tcps addresses to the kernel: received data is then decrypted
    /// straight into its place
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = KernelTlsArg::Auto)]
    pub(crate) kernel_tls: KernelTlsArg,
    /// Confine workers: no new programs, no other processes, files of the device and the cache only
    #[arg(long, value_enum, value_name = "ON", default_value_t = SandboxArg::On)]
    pub(crate) sandbox: SandboxArg,
    /// Network (10.0.0.0/24) or address of other servers, any number of times: data of copies
    /// between devices of this server and of one there goes straight from one to the other, if both
    /// servers name each other's; otherwise through the program (docs/security.md)
    #[arg(long, value_name = "NETWORK")]
    pub(crate) peer_copies: Vec<PeerNetwork>,
    /// RDMA device that endpoints of programs behind a network may use (outboard/net.h, providers
    /// proxy and mlx5): any for the first one, or options, as device=mlx5_0&port=1&gid=3. Their
    /// packets go wherever a program says (docs/security.md) [default: none is lent]
    #[arg(long, value_name = "DEVICE", value_parser = net_device)]
    pub(crate) net_device: Option<String>,
    /// Listen beyond this machine although everybody who can connect may then use the GPU and run
    /// code on it, and everybody on the way may read and change what is sent
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// Reads options for an RDMA device; those for any are none.
fn net_device(text: &str) -> Result<String, String> {
    let options = if text == "any" { "" } else { text };
    // Sessions that may not use the GPU's memory have no use for the device.
    if options
        .split('&')
        .any(|option| option.starts_with("gpu_memory"))
    {
        return Err("gpu_memory is of rdma links, and not of a lent device".into());
    }
    check_device(options).map(|()| options.into())
}

/// The choice whether workers are confined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SandboxArg {
    /// As far as the kernel can (outboard doctor says how far)
    #[default]
    On,
    /// Not at all: to debug a worker, or if the GPU's driver needs more
    Off,
}

/// The choice who encrypts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KernelTlsArg {
    /// Where the kernel can, which outboard doctor says
    #[default]
    Auto,
    /// Never: the server encrypts itself
    Off,
}

/// Proofs of a program, and what it expects of the server.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TokenFileArgs {
    /// File with the token for the server [default: OUTBOARD_TOKEN_FILE, else
    /// $XDG_CONFIG_HOME/outboard/tokens/HOST:PORT or ~/.config/outboard/tokens/HOST:PORT if it
    /// exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// File of authorities, in PEM form, one of which must have signed the certificate of a server
    /// whose tcps address has no fingerprint [default: OUTBOARD_CA, else the system's authorities]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// File of the program's certificate, in PEM form, for a server with --client-ca [default:
    /// OUTBOARD_CERTIFICATE]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// File of the certificate's private key [default: OUTBOARD_CERTIFICATE_KEY]
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
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
        #[command(flatten)]
        json: JsonArgs,
    },
    /// List the tokens in the server's file, without their keys
    List {
        #[command(flatten)]
        tokens: TokensArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Remove a token from the server's file: a running server accepts no new connection with it
    Revoke {
        name: String,
        #[command(flatten)]
        tokens: TokensArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TokensArgs {
    /// The server's file of tokens [default: $XDG_CONFIG_HOME/outboard/server-tokens, or
    /// ~/.config/outboard/server-tokens]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A server shows its key to programs, which know it by the fingerprint in the server's address; a program shows its own to \
the server, which may serve the keys of --authorized alone. The private half is never sent.

Examples:
  outboard keygen                                    the user's key, for serve --tls and for run
  outboard serve --tls --authorized friends --listen tcp://0.0.0.0:4833
  outboard run --gpu 'tcps://gpu-host:4833?fingerprint=sha256:...' -- python train.py")]
pub(crate) struct KeygenArgs {
    /// The key's file, which must not exist [default: $XDG_CONFIG_HOME/outboard/key, or
    /// ~/.config/outboard/key]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print the fingerprint of a key that exists
    #[arg(long)]
    pub(crate) show: bool,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}
