//! Device memory under threads.

use super::*;

/// Bytes of a piece of which several have one chunk.
const PIECE_BYTES: usize = 512 << 10;
/// Pieces that a thread has at a time.
const PIECES: usize = 8;
const THREADS: usize = 8;

#[test]
fn no_thread_uses_a_piece_of_a_chunk_that_is_not_mapped_yet() {
    over_each_link(|kind| {
        let wrong = Arc::new(AtomicU64::new(0));
        let noted = wrong.clone();
        let mut chunks = Vec::new();
        let client = Client::start(kind, move |request, _| {
            match request {
                Request::MemMap(map) => chunks.push((map.va, map.len)),
                Request::MemUnmap(unmap) => chunks.retain(|(va, _)| *va != unmap.va),
                Request::CopyIn(copy) => {
                    let is_in = |(va, len): &(u64, u64)| (*va..va + len).contains(&copy.dst);
                    let is_mapped = chunks.iter().any(is_in);
                    noted.fetch_add(u64::from(!is_mapped), Ordering::Relaxed);
                }
                _ => {}
            }
            Answer::Usual
        });
        let mut context = CUcontext::NULL;
        // SAFETY: a local output.
        assert_eq!(unsafe { cuCtxGetCurrent(&mut context) }, SUCCESS);
        let driver = client.driver;
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(move || {
                    set_driver_of_thread(driver);
                    let bytes = [1u8; 64];
                    // SAFETY: copies of local bytes.
                    unsafe {
                        assert_eq!(cuCtxSetCurrent(context), SUCCESS);
                        for _ in 0..400 {
                            let pieces = [(); PIECES].map(|()| {
                                let piece = allocate(PIECE_BYTES).expect("memory");
                                let source = bytes.as_ptr().cast();
                                assert_eq!(cuMemcpyHtoD_v2(piece, source, bytes.len()), SUCCESS);
                                piece
                            });
                            for piece in pieces {
                                assert_eq!(cuMemFree_v2(piece), SUCCESS);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(client.count("CopyIn"), THREADS * 400 * PIECES);
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    });
}
