//! Bytes that are not what they claim to be: the result is an error that says where, never a panic,
//! never unbounded memory.

#![allow(clippy::unwrap_used, clippy::panic)]

use outboard_image::{Error, Image, fuzz};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("data/", $name)).as_slice()
    };
}

const SMALL_FATBINS: [&[u8]; 5] = [
    data!("none.fatbin"),
    data!("speed.fatbin"),
    data!("balance.fatbin"),
    data!("size.fatbin"),
    data!("lto.fatbin"),
];

const SEEDS: [&[u8]; 11] = [
    data!("none.fatbin"),
    data!("speed.fatbin"),
    data!("balance.fatbin"),
    data!("size.fatbin"),
    data!("lto.fatbin"),
    data!("relocatable.cubin"),
    data!("cuda12_sm_80.cubin"),
    data!("cuda12_sm_90a.cubin"),
    data!("sm_90.cubin"),
    data!("compute_90.ptx"),
    data!("targets.fatbin"),
];

#[test]
fn a_fatbin_cut_in_half_says_what_is_missing() {
    let whole = data!("none.fatbin");
    let error = Image::parse(&whole[..whole.len() / 2]).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        format!(
            "fatbin container is cut short: at offset 0 it needs {} bytes, {} are there",
            whole.len(),
            whole.len() / 2
        )
    );
}

#[test]
fn every_proper_prefix_of_a_container_is_an_error() {
    for whole in SMALL_FATBINS {
        for len in 0..whole.len() {
            assert!(
                Image::parse(&whole[..len]).is_err(),
                "{len} of {}",
                whole.len()
            );
        }
        assert!(Image::parse(whole).is_ok());
    }
}

#[test]
fn every_proper_prefix_of_a_cubin_is_an_error() {
    for whole in [
        data!("cuda12_sm_80.cubin"),
        data!("relocatable.cubin"),
        data!("cuda12_sm_90a.cubin"),
    ] {
        for len in 0..whole.len() {
            assert!(
                Image::parse(&whole[..len]).is_err(),
                "{len} of {}",
                whole.len()
            );
            fuzz::cubin(&whole[..len]);
        }
        assert!(Image::parse(whole).is_ok());
    }
}

