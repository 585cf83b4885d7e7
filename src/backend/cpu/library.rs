//! The steps of a plan as calls of the dispatcher.

use std::sync::Arc;

use crate::backend::cpu::threads::Pool;
use crate::backend::cpu::vm::Isa;
use crate::backend::cpu::{matmul, vm};
use crate::backend::dispatch::Call;
use crate::base::Result;
use crate::kernel::library::Library;
use crate::plan::StepKind;
use crate::plan::check::Checked;

/// One call per step.
pub(super) fn calls(plan: &Checked, isa: Isa, pool: &Arc<Pool>) -> Result<Vec<Call>> {
    let call = |(i, kind): (usize, &StepKind)| match kind {
        StepKind::Kernel(_) => vm::kernel(plan, i, isa, pool),
        StepKind::Library(Library::Matmul(_)) => matmul::matmul(plan, i, for_matmul(isa), pool),
        StepKind::Library(Library::ScatterAdd(_)) => vm::scatter_add(plan, i),
        StepKind::Library(Library::ScatterIndex(_)) => vm::scatter_index(plan, i),
        StepKind::Library(Library::Scan(_)) => vm::scan(plan, i, pool),
        StepKind::Library(Library::Argsort(_)) => vm::argsort(plan, i, pool),
        StepKind::Library(Library::Custom(_)) => vm::custom(plan, i),
    };
    plan.plan().steps.iter().map(|s| &s.kind).enumerate().map(call).collect()
}

fn for_matmul(isa: Isa) -> matmul::Isa {
    match isa {
        Isa::Avx512 => matmul::Isa::Avx512,
        Isa::Avx2 => matmul::Isa::Avx2,
        Isa::Portable => matmul::Isa::Portable,
    }
}
