//! Options that say who may use a server.

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
    /// Listen beyond this machine although everybody who can connect may then use the GPU and run
    /// code on it, and everybody on the way may read and change what is sent
    #[arg(long)]
    pub(crate) insecure: bool,
}
