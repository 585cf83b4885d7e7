//! Code of compiled plans is unmapped with them. A process of its own, since the count is the process's.
#![cfg(all(target_arch = "x86_64", unix))]

use stepgraph::backend::dispatch::{Mode, Rehearsal, arena::bytes_in_use};
use stepgraph::base::{DType, Layout, Shape, Type};
use stepgraph::plan::{Plan, PlanInput};

#[test]
fn code_is_freed_with_its_plan() {
    let ty = Type::new(DType::F32, Shape::new(&[2, 3]).unwrap());
    let input = PlanInput { ty, layout: Layout::contiguous(ty.shape), bytes: ty.bytes(), var: false };
    let plan = Plan { name: "guards".into(), inputs: vec![input; 100], ..Plan::default() };
    let compile = || Rehearsal::new(&plan, Mode::Compiled).unwrap();
    assert_eq!(bytes_in_use(), 0);
    let one = compile();
    let each = bytes_in_use();
    assert!(one.dispatcher().is_compiled() && each >= 4096);
    let many: Vec<Rehearsal> = (0..50).map(|_| compile()).collect();
    assert_eq!(bytes_in_use(), 51 * each);
    drop(many);
    assert_eq!(bytes_in_use(), each);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| drop(compile())));
        }
    });
    drop(one);
    assert_eq!(bytes_in_use(), 0);
}
