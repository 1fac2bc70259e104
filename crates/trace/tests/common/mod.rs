//! Recordings made of random numbers.

#![allow(unreachable_pub)]

use outboard_trace::{
    About, Call, CallCost, Class, Device, GpuTimes, GpuWork, Host, Mark, Record, RecordedServer,
    Trace, Work,
};

/// xorshift64*: its seed determines a run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Mostly small numbers, sometimes any.
    fn any(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => self.next(),
            bits => self.next() >> (63 - 8 * (bits - 3)),
        }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

pub fn trace(random: &mut Random, records: usize) -> Trace {
    let names: Vec<String> = (0..1 + random.below(20))
        .map(|n| format!("name {n} {}", "é".repeat(random.below(40) as usize)))
        .collect();
    let mut all: Vec<Record> = (0..records).map(|_| record(random, names.len())).collect();
    all.sort_by_key(Record::end_ns);
    let mut trace = Trace {
        about: about(random),
        records: all,
        names,
        complete: random.below(2) == 0,
        lost: random.below(3),
    };
    trace.give_streams();
    trace
}

fn record(random: &mut Random, names: usize) -> Record {
    let kind = random.below(4);
    let name = random.below(names as u64) as u32;
    match kind {
        0 => Record::Work(work(random, name)),
        1 => Record::Mark(Mark {
            name,
            thread: random.any() as u32,
            at_ns: random.any(),
            is_end: random.below(2) == 1,
        }),
        _ => Record::Call(call(random, name)),
    }
}

fn work(random: &mut Random, name: u32) -> Work {
    let kinds = [
        GpuWork::Kernel,
        GpuWork::CopyToDevice,
        GpuWork::CopyToHost,
        GpuWork::CopyOnDevice,
        GpuWork::Memset,
        GpuWork::Graph,
    ];
    Work {
        kind: random.one(&kinds),
        name,
        device: random.any() as u32,
        stream: random.any() as u32,
        start_ns: random.any(),
        duration_ns: random.any(),
        bytes: random.any(),
        correlation: random.any() as u32,
    }
}

fn call(random: &mut Random, name: u32) -> Call {
    let classes = [
        Class::Local,
        Class::Outstanding,
        Class::Synchronous,
        Class::Shadowed,
        Class::Unsupported,
    ];
    Call {
        function: name,
        class: random.one(&classes),
        thread: random.any() as u32,
        start_ns: random.any(),
        duration_ns: random.any(),
        request_bytes: random.any(),
        response_bytes: random.any(),
        stream: random.any() as u32,
        event: random.any() as u32,
        correlation: random.any() as u32,
        status: random.any() as u32,
        server: random.below(3) as u8,
    }
}

fn about(random: &mut Random) -> About {
    About {
        argv: vec!["program".into(), "--with \"quotes\"".into()],
        time_s: random.any(),
        release: "0.1.0".into(),
        gpu: (random.below(2) == 0).then(|| "tcp://a:1".into()),
        optimise: None,
        emulated: (random.below(2) == 0).then(|| "rtt=10us".into()),
        host: Host {
            cpu: "a processor".into(),
            cores: 2,
        },
        devices: vec![Device {
            name: "a GPU".into(),
            memory_bytes: random.any(),
        }],
        servers: (0..random.below(3))
            .map(|n| RecordedServer {
                gpu: format!("tcp://{n}:1"),
                devices: Vec::new(),
            })
            .collect(),
        driver_version: 13000,
        gpu_times: random.one(&[GpuTimes::None, GpuTimes::Cupti, GpuTimes::Events]),
        iterations: (random.below(2) == 0).then(|| "step".into()),
        cost: CallCost {
            inside_ns: 20.5,
            outside_ns: random.below(100) as f64,
        },
    }
}
