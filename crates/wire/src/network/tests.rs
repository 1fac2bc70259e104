use super::*;

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

#[test]
fn forms_of_the_same_time_and_bandwidth() {
    let ten = network("rtt=10us");
    assert_eq!(ten.rtt(), Duration::from_micros(10));
    assert_eq!(ten.bandwidth(), None);
    for text in [
        "rtt=10 us",
        "rtt=10\u{b5}s",
        "rtt=10 \u{3bc}s",
        "rtt=0.01ms",
        "rtt=10000ns",
        "rtt=0.00001s",
        "rtt=1e1us",
        "rtt=+10us",
        " rtt = 10us ",
    ] {
        assert_eq!(network(text), ten, "{text}");
    }
    let gigabit = network("bandwidth=1Gbps");
    assert_eq!(gigabit.bandwidth().unwrap().bps(), 1_000_000_000);
    assert_eq!(gigabit.rtt(), Duration::ZERO);
    for text in [
        "1 Gbps",
        "1gbps",
        "1Gbit/s",
        "1 Gb/s",
        "1000Mbps",
        "1000000kbit/s",
        "0.001Tbps",
        "125MB/s",
        "125 MBps",
        "0.125GB/s",
    ] {
        assert_eq!(network(&format!("bandwidth={text}")), gigabit, "{text}");
    }
    assert_eq!(
        network("bandwidth=200 Gbit/s").bandwidth().unwrap().bps(),
        200_000_000_000
    );
    assert_eq!(
        network("bandwidth=1MiB/s").bandwidth().unwrap().bps(),
        8 << 20
    );
}

#[test]
fn what_is_shown_is_short_and_read_back() {
    for (text, shown) in [
        ("bandwidth=1Gbps,rtt=0.01ms", "rtt=10us,bandwidth=1Gbps"),
        ("rtt=1380ns", "rtt=1.38us"),
        ("rtt=10s", "rtt=10s"),
        ("rtt=1ns", "rtt=1ns"),
        ("rtt=1000001ns", "rtt=1.000001ms"),
        ("bandwidth=600GB/s", "bandwidth=4.8Tbps"),
        ("bandwidth=1.5Mbps", "bandwidth=1.5Mbps"),
        (
            "tail=50us @ 0.1%,jitter=2us,rtt=5us,seed=7",
            "rtt=5us,jitter=2us,tail=50us@0.1%,seed=7",
        ),
        ("rtt=5us,tail=1ms@100%", "rtt=5us,tail=1ms@100%"),
        ("rtt=5us,tail=1ms@0.0001%", "rtt=5us,tail=1ms@0.0001%"),
        ("rack-rdma", "rtt=1.38us,bandwidth=200Gbps"),
        (
            "rack-rdma,rtt=7us,jitter=1us",
            "rtt=7us,bandwidth=200Gbps,jitter=1us",
        ),
    ] {
        assert_eq!(network(text).to_string(), shown);
        assert_eq!(network(shown), network(text));
    }
}

/// Every number of digits, and both neighbours of every power of ten.
#[test]
fn all_that_can_be_shown_is_read_back() {
    let powers = (0..=13).flat_map(|power| {
        let power = 10u64.pow(power);
        [power - 1, power, power + 1, power * 5 / 4, 7 * power / 3]
    });
    for value in powers {
        if (1..=DELAY_NS_MAX).contains(&value) {
            let time = Duration::from_nanos(value);
            assert_eq!(parse_duration(&show_duration(time)), Ok(time));
        }
        if let Some(bandwidth) = Bandwidth::from_bps(value) {
            assert_eq!(bandwidth.to_string().parse(), Ok(bandwidth));
        }
    }
}

