//! The floating-point control word of a thread (MXCSR on x86-64; elsewhere the default is taken
//! for granted, and these are no-ops).

use std::marker::PhantomData;

#[cfg(test)]
pub(super) use register::{CONTROL, DEFAULT, read, write};

/// While it lives, this thread computes with the default floating-point control word: round to
/// nearest, denormals kept, exceptions masked. The word found is put back at the end. A thread that
/// already has the default pays for one read.
pub struct FpGuard {
    restore: Option<u32>,
    /// The control word belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl FpGuard {
    #[inline]
    pub fn new() -> FpGuard {
        FpGuard { restore: FpGuard::set_default(), _not_send: PhantomData }
    }

    /// Sets the default word; gives back the old one if it differed.
    #[inline]
    pub(super) fn set_default() -> Option<u32> {
        let found = register::read();
        if found & register::CONTROL == register::DEFAULT {
            return None;
        }
        register::write(register::DEFAULT);
        Some(found)
    }
}

impl Default for FpGuard {
    fn default() -> FpGuard {
        FpGuard::new()
    }
}

impl Drop for FpGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.restore {
            register::write(word);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(in super::super) const DEFAULT: u32 = 0x1F80;
    /// All but the sticky exception flags, which say what happened, not what to do.
    pub(in super::super) const CONTROL: u32 = 0xFFC0;

    #[inline]
    pub(in super::super) fn read() -> u32 {
        let mut word = 0u32;
        // SAFETY: stores MXCSR into a local of its size; no flags or other memory are changed.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(in super::super) fn write(word: u32) {
        // SAFETY: `word` is the default or was read from MXCSR, so it has no reserved bit set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, readonly, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod register {
    pub(in super::super) const DEFAULT: u32 = 0;
    pub(in super::super) const CONTROL: u32 = 0;

    #[inline]
    pub(in super::super) fn read() -> u32 {
        0
    }

    #[inline]
    pub(in super::super) fn write(_word: u32) {}
}
