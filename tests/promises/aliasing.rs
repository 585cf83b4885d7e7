//! Which values are the same one is part of the path: aliases appear and disappear.

use stepgraph::{Device, Tensor, Var};

use crate::harness::{Expect, compare, filled, vector};

/// Two arguments are sometimes one tensor.
pub fn arguments_become_aliases(device: &Device) {
    let same = [false, false, true, false, true, true, false];
    let log = compare(
        device,
        &Expect::steady(7).launches(&[0, 1, 0, 1, 1, 1, 1]).compiles(2),
        || Ok((vector(&[1.0; 3], device), vector(&[1.0; 3], device))),
        |s, k| {
            s.0 = vector(&[k as f32, 1.0, 2.0], device);
            s.1 = if same[k] { s.0.clone() } else { vector(&[10.0, 20.0, 30.0], device) };
            Ok(())
        },
        |(a, b), _, seen| {
            let tripled = (&*a * 3.0)?;
            seen.keep(&(&tripled + &*b)?);
            Ok(())
        },
        |_| vec![],
    );
    for (k, same) in same.into_iter().enumerate() {
        let a = k as f32;
        assert_eq!(log.f32(k, 0)[0], 3.0 * a + if same { a } else { 10.0 });
    }
}

/// Traced first with the same tensor twice, then called with two.
pub fn aliases_disappear(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).launches(&[0, 1, 0, 1, 1, 1]).compiles(2),
        || Ok((vector(&[1.0], device), vector(&[5.0], device))),
        |_, _| Ok(()),
        |(x, z), k, seen| {
            let other = if k < 2 || k == 4 { &*x } else { &*z };
            seen.keep(&((&*x * 2.0)? - other)?);
            Ok(())
        },
        |_| vec![],
    );
    assert_eq!(log.firsts(0), [1.0, 1.0, -3.0, -3.0, 1.0, -3.0]);
}

