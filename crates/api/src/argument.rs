//! Pointer arguments of C calls, as types that carry the caller's promise.
//!
//! A generated entry point makes them, in its one `unsafe` block: there C's caller has promised
//! that each pointer is NULL or as the manual says. The functions that serve the calls then read
//! and write through them without `unsafe`, and cannot forget that a pointer may be NULL.

use std::{
    ffi::{CStr, c_char, c_void},
    marker::PhantomData,
};

use crate::CUresult;

/// The result of a call that refuses a NULL pointer.
pub trait RefusesNull {
    const NULL_ARGUMENT: Self;
}

impl RefusesNull for CUresult {
    const NULL_ARGUMENT: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
}

/// A parameter of the function that serves a call. Its type says what the caller of C promises of
/// the argument of type `C`.
pub trait Argument<C> {
    /// # Safety
    /// The argument must be as the type says, until the call returns.
    unsafe fn from_c(argument: C) -> Self;
}

/// Numbers, handles, and pointers whose promise the type does not say.
impl<C> Argument<C> for C {
    #[inline(always)]
    unsafe fn from_c(argument: C) -> C {
        argument
    }
}

macro_rules! pointers {
    ($($(#[$doc:meta])* $name:ident: $pointer:ty;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            pub struct $name<'c, T, E> {
                pointer: $pointer,
                call: PhantomData<(&'c T, E)>,
            }

            impl<T, E> Clone for $name<'_, T, E> {
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<T, E> Copy for $name<'_, T, E> {}

            impl<T, E> Argument<$pointer> for $name<'_, T, E> {
                #[inline(always)]
                unsafe fn from_c(pointer: $pointer) -> Self {
                    Self { pointer, call: PhantomData }
                }
            }

            impl<T, E: RefusesNull> $name<'_, T, E> {
                #[inline(always)]
                pub fn is_null(self) -> bool {
                    self.pointer.is_null()
                }

                /// Refuses NULL.
                #[inline(always)]
                pub fn check(self) -> Result<(), E> {
                    match self.is_null() {
                        true => Err(E::NULL_ARGUMENT),
                        false => Ok(()),
                    }
                }
            }
        )*
    };
}

pointers! {
    /// An output: NULL, or memory that is valid for the write of a `T`, aligned or not.
    Out: *mut T;
    /// An output that the call reads first: NULL, or a `T` that may be written, aligned or not.
    InOut: *mut T;
    /// A record: NULL, or a `T`, aligned or not.
    In: *const T;
}

impl<'c, T, E: RefusesNull> Out<'c, T, E> {
    /// Borrows a variable of ours for a call that we make ourselves.
    pub fn of(variable: &'c mut T) -> Self {
        Out {
            pointer: variable,
            call: PhantomData,
        }
    }

    /// Returns NULL, for an output that a shorter form of a call does not have.
    pub fn none() -> Self {
        Out {
            pointer: std::ptr::null_mut(),
            call: PhantomData,
        }
    }

    /// Writes the answer; refuses NULL.
    #[inline(always)]
    pub fn put(self, value: T) -> Result<(), E> {
        self.check()?;
        // SAFETY: not NULL, so by `from_c`'s contract or `of`'s borrow it is valid for a write.
        unsafe { self.pointer.write_unaligned(value) };
        Ok(())
    }

    /// Writes the answer if the caller wants it.
    #[inline(always)]
    pub fn put_optional(self, value: T) {
        if !self.is_null() {
            // SAFETY: not NULL, so by `from_c`'s contract or `of`'s borrow it is valid for a write.
            unsafe { self.pointer.write_unaligned(value) };
        }
    }
}

impl<'c, T: Copy, E: RefusesNull> InOut<'c, T, E> {
    /// Borrows a variable of ours for a call that we make ourselves.
    pub fn of(variable: &'c mut T) -> Self {
        InOut {
            pointer: variable,
            call: PhantomData,
        }
    }

    /// Reads the value; refuses NULL.
    #[inline(always)]
    pub fn get(self) -> Result<T, E> {
        self.check()?;
        // SAFETY: not NULL, so by `from_c`'s contract or `of`'s borrow it is a `T`.
        Ok(unsafe { self.pointer.read_unaligned() })
    }

    /// Writes the answer; refuses NULL.
    #[inline(always)]
    pub fn put(self, value: T) -> Result<(), E> {
        self.check()?;
        // SAFETY: not NULL, so by `from_c`'s contract or `of`'s borrow it is valid for a write.
        unsafe { self.pointer.write_unaligned(value) };
        Ok(())
    }
}

