//! The reasons for which a frame is not sent on, declared once; metrics and `explain` use their
//! names and texts.

macro_rules! reasons {
    ($($name:ident $label:literal $text:literal)*) => {
        /// The reason for which a frame is not sent on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $text] $name,)*
        }

        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            /// Name in metrics.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Reason::$name => $label,)*
                }
            }

            /// Explanation for people.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    NotOurs "not_ours" "neither for a service nor of one of its connections"
    Cut "cut" "the frame ends within a header"
    Length "length" "a length field contradicts the frame"
    Version "version" "neither IPv4 nor IPv6"
    HeaderChecksum "header_checksum" "the IPv4 header's checksum is wrong"
    IpOptions "ip_options" "an IPv4 header with options"
    ExtensionHeaders "extension_headers" "IPv6 extension headers that are not understood, or too many"
    Protocol "protocol" "neither TCP, UDP nor an ICMP message that is understood"
    TcpHeader "tcp_header" "flags or options of a TCP header that contradict each other"
    UdpChecksum "udp_checksum" "UDP over IPv6 without a checksum"
    Address "address" "a source that is a group or no address of one host"
    OwnSource "own_source" "from an address of the balancer's own, to another one"
    HopLimit "hop_limit" "its time to live is over"
    FirstFragmentShort "first_fragment_short" "a first fragment without the whole transport header"
    FragmentUnknown "fragment_unknown" "a fragment of which the first one was not seen"
    FragmentOverlap "fragment_overlap" "a fragment that overlaps another"
    FragmentsTooMany "fragments_too_many" "more fragments of one packet than are followed"
    NoService "no_service" "for an address of a service, but another port or protocol"
    NoBackend "no_backend" "no backend of the service takes new connections"
    NoConnection "no_connection" "of no connection that is known, and does not open one"
    BadHandshake "bad_handshake" "does not fit the connection's handshake"
    ResetOutOfWindow "reset_out_of_window" "a reset that is not within the connection's window"
    WrongInterface "wrong_interface" "says that it is a backend's, and came by an interface where that is not"
    TableFull "table_full" "no room for another connection"
    PortsExhausted "ports_exhausted" "no source port is free towards this backend"
    TupleInUse "tuple_in_use" "the backend has a connection with this client's address and port"
    Hairpin "hairpin" "from the backend itself, whose answers would not come back"
    NoNeighbour "no_neighbour" "the hardware address of the next hop is not known"
    Unsent "unsent" "the interface did not take it: it is down, its queue full, or the frame too long"
    TooLong "too_long" "longer than the next hop's link takes, and not to be sent in fragments"
    IcmpUnknown "icmp_unknown" "an ICMP error about no connection that is known"
    IcmpShort "icmp_short" "an ICMP error without the ports of what it is about"
}

impl std::fmt::Display for Reason {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.text())
    }
}

/// Number of frames for each reason.
#[derive(Clone, Debug)]
pub struct Drops([u64; Reason::ALL.len()]);

impl Default for Drops {
    fn default() -> Drops {
        Drops([0; Reason::ALL.len()])
    }
}

impl Drops {
    pub fn add(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
