"""A Linux guest in which RDMA works on any machine: software RoCE (`rdma_rxe`) under an emulated processor.

Containers and most test machines have neither an RDMA NIC nor a kernel with `rdma_rxe`. This boots a stock Debian
kernel in QEMU, without KVM, on the files of this very machine: `/` is the host's, read-only below a layer in memory,
so that whatever was built here runs there. Verbs, RoCE packets, loss and retries are real; speed is not.

    image   what a guest boots: a kernel, its modules and a first process; fetched once
    guest   one guest that runs commands for the host, or two that share a cable

In a guest: `init.sh` mounts its root, `agent.sh` makes the devices and runs what it is asked to.

What software RoCE does otherwise than a NIC (Linux 6.1):

* A retry count of 7 is endless.
* It acknowledges when its processor comes to it: on a busy host packets are sent again without having been lost.
* A process whose last packets wait for a peer that is gone ends when the kernel gives them up (`__rxe_cleanup`).
"""
