//! Makes a rdma link: prepares one side before it knows the other, and connects it afterwards.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
};

use outboard_verbs::{Access, Chosen, Domain, Memory, OwnRegion, PSN_MASK, Queue, choose};
use outboard_wire::limits::RDMA_RING_BYTES;
use rustix::{net::getsockname, rand::GetRandomFlags};

use super::{
    RdmaOptions,
    control::{CONTROL_BYTES, CONTROL_PAGE_BYTES, Control},
    endpoint::Endpoint,
    grants::{GRANT_BYTES, GRANTS_MAX, Given, Granting, OUR_GRANTS, TOLD_GRANTS},
    receiver::Receiver,
    registry::Registrar,
    ring::{Consumer, Producer, RING_BYTES_MIN},
    sender::Sender,
    setup::Setup,
    shared::Shared,
    window::Window,
};
use crate::{Error, error::RdmaError, socket::Socket};

/// Direction of frames: the index of a direction's queue and control words, on both sides.
pub(super) const TO_CLIENT: usize = 0;
pub(super) const TO_SERVER: usize = 1;

const _: () = {
    assert!(2 * CONTROL_BYTES <= OUR_GRANTS);
    assert!(TOLD_GRANTS + GRANTS_MAX * GRANT_BYTES <= CONTROL_PAGE_BYTES);
    assert!(RDMA_RING_BYTES.is_power_of_two() && RDMA_RING_BYTES >= RING_BYTES_MIN);
};

/// Everything that one side has before it knows the other.
pub(super) struct Prepared {
    chosen: Chosen,
    ring: Arc<OwnRegion>,
    mirror: Arc<OwnRegion>,
    control: Arc<OwnRegion>,
    queues: [Queue; 2],
    registrar: Registrar,
}

impl Prepared {
    pub(super) fn new(
        socket: &Socket,
        options: &RdmaOptions,
        theirs: Option<&Setup>,
    ) -> Result<Self, Error> {
        let options = options
            .with_environment()
            .map_err(|reason| RdmaError::Options { reason })?;
        let chosen = choose(
            &options.adapter,
            own_address(socket),
            theirs.map(|theirs| theirs.gid),
        )?;
        if let Some(theirs) = theirs {
            theirs.suits(&chosen)?;
        }
        let domain = Domain::new(&chosen.context)?;
        let region = |bytes, access| {
            let memory = Memory::new(bytes)?;
            Ok::<_, Error>(Arc::new(OwnRegion::new(&domain, memory, access)?))
        };
        let ring = region(RDMA_RING_BYTES, Access::Write)?;
        let mirror_bytes = theirs.map_or(RDMA_RING_BYTES, |theirs| theirs.ring.bytes as usize);
        let mirror = region(mirror_bytes, Access::Local)?;
        let control = region(CONTROL_PAGE_BYTES, Access::WriteAndRead)?;
        let queue = || {
            let regions = [&ring, &mirror, &control].map(Arc::clone);
            let psn = random()? & PSN_MASK;
            Ok::<_, Error>(Queue::new(&domain, &chosen, regions.into(), psn)?)
        };
        let queues = [queue()?, queue()?];
        Ok(Self {
            chosen,
            ring,
            mirror,
            control,
            queues,
            registrar: Registrar::new(domain, options.gpu_memory.unwrap_or_default()),
        })
    }

    pub(super) fn setup(&self) -> Setup {
        let window = |region: &OwnRegion, bytes| Window {
            address: region.address(),
            bytes,
            key: region.rkey(),
        };
        Setup {
            gid: self.chosen.gid,
            lid: self.chosen.lid,
            mtu: self.chosen.mtu,
            partition: self.chosen.partition,
            is_ethernet: self.chosen.is_ethernet,
            queues: [self.queues[0].numbers(), self.queues[1].numbers()],
            ring: window(&self.ring, self.ring.memory().len() as u64),
            control: window(&self.control, CONTROL_PAGE_BYTES as u64),
        }
    }

    pub(super) fn connect(&self, theirs: &Setup) -> Result<(), Error> {
        theirs.suits(&self.chosen)?;
        if theirs.ring.bytes != self.mirror.memory().len() as u64 {
            return Err(Error::PeerMisbehaved {
                what: "a ring of another size than ours",
                got: theirs.ring.bytes,
                allowed: self.mirror.memory().len() as u64,
            });
        }
        for direction in [TO_CLIENT, TO_SERVER] {
            self.queues[direction].connect(&self.chosen, &theirs.remote(direction))?;
        }
        Ok(())
    }

    /// Makes the halves of the link, which keeps `socket` open.
    pub(super) fn finish(
        self,
        socket: Socket,
        theirs: &Setup,
        outgoing: usize,
    ) -> Result<(Box<Sender>, Box<Receiver>), Error> {
        let shared = Arc::new(Shared::new(OwnedFd::from(socket))?);
        let [to_client, to_server] = self.queues;
        let (sending, receiving) = match outgoing {
            TO_CLIENT => (to_client, to_server),
            _ => (to_server, to_client),
        };
        let end = |queue, direction: usize, memory: &Arc<OwnRegion>| Endpoint {
            queue,
            memory: Arc::clone(memory),
            control: Arc::clone(&self.control),
            control_at: direction * CONTROL_BYTES,
            remote_ring: theirs.ring,
            remote_control: theirs.control,
            shared: Arc::clone(&shared),
        };
        let words = |direction: usize| {
            Control::new(Arc::clone(self.control.memory()), direction * CONTROL_BYTES)
        };
        let incoming = 1 - outgoing;
        let mirror = Arc::clone(self.mirror.memory());
        let ring = Arc::clone(self.ring.memory());
        let producer = Producer::new(
            end(sending, outgoing, &self.mirror),
            words(outgoing),
            mirror,
        );
        let consumer = Consumer::new(end(receiving, incoming, &self.ring), words(incoming), ring);
        let sender = Sender::new(
            producer,
            Arc::clone(&shared),
            self.registrar.clone(),
            Given::new(Arc::clone(self.control.memory())),
        );
        let receiver = Receiver::new(
            consumer,
            shared,
            self.registrar,
            Granting::new(Arc::clone(self.control.memory())),
        );
        Ok((Box::new(sender), Box::new(receiver)))
    }
}

fn own_address(socket: &Socket) -> Option<IpAddr> {
    let address = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
    Some(address.ip().to_canonical())
}

fn random() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(Error::io("asking the kernel for a random number"))?;
    Ok(u32::from_ne_bytes(bytes))
}
