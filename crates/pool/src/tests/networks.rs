//! Claims that need a network.

use super::parts::{claim, facts, granted, join, report};
use crate::{
    LinkFacts, LinkNeed, LinkSource, Manager, Store as _, Uuid,
    api::{GpuReport, Granted, Join, PoolError},
    limits,
    record::{Claim, Fit, SpareRecord},
    store::SimulatedStore,
};

fn link(rtt_ns: u64, bits_per_s: u64) -> LinkFacts {
    LinkFacts {
        rtt_ns,
        bits_per_s,
        source: LinkSource::Told,
    }
}

fn needs(uid: &str, gpus: u32, rtt_ns_max: u64) -> Claim {
    let need = |rtt_ns_max, bits_per_s_min| LinkNeed {
        rtt_ns_max,
        bits_per_s_min,
    };
    Claim {
        links: vec![need(1_000, 1_000_000_000), need(rtt_ns_max, 10_000_000_000)],
        ..claim(uid, gpus)
    }
}

/// Three boxes of two GPUs each: near, far, and one whose network is not known.
fn boxes_with_networks() -> Vec<Join> {
    let boxes = [
        ("near", Some(link(20_000, 25_000_000_000)), [1, 2]),
        ("far", Some(link(300_000, 100_000_000_000)), [3, 4]),
        ("dark", None, [5, 6]),
    ];
    let join = |(name, link, gpus): (&str, _, [u8; 2])| Join {
        link,
        ..join(name, gpus.map(|number| facts(number, name)).to_vec())
    };
    boxes.map(join).into()
}

fn begin(manager: &mut Manager, joins: &[Join]) {
    for of in joins {
        manager.join(0, of).unwrap();
        let first = report(manager, of, vec![]);
        manager.report(0, &first).unwrap();
    }
}

fn boxes_of(granted: &Granted) -> Vec<&str> {
    granted.boxes.iter().map(|of| of.name.as_str()).collect()
}

/// A claim that needs a network is placed only in boxes whose networks are known and good enough.
#[test]
fn a_network_that_is_needed_is_had() {
    let mut manager = Manager::open(&mut SimulatedStore::new(), "pool", "key").unwrap();
    let joins = boxes_with_networks();
    begin(&mut manager, &joins);
    for fit in [Fit::Best, Fit::First, Fit::Spread, Fit::Fgd] {
        let wish = Claim {
            fit,
            ..needs(&format!("{fit:?}"), 2, 50_000)
        };
        let lease = granted(manager.claim(0, &wish, false));
        assert_eq!(boxes_of(&lease), ["near"], "{fit:?}");
        // It waits, or is refused, although others are free.
        let busy = manager.claim(0, &needs("more", 1, 50_000), false);
        assert!(matches!(busy, Err(PoolError::Busy(_))), "{busy:?}");
        manager.release(0, lease.lease).unwrap();
        let floors = manager.answer_for(0, "near").unwrap().floors;
        let gpu = |(uuid, floor): &(Uuid, u64)| GpuReport {
            uuid: *uuid,
            floor: *floor,
            busy: None,
            busy_last: None,
            broken: None,
            failures: 0,
            idle_ms: None,
        };
        let confirmed = report(&manager, &joins[0], floors.iter().map(gpu).collect());
        manager.report(0, &confirmed).unwrap();
    }
    let both = granted(manager.claim(0, &needs("both", 4, 300_000), false));
    let mut both = boxes_of(&both);
    both.sort_unstable();
    assert_eq!(both, ["far", "near"]);
}

