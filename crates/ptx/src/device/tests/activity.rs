use super::*;

#[test]
fn launches_are_kept_without_their_parameters() {
    let b = bench();
    b.gpu.keep_activity(Some(1), false);
    b.gpu.of_call(1);
    let Op::Launch(launch) = kernel(|_| Ok(())) else {
        panic!("a kernel is a launch");
    };
    let params = vec![0; 4096].into();
    b.gpu
        .submit(b.legacy(), Op::Launch(Launch { params, ..launch }))
        .unwrap();
    b.sync(b.legacy()).unwrap();
    let (done, ..) = b.gpu.take_activity(1);
    let [
        Done {
            what: Finished::Launch(kept),
            ..
        },
    ] = &done[..]
    else {
        panic!("{done:?}");
    };
    assert!(kept.params.is_empty());
}

#[test]
fn what_finds_no_room_is_counted() {
    let b = bench();
    b.gpu.keep_activity(Some(2), false);
    b.gpu.of_call(1);
    for _ in 0..5 {
        b.gpu.submit(b.legacy(), kernel(|_| Ok(()))).unwrap();
    }
    b.sync(b.legacy()).unwrap();
    let (done, dropped, more) = b.gpu.take_activity(9);
    assert_eq!((done.len(), dropped, more), (2, 3, false));
    // There is room again, and what was counted is not counted twice.
    b.gpu.submit(b.legacy(), kernel(|_| Ok(()))).unwrap();
    b.sync(b.legacy()).unwrap();
    let (done, dropped, _) = b.gpu.take_activity(9);
    assert_eq!((done.len(), dropped), (1, 0));
}
