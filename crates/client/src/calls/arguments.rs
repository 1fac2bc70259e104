//! Arguments of a launch, in the program's memory: gathered by the kernel's parameter table, packed
//! straight into the message, and looked through for host memory that the server has no copy of.

use std::ffi::c_void;

use outboard_api::CUresult;
use outboard_wire::{Content, EncodeError, Room, Writer};
use smallvec::SmallVec;

use crate::{
    observe::conditions,
    state::{Kernel, PARAM_BYTES_MAX, PrivateBounds},
};

/// Longest parameter buffer kept on the stack, in bytes.
const SMALL_BYTES: usize = 512;

/// `CU_LAUNCH_PARAM_*`, the keys of the `extra` array.
const EXTRA_END: usize = 0;
pub(super) const EXTRA_BUFFER_POINTER: usize = 1;
pub(super) const EXTRA_BUFFER_SIZE: usize = 2;

/// Packed arguments of a launch.
type Params = SmallVec<[u8; SMALL_BYTES]>;

/// The arguments of a launch in the program's memory, which are packed straight into the message.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'k> {
    pub(super) kernel: &'k Kernel,
    given: Given,
}

/// Arguments that cannot be packed if one of them may be an address within `refused`.
#[derive(Clone, Copy)]
pub(super) struct Watched<'k> {
    kernel: &'k Kernel,
    first: *const *const u8,
    refused: PrivateBounds,
}

#[derive(Clone, Copy)]
enum Given {
    /// `kernelParams`: a pointer to each argument.
    Each(*const *const u8),
    /// `extra`: a packed buffer of this length, at most the kernel's.
    Packed(*const u8, usize),
}

impl<'k> Arguments<'k> {
    /// Takes the arguments of a launch from `kernelParams` or `extra`.
    ///
    /// # Safety
    /// `params` must be NULL or have a pointer for each parameter of the kernel, each to an
    /// argument of the parameter's size. `extra` must be NULL or pairs of key and value up to the
    /// end key. Both must stay so for as long as the result is used.
    #[inline(always)]
    pub(crate) unsafe fn new(
        kernel: &'k Kernel,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self, CUresult> {
        let given = match (params.is_null(), extra.is_null()) {
            (_, true) if !params.is_null() || kernel.params.is_empty() => {
                Given::Each(params.cast_const().cast())
            }
            // SAFETY: pairs of keys and values, as this function's contract says.
            (true, false) => unsafe { packed(kernel, extra)? },
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        Ok(Arguments { kernel, given })
    }

    /// Packs the arguments into memory of this process.
    pub(crate) fn gather(&self) -> Result<Params, CUresult> {
        let mut params = Params::from_elem(0, self.len());
        match self.put(&mut Writer::new(&mut params)) {
            Ok(()) => Ok(params),
            Err(_) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Returns the arguments as content that is looked at while it is packed; `None` if they have
    /// to be looked at before.
    #[inline(always)]
    pub(super) fn watched(self, refused: PrivateBounds) -> Option<Watched<'k>> {
        // A message that could not be packed would be recorded, or timed, twice.
        let is_packed_once = conditions::is_unusual();
        match self.given {
            Given::Each(first) if self.kernel.has_plain_words && !is_packed_once => Some(Watched {
                kernel: self.kernel,
                first,
                refused,
            }),
            _ => None,
        }
    }

    /// Returns whether the arguments may name an address within `bounds`.
    #[inline(never)]
    pub(super) fn may_name(&self, bounds: PrivateBounds) -> bool {
        match self.given {
            // SAFETY: one pointer for each parameter, each NULL or to an argument of the
            // parameter's size, as the contract of `new` says.
            Given::Each(first) => unsafe { any_may_name(&self.kernel.params, first, bounds) },
            Given::Packed(..) => true,
        }
    }
}

/// Packs the arguments to which `next` points into `room`. With `LOOK` an argument of eight bytes
/// that may be an address within `refused` is an error.
///
/// # Safety
/// `next` must have a pointer for each of `params`, which are offsets and sizes, each NULL or to an
/// argument of that size. `room` must be writable up to the end of each parameter.
#[inline(always)]
unsafe fn pack<const LOOK: bool>(
    params: &[(u32, u32)],
    mut next: *const *const u8,
    room: *mut u8,
    refused: PrivateBounds,
) -> Result<(), EncodeError> {
    for &(offset, size) in params {
        // SAFETY: by this function's contract.
        unsafe {
            let argument = *next;
            next = next.add(1);
            if argument.is_null() {
                return Err(EncodeError::NoContent);
            }
            let room = room.add(offset as usize);
            match size {
                8 => {
                    let bytes = argument.cast::<[u8; 8]>().read();
                    if LOOK && refused.may_contain(u64::from_ne_bytes(bytes)) {
                        return Err(EncodeError::NoContent);
                    }
                    room.cast::<[u8; 8]>().write(bytes);
                }
                4 => room
                    .cast::<[u8; 4]>()
                    .write(argument.cast::<[u8; 4]>().read()),
                _ => room.copy_from_nonoverlapping(argument, size as usize),
            }
        }
    }
    Ok(())
}

/// Returns whether an aligned word of the packed arguments may be an address within `bounds`, and
/// true if only packing can tell. Two arguments of four bytes may be one word; shorter ones are
/// not joined.
///
/// # Safety
/// `next` must have a pointer for each of `params`, which are offsets and sizes, and each pointer
/// must be NULL or have as many bytes as that size.
#[inline(always)]
unsafe fn any_may_name(
    params: &[(u32, u32)],
    mut next: *const *const u8,
    bounds: PrivateBounds,
) -> bool {
    let (mut low, mut low_end) = (0, 0);
    for &(offset, size) in params {
        let (mut at, end) = (offset, offset + size);
        // SAFETY: one pointer for each parameter.
        let mut argument = unsafe { *next };
        // SAFETY: a parameter was left, so this is at most one past the last.
        next = unsafe { next.add(1) };
        if argument.is_null() || size > 4 && !at.is_multiple_of(4) {
            return true;
        }
        // Most arguments are pointers.
        if at.is_multiple_of(8) && size == 8 {
            // SAFETY: the argument has this size.
            if bounds.may_contain(unsafe { argument.cast::<u64>().read_unaligned() }) {
                return true;
            }
            continue;
        }
        // SAFETY: the argument has `end - at` bytes left, of which each step reads at most those.
        unsafe {
            if size >= 4 && !at.is_multiple_of(8) {
                let high = u64::from(argument.cast::<u32>().read_unaligned());
                if low_end == at && bounds.may_contain(high << 32 | low) {
                    return true;
                }
                (argument, at) = (argument.add(4), at + 4);
            }
            while end - at >= 8 {
                if bounds.may_contain(argument.cast::<u64>().read_unaligned()) {
                    return true;
                }
                (argument, at) = (argument.add(8), at + 8);
            }
            if end - at >= 4 {
                low = u64::from(argument.cast::<u32>().read_unaligned());
                low_end = at + 4;
            }
        }
    }
    false
}

impl Content for Arguments<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.kernel.param_bytes as usize
    }

