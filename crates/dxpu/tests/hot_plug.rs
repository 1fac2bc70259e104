//! A host, its proxy, a network that loses packets, a box with GPUs: enumeration after a hot plug,
//! and routing of every type.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use outboard_dxpu::{
    enumerate::{Answer, Below, EnumerateError, Gpu, Reserve, RootComplex},
    packet::{End, Joiner, Node, Packet, Route, split},
    proxy::{BoxProxy, Decision, HostProxy, completion},
    random::Random,
    reliable::{Arrival, Receiver, Sender},
    tables::{Assigned, TableError, Window},
    tlp::{Id, Kind, MessageRoute, Request, Status, Tlp},
};

const HOST: Node = Node(1);
const BOX: Node = Node(2);
const GPU_BYTES: u64 = 32 << 30;

/// A network from one proxy to another that loses packets by seed.
struct Wire {
    random: Random,
    loss: f64,
    sender: Sender,
    receiver: Receiver,
    joiner: Joiner,
    now_ns: u64,
}

impl Wire {
    fn new(seed: u64, loss: f64) -> Wire {
        Wire {
            random: Random::new(seed),
            loss,
            sender: Sender::new(64, 10_000),
            receiver: Receiver::default(),
            joiner: Joiner::default(),
            now_ns: 0,
        }
    }

    /// Sends a transaction until it has arrived and is acknowledged.
    fn carry(&mut self, kind: Kind, data: &[u8], route: Route) -> (Kind, Vec<u8>, Route) {
        let mut under_way = Vec::new();
        let first = self.sender.next();
        split(&Tlp::new(kind, data), route, first, |packet| {
            under_way.push(packet.to_vec());
        })
        .unwrap();
        for packet in &under_way {
            self.sender.hold(packet, self.now_ns).unwrap();
        }
        let mut arrived = None;
        while self.sender.held() > 0 {
            for bytes in std::mem::take(&mut under_way) {
                if self.random.chance(self.loss) {
                    continue;
                }
                let packet = Packet::parse(&bytes).unwrap();
                let reported = self.receiver.arrived(packet.sequence);
                if reported == Arrival::Next
                    && let Some((route, tlp)) = self.joiner.take(&packet).unwrap()
                {
                    arrived = Some((tlp.kind, tlp.data.to_vec(), route));
                }
                let next = self.receiver.next();
                match (reported, self.random.chance(self.loss)) {
                    (_, true) => {}
                    (Arrival::Early(true), _) => {
                        under_way = self
                            .sender
                            .missing(next, self.now_ns)
                            .map(<[u8]>::to_vec)
                            .collect();
                    }
                    _ => self.sender.acknowledged(next, self.now_ns),
                }
            }
            self.now_ns += 20_000;
            under_way.extend(self.sender.overdue(self.now_ns).map(<[u8]>::to_vec));
        }
        arrived.unwrap()
    }
}

struct Rig {
    host: HostProxy,
    gpu_box: BoxProxy,
    gpus: Vec<Gpu>,
    there: Wire,
    back: Wire,
}

impl Rig {
    fn new(loss: f64) -> Rig {
        let mut gpu_box = BoxProxy::new(BOX, 8);
        for slot in 1..=4 {
            gpu_box.table.plug(slot, true).unwrap();
        }
        Rig {
            host: HostProxy::new(HOST, 16),
            gpu_box,
            gpus: vec![Gpu::new(GPU_BYTES); 4],
            there: Wire::new(1, loss),
            back: Wire::new(2, loss),
        }
    }

    fn attach(&mut self, slot: u8) -> usize {
        self.gpu_box.table.assign(slot, HOST, 5).unwrap();
        self.host
            .plug(Assigned {
                gpu_box: BOX,
                slot,
                path: 5,
            })
            .unwrap()
    }
}

