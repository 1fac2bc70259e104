//! Settings that keep NCCL from waiting for ever for words in memory that is not shared.

use std::{env, ffi::OsString, path::Path};

use outboard_link::Endpoint;

use crate::libraries;

/// Returns the variables for a program that uses these servers. Those that the user has set stay.
///
/// NCCL's transport through host memory registers that memory, and a registered piece is a mirror
/// over every link: it serves GPUs that reach each other, which do not take it, and no others. Over
/// links without shared memory its networks do not work either, which the client's plugin for
/// networks says, at once and not at the first collective.
pub(crate) fn settings(
    folder: &Path,
    servers: &[Endpoint],
    is_emulated: bool,
) -> Vec<(&'static str, OsString)> {
    let is_local = |server: &Endpoint| matches!(server, Endpoint::Shm(_));
    let is_shared = !is_emulated && servers.iter().all(is_local);
    let mut variables = Vec::new();
    if !is_shared || servers.len() > 1 {
        variables.push(("NCCL_SHM_DISABLE", "1".into()));
    }
    if servers.len() > 1 {
        // GPUs with NVLink that cannot reach each other are a fault to NCCL. Here they are two
        // servers', so it is to take its network.
        variables.push(("NCCL_IGNORE_DISABLED_P2P", "1".into()));
    }
    if !is_shared {
        let plugin = folder.join(libraries::CUDA.names[0]);
        variables.push(("NCCL_NET_PLUGIN", plugin.into_os_string()));
        variables.push(("NCCL_RUNTIME_CONNECT", "0".into()));
    }
    variables.retain(|(name, _)| env::var_os(name).is_none());
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(urls: &[&str], is_emulated: bool) -> Vec<&'static str> {
        let servers: Vec<Endpoint> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let set = settings(Path::new("/folder"), &servers, is_emulated);
        set.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn nccl_is_told_what_cannot_work_and_nothing_else() {
        let (here, there) = ("shm:///tmp/a.sock", "tcp://10.0.0.7");
        let (shm, p2p) = ("NCCL_SHM_DISABLE", "NCCL_IGNORE_DISABLED_P2P");
        let network = ["NCCL_NET_PLUGIN", "NCCL_RUNTIME_CONNECT"];
        assert!(names(&[here], false).is_empty());
        assert_eq!(names(&[here, here], false), [shm, p2p]);
        let one = [&[shm], &network[..]].concat();
        assert_eq!(names(&[there], false), one);
        assert_eq!(names(&[here], true), one);
        let several = [&[shm, p2p], &network[..]].concat();
        assert_eq!(names(&[here, there], false), several);
    }
}