    #[inline(always)]
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let room = room.take(self.len())?;
        let first = match self.given {
            Given::Each(first) => first,
            Given::Packed(buffer, len) => {
                // A buffer may end before the parameters do, as NCCL's do: the kernel must not use
                // the rest.
                // SAFETY: the room has the length of all parameters, and `len` is at most that; the
                // program's buffer has `len` bytes.
                unsafe {
                    room.write_bytes(0, self.len());
                    room.copy_from_nonoverlapping(buffer, len);
                }
                return Ok(());
            }
        };
        // SAFETY: the arguments suit the kernel's parameters, as the contract of `new` says, and
        // the room is as long as they are.
        unsafe { pack_whole::<false>(self.kernel, first, room, PrivateBounds::NONE) }
    }
}

impl Content for Watched<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.kernel.param_bytes as usize
    }

    #[inline(always)]
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let room = room.take(self.len())?;
        // SAFETY: the arguments suit the kernel's parameters, as the contract of `Arguments::new`
        // says, and the room is as long as they are.
        unsafe { pack_whole::<true>(self.kernel, self.first, room, self.refused) }
    }
}

/// Packs all arguments of a kernel into `room`, whose length is theirs; see [`pack`].
///
/// # Safety
/// As for [`pack`].
#[inline(always)]
unsafe fn pack_whole<const LOOK: bool>(
    kernel: &Kernel,
    first: *const *const u8,
    room: *mut u8,
    refused: PrivateBounds,
) -> Result<(), EncodeError> {
    // SAFETY: by this function's contract.
    unsafe {
        if kernel.has_gaps {
            room.write_bytes(0, kernel.param_bytes as usize);
        }
        pack::<LOOK>(&kernel.params, first, room, refused)
    }
}