impl Below for Rig {
    fn configure(&mut self, kind: &Kind, value: u32) -> Answer {
        let data = match kind {
            Kind::ConfigurationWrite { .. } => value.to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        match self.host.take(kind, &data) {
            Decision::Dropped => panic!("configuration is answered"),
            Decision::Answer {
                kind: Kind::Completion { status, .. },
                value,
            } => (status, value.unwrap_or(0)),
            Decision::Answer { kind, .. } => panic!("{kind:?} is no completion"),
            Decision::Forward { routes, kind } => {
                let (kind, data, route) = self.there.carry(kind, &data, routes[0]);
                let slot = self.gpu_box.admits(&route).expect("the GPU's host");
                let value = data.try_into().map_or(0, u32::from_le_bytes);
                let gpu = &mut self.gpus[usize::from(slot) - 1];
                let (status, value) = gpu.configure(&kind, value);
                let answer = completion(gpu.id, Id::default(), 1, status);
                let data = match kind {
                    Kind::ConfigurationRead { .. } if status == Status::Successful => {
                        value.to_le_bytes().to_vec()
                    }
                    _ => Vec::new(),
                };
                let way = self.gpu_box.route(slot).expect("the GPU has a host");
                let (kind, data, route) = self.back.carry(answer, &data, way);
                assert!(self.host.admits(&route));
                let Kind::Completion { status, .. } = kind else {
                    panic!("{kind:?}")
                };
                (status, data.try_into().map_or(0, u32::from_le_bytes))
            }
        }
    }
}

fn request() -> Request {
    Request {
        first_enable: 15,
        last_enable: 15,
        ..Request::default()
    }
}

#[test]
fn a_gpu_is_found_after_a_hot_plug_over_a_network_with_loss() {
    let mut rig = Rig::new(0.2);
    let mut root = RootComplex::default();
    assert_eq!(root.boot(&mut rig, Reserve::default()), Ok(16));
    assert_eq!(root.changed(&mut rig), []);
    assert_eq!(
        root.enumerate(&mut rig, 0),
        Err(EnumerateError::NoDevice(0))
    );

    assert_eq!((rig.attach(3), rig.attach(1)), (0, 1));
    assert_eq!(root.changed(&mut rig), [(0, true), (1, true)]);
    assert_eq!(root.changed(&mut rig), []);
    let first = root.enumerate(&mut rig, 0).unwrap();
    let second = root.enumerate(&mut rig, 1).unwrap();
    assert!(rig.there.sender.repeated() > 0, "packets were lost");
    // A V100's registers: 16 MiB, its memory, 32 MiB, 128 bytes of I/O.
    let sizes = |bars: &[outboard_dxpu::enumerate::Bar]| {
        bars.iter()
            .map(|bar| (bar.number, bar.window.limit - bar.window.base + 1))
            .collect::<Vec<_>>()
    };
    let expected = [(0, 16 << 20), (1, GPU_BYTES), (3, 32 << 20), (5, 128)];
    assert_eq!(sizes(&first.bars), expected);
    assert_eq!(sizes(&second.bars), expected);
    assert_eq!((first.id, second.id), (Id::new(3, 0, 0), Id::new(4, 0, 0)));
    assert!(rig.gpus[2].is_enabled() && rig.gpus[0].is_enabled() && !rig.gpus[1].is_enabled());
    assert_eq!(rig.gpus[2].id, first.id);

    // Table 2 has what the OS wrote into the bridges.
    let entry = rig.host.table().entries()[0];
    assert_eq!((entry.is_used, entry.bus), (true, 3));
    let window = entry.prefetchable.unwrap();
    for bar in &first.bars {
        let windows = [entry.memory, entry.prefetchable, entry.io].map(Option::unwrap);
        let inside = |w: &Window| w.contains(bar.window.base) && w.contains(bar.window.limit);
        assert!(windows.iter().any(inside), "{bar:x?}");
        let others = second.bars.iter().map(|other| other.window);
        assert!(
            others
                .clone()
                .all(|o| o.limit < bar.window.base || o.base > bar.window.limit)
        );
    }
    assert!(window.limit - window.base + 1 >= GPU_BYTES);
}

#[test]
fn transactions_are_routed_by_address_by_id_and_by_the_messages_own_way() {
    let mut rig = Rig::new(0.0);
    let mut root = RootComplex::default();
    root.boot(&mut rig, Reserve::default()).unwrap();
    for slot in [4, 2] {
        let number = rig.attach(slot);
        root.enumerate(&mut rig, number).unwrap();
    }
    let windows = [0, 1].map(|number| rig.host.table().entries()[number].prefetchable.unwrap());
    let slots = |decision: Decision| match decision {
        Decision::Forward { routes, .. } => routes
            .iter()
            .map(|r| (r.from, r.to.node, r.to.slot, r.path))
            .collect(),
        _ => Vec::new(),
    };
    let host = End {
        node: HOST,
        slot: 0,
    };
    let (to_4, to_2) = ((host, BOX, 4, 5), (host, BOX, 2, 5));
    let mut take = |kind: Kind| slots(rig.host.take(&kind, &[0; 4]));
    let write = |address: u64| Kind::MemoryWrite {
        request: request(),
        address,
    };
    assert_eq!(take(write(windows[0].base)), [to_4]);
    assert_eq!(take(write(windows[0].limit & !3)), [to_4]);
    assert_eq!(take(write(windows[1].base)), [to_2]);
    assert_eq!(take(write(windows[1].limit + 1)), []);
    assert_eq!(
        take(Kind::IoWrite {
            request: request(),
            address: 0x2000
        }),
        [to_2]
    );
    let answer = |bus| completion(Id::default(), Id::new(bus, 0, 0), 7, Status::Successful);
    assert_eq!(take(answer(3)), [to_4]);
    assert_eq!(take(answer(4)), [to_2]);
    assert_eq!(take(answer(5)), []);
    let message = |route| Kind::Message {
        requester: Id::default(),
        tag: 0,
        code: 0x19,
        route,
        fields: 0,
    };
    assert_eq!(take(message(MessageRoute::BroadcastFromRoot)), [to_4, to_2]);
    assert_eq!(take(message(MessageRoute::ById(Id::new(4, 0, 0)))), [to_2]);
    assert_eq!(
        take(message(MessageRoute::ByAddress(windows[0].base))),
        [to_4]
    );
    assert_eq!(take(message(MessageRoute::Local)), []);
}

#[test]
fn a_read_that_nobody_answers_is_refused() {
    let mut rig = Rig::new(0.0);
    let read = Kind::MemoryRead {
        request: request(),
        address: 1 << 50,
        dwords: 2,
    };
    let refused = rig.host.take(&read, &[]);
    assert!(
        matches!(
            refused,
            Decision::Answer {
                kind: Kind::Completion {
                    status: Status::UnsupportedRequest,
                    ..
                },
                ..
            }
        ),
        "{refused:?}"
    );
}

#[test]
fn a_gpu_has_one_host() {
    let mut rig = Rig::new(0.0);
    rig.attach(1);
    let table = &mut rig.gpu_box.table;
    assert_eq!(
        table.assign(1, Node(9), 0),
        Err(TableError::InUse {
            slot: 1,
            host: HOST
        })
    );
    assert_eq!(table.assign(5, HOST, 0), Err(TableError::Empty(5)));
    assert_eq!(table.assign(9, HOST, 0), Err(TableError::NoEntry(9)));
    let again = rig.host.plug(Assigned {
        gpu_box: BOX,
        slot: 1,
        path: 0,
    });
    assert_eq!(
        again,
        Err(TableError::Twice {
            gpu_box: BOX,
            slot: 1
        })
    );
    // Packets of another host, and packets of a GPU after its release, are not let in.
    let route = rig.gpu_box.route(1).unwrap();
    let foreign = Route {
        to: route.from,
        from: End {
            node: Node(9),
            slot: 0,
        },
        path: 0,
    };
    assert_eq!(rig.gpu_box.admits(&foreign), None);
    assert!(rig.host.admits(&route));
    rig.host.unplug(0).unwrap();
    rig.gpu_box.table.release(1).unwrap();
    assert!(!rig.host.admits(&route));
    assert_eq!(rig.gpu_box.admits(&route.back()), None);
}

#[test]
fn more_than_was_reserved_is_refused() {
    let mut rig = Rig::new(0.0);
    let mut root = RootComplex::default();
    let reserve = Reserve {
        prefetchable_bytes: 16 << 30,
        ..Reserve::default()
    };
    root.boot(&mut rig, reserve).unwrap();
    rig.attach(1);
    let refused = root.enumerate(&mut rig, 0);
    assert_eq!(
        refused,
        Err(EnumerateError::TooLarge {
            slot: 0,
            bar: 1,
            bytes: GPU_BYTES
        })
    );
    assert_eq!(
        root.enumerate(&mut rig, 99),
        Err(EnumerateError::NoSlot(99))
    );
}

#[test]
fn a_sender_holds_a_bounded_number() {
    let mut sender = Sender::new(2, 10);
    assert!(sender.hold(&[1], 0).is_ok() && sender.hold(&[2], 0).is_ok());
    assert!(sender.hold(&[3], 0).is_err());
    // Acknowledgements of what was never sent change nothing.
    sender.acknowledged(3, 1);
    sender.acknowledged(u32::MAX, 1);
    assert_eq!(sender.held(), 2);
    sender.acknowledged(1, 1);
    assert_eq!((sender.held(), sender.next()), (1, 2));
    assert_eq!(sender.overdue(5).count(), 0);
    assert_eq!(sender.overdue(11).collect::<Vec<_>>(), [[2]]);
}