/// A snapshot taken outside is an operand before the `Var` is read: the same value until somebody writes.
pub fn a_snapshot_is_an_operand_before_the_var_is_read(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((Var::state(&vector(&[1.0, 2.0], device))?, vector(&[0.0; 2], device))),
        |s, k| {
            if k % 3 != 2 {
                s.1 = s.0.get();
            }
            Ok(())
        },
        |(w, snapshot), _, seen| {
            let y = (&*snapshot * 10.0)?;
            w.set(&(&w.get() + &y)?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    let (mut w, mut snapshot) = (1.0f32, 0.0f32);
    for k in 0..8 {
        if k % 3 != 2 {
            snapshot = w;
        }
        w += snapshot * 10.0;
        assert_eq!(log.f32(k, 1)[0], w, "call {}", k + 1);
    }
}

/// The reverse: the `Var` is read first, then its snapshot is an operand.
pub fn a_snapshot_is_an_operand_after_the_var_is_read(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((Var::state(&vector(&[1.0, 2.0], device))?, vector(&[0.5; 2], device))),
        |s, k| {
            if k % 3 == 1 {
                s.1 = s.0.get();
            }
            Ok(())
        },
        |(w, snapshot), _, seen| {
            let v = w.get();
            let y = (&v - &*snapshot)?;
            w.set(&(&v + 1.0)?)?;
            seen.keep(&y);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
}

/// A gradient through a `Var` whose snapshot was an operand first: the leaf is the `Var`'s.
pub fn gradients_through_an_alias(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6),
        || Ok((Var::new(&vector(&[3.0], device))?, vector(&[0.0], device))),
        |s, _| {
            s.1 = s.0.get();
            Ok(())
        },
        |(w, snapshot), _, seen| {
            let y = (&*snapshot * 2.0)?;
            let loss = (&y * &w.get())?.sum(())?;
            let g = loss.backward()?.get(w).expect("a gradient");
            w.set(&(w.get() - (&g * 0.125))?)?;
            seen.keep(&g);
            Ok(())
        },
        |s| vec![s.0.clone()],
    );
    // d(2w²)/dw = 4w; w ← w - w/2.
    assert_eq!(log.firsts(0), [12.0, 6.0, 3.0, 1.5, 0.75, 0.375]);
}

/// Two `Var`s given the same tensor are two values, and so are their gradients.
pub fn two_vars_of_one_tensor(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(6).frozen(),
        || {
            let start = vector(&[1.0, 1.0], device);
            Ok((Var::new(&start)?, Var::new(&start)?))
        },
        |_, _| Ok(()),
        |(a, b), _, _| {
            let loss = (&a.get() * &(b.get() * 2.0)?)?.sum(())?;
            let g = loss.backward()?;
            a.set(&(a.get() - (g.get(a).expect("a gradient") * 0.25))?)?;
            b.set(&(b.get() - (g.get(b).expect("a gradient") * 0.5))?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    let (mut a, mut b) = (1.0f32, 1.0f32);
    for k in 0..6 {
        (a, b) = (a - 0.5 * b, b - a);
        assert_eq!((log.f32(k, 0)[0], log.f32(k, 1)[0]), (a, b), "call {}", k + 1);
    }
}

/// One `Var` reached under two names is one `Var`; later it is two.
pub fn one_var_under_two_names(device: &Device) {
    let log = compare(
        device,
        &Expect::steady(8).launches(&[0, 1, 0, 1, 1, 1, 1, 1]).compiles(2),
        || Ok((Var::new(&vector(&[1.0], device))?, Var::new(&vector(&[100.0], device))?)),
        |_, _| Ok(()),
        |(a, b), k, _| {
            let second = if k < 2 || k == 5 { &*a } else { &*b };
            a.set(&(a.get() + 1.0)?)?;
            second.set(&(second.get() * 2.0)?)
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
    let (mut a, mut b) = (1.0f32, 100.0f32);
    for k in 0..8 {
        a += 1.0;
        if k < 2 || k == 5 {
            a *= 2.0;
        } else {
            b *= 2.0;
        }
        assert_eq!((log.f32(k, 0)[0], log.f32(k, 1)[0]), (a, b), "call {}", k + 1);
    }
}

/// Values of one `Var` written into another in the step: reading both gives one value under two names.
pub fn one_value_written_to_two_vars(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((Var::state(&vector(&[1.0], device))?, Var::state(&vector(&[2.0], device))?)),
        |_, _| Ok(()),
        |(a, b), k, seen| {
            let v = (a.get() + 1.0)?;
            a.set(&v)?;
            if k % 2 == 0 {
                b.set(&v)?;
            }
            seen.keep(&(&a.get() * &b.get())?);
            seen.keep(&(&a.get() - &v)?);
            Ok(())
        },
        |s| vec![s.0.clone(), s.1.clone()],
    );
}

/// A `Var` whose value was an argument: the argument again, another one, a view of it.
pub fn an_argument_put_into_a_var(device: &Device) {
    compare(
        device,
        &Expect::steady(8).launches(&[0; 8]).any_compiles(),
        || Ok((Var::state(&vector(&[1.0, 2.0], device))?, filled(&[4], 1, device), vector(&[1.0, 2.0], device))),
        |s: &mut (Var, Tensor, Tensor), k| {
            s.2 = s.1.slice(0, k % 3, 2)?;
            Ok(())
        },
        |(w, _, x), k, seen| {
            seen.keep(&(&w.get() + &*x)?);
            w.set(x)?;
            if k % 2 == 1 {
                seen.keep(&(&w.get() * &*x)?);
            }
            w.set(&(w.get() + 1.0)?)
        },
        |s| vec![s.0.clone()],
    );
}

scenarios!(
    arguments_become_aliases,
    aliases_disappear,
    a_snapshot_is_an_operand_before_the_var_is_read,
    a_snapshot_is_an_operand_after_the_var_is_read,
    gradients_through_an_alias,
    two_vars_of_one_tensor,
    one_var_under_two_names,
    one_value_written_to_two_vars,
    an_argument_put_into_a_var,
);