/// A text may end anywhere between two declarations: what was read must then be the beginning of
/// the whole.
#[test]
fn every_prefix_of_a_ptx_text_is_an_error_or_a_beginning() {
    let whole = data!("compute_80.ptx");
    let kernels = |data: &[u8]| Image::parse(data).and_then(|image| image.entries()[0].kernels());
    let all = kernels(whole).unwrap();
    let mut refused = 0;
    for len in 0..whole.len() {
        match kernels(&whole[..len]) {
            Ok(some) => assert!(all.starts_with(&some), "{len}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > whole.len() / 2, "{refused} of {}", whole.len());
}

#[test]
fn a_container_whose_entries_are_cut_is_an_error() {
    for whole in SMALL_FATBINS {
        for body in 0..whole.len() as u64 - 16 {
            let mut cut = whole.to_vec();
            cut[8..16].copy_from_slice(&body.to_le_bytes());
            match Image::parse(&cut) {
                Ok(image) => assert!(
                    image.entries().len() < Image::parse(whole).unwrap().entries().len(),
                    "{body}"
                ),
                Err(error) => assert!(
                    matches!(error, Error::Truncated { .. } | Error::TooLarge { .. }),
                    "{error:?}"
                ),
            }
        }
    }
}

fn patched(whole: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut data = whole.to_vec();
    data[at..at + bytes.len()].copy_from_slice(bytes);
    data
}

#[test]
fn false_claims_in_headers_are_named() {
    let fatbin = data!("size.fatbin");
    let parse = |data: &[u8]| Image::parse(data).map(|image| image.entries().len());
    for (data, expected) in [
        (
            patched(fatbin, 4, &[2, 0]),
            "fatbin version at offset 4 is 0x2, expected 1",
        ),
        (
            patched(fatbin, 6, &[8, 0]),
            "fatbin header size at offset 6 is 0x8, expected at least 16",
        ),
        (
            patched(fatbin, 8, &[0xff; 8]),
            "fatbin size at offset 8 is 18446744073709551615, more than the limit of 4294967280",
        ),
        (
            patched(fatbin, 20, &[0; 4]),
            "fatbin entry header size at offset 20 is 0x0, expected at least 64",
        ),
        (
            patched(fatbin, 24, &[0xff; 8]),
            "fatbin entry payload size at offset 24 is 18446744073709551615, more than the limit of 1352",
        ),
        (
            patched(fatbin, 32, &[0xff; 4]),
            "fatbin entry compressed size at offset 32 is 4294967295, more than the limit of 848",
        ),
        (
            patched(fatbin, 56, &[0x11, 0xa0]),
            "fatbin entry flags at offset 56 is 0xa011, expected one compression method, not two",
        ),
        (
            patched(fatbin, 72, &[0xff; 8]),
            "fatbin entry uncompressed size at offset 72 is 18446744073709551615, more than the limit of 536870912",
        ),
        (
            patched(data!("sm_80.cubin"), 18, &[62, 0]),
            "ELF machine at offset 18 is 0x3e, expected 190 (CUDA)",
        ),
    ] {
        assert_eq!(parse(&data).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_false_uncompressed_size_is_an_error_in_both_directions() {
    for (data, method) in [
        (data!("speed.fatbin"), "LZ4"),
        (data!("size.fatbin"), "zstd"),
    ] {
        for claim in [0u64, 1, 3239, 3241, 100_000] {
            let data = patched(data, 72, &claim.to_le_bytes());
            let image = Image::parse(&data).unwrap();
            let error = image.entries()[0].bytes().unwrap_err();
            assert!(
                matches!(error, Error::Decompress { method: named, offset: 80, .. } if named == method),
                "{claim}: {error:?}"
            );
        }
    }
    let data = patched(data!("speed.fatbin"), 72, &(500u64 << 20).to_le_bytes());
    let error = Image::parse(&data).unwrap().entries()[0]
        .bytes()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                what: "LZ4 uncompressed size",
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn other_bytes_are_not_an_image() {
    for (data, expected) in [
        (
            &b""[..],
            "not a CUDA module image: it starts with nothing, expected",
        ),
        (
            b"\x00\x00\x00\x00",
            "not a CUDA module image: it starts with 00 00 00 00, expected",
        ),
        (
            b"MZ",
            "not a CUDA module image: it starts with 4d 5a, expected",
        ),
        (
            b"\xb1Cbf",
            "not a CUDA module image: it starts with b1 43 62 66, expected",
        ),
        (b"\xb1CbF\x01\0\0\0", "a fatbin wrapper holds pointers"),
        (
            b"// nothing else",
            "PTX line 1: expected the directive .version, found \"// nothing else\"",
        ),
        (
            b".version 9.0\n.target gfx90a\n",
            "PTX line 2: expected a target such as sm_80, found \".target gfx90a\"",
        ),
        (
            b".version 9.0\n.target sm_80\n// \xff",
            "the PTX text is not UTF-8 from byte 30 on",
        ),
    ] {
        let text = Image::parse(data).unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
    }
}

/// A container with one compressed cubin.
fn zstd_container(frame: &[u8], plain_bytes: u64) -> Vec<u8> {
    let mut entry = vec![0u8; 64];
    entry[0] = 2;
    entry[4] = 64;
    entry[8..16].copy_from_slice(&(frame.len() as u64).to_le_bytes());
    entry[16..20].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    entry[28] = 80;
    entry[40..48].copy_from_slice(&0x8011u64.to_le_bytes());
    entry[56..64].copy_from_slice(&plain_bytes.to_le_bytes());
    entry.extend(frame);
    let mut container = 0xBA55_ED50u32.to_le_bytes().to_vec();
    container.extend([1, 0, 16, 0]);
    container.extend((entry.len() as u64).to_le_bytes());
    container.extend(entry);
    container
}

/// A few bytes that decompress to gigabytes: `RLE_Block`s of RFC 8878, four bytes for 128 KiB each.
#[test]
fn a_decompression_bomb_stops_at_its_own_claim() {
    const BLOCK_BYTES: u32 = 128 << 10;
    // No checksum, no content size, a window of 128 KiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for _ in 0..100_000 {
        frame.extend_from_slice(&(BLOCK_BYTES << 3 | 1 << 1).to_le_bytes()[..3]);
        frame.push(0);
    }
    let claim = u64::from(BLOCK_BYTES) * 3;
    let container = zstd_container(&frame, claim);
    let error = Image::parse(&container).unwrap().entries()[0]
        .bytes()
        .unwrap_err();
    let reason = format!(
        "the header promises {claim} bytes, at least {} came out",
        claim + 1
    );
    assert_eq!(
        error,
        Error::Decompress {
            offset: 80,
            method: "zstd",
            reason
        }
    );

    // The same blocks with a true size and an end do decompress.
    let mut honest = frame[..6 + 4 * 3].to_vec();
    honest[6 + 4 * 2] |= 1;
    let container = zstd_container(&honest, claim);
    assert_eq!(
        Image::parse(&container).unwrap().entries()[0]
            .bytes()
            .unwrap()
            .len() as u64,
        claim
    );
}

/// An ELF file with one section of names and `symbols` kernels, all with the same name of
/// `name_bytes`.
fn cubin_with_one_name(symbols: usize, name_bytes: usize) -> Vec<u8> {
    const HEADER: usize = 64;
    let mut names = b"\0.symtab\0.strtab\0".to_vec();
    let name_at = names.len() as u32;
    names.extend(std::iter::repeat_n(b'k', name_bytes));
    names.push(0);
    let mut symtab = vec![0u8; 24];
    for _ in 0..symbols {
        symtab.extend(name_at.to_le_bytes());
        // STT_FUNC, global; STO_CUDA_ENTRY.
        symtab.extend([0x12, 0x10, 0, 0]);
        symtab.extend([0; 16]);
    }
    let section = |name: u32, kind: u32, offset: usize, bytes: usize, link: u32, entry: u64| {
        let words = [0, 0, offset as u64, bytes as u64];
        let mut header = [name.to_le_bytes(), kind.to_le_bytes()].concat();
        header.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        header.extend([link.to_le_bytes(), 0u32.to_le_bytes()].concat());
        header.extend([1, entry].iter().flat_map(|word: &u64| word.to_le_bytes()));
        header
    };
    let tables_at = HEADER + names.len() + symtab.len();
    let mut file = b"\x7fELF\x02\x01\x01\x33\x07".to_vec();
    file.resize(16, 0);
    file.extend([2, 0, 190, 0, 1, 0, 0, 0]);
    file.extend([0; 16]);
    file.extend((tables_at as u64).to_le_bytes());
    file.extend(80u32.to_le_bytes());
    file.extend(
        [64u16, 0, 0, 64, 3, 2]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    file.extend(&names);
    file.extend(&symtab);
    file.extend(section(0, 0, 0, 0, 0, 0));
    file.extend(section(1, 2, HEADER + names.len(), symtab.len(), 2, 24));
    file.extend(section(9, 3, HEADER, names.len(), 0, 0));
    file
}

#[test]
fn names_shared_by_many_symbols_cannot_multiply() {
    let modest = cubin_with_one_name(3, 10);
    let kernels = Image::parse(&modest).unwrap().entries()[0]
        .kernels()
        .unwrap();
    assert_eq!(kernels.len(), 3);
    assert_eq!(kernels[0].name, "k".repeat(10));

    let hostile = cubin_with_one_name(10_000, 200_000);
    let error = Image::parse(&hostile).unwrap().entries()[0]
        .kernels()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                what: "total size of names and attributes",
                ..
            }
        ),
        "{error:?}"
    );
    let error = Image::parse(&cubin_with_one_name(1, 2 << 20))
        .unwrap()
        .entries()[0]
        .kernels()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                what: "symbol name size",
                ..
            }
        ),
        "{error:?}"
    );
}

/// Xorshift: equal mutations in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[test]
fn mutated_images_never_panic() {
    const ROUNDS_EACH: usize = 1500;
    const VALUES: [u8; 8] = [0, 1, 0x10, 0x3f, 0x7f, 0x80, 0xfe, 0xff];
    let mut random = Random(0x0b0a_4d00_1337_0001);
    let mut survived = 0;
    for seed in SEEDS {
        for _ in 0..ROUNDS_EACH {
            let mut data = seed.to_vec();
            for _ in 0..1 + random.below(6) {
                let at = random.below(data.len());
                match random.below(5) {
                    0 => data[at] = random.next() as u8,
                    1 => data[at] = VALUES[random.below(VALUES.len())],
                    2 => data[at] ^= 1 << random.below(8),
                    3 => {
                        let from = random.below(data.len());
                        let len = random.below(64).min(data.len() - at.max(from));
                        data.copy_within(from..from + len, at);
                    }
                    // Headers are the most sensitive part.
                    _ => {
                        let at = random.below(data.len().min(128));
                        data[at] = VALUES[random.below(VALUES.len())];
                    }
                }
            }
            if random.below(8) == 0 {
                data.truncate(random.below(data.len()));
            }
            survived += usize::from(Image::parse(&data).is_ok());
            fuzz::image(&data);
            fuzz::fatbin(&data);
            fuzz::cubin(&data);
            fuzz::ptx(&data);
        }
    }
    // If nearly all mutations were refused at once, the code after the first check would not be
    // tested.
    assert!(survived > SEEDS.len() * ROUNDS_EACH / 10, "{survived}");
}
