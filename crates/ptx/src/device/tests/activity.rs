use super::*;

#[test]
fn launches_are_kept_without_their_parameters() {
    let b = bench();
    b.gpu.keep_activity(true);
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