impl<T: Copy, E: RefusesNull> In<'_, T, E> {
    /// Copies the record; refuses NULL.
    #[inline(always)]
    pub fn get(self) -> Result<T, E> {
        self.get_optional().ok_or(E::NULL_ARGUMENT)
    }

    /// Copies the record, if there is one.
    #[inline(always)]
    pub fn get_optional(self) -> Option<T> {
        match self.is_null() {
            true => None,
            // SAFETY: not NULL, so by `from_c`'s contract it is a `T`.
            false => Some(unsafe { self.pointer.read_unaligned() }),
        }
    }
}

impl<T, E> Argument<*mut T> for In<'_, T, E> {
    #[inline(always)]
    unsafe fn from_c(pointer: *mut T) -> Self {
        In {
            pointer,
            call: PhantomData,
        }
    }
}

/// A pointer that C declares without a type, to what `P` says.
pub struct Untyped<P>(pub P);

macro_rules! untyped {
    ($($untyped:ty: $name:ident;)*) => {
        $(
            impl<T, E> Argument<$untyped> for Untyped<$name<'_, T, E>> {
                #[inline(always)]
                unsafe fn from_c(pointer: $untyped) -> Self {
                    // SAFETY: the pointer is as `from_c`'s contract says of `P`.
                    Untyped(unsafe { $name::from_c(pointer.cast::<T>()) })
                }
            }
        )*
    };
}

untyped! {
    *mut c_void: Out;
    *mut c_void: InOut;
    *mut c_void: In;
    *const c_void: In;
}

/// A text: NULL, or a C string that stays unchanged until the call returns.
#[repr(transparent)]
pub struct Text<'c, E> {
    pointer: *const c_char,
    call: PhantomData<&'c E>,
}

impl<E> Clone for Text<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Text<'_, E> {}

impl<E> Argument<*const c_char> for Text<'_, E> {
    #[inline(always)]
    unsafe fn from_c(pointer: *const c_char) -> Self {
        Text {
            pointer,
            call: PhantomData,
        }
    }
}

impl<'c, E: RefusesNull> Text<'c, E> {
    /// Returns the text; refuses NULL.
    pub fn get(self) -> Result<&'c CStr, E> {
        self.get_optional().ok_or(E::NULL_ARGUMENT)
    }

    /// Returns the text, if there is one.
    pub fn get_optional(self) -> Option<&'c CStr> {
        match self.pointer.is_null() {
            true => None,
            // SAFETY: not NULL, so by `from_c`'s contract it ends with a NUL and does not change.
            false => Some(unsafe { CStr::from_ptr(self.pointer) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_and_the_rest_is_used() {
        const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
        let null = std::ptr::null_mut::<u32>();
        let mut words = [7u32; 2];
        // An address that is not aligned for a word.
        let odd = words.as_mut_ptr().wrapping_byte_add(1);
        // SAFETY: NULL, or four bytes of `words`.
        let (none, out): (Out<'_, u32, CUresult>, Out<'_, u32, CUresult>) =
            unsafe { (Out::from_c(null), Out::from_c(odd)) };
        // SAFETY: NULL, or four bytes of `words`; any bytes are a word.
        let (nothing, record): (In<'_, u32, CUresult>, In<'_, u32, CUresult>) =
            unsafe { (In::from_c(null), In::from_c(odd)) };
        // SAFETY: NULL, or four bytes of `words`; any bytes are a word.
        let both: InOut<'_, u32, CUresult> = unsafe { InOut::from_c(odd) };
        // SAFETY: NULL, or a literal with its NUL.
        let (no_text, text): (Text<'_, CUresult>, Text<'_, CUresult>) = unsafe {
            (
                Text::from_c(std::ptr::null()),
                Text::from_c(c"abc".as_ptr()),
            )
        };

        assert_eq!((none.check(), none.put(1)), (Err(INVALID), Err(INVALID)));
        none.put_optional(1);
        assert_eq!(
            (nothing.get(), nothing.get_optional()),
            (Err(INVALID), None)
        );
        assert_eq!(
            (no_text.get(), no_text.get_optional()),
            (Err(INVALID), None)
        );

        assert_eq!(out.put(9), Ok(()));
        assert_eq!((record.get(), both.get()), (Ok(9), Ok(9)));
        assert_eq!(both.put(10), Ok(()));
        assert_eq!(record.get_optional(), Some(10));
        assert_eq!(text.get(), Ok(c"abc"));

        let mut local = 0;
        assert_eq!(Out::<u32, CUresult>::of(&mut local).put(3), Ok(()));
        assert_eq!(local, 3);
    }
}
