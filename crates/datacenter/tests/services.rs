//! Small services whose needs follow from counting.

#![allow(clippy::unwrap_used, reason = "tests")]

use outboard_datacenter::{Fleet, Instance, Needed, Shape, needed, services};

const HEAD: &str = "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,\
    memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time\n";
const SHAPE: Shape = Shape {
    cpus: 16,
    memory_mib: 64 << 10,
    gpus: 2,
};

fn line(app: &str, cpus: u32, gpus: u32, together: i32, times: &str) -> String {
    format!("i,XN,{app},{cpus},{cpus},{gpus},{gpus},0,0,8.0,8.0,0,0,{together},{times}\n")
}

fn read(lines: &[String]) -> Vec<Instance> {
    services(&format!("{HEAD}{}", lines.concat())).unwrap()
}

fn play(lines: &[String], fleet: Fleet) -> Needed {
    needed(&read(lines), SHAPE, fleet)
}

/// Two GPUs with 4 vCPU each, and four instances of 16 vCPU, all the time.
#[test]
fn processors_without_gpus_strand_the_gpus_of_servers() {
    let mut lines = vec![line("a", 4, 1, -1, ",,"); 2];
    lines.extend(vec![line("a", 16, 0, -1, ",,"); 4]);
    // Something ends, so that there is a time.
    lines.push(line("b", 8, 0, -1, "0.0,0.0,100.0"));
    let servers = play(&lines, Fleet::Servers);
    assert_eq!((servers.machines, servers.gpus), (5, 10));
    assert_eq!((servers.gpus_used, servers.cpus_used), (0.2, 1.0));
    let two = play(&lines, Fleet::TwoKinds);
    // The rest of the server with GPUs is of no use to the others.
    assert_eq!((two.machines, two.gpus, two.gpus_used), (6, 2, 1.0));
    let pool = play(&lines, Fleet::Pool);
    assert_eq!((pool.machines, pool.gpus, pool.gpus_used), (5, 2, 1.0));
    assert_eq!((pool.gpus_peak, pool.cpus_peak), (2, 80));
}

#[test]
fn what_leaves_makes_room_and_time_counts() {
    let lines = [
        line("a", 16, 1, -1, "0.0,0.0,100.0"),
        line("a", 16, 1, -1, "100.0,100.0,200.0"),
        line("a", 8, 0, -1, "300.0,300.0,400.0"),
    ];
    for fleet in [Fleet::Servers, Fleet::Pool] {
        let found = play(&lines, fleet);
        assert_eq!((found.machines, found.gpus, found.gpus_peak), (1, 2, 1));
        // A GPU of two for half of the time; 16 of 16 vCPU for half of it, 8 for a quarter.
        assert_eq!((found.gpus_used, found.cpus_used), (0.25, 0.625));
    }
}

#[test]
fn a_service_is_spread_and_what_fits_nowhere_is_refused() {
    let spread = vec![line("a", 2, 0, 2, ",,"); 5];
    assert_eq!(play(&spread, Fleet::Pool).machines, 3);
    let large = [line("a", 17, 0, -1, ",,"), line("a", 1, 3, -1, ",,")];
    let servers = play(&large, Fleet::Servers);
    assert_eq!((servers.machines, servers.refused), (0, 2));
    // Its GPUs may be of several boxes.
    let pool = play(&large, Fleet::Pool);
    assert_eq!((pool.machines, pool.refused, pool.gpus), (1, 1, 4));
}

#[test]
fn lines_that_are_wrong_are_named() {
    for wrong in [
        line("a", 70_000, 0, -1, ",,"),
        line("a", 1, 65, -1, ",,"),
        line("a", 1, 0, -2, ",,"),
        line("a", 1, 0, -1, "x,,"),
        line("a", 1, 0, -1, "-1.0,,"),
        line("a", 1, 0, -1, "inf,,"),
        "i,XN,a,1\n".into(),
    ] {
        let text = format!("{HEAD}{}{wrong}", line("a", 1, 0, -1, ",,"));
        assert_eq!(services(&text).unwrap_err().line, 3, "{wrong}");
    }
    assert_eq!(services("name,cpu\n").unwrap_err().line, 1);
}