/// Reads the `extra` array of a launch.
///
/// # Safety
/// It has pairs of keys and values, up to the end key.
#[cold]
unsafe fn packed(kernel: &Kernel, extra: *mut *mut c_void) -> Result<Given, CUresult> {
    const KEYS_MAX: usize = 8;
    let (mut buffer, mut len) = (std::ptr::null::<u8>(), None);
    let mut ended = false;
    for pair in 0..KEYS_MAX {
        // SAFETY: the end key has not come, so there is another pair.
        let key = unsafe { *extra.add(2 * pair) } as usize;
        if key == EXTRA_END {
            ended = true;
            break;
        }
        // SAFETY: a key other than the end has a value after it.
        let value = unsafe { *extra.add(2 * pair + 1) };
        match key {
            EXTRA_BUFFER_POINTER => buffer = value.cast(),
            EXTRA_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: a pointer to a size, as this key asks.
                len = Some(unsafe { *value.cast::<usize>() })
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    match len {
        Some(len) if ended && len <= PARAM_BYTES_MAX && (len == 0 || !buffer.is_null()) => {
            Ok(Given::Packed(buffer, len.min(kernel.param_bytes as usize)))
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::has_plain_words;

    /// Packs arguments of these sizes, each at its offset, and lists the aligned words.
    fn words_of(params: &[(u32, u32)], arguments: &[Vec<u8>]) -> Vec<u64> {
        let end = params.iter().map(|(offset, size)| offset + size).max();
        let mut packed = vec![0; end.unwrap_or(0) as usize];
        for ((offset, size), argument) in params.iter().zip(arguments) {
            packed[*offset as usize..(offset + size) as usize].copy_from_slice(argument);
        }
        let words = packed.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Parameters as a compiler lays them out, whose alignments are at least four.
    fn some_params(random: &mut impl FnMut(u32) -> u32) -> Vec<(u32, u32)> {
        let mut at = 0u32;
        let sizes = [4, 4, 8, 8, 12, 16, 20, 24, 36, 40];
        // A third of kernels take pointers and numbers alone.
        let kinds = if random(3) == 0 { 4 } else { sizes.len() };
        let param = |_| {
            let size = sizes[random(kinds as u32) as usize];
            let align = if size % 8 == 0 && random(4) > 0 { 8 } else { 4 };
            let offset = at.next_multiple_of(align);
            at = offset + size;
            (offset, size)
        };
        (0..6).map(param).collect()
    }

    #[test]
    fn arguments_are_looked_at_as_if_they_were_packed() {
        let mut seed = 1u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) as u32) % below
        };
        let bounds = PrivateBounds::of(0x3800_0000_0000, 0x10_0000);
        let (mut named, mut unnamed, mut refused, mut packed_whole) = (0, 0, 0, 0);
        for _ in 0..20_000 {
            let params = some_params(&mut random);
            let mut argument = |size: u32| (0..size).map(|_| random(256) as u8).collect();
            let mut arguments: Vec<Vec<u8>> = params.iter().map(|p| argument(p.1)).collect();
            if random(2) == 0 {
                put_address(&params, &mut arguments, &mut random);
            }
            let pointers: Vec<_> = arguments.iter().map(|a| a.as_ptr()).collect();
            let expected = words_of(&params, &arguments)
                .iter()
                .any(|word| bounds.may_contain(*word));
            // SAFETY: a pointer for each parameter, each to an argument of its size.
            let found = unsafe { any_may_name(&params, pointers.as_ptr(), bounds) };
            assert_eq!(found, expected, "{params:?}");
            *(if found { &mut named } else { &mut unnamed }) += 1;
            let end = params.iter().map(|(offset, size)| offset + size).max();
            let mut room = vec![0; end.unwrap_or(0) as usize];
            if has_plain_words(&params, room.len() as u32) {
                // SAFETY: a pointer for each parameter, each to an argument of its size, and
                // room for all of them.
                let packed =
                    unsafe { pack::<true>(&params, pointers.as_ptr(), room.as_mut_ptr(), bounds) };
                assert_eq!(packed.is_err(), expected, "{params:?}");
                *(if found {
                    &mut refused
                } else {
                    &mut packed_whole
                }) += 1;
            }
        }
        assert!(named > 5_000 && unnamed > 5_000, "{named} {unnamed}");
        assert!(
            refused > 100 && packed_whole > 100,
            "{refused} {packed_whole}"
        );
    }

    /// Writes an address within the bounds at a random word, which may be parts of two arguments.
    fn put_address(
        params: &[(u32, u32)],
        arguments: &mut [Vec<u8>],
        random: &mut impl FnMut(u32) -> u32,
    ) {
        let end = params.iter().map(|(offset, size)| offset + size).max();
        let word = random(end.unwrap_or(8) / 8) * 8;
        let address = (0x3800_0000_0000 + u64::from(random(0x10_0000))).to_le_bytes();
        for ((offset, size), argument) in params.iter().zip(arguments) {
            for (at, byte) in (word..).zip(address) {
                if (*offset..offset + size).contains(&at) {
                    argument[(at - offset) as usize] = byte;
                }
            }
        }
    }

    #[test]
    fn a_missing_argument_is_left_to_packing() {
        let bounds = PrivateBounds::of(0x3800_0000_0000, 0x1000);
        let value = 1u64;
        let pointers = [(&raw const value).cast::<u8>(), std::ptr::null()];
        // SAFETY: a pointer for each parameter, or NULL.
        assert!(unsafe { any_may_name(&[(0, 8), (8, 8)], pointers.as_ptr(), bounds) });
    }
}
