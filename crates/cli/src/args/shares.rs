//! The shares of a server's machine that programs may use.

use std::{str::FromStr, time::Duration};

use clap::Args;
use outboard_server::{Limit, Limits, PERCENT_MAX, Shares, Unit, WEIGHT_MAX, Whose, limits};

use super::{parse_size, time};

#[derive(Debug, Clone, Args)]
pub(crate) struct SharesArgs {
    /// This machine's own memory that a worker may use for its program, device memory and memory
    /// shared with the program apart. Above it calls fail with CUDA_ERROR_OUT_OF_MEMORY [default: a
    /// quarter of this machine's, at least 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) host_memory: Option<u64>,
    /// Limits of a tenant over all its programs, any number of times: of each tenant, of the one
    /// that is named, or of all together (server)
    #[arg(long, value_name = "[TENANT:]LIMIT=N,...", long_help = share_help())]
    pub(crate) share: Vec<ShareArg>,
}

/// Times for peers that hold a place and say nothing.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct IdleArgs {
    /// Time for a peer's greeting, its handshake included: one that has not said by then who it is
    /// and what it wants is hung up on. At most 64 are waited for at a time
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = time(limits::GREET_MS_MIN..=limits::GREET_MS_MAX))]
    pub(crate) greet_within: Duration,
    /// Time after which a query that asks nothing is hung up on: NVML, outboard top. Programs that
    /// use the GPU may idle for as long as they like
    #[arg(long, value_name = "TIME", default_value = "1m",
          value_parser = time(limits::QUERY_IDLE_MS_MIN..=limits::QUERY_IDLE_MS_MAX))]
    pub(crate) query_idle: Duration,
}

/// Limits, and whose they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShareArg {
    whose: Whose,
    limits: Limits,
}

impl SharesArgs {
    pub(crate) fn shares(&self) -> Shares {
        let mut shares = Shares::default();
        for share in &self.share {
            shares.add(share.whose.clone(), &share.limits);
        }
        shares
    }
}

impl FromStr for ShareArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ShareArg, String> {
        let (whose, list) = match text.rsplit_once(':') {
            Some((whose, list)) => (whose.parse().map_err(|e| format!("{e}"))?, list),
            None => (Whose::Each, text),
        };
        let mut limits = Limits::default();
        for part in list.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is no limit: write it as sessions=4"))?;
            let known = Limit::ALL.iter().find(|(_, known, ..)| *known == name);
            let (limit, _, unit, _, is_of_server) = *known.ok_or_else(|| {
                let names: Vec<_> = Limit::ALL.iter().map(|(_, known, ..)| *known).collect();
                format!("there is no limit {name:?}; known are {}", names.join(", "))
            })?;
            if whose == Whose::Server && !is_of_server {
                return Err(format!("{name} is a limit of tenants, not of the server"));
            }
            let value = number(value, unit)?;
            if limit == Limit::Compute && value > WEIGHT_MAX {
                return Err(format!("{name}={value}: a weight is 1 to {WEIGHT_MAX}"));
            }
            if limits.set(limit, value).is_some() {
                return Err(format!("{name} comes twice"));
            }
        }
        Ok(ShareArg { whose, limits })
    }
}

fn number(text: &str, unit: Unit) -> Result<u64, String> {
    match unit {
        Unit::Bytes => parse_size(text),
        Unit::Percent => match text.parse() {
            Ok(percent @ 1..=PERCENT_MAX) => Ok(percent.into()),
            _ => Err(format!(
                "{text:?} is not a whole number from 1 to {PERCENT_MAX}"
            )),
        },
        Unit::Count => match text.parse() {
            Ok(0) | Err(_) => Err(format!("{text:?} is not a whole number from 1 on")),
            Ok(count) => Ok(count),
        },
    }
}

fn share_help() -> String {
    let mut help = String::from(
        "Limits of a tenant over all its programs, any number of times: of each tenant (sessions=4,memory=8GiB), of the one \
         that is named (token:alice:sessions=8; uid:1001, key:sha256:..., cert:bob, address:10.0.0.7), or of all together \
         (server:memory=40GiB). A tenant is the token of a program, otherwise its TLS key or certificate if the server asks \
         for one, otherwise the user of a local program and the address of a remote one. The limits:",
    );
    for (_, name, _, meaning, is_of_server) in Limit::ALL {
        let of_server = if is_of_server { "; of server, too" } else { "" };
        help.push_str(&format!("\n- {name}: {meaning}{of_server}"));
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read() {
        let shared = |texts: &[&str]| {
            let mut shares = Shares::default();
            for text in texts {
                let share: ShareArg = text.parse().unwrap();
                shares.add(share.whose, &share.limits);
            }
            shares.to_string()
        };
        let each = shared(&["sessions=4,memory=8GiB", "connections=20"]);
        let text = "share of each tenant: sessions=4,connections=20,memory=8589934592";
        assert_eq!(each, text);
        let named = shared(&[
            "address:fe80::1:sessions=1",
            "key:sha256:00ff:queries=3",
            "server:host-memory=1GiB",
        ]);
        for line in [
            "share of address:fe80::1: sessions=1",
            "share of key:sha256:00ff: queries=3",
            "share of server: host-memory=1073741824",
        ] {
            assert!(named.contains(line), "{named}");
        }
        let twice = "disk=1MiB,memory=1GiB,disk=2MiB".parse::<ShareArg>();
        assert_eq!(twice.unwrap_err(), "disk comes twice");
    }

    #[test]
    fn what_is_wrong_with_a_share_is_said() {
        for (text, what) in [
            ("", "\"\" is no limit"),
            ("sessions", "write it as sessions=4"),
            ("sessions=0", "\"0\" is not a whole number"),
            (
                "cores=3",
                "known are sessions, queries, connections, memory, host-memory, disk, compute, gpu-percent",
            ),
            ("compute=10001", "a weight is 1 to 10000"),
            (
                "gpu-percent=101",
                "\"101\" is not a whole number from 1 to 100",
            ),
            ("memory=8", ""),
            ("memory=8XB", "there is no unit"),
            ("alice:sessions=4", "token:alice"),
            ("server:sessions=4", "a limit of tenants"),
        ] {
            match text.parse::<ShareArg>() {
                Ok(_) => assert_eq!(what, "", "{text}"),
                Err(why) => assert!(!what.is_empty() && why.contains(what), "{text}: {why}"),
            }
        }
    }
}
