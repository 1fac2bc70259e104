//! Etcd, through its JSON gateway (`/v3/...`): the store of several managers, and the key of the
//! one that leads.
//!
//! - `cluster`: requests to the members.
//! - `store`: records and transactions.
//! - `leader`: the leader's key, which a lease of etcd holds.

mod cluster;
mod leader;
mod store;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, str::FromStr};

use outboard_pool::{StoreError, limits::NAME_BYTES_MAX};
use thiserror::Error;

use crate::client::ManagerUrls;
pub(crate) use cluster::Cluster;
pub(crate) use leader::{Campaign, Leadership};
pub(crate) use store::EtcdStore;

/// Address of a cluster: `etcd://HOST:PORT,HOST:PORT/NAME`, or `etcds://` over TLS. The name is
/// that of the pool in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUrl {
    members: ManagerUrls,
    name: String,
}

/// Place of a pool's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    File(PathBuf),
    Etcd(EtcdUrl),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no address of an etcd cluster, as etcd://10.0.0.1:2379,10.0.0.2:2379/pool")]
pub struct StoreUrlError(String);

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<StoreUrl, StoreUrlError> {
        let (scheme, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => ("http", rest),
            (_, Some(rest)) => ("https", rest),
            _ => return Ok(StoreUrl::File(text.into())),
        };
        let wrong = || StoreUrlError(text.chars().take(200).collect());
        let (members, name) = rest.split_once('/').unwrap_or((rest, "outboard"));
        let members: Vec<String> = members
            .split(',')
            .map(|member| format!("{scheme}://{member}"))
            .collect();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_name) {
            return Err(wrong());
        }
        Ok(StoreUrl::Etcd(EtcdUrl {
            members: members.join(",").parse().map_err(|_| wrong())?,
            name: name.into(),
        }))
    }
}

impl EtcdUrl {
    /// Returns the beginning of all keys of the pool.
    fn prefix(&self) -> String {
        format!("outboard/{}/", self.name)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::File(path) => write!(f, "{}", path.display()),
            StoreUrl::Etcd(url) => write!(f, "{} of etcd at {}", url.name, url.members),
        }
    }
}

/// Makes an error of etcd one of a store.
fn failed(what: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { what, source }
}
