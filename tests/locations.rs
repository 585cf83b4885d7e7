//! Every `file:line` that a report or an error names lies in the user's file: here.

mod harness;

use harness::{filled, own_device, scalar, vector};
use stepgraph::diag::report::{Note, Report};
use stepgraph::nn::{Linear, Module};
use stepgraph::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use stepgraph::{Device, Result, Rng, Tensor, Var, jit};

/// Each note lies in this file, at one of its lines; so does every place named in its text.
fn assert_here(what: &str, notes: &[Note]) {
    let lines = include_str!("locations.rs").lines().count();
    for n in notes {
        let place = n.at.strip_prefix("gradient of ").unwrap_or(&n.at);
        let (file, line) = place.rsplit_once(':').unwrap_or_else(|| panic!("{what}: no place in {n:?}"));
        assert_eq!(file, file!(), "{what}: {n:?}");
        assert!(line.parse::<usize>().is_ok_and(|l| (1..=lines).contains(&l)), "{what}: {n:?}");
        assert!(!n.text.contains("unknown place"), "{what}: {n:?}");
        for word in n.text.split_whitespace().filter(|w| w.contains(".rs:")) {
            assert!(word.trim_matches(['(', ')', ',', ';', ':']).starts_with(file!()), "{what}: {word} in {n:?}");
        }
        assert!(n.count > 0 && !n.text.is_empty(), "{n:?}");
    }
}

fn assert_all_here(report: &Report) {
    assert_here("divergences", &report.divergences);
    assert_here("host reads", &report.host_reads);
    assert_here("kept values", &report.kept);
    assert_here("copies", &report.copies);
    // What people read says the same.
    let text = report.to_string();
    for word in text.split_whitespace().filter(|w| w.contains(".rs:")) {
        assert!(word.trim_matches(['(', ')', ',', ';', ':']).starts_with(file!()), "{word} in\n{text}");
    }
    assert!(!text.contains("unknown place"), "{text}");
}

fn model(device: &Device) -> (Linear, Linear, Adam, Tensor, Tensor) {
    let rng = Rng::seed_from(1);
    let (a, b) = (Linear::new(6, 8, &rng, device).expect("a layer"), Linear::new(8, 3, &rng, device).expect("a layer"));
    let parameters = a.parameters().into_iter().chain(b.parameters()).collect();
    let adam = Adam::new(parameters, AdamConfig::default()).expect("an optimizer");
    let labels = Tensor::from_vec(vec![0i64, 1, 2, 1], [4], device).expect("labels");
    (a, b, adam, filled(&[4, 6], 2, device), labels)
}

/// A divergence at every kind of place: in layers, losses, gradients, optimizers, reads, writes.
#[test]
fn divergences() {
    let device = &own_device();
    let (a, b, mut adam, x, labels) = model(device);
    let mut sgd =
        Sgd::new(a.parameters(), SgdConfig { lr: 0.1, momentum: 0.9, ..SgdConfig::default() }).expect("an optimizer");
    let mut step = jit::Step::new();
    let mut kept = Vec::new();
    let mut run = |way: usize| {
        step.run(|| {
            let h = a.forward(&x)?;
            let h = if way == 1 { h.relu()? } else { h.tanh()? };
            let y = b.forward(&h)?;
            let y = if way == 2 { y.softmax(1)? } else { y };
            let loss = if way == 3 { y.mean(())? } else { y.cross_entropy(&labels)? };
            if way == 4 {
                loss.item::<f32>()?;
            }
            let g = loss.backward()?;
            if way == 5 {
                sgd.step(&g)?;
            } else {
                adam.step(&g)?;
            }
            if way == 6 {
                kept.push(g.get(&b.weight).expect("a gradient"));
                kept.push(h);
            }
            if way == 7 {
                return b.bias.as_ref().expect("a bias").get().sum(());
            }
            if way == 8 {
                let bias = b.bias.as_ref().expect("a bias");
                bias.set(&(bias.get() * 0.5)?)?;
            }
            Ok(loss)
        })
        .map(|_| ())
    };
    for way in [0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 8, 0, 1] {
        run(way).expect("a call");
    }
    let report = step.report();
    assert!(report.divergences.len() >= 6, "{report}");
    assert!(!report.host_reads.is_empty() && !report.kept.is_empty(), "{report}");
    assert!(report.kept.iter().any(|n| n.at.starts_with("gradient of ")), "a gradient was kept\n{report}");
    assert_all_here(&report);
}

