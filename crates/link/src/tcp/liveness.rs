//! Detects that the peer's host no longer answers.
//!
//! TCP_USER_TIMEOUT would be simpler, but Linux also counts a closed window against it
//! (tcp_probe_timer): a server that computes for longer than the timeout and meanwhile does not
//! read would lose its client. So a waiting thread looks at the connection's own state once a
//! second. It gives the peer up if a retransmission or a window probe stays unanswered, without
//! interruption, for [`PEER_VANISHED_MS_MAX`]. When nothing is outstanding, keepalive probes find
//! the same.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use outboard_wire::limits::PEER_VANISHED_MS_MAX;
use rustix::net::sockopt;

use crate::{Error, sys};

/// Interval at which a waiting side looks.
pub(super) const TICK: Duration = Duration::from_millis(1_000);
/// Silence before the first keepalive probe, time between probes, and unanswered probes that end
/// the connection; in sum [`PEER_VANISHED_MS_MAX`].
const KEEPALIVE_IDLE_MS: u64 = 5_000;
const KEEPALIVE_INTERVAL_MS: u64 = 2_000;
const KEEPALIVE_PROBES: u32 = 5;

const _: () = assert!(
    KEEPALIVE_IDLE_MS + KEEPALIVE_INTERVAL_MS * KEEPALIVE_PROBES as u64 == PEER_VANISHED_MS_MAX
);

pub(crate) fn configure(socket: &OwnedFd) -> Result<(), Error> {
    const DOING: &str = "configuring a tcp connection";
    sockopt::set_tcp_nodelay(socket, true).map_err(Error::io(DOING))?;
    sockopt::set_socket_keepalive(socket, true).map_err(Error::io(DOING))?;
    sockopt::set_tcp_keepidle(socket, Duration::from_millis(KEEPALIVE_IDLE_MS))
        .map_err(Error::io(DOING))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_millis(KEEPALIVE_INTERVAL_MS))
        .map_err(Error::io(DOING))?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES).map_err(Error::io(DOING))
}

/// The state of one thread that waits for the peer.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    unanswered_since: Option<Instant>,
}

impl Watch {
    /// Looks once. Called about every [`TICK`] while waiting.
    pub(crate) fn look(&mut self, socket: &OwnedFd) -> Result<(), Error> {
        // If the kernel gives no information (some sandboxes), keepalive and retransmission
        // timeouts do the work.
        let Ok(info) = sys::tcp_info(socket.as_fd()) else {
            return Ok(());
        };
        let is_unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
        self.judge(is_unanswered, Instant::now())
    }

    fn judge(&mut self, is_unanswered: bool, now: Instant) -> Result<(), Error> {
        if !is_unanswered {
            self.unanswered_since = None;
            return Ok(());
        }
        let since = *self.unanswered_since.get_or_insert(now);
        let silent = now.saturating_duration_since(since);
        if silent >= Duration::from_millis(PEER_VANISHED_MS_MAX) {
            let ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            return Err(Error::Vanished { ms });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_up_only_after_uninterrupted_silence() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = Watch::default();
        watch.judge(true, at(0)).unwrap();
        watch.judge(true, at(14)).unwrap();
        watch.judge(false, at(15)).unwrap();
        watch.judge(true, at(16)).unwrap();
        watch.judge(true, at(30)).unwrap();
        let error = watch.judge(true, at(31)).unwrap_err();
        assert!(matches!(error, Error::Vanished { ms: 15_000 }), "{error}");
    }
}
