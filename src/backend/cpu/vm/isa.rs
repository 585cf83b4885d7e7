//! Instruction sets and how one is chosen.

use std::sync::OnceLock;

use crate::backend::cpu::vm::code::{self, Machine};
use crate::base::config::config;

/// An instruction set that kernels are precompiled for. All give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isa {
    /// AVX-512 F, DQ, BW and VL.
    Avx512,
    /// AVX2 with FMA and F16C (as every CPU with AVX2 has).
    Avx2,
    /// Plain Rust: right on every target.
    Portable,
}

impl Isa {
    pub const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Portable];

    /// The best one this CPU has, or the one `STEPGRAPH_ISA` names if the CPU has it.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let available = || Isa::ALL.into_iter().filter(|isa| isa.available());
            let best = available().next().unwrap_or(Isa::Portable);
            let Some(name) = &config().isa else { return best };
            available().find(|isa| isa.name() == name).unwrap_or_else(|| {
                tracing::warn!(isa = %name, using = best.name(), "STEPGRAPH_ISA is unknown or not available here");
                best
            })
        })
    }

    /// Whether this CPU has it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }

    /// As `STEPGRAPH_ISA` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// Its executors.
    pub(super) fn machine(self) -> Machine {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => code::avx512::MACHINE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => code::avx2::MACHINE,
            #[allow(unreachable_patterns)]
            _ => code::portable::MACHINE,
        }
    }
}