#[test]
fn refusals_say_why() {
    for (text, reason) in [
        ("", "a part is empty"),
        ("10", "does not say what it is, as rtt=10us"),
        ("10us", "does not say what it is"),
        ("nowhere", "no network is known as \"nowhere\""),
        ("rtt", "no network is known as \"rtt\""),
        ("jitter=1us", "neither rtt nor bandwidth"),
        ("rtt=10us,", "a part is empty"),
        ("rtt=10us,,bandwidth=1Gbps", "a part is empty"),
        ("rtt=10us,5us", "\"5us\" is no key=value"),
        ("rtt=10us,rack-rdma", "\"rack-rdma\" is no key=value"),
        ("rtt=10us,rtt=11us", "rtt is given twice"),
        ("latency=10us", "no \"latency\""),
        ("rtt=10us,RTT=10us", "no \"RTT\""),
        ("rtt=10", "no unit, as 10us has"),
        ("rtt=10min", "\"min\" is no unit of time"),
        ("rtt=10Gbps", "no unit of time"),
        ("rtt=10US", "no unit of time"),
        ("rtt=us", "does not begin with a number"),
        ("rtt=", "does not begin with a number"),
        ("rtt=NaNus", "does not begin with a number"),
        ("rtt=infus", "does not begin with a number"),
        ("rtt=1..0us", "is not a number"),
        ("rtt=1-1us", "is not a number"),
        ("rtt=--1us", "is not a number"),
        ("rtt=0us", "is nothing"),
        ("rtt=0.0us", "is nothing"),
        ("rtt=-0us", "is nothing"),
        ("rtt=-1us", "is negative"),
        ("rtt=0.1ns", "less than a nanosecond"),
        ("rtt=1e-300s", "less than a nanosecond"),
        ("rtt=10.1s", "at most 10s"),
        ("rtt=1e300us", "at most 10s"),
        ("rtt=1e999us", "at most 10s"),
        ("bandwidth=10", "no unit, as 10Gbps has"),
        ("bandwidth=10G", "no unit of bandwidth"),
        ("bandwidth=10Gb", "no unit of bandwidth"),
        ("bandwidth=10us", "no unit of bandwidth"),
        ("bandwidth=10GBPS", "no unit of bandwidth"),
        ("bandwidth=10Pbps", "no unit of bandwidth"),
        ("bandwidth=0Gbps", "is nothing"),
        ("bandwidth=1kbps", "less than 1Mbps"),
        ("bandwidth=11Tbps", "more than 10Tbps"),
        ("bandwidth=1e300Gbps", "more than 10Tbps"),
        ("rtt=1us,jitter=0us", "is nothing"),
        ("rtt=1us,jitter=11s", "at most 10s"),
        ("rtt=1us,tail=50us", "no share of the messages"),
        ("rtt=1us,tail=50us@0.1", "no percentage"),
        ("rtt=1us,tail=50us@101%", "not between"),
        ("rtt=1us,tail=50us@0.00001%", "not between"),
        ("rtt=1us,tail=50@1%", "no unit"),
        ("rtt=1us,seed=-1", "no whole number"),
        ("rtt=1us,seed=18446744073709551616", "no whole number"),
    ] {
        let error = text.parse::<Network>().unwrap_err();
        assert!(error.reason.contains(reason), "{text:?}: {error}");
        assert!(error.to_string().contains("rack-rdma"), "{error}");
    }
}

#[test]
fn the_known_ones_have_names_of_their_own_and_are_networks() {
    for (index, known) in KNOWN.iter().enumerate() {
        let network = network(known.name);
        assert_eq!(network.rtt(), Duration::from_nanos(known.rtt_ns));
        assert_eq!(network.bandwidth().unwrap().bps(), known.bandwidth_bps);
        assert_eq!(network.to_string().parse(), Ok(network));
        assert!(!KNOWN[..index].iter().any(|other| other.name == known.name));
        assert!(!known.source.is_empty() && !known.what.is_empty());
    }
}

#[test]
fn it_travels_and_nonsense_does_not_arrive() {
    for text in [
        "rtt=10us,bandwidth=1Gbps,jitter=2us,tail=50us@0.1%,seed=7",
        "metro",
    ] {
        let bytes = postcard::to_stdvec(&network(text)).unwrap();
        assert_eq!(postcard::from_bytes(&bytes), Ok(network(text)));
    }
    let none = postcard::to_stdvec(&Network::default()).unwrap();
    assert_eq!(postcard::from_bytes(&none), Ok(Network::default()));
    let nonsense = postcard::to_stdvec("rtt=-1us").unwrap();
    assert!(postcard::from_bytes::<Network>(&nonsense).is_err());
}

#[test]
fn no_time_is_too_long_to_be_refused() {
    assert!(Network::new(Duration::from_secs(10), None).is_ok());
    assert!(Network::new(Duration::from_nanos(DELAY_NS_MAX + 1), None).is_err());
    assert!(Network::new(Duration::MAX, None).is_err());
}
