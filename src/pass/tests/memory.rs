//! Where values lie.

use super::*;
use crate::pass::tests::run::check;

#[test]
fn a_chain_of_steps_uses_two_buffers() {
    let mut m = Make::new();
    let mut v = m.x(&[16, 16]);
    for _ in 0..10 {
        v = m.matmul(v, v);
    }
    m.out(v);
    let c = compiled(&m.g);
    assert_eq!(c.plan.plan().arena_bytes, 2 * 16 * 16 * 4);
    check(&m.g, &[], 1);
}

#[test]
fn kernels_overwrite_what_dies() {
    // matmul -> exp between two matmuls: the exp takes over the product's memory.
    let mut m = Make::new();
    let x = m.x(&[16, 16]);
    let p = m.matmul(x, x);
    let e = m.row("exp", &[p]);
    let q = m.matmul(e, x);
    m.out(q);
    assert_eq!(compiled(&m.g).plan.plan().arena_bytes, 16 * 16 * 4);
    check(&m.g, &[], 2);
}

#[test]
fn a_var_is_overwritten_after_its_last_reader() {
    let mut m = Make::new();
    let (w, x) = (m.var(&[8, 8], 0), m.x(&[8, 8]));
    let y = m.matmul(x, w);
    let new = m.row("sub", &[w, y]);
    let wt = m.permute(&[1, 0], w);
    let z = m.matmul(y, wt);
    m.out(new);
    m.out(z);
    let c = compiled(&m.g);
    let plan = c.plan.plan();
    assert_eq!(plan.outputs[0].in_place, Some(0));
    check(&m.g, &[], 3);
}

#[test]
fn a_var_read_elsewhere_than_written_is_not_overwritten() {
    let mut m = Make::new();
    let w = m.var(&[8, 8], 0);
    let wt = m.permute(&[1, 0], w);
    let new = m.row("add", &[w, wt]);
    m.out(new);
    assert_eq!(compiled(&m.g).plan.plan().outputs[0].in_place, None);
    check(&m.g, &[], 4);
    // Nor one whose old value is an output too.
    let mut m = Make::new();
    let w = m.var(&[8, 8], 0);
    let new = m.with("add", w, 1.0);
    m.out(new);
    m.out(w);
    assert_eq!(compiled(&m.g).plan.plan().outputs[0].in_place, None);
    check(&m.g, &[], 5);
}

#[test]
fn a_var_that_a_later_step_needs_is_not_overwritten() {
    // The new value is needed to compute what reads the old one.
    let mut m = Make::new();
    let w = m.var(&[8, 8], 0);
    let new = m.with("add", w, 1.0);
    let p = m.matmul(new, w);
    m.out(new);
    m.out(p);
    assert_eq!(compiled(&m.g).plan.plan().outputs[0].in_place, None);
    check(&m.g, &[], 6);
}
