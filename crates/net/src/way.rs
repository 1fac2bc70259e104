//! Ways by which the entries of two processes travel.

use std::{env, ffi::CStr};

use crate::{device, error::Error};

/// Variable of the environment that names the way: `auto`, `shm`, `tcp` or `verbs`.
pub const WAY_VARIABLE: &str = "OUTBOARD_NET_WAY";

/// How entries travel between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By memory that both have mapped.
    Shm,
    Tcp,
    /// By real queue pairs, of an RDMA device each.
    Verbs,
}

impl Way {
    const ALL: [(&CStr, Option<Way>); 4] = [
        (c"auto", None),
        (c"shm", Some(Way::Shm)),
        (c"tcp", Some(Way::Tcp)),
        (c"verbs", Some(Way::Verbs)),
    ];

    #[must_use]
    pub fn name(self) -> &'static CStr {
        let known = Way::ALL.iter().find(|(_, way)| *way == Some(self));
        known.map_or(c"", |(name, _)| name)
    }

    /// Returns the way of a name; `None` is shared memory where that is possible, else tcp.
    pub fn named(name: &str) -> Result<Option<Way>, Error> {
        let known = Way::ALL
            .iter()
            .find(|(known, _)| known.to_bytes() == name.as_bytes());
        known.map(|(_, way)| *way).ok_or_else(|| Error::NoWay {
            name: name.into(),
            known: Way::ALL.map(|(name, _)| name.to_string_lossy()).join(", "),
        })
    }

    /// Says what verbs use here, or why they are not possible.
    pub fn verbs() -> Result<String, Error> {
        device::any()
    }

    /// Returns the way that the environment names.
    pub fn asked() -> Result<Option<Way>, Error> {
        env::var_os(WAY_VARIABLE).map_or(Ok(None), |name| Way::named(&name.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_its_name_and_others_are_refused() {
        for way in [Way::Shm, Way::Tcp, Way::Verbs] {
            assert_eq!(Way::named(&way.name().to_string_lossy()), Ok(Some(way)));
        }
        assert_eq!(Way::named("auto"), Ok(None));
        let said = Way::named("udp").map_err(|error| error.to_string());
        assert_eq!(
            said,
            Err("there is no way udp: auto, shm, tcp, verbs are there".into())
        );
    }
}
