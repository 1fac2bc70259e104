//! The users of this machine who may connect to a local socket.

use outboard_link::Peer;

/// Users who may connect over shm, besides the server's own and root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub uids: Vec<u32>,
    /// Group of the socket's file; None leaves it the server's own.
    pub group: Option<u32>,
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
        };
        for (uid, may) in [(own, true), (0, true), (70_001, true), (70_002, false)] {
            let peer = Peer::Process {
                pid: 1,
                uid,
                gid: 0,
            };
            let refusal = access.refusal(&peer);
            assert_eq!(refusal.is_none(), may, "{uid} {refusal:?}");
        }
        let far = Peer::Host(([10, 0, 0, 1], 5).into());
        assert_eq!(access.refusal(&far), None);
    }
}
