//! Two processes of one tenant: this one, whose heap follows its lease, and a neighbour's account.

use outboard_budget::{
    Charge, CountingAllocator, Exhausted, LEASE_STEP_BYTES, check, join,
    ledger::{Account, Ledger, Resource, Share, Short},
    refused, reserve, set, settle,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MIB: u64 = 1 << 20;
const SHARE: u64 = 64 * MIB;

#[test]
fn the_heap_takes_from_the_share_and_gives_back() {
    let (ledger, fd) = Ledger::create(2).unwrap();
    let rows = [1, 1].map(|tenant| ledger.begin(tenant).unwrap());
    let share = Share {
        host_bytes: Some(SHARE),
        device_bytes: None,
    };
    let account = |row| {
        let ledger = Ledger::open(fd.try_clone().unwrap()).unwrap();
        Account::new(ledger, row, share, Share::default())
    };
    let neighbour = account(rows[1]);
    set(8 * SHARE);
    join(account(rows[0]));
    let taken = || ledger.taken(rows[0], Resource::Host);
    assert!(taken() <= LEASE_STEP_BYTES);
    let heap = vec![0_u8; 40 << 20];
    check().unwrap();
    assert!((40 * MIB..44 * MIB).contains(&taken()), "{}", taken());
    assert!(neighbour.take(Resource::Host, 30 * MIB).is_err());
    neighbour.take(Resource::Host, 20 * MIB).unwrap();
    let error = reserve(10 * MIB).unwrap_err();
    let Exhausted::Share { short, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(short, Short::Tenant(SHARE));
    assert!(error.to_string().contains("64 MiB together"), "{error}");
    assert!(Charge::take(10 * MIB).is_err());
    assert_eq!(refused(), 2);
    // What the neighbour gives back is there at once, and what is freed is given back at once.
    neighbour.give(Resource::Host, 20 * MIB);
    drop(Charge::take(20 * MIB).unwrap());
    drop(heap);
    settle();
    check().unwrap();
    assert!(taken() <= 6 * MIB, "{}", taken());
    neighbour.take(Resource::Host, 56 * MIB).unwrap();
}
