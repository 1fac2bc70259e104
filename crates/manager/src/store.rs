//! The store that a manager opens: a file of its own, or etcd if it leads there.

use std::path::PathBuf;

use outboard_pool::{FileStore, Store, StoreError};

use crate::etcd::{Campaign, Cluster, EtcdStore, Leadership, StoreUrl};

/// Opens a store for one who neither leads nor is a manager, as a measurement of the store alone: a
/// file is made if there is none, and nobody's leadership is compared.
pub fn open_alone(url: &StoreUrl) -> Result<Box<dyn Store>, StoreError> {
    Ok(match url {
        StoreUrl::File(path) => Box::new(FileStore::make(path)?),
        StoreUrl::Etcd(url) => Box::new(EtcdStore::open(url, Cluster::new(url, None), None)?),
    })
}

/// Place of the records, and the right to write there.
pub(crate) struct Source {
    url: StoreUrl,
    /// File of the authorities of etcd's certificates; None: those of the system.
    ca: Option<PathBuf>,
    leadership: Option<Leadership>,
}

/// Result of opening.
pub(crate) enum Opened {
    Store(Box<dyn Store>),
    /// Another manager leads, at this address.
    Elsewhere(String),
}

impl Source {
    pub(crate) fn new(url: StoreUrl, ca: Option<PathBuf>) -> Source {
        Source {
            url,
            ca,
            leadership: None,
        }
    }

    /// Opens the store, and makes a file only if the pool is new. `address` is this manager's, for
    /// clients that ask another one.
    pub(crate) fn open(&mut self, address: &str, is_new: bool) -> Result<Opened, StoreError> {
        let url = match &self.url {
            StoreUrl::File(path) => {
                let store = match is_new {
                    true => FileStore::make(path)?,
                    false => FileStore::open(path)?,
                };
                return Ok(Opened::Store(Box::new(store)));
            }
            StoreUrl::Etcd(url) => url,
        };
        let leads = self.leadership.take().filter(|leader| !leader.is_over());
        let leadership = match leads {
            Some(leadership) => leadership,
            None => match Leadership::campaign(url, self.ca.as_ref(), address)? {
                Campaign::Leads(leadership) => leadership,
                Campaign::Other(other) => return Ok(Opened::Elsewhere(other)),
            },
        };
        let cluster = Cluster::new(url, self.ca.as_ref());
        let store = EtcdStore::open(url, cluster, Some(&leadership));
        self.leadership = Some(leadership);
        Ok(Opened::Store(Box::new(store?)))
    }

    /// Returns whether this manager has led and does so no longer.
    pub(crate) fn has_lost(&self) -> bool {
        self.leadership.as_ref().is_some_and(Leadership::is_over)
    }

    /// Gives up the right to write if a transaction was refused: another manager has it.
    pub(crate) fn refused(&mut self) {
        self.leadership = None;
    }
}
