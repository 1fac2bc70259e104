//! The rules for connections: which users of this machine, and which tokens.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf};

use outboard_link::{Endpoint, Peer};
use outboard_trust::CertificateText;

use crate::admission::TlsTerms;

/// The rules of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Users who may connect over shm, besides the server's own and root.
    pub uids: Vec<u32>,
    /// Group of the socket's file; None leaves it the server's own.
    pub group: Option<u32>,
    /// File of the tokens, one of which a client over a network must have; None asks for none. It
    /// is read anew for each client.
    pub tokens: Option<PathBuf>,
    /// File of the server's key, for encrypted connections.
    pub key: Option<PathBuf>,
    /// Files of the server's certificate and its private key, for clients that check one.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File of the authorities of clients' certificates, one of which a client must have over an
    /// encrypted connection; None asks for none. It is read anew for each client.
    pub client_ca: Option<PathBuf>,
    /// File of the fingerprints of clients' keys, and of the names of their certificates, one of
    /// which a client must have over an encrypted connection; None serves all. It is read anew for
    /// each client.
    pub authorized: Option<PathBuf>,
}

impl Access {
    /// Returns the reason for which a process is refused, if it may not connect. The kernel says
    /// who it is.
    pub(super) fn refusal(&self, peer: &Peer) -> Option<String> {
        let own = rustix::process::geteuid().as_raw();
        match *peer {
            Peer::Process { uid, .. } if uid != own && uid != 0 && !self.uids.contains(&uid) => {
                Some(format!(
                    "user {uid} may not use this server, which is user {own}'s; it is to be started \
                     with --allow-uid {uid} for that"
                ))
            }
            _ => None,
        }
    }

    /// Returns the files that workers read for each client.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let files = [&self.tokens, &self.key, &self.client_ca, &self.authorized];
        files.into_iter().flatten().cloned().collect()
    }

    /// Returns the terms of an encrypted connection, if clients of this address need one.
    pub(super) fn tls_for(
        &self,
        endpoint: &Endpoint,
        certificate: Option<&CertificateText>,
    ) -> Option<TlsTerms> {
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        // Without a key or certificate the handshake fails, and nothing is served unencrypted.
        endpoint.is_encrypted().then(|| TlsTerms {
            key: self.key.as_ref().map(bytes),
            certificate: certificate.cloned(),
            client_ca: self.client_ca.as_ref().map(bytes),
            authorized: self.authorized.as_ref().map(bytes),
        })
    }

    /// Returns the path of the tokens' file if this client needs a token. For a local one the
    /// kernel speaks.
    pub(super) fn tokens_for(&self, peer: &Peer) -> Option<Vec<u8>> {
        match peer {
            Peer::Process { .. } => None,
            _ => Some(self.tokens.as_ref()?.as_os_str().as_bytes().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_user_root_and_the_named_may_connect() {
        let own = rustix::process::geteuid().as_raw();
        let access = Access {
            uids: vec![70_001],
            group: None,
            tokens: Some("/tokens".into()),
            ..Access::default()
        };
        for (uid, may) in [(own, true), (0, true), (70_001, true), (70_002, false)] {
            let peer = Peer::Process {
                pid: 1,
                uid,
                gid: 0,
            };
            let refusal = access.refusal(&peer);
            assert_eq!(refusal.is_none(), may, "{uid} {refusal:?}");
            assert_eq!(access.tokens_for(&peer), None);
        }
        let far = Peer::Host(([10, 0, 0, 1], 5).into());
        assert_eq!(access.refusal(&far), None);
        assert_eq!(access.tokens_for(&far), Some(b"/tokens".to_vec()));
    }
}