#[test]
fn a_network_that_no_box_has_is_refused() {
    let mut store = SimulatedStore::new();
    let mut manager = Manager::open(&mut store, "pool", "key").unwrap();
    let mut joins = boxes_with_networks();
    begin(&mut manager, &joins);
    // Another manager on this store knows the networks before the boxes have joined again.
    store.commit(&manager.take_transaction().unwrap()).unwrap();
    let mut next = Manager::open(&mut store, "ignored", "key").unwrap();
    let refused = next.claim(0, &needs("u", 3, 50_000), true).unwrap_err();
    assert_eq!(
        refused,
        PoolError::Impossible(
            "3 GPUs behind a network that the program needs are asked for, and there are 2: it needs at most 1us with at least \
             1Gbps, or at most 50us with at least 10Gbps; the box near has the shortest round trip, with 20us and 25Gbps, and far \
             the highest bandwidth, with 300us and 100Gbps; the network of 1 box is not known"
                .into()
        )
    );
    // A network that has become slow counts from then on.
    joins[0].link = Some(link(900_000, 25_000_000_000));
    begin(&mut next, &joins);
    let none = next.claim(0, &needs("v", 1, 50_000), true).unwrap_err();
    assert!(matches!(none, PoolError::Impossible(_)), "{none}");
    for wrong in [
        needs("x", 1, u64::MAX),
        Claim {
            links: vec![needs("y", 1, 0).links[0]; limits::LINK_NEEDS_MAX + 1],
            ..claim("y", 1)
        },
    ] {
        let said = next.claim(0, &wrong, true);
        assert!(matches!(said, Err(PoolError::Wrong(_))), "{said:?}");
    }
    joins[0].link = Some(link(u64::MAX, 25_000_000_000));
    let wrong = next.join(0, &joins[0]);
    assert!(matches!(wrong, Err(PoolError::Wrong(_))), "{wrong:?}");
}

/// A spare behind a network that is too slow takes no place in such a lease.
#[test]
fn a_spare_has_the_network_that_is_needed() {
    for (rtt_ns, is_replaced) in [(20_000, true), (300_000, false)] {
        let mut manager = Manager::open(&mut SimulatedStore::new(), "pool", "key").unwrap();
        let mut joins = boxes_with_networks();
        joins[1].link = Some(link(rtt_ns, 25_000_000_000));
        begin(&mut manager, &joins[..2]);
        let lease = granted(manager.claim(0, &needs("u", 2, 50_000), false)).lease;
        let rule = SpareRecord {
            model: None,
            per: None,
            gpus: 2,
        };
        manager.set_spares(0, &rule).unwrap();
        let lost = manager.lease_view(0, lease).unwrap().gpus[0];
        manager.is_broken(0, &lost, "Xid 79").unwrap();
        let view = manager.lease_view(0, lease).unwrap();
        assert_eq!(view.lost[0].replaced, is_replaced, "{rtt_ns}");
    }
}

/// GPUs that are attached to a host have the network that their own claim needed, and so have the
/// spares that take their places; other claims of the host's lease need none.
#[test]
fn attached_gpus_and_their_spares_have_the_network_of_their_claim() {
    for bits_per_s in [5_000_000_000, 10_000_000_000] {
        let mut manager = Manager::open(&mut SimulatedStore::new(), "pool", "key").unwrap();
        let mut joins = boxes_with_networks();
        begin(&mut manager, &joins);
        let attach = |of: Claim| Claim { attach: true, ..of };
        let any = attach(Claim {
            fit: Fit::First,
            ..claim("any", 2)
        });
        let lease = granted(manager.claim(0, &any, false)).lease;
        assert_eq!(manager.lease_view(0, lease).unwrap().boxes, ["near"]);
        let picky = attach(needs("picky", 1, 300_000));
        assert_eq!(granted(manager.claim(0, &picky, false)).lease, lease);
        let view = manager.lease_view(0, lease).unwrap();
        assert_eq!(view.boxes, ["near", "far"]);
        // One spare is left in "far", two in "dark".
        joins[1].link = Some(link(300_000, bits_per_s));
        begin(&mut manager, &joins);
        let rule = SpareRecord {
            model: None,
            per: None,
            gpus: 3,
        };
        manager.set_spares(0, &rule).unwrap();
        manager.is_broken(0, &view.gpus[2], "Xid 79").unwrap();
        manager.is_broken(0, &view.gpus[0], "Xid 79").unwrap();
        let replaced = |uuid: &Uuid| {
            let lost = manager.lease_view(0, lease).unwrap().lost;
            lost.iter().any(|lost| lost.uuid == *uuid && lost.replaced)
        };
        // 10 Gbps are needed, and "far" alone may have them.
        assert_eq!(replaced(&view.gpus[2]), bits_per_s >= 10_000_000_000);
        assert!(replaced(&view.gpus[0]));
    }
}