/// The line of a divergence is that of the op that differs, and of a read that of the read.
#[test]
fn exact_lines() {
    let device = &own_device();
    let x = vector(&[1.0, 2.0], device);
    let mut step = jit::Step::new();
    let (mut op, mut read, mut shown) = (0, 0, 0);
    for k in 0..6 {
        step.run(|| {
            let y = (&x * 2.0)?;
            op = line!() + 1;
            let z = if k % 2 == 0 { y.exp()? } else { y.sin()? };
            read = line!() + 1;
            z.to_vec::<f32>()?;
            shown = line!() + 1;
            let w = (&z + 1.0)?;
            assert!(!format!("{w}").is_empty());
            Ok(())
        })
        .expect("a call");
    }
    let report = step.report();
    let at = |line: u32| format!("{}:{line}", file!());
    let lines = |notes: &[Note]| notes.iter().map(|n| n.at.clone()).collect::<Vec<_>>();
    assert_eq!(lines(&report.divergences), [at(op)], "{report}");
    // `Display` is attributed to the line that made the value: formatting hides its caller.
    assert_eq!(lines(&report.host_reads), [at(read), at(shown)], "{report}");
    let text = &report.divergences[0].text;
    assert!(text.contains("exp") && text.contains("sin"), "says what was recorded and what came: {text}");
    assert_all_here(&report);
}

/// Ops on another device are reported at their line.
#[test]
fn copies() {
    let (device, other) = (&own_device(), own_device());
    let (x, far) = (vector(&[1.0], device), scalar(2.0, &other));
    let mut step = jit::Step::new();
    let mut line = 0;
    for _ in 0..4 {
        step.run(|| {
            let y = (&x + 1.0)?;
            line = line!() + 1;
            let z = far.exp()?;
            &y * &z.to_device(device)?
        })
        .expect("a call");
    }
    let report = step.report();
    assert_eq!(report.copies[0].at, format!("{}:{line}", file!()), "{report}");
    assert_eq!(report.copies[0].count, 4);
    assert_all_here(&report);
}

/// Errors from inside the library's own compositions name the user's line, gradients included.
#[test]
fn errors() {
    let device = &own_device();
    let (a, b, ..) = model(device);
    let narrow = filled(&[4, 2], 1, device);
    let bad = Tensor::from_vec(vec![0i64, 9], [2], device).expect("indices");
    let w = Var::new(&filled(&[3, 2], 1, device)).expect("a Var");
    type Wrong<'a> = (&'static str, Box<dyn Fn() -> Result<Tensor> + 'a>);
    let wrongs: Vec<Wrong<'_>> = vec![
        ("layer", Box::new(|| a.forward(&narrow))),
        ("mse", Box::new(|| narrow.mse(&w.get()))),
        ("softmax", Box::new(|| narrow.softmax(5))),
        ("mean", Box::new(|| narrow.mean([0, 7]))),
        ("index_select", Box::new(|| narrow.index_select(0, &narrow))),
        ("scatter_add", Box::new(|| narrow.scatter_add(0, &bad, &narrow))),
        ("uniform", Box::new(|| Rng::seed_from(1).uniform([1; 9], device))),
        ("select", Box::new(|| narrow.select(1.0, 2.0))),
    ];
    for (name, wrong) in &wrongs {
        let mut step = jit::Step::new();
        let mut errors = vec![wrong().expect_err(name)];
        for _ in 0..3 {
            errors.push(step.run(wrong).expect_err(name));
        }
        for e in errors {
            assert_eq!(e.loc().file(), Some(file!()), "{name}: {e}");
            assert!(e.to_string().contains(file!()), "{name}: {e}");
            assert!(!e.to_string().contains("src/"), "{name}: {e}");
        }
    }
    assert_eq!(b.parameters().len(), 2);
}
