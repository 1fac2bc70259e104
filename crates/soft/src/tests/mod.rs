//! Messages to the software GPU, and its answers.

mod hostile;
mod links;
mod memory;
mod programs;

use std::{
    thread,
    time::{Duration, Instant},
};

use outboard_device::{Outcome, dispatch, images::ImageStore};
use outboard_wire::{
    Message, Reader,
    messages::{self as m, Request},
};

use super::*;

const WAIT_MAX: Duration = Duration::from_secs(30);
const CONTEXT: u64 = 100;

/// `c[i] = a[i] + b[i]` for `i < n`, and other kernels that the tests need.
pub(super) const PTX: &str = include_str!("kernels.ptx");

/// A client that talks to the device without a link.
pub(super) struct Client {
    pub(super) device: Box<dyn Device>,
    images: ImageStore,
    /// The window's base.
    pub(super) base: u64,
    next: u64,
}

/// A client with a current context and 4 MiB of memory at the window's base.
pub(super) fn client() -> Client {
    client_with(SoftOptions {
        memory_bytes: Some(64 << 20),
        threads: Some(2),
        devices: 1,
        ..SoftOptions::default()
    })
}

pub(super) fn client_with(options: SoftOptions) -> Client {
    let mut device = open(options).unwrap();
    let (base, _) = device.reserve_window(0).unwrap();
    let mut client = Client {
        device,
        images: ImageStore::new(None, "", Default::default()),
        base,
        next: 1000,
    };
    let create = m::PrimaryContextRetain {
        context: CONTEXT,
        device: 0,
    };
    client.done(Request::PrimaryContextRetain(create));
    let map = m::MemMap {
        va: base,
        len: 4 << 20,
    };
    client.done(Request::MemMap(map));
    client
}

impl Client {
    /// Returns a number for a new handle.
    pub(super) fn mint(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn send(&mut self, request: &Request<'_>) -> Result<(Outcome, Vec<u8>), Failure> {
        let mut fds = |tag| Err(Failure::wild("file descriptor", tag));
        let mut cx = Cx {
            context: CONTEXT,
            images: &mut self.images,
            placed: None,
            fds: &mut fds,
            service: &mut |_, _| true,
            unserved: None,
        };
        let mut reply = Vec::new();
        let outcome = dispatch(self.device.as_mut(), &mut cx, request, &mut reply)?;
        Ok((outcome, reply))
    }

    /// Sends a message without a reply.
    pub(super) fn done(&mut self, request: Request<'_>) {
        if let Err(failure) = self.send(&request) {
            panic!("{failure}");
        }
    }

    pub(super) fn status(&mut self, request: Request<'_>) -> CUresult {
        match self.send(&request) {
            Ok(_) => CUresult::CUDA_SUCCESS,
            Err(failure) => {
                assert!(!failure.message.is_empty());
                failure.status
            }
        }
    }

    /// Sends a message that is answered at once, and decodes its reply.
    pub(super) fn ask<R: for<'a> Message<'a>>(&mut self, request: Request<'_>) -> R {
        let (_, reply) = self.send(&request).unwrap();
        let reply = reply.leak();
        R::decode(&mut Reader::new(reply)).unwrap()
    }

    /// Sends a message that is answered when the device is done, and waits.
    pub(super) fn wait(&mut self, request: Request<'_>) -> Result<Vec<u8>, Failure> {
        let (outcome, _) = self.send(&request)?;
        let Outcome::Wait(mut pending) = outcome else {
            panic!("nothing to wait for");
        };
        let start = Instant::now();
        while !pending.ready()? {
            assert!(start.elapsed() < WAIT_MAX, "never ready");
            thread::sleep(Duration::from_micros(100));
        }
        Ok(pending.data().map(<[u8]>::to_vec).unwrap_or_default())
    }

    pub(super) fn sync(&mut self) -> Result<(), Failure> {
        self.wait(Request::FenceContext(m::FenceContext { slot: 0, value: 0 }))
            .map(|_| ())
    }

    pub(super) fn write(&mut self, dst: u64, data: &[u8]) {
        self.done(Request::CopyIn(m::CopyIn {
            dst,
            stream: 0,
            data: data.into(),
            sync: 0,
        }));
    }

    pub(super) fn write_words(&mut self, dst: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.write(dst, &bytes);
    }

    pub(super) fn read(&mut self, src: u64, len: u64) -> Result<Vec<u8>, Failure> {
        self.wait(Request::CopyOut(m::CopyOut {
            src,
            len,
            stream: 0,
        }))
    }

    pub(super) fn read_words(&mut self, src: u64, count: usize) -> Vec<u32> {
        let bytes = self.read(src, 4 * count as u64).unwrap();
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Sends an image and loads it; returns the library's number, status, error log and card.
    pub(super) fn load(&mut self, image: &[u8]) -> (u64, CUresult, String, doc::LibraryCard) {
        let hash = self.images.hold(image.to_vec());
        let library = self.mint();
        let request = m::LibraryLoad {
            library,
            hash: &hash,
            len: image.len() as u64,
            options: &[],
        };
        let (_, reply) = self.send(&Request::LibraryLoad(request)).unwrap();
        let reply = m::LibraryLoadReply::decode(&mut Reader::new(&reply)).unwrap();
        assert_eq!(reply.missing, 0);
        let log = String::from_utf8(reply.error_log.to_vec()).unwrap();
        let card = match reply.status {
            0 => doc::from_bytes(&reply.card).unwrap(),
            _ => doc::LibraryCard::default(),
        };
        (library, CUresult(reply.status), log, card)
    }

    /// Loads the test kernels, and returns a function from a kernel's name to its number.
    pub(super) fn kernels(&mut self) -> impl Fn(&str) -> u64 + use<> {
        let (library, status, log, card) = self.load(PTX.as_bytes());
        assert_eq!(status, CUresult::CUDA_SUCCESS, "{log}");
        let names: Vec<String> = card.kernels.into_iter().map(|k| k.name).collect();
        move |name| {
            let index = names.iter().position(|n| n == name);
            library << 32 | index.unwrap() as u64
        }
    }
}

/// Makes a launch in the null stream: one row of blocks, each one row of threads.
pub(super) fn launch<'a>(
    kernel: u64,
    blocks: u32,
    threads: u32,
    params: &'a [u8],
) -> m::Launch<'a> {
    m::Launch {
        kernel,
        stream: 0,
        grid_x: blocks,
        grid_y: 1,
        grid_z: 1,
        block_x: threads,
        block_y: 1,
        block_z: 1,
        shared_bytes: 0,
        attributes: &[],
        params,
    }
}

/// Encodes parameters of eight bytes each.
pub(super) fn params(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
