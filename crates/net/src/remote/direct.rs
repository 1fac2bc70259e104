//! The program's side of an endpoint of `nvlink` at a server: memory that it offers to other
//! processes, and theirs, which its session has mapped.

use std::{collections::HashMap, sync::Arc};

use outboard_wire::doc::{NetCall, NetKey};
use parking_lot::Mutex;

use super::session::{NOTHING, Number, done, end_of};
use crate::{
    driver::Opened,
    error::Error,
    meet::{Meeting, Window},
    nvlink::{
        Key, offered,
        other::{self, Other, Peered},
    },
};

#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Connections to other processes, by the number of their queue.
    others: Mutex<HashMap<u32, Other>>,
    keys: Mutex<Vec<Key>>,
    /// Memory of other processes that is mapped here: kernels may use it until the endpoint is
    /// closed, after those connections.
    opened: Mutex<Vec<Opened>>,
}

/// A queue at the server.
struct Queue {
    number: Arc<Number>,
    qpn: u32,
}

impl Peered for Queue {
    fn qpn(&self) -> u32 {
        self.qpn
    }

    fn connect_other(&self, offered: Option<&Key>) -> Result<(), Error> {
        let offered = offered.map(|key| NetKey {
            address: key.address,
            bytes: key.bytes,
            key: key.key,
            access: key.access,
        });
        let qpn = self.qpn;
        let call = NetCall::ConnectDirect { qpn, offered };
        done(self.number.call(&call, NOTHING)?)
    }

    fn lose_peer(&self) {
        // A session that is over has no kernels that wait.
        let qpn = self.qpn;
        let _ = self.number.call(&NetCall::LosePeer { qpn }, NOTHING);
    }
}

impl Direct {
    pub(super) fn add(&self, key: Key) {
        self.keys.lock().push(key);
    }

    pub(super) fn meet(
        &self,
        number: &Arc<Number>,
        qpn: u32,
        meeting: Meeting<'_>,
        mine: Window,
    ) -> Result<Window, Error> {
        // A connection whose peer is gone ends here.
        end_of(number, qpn)?;
        self.disconnect(qpn);
        let offered = offered(&self.keys.lock(), &mine)?;
        let number = Arc::clone(number);
        let queue = Arc::new(Queue { number, qpn });
        let met = other::meet(&queue, meeting, mine, offered.as_ref())?;
        self.opened.lock().extend(met.opened);
        self.others.lock().insert(qpn, met.other);
        Ok(met.window)
    }

    /// Ends a queue's connection to another process. Its thread is over when this returns.
    pub(super) fn disconnect(&self, qpn: u32) {
        let earlier = self.others.lock().remove(&qpn);
        drop(earlier);
    }
}
