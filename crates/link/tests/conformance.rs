//! Runs the conformance suite over each kind of link.
#![cfg(not(loom))]

mod shm {
    use outboard_link::conformance::ShmFixture;

    outboard_link::conformance_suite!(ShmFixture::default());
}

mod tcp {
    use outboard_link::conformance::TcpFixture;

    outboard_link::conformance_suite!(TcpFixture);
}

mod tls {
    use outboard_link::conformance::TlsFixture;

    outboard_link::conformance_suite!(TlsFixture::default());
}

/// Runs where the kernel has TLS: in a guest (`tests/rdma`).
mod kernel_tls {
    mod both {
        use outboard_link::conformance::{InKernel, TlsFixture};

        outboard_link::conformance_suite!(TlsFixture {
            in_kernel: InKernel::Both
        });
    }

    mod server {
        use outboard_link::conformance::{InKernel, TlsFixture};

        outboard_link::conformance_suite!(TlsFixture {
            in_kernel: InKernel::Server
        });
    }

    mod client {
        use outboard_link::conformance::{InKernel, TlsFixture};

        outboard_link::conformance_suite!(TlsFixture {
            in_kernel: InKernel::Client
        });
    }
}

mod emulated_shm {
    use outboard_link::conformance::{EmulatedFixture, ShmFixture};

    outboard_link::conformance_suite!(EmulatedFixture::new(ShmFixture::default()));
}

mod emulated_tcp {
    use outboard_link::conformance::{EmulatedFixture, TcpFixture};

    outboard_link::conformance_suite!(EmulatedFixture::new(TcpFixture));
}

/// Runs over a device of this machine. A machine without one uses a guest that has a software
/// device (`tools/rdma-guest`).
mod rdma {
    use outboard_link::conformance::RdmaFixture;

    outboard_link::conformance_suite!(RdmaFixture);
}
